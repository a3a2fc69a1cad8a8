/** Images and files: shown from data and from this server's files, never from another host. */

import { blob, get } from "../api.js";
import { el, replace, safeSource, save } from "../dom.js";

const MAGIC = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
];
const MAX_TEXT = 20_000;

/** Return nodes for an image: data, or the id of a file; an address is only named. */
export function image({ url, fileId, alt = "image" }) {
  if (fileId) return storedFile(`/v1/files/${encodeURIComponent(fileId)}/content`, fileId, { shows: true });
  if (url && safeSource(url)) return el("img", { src: url, alt, class: "picture" });
  return el("p", { class: "dim" }, "Image at ", el("code", {}, String(url ?? "").slice(0, 500)), " (not loaded from there)");
}

/** Return nodes for a file of a message. */
export function file({ fileId, name, data, url }) {
  const shown = name || fileId || "file";
  if (fileId) return storedFile(`/v1/files/${encodeURIComponent(fileId)}/content`, shown, {});
  if (data) {
    return el("p", {}, el("button", { type: "button", onClick: () => save(fromBase64(data), shown) }, `Save ${shown}`));
  }
  return el("p", { class: "dim" }, `File ${shown} at `, el("code", {}, String(url ?? "").slice(0, 500)));
}

/** Return nodes for a file in a container. */
export function containerFile(containerId, fileId, name) {
  const path = `/v1/containers/${encodeURIComponent(containerId)}/files/${encodeURIComponent(fileId)}/content`;
  return storedFile(path, name || fileId, { shows: /\.(png|jpe?g|gif|webp)$/i.test(name ?? "") });
}

/** Return nodes that list the files of a container when somebody asks for them. */
export function containerFiles(containerId) {
  const place = el("div", {});
  const list = async () => {
    try {
      const { data } = await get(`/v1/containers/${encodeURIComponent(containerId)}/files`, { limit: 100 });
      const nodes = data.map((each) => containerFile(containerId, each.id, each.path?.split("/").at(-1) ?? each.id));
      replace(place, nodes.length ? nodes : el("p", { class: "dim" }, "Its container has no files."));
    } catch (error) {
      replace(place, el("p", { class: "dim" }, error.status === 404 ? "Its container has expired, and its files with it." : error.message));
    }
  };
  return el("section", {}, el("button", { type: "button", onClick: list }, "Files in its container"), place);
}

function storedFile(path, name, { shows = false }) {
  const place = el("div", { class: "file-body" });
  const failed = (error) => replace(place, el("p", { class: "error" }, `${name}: ${error.message}`));
  const showing = () => blob(path).then((content) => showContent(place, content, name)).catch(failed);
  const saving = () => blob(path).then((content) => save(content, name)).catch(failed);
  if (shows) showing();
  return el(
    "div",
    { class: "file" },
    el("span", { class: "file-name" }, name),
    !shows && el("button", { type: "button", onClick: showing }, "Show"),
    el("button", { type: "button", onClick: saving }, "Save"),
    place,
  );
}

async function showContent(place, content, name) {
  const type = await imageType(content);
  if (type !== null) {
    const source = URL.createObjectURL(content.slice(0, content.size, type));
    const shown = el("img", { src: source, alt: name, class: "picture", onLoad: () => URL.revokeObjectURL(source) });
    replace(place, shown);
    return;
  }
  const text = await content.slice(0, MAX_TEXT * 4).text();
  const isText = !text.includes("\u0000") && !text.slice(0, 2000).includes("\ufffd");
  const note = content.size > MAX_TEXT ? ` (the first ${MAX_TEXT} characters)` : "";
  if (isText) replace(place, el("pre", { tabindex: "0", "aria-label": name + note }, text.slice(0, MAX_TEXT)));
  else replace(place, el("p", { class: "dim" }, `${content.size} bytes that are neither text nor an image`));
}

async function imageType(content) {
  const head = new Uint8Array(await content.slice(0, 12).arrayBuffer());
  return MAGIC.find(([, bytes]) => bytes.every((byte, index) => head[index] === byte))?.[0] ?? null;
}

function fromBase64(data) {
  const encoded = data.startsWith("data:") ? data.slice(data.indexOf(",") + 1) : data;
  return new Blob([Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0))]);
}
