/**
 * Items of a response, readable: `render(items)` returns an article for each. Reasoning and the
 * bodies of tools are folded. `live(root)` shows items that change.
 */

import { append, el, replace, safeHref } from "./dom.js";
import { pretty } from "./format.js";
import { containerFile, file, image } from "./media.js";

const MAX_SHOWN = 20_000;

/** What the head of an item says, by its type; the body is from BODIES or the item's JSON. */
const HEADS = {
  message: (item) => item.role + (item.phase ? ` (${item.phase})` : ""),
  reasoning: () => "reasoning",
  function_call: (item) => `call ${qualified(item)}`,
  function_call_output: (item) => `output ${item.name ?? ""}`,
  custom_tool_call: (item) => `call ${qualified(item)}`,
  custom_tool_call_output: () => "output",
  mcp_call: (item) => `call ${item.server_label}/${item.name}`,
  mcp_list_tools: (item) => `tools of ${item.server_label}: ${(item.tools ?? []).length}`,
  mcp_approval_request: (item) => `approval wanted: ${item.server_label}/${item.name}`,
  mcp_approval_response: (item) => (item.approve ? "approved" : "denied"),
  web_search_call: (item) => `web search: ${item.action?.query ?? item.action?.url ?? item.action?.type ?? ""}`,
  file_search_call: (item) => `file search: ${(item.queries ?? []).join(", ")}`,
  code_interpreter_call: () => "code interpreter",
  shell_call: () => "shell",
  shell_call_output: () => "shell output",
};
const BODIES = {
  message: (item) => parts(item.content),
  reasoning: (item) => [
    parts(item.summary ?? []), parts(item.content ?? []),
    item.encrypted_content && el("p", { class: "dim" }, "Sealed: only the server can read it."),
  ],
  function_call: (item) => code(pretty(item.arguments)),
  function_call_output: (item) => output(item.output),
  custom_tool_call: (item) => code(item.input),
  custom_tool_call_output: (item) => output(item.output),
  mcp_call: (item) => [
    labeled("Arguments", code(pretty(item.arguments))),
    item.output !== null && item.output !== undefined && labeled("Output", code(pretty(item.output))),
    item.error && el("p", { class: "error" }, typeof item.error === "string" ? item.error : pretty(item.error)),
  ],
  mcp_list_tools: (item) => [
    item.error && el("p", { class: "error" }, String(item.error)),
    el("dl", {}, (item.tools ?? []).map((tool) => [el("dt", {}, el("code", {}, tool.name)), el("dd", {}, tool.description)])),
  ],
  mcp_approval_request: (item) => code(pretty(item.arguments)),
  mcp_approval_response: (item) => item.reason && el("p", {}, item.reason),
  web_search_call: (item) => [code(pretty(item.action ?? {})), sources(item.action?.sources)],
  file_search_call: (item) => (item.results ?? []).map((each) => labeled(each.filename ?? each.file_id, code(each.text ?? ""))),
  code_interpreter_call: (item) => [
    labeled("Code", code(item.code ?? "")),
    (item.outputs ?? []).map((each) => (each.type === "image" ? image({ url: each.url }) : labeled("Output", code(each.logs ?? "")))),
  ],
  shell_call: (item) => code((item.action?.commands ?? []).join("\n")),
  shell_call_output: (item) => item.output.map((each) => [
    each.stdout && labeled("stdout", code(each.stdout)), each.stderr && labeled("stderr", code(each.stderr)),
    el("p", { class: "dim" }, pretty(each.outcome ?? {})),
  ]),
  image_generation_call: (item) => item.result && image({ url: `data:image/png;base64,${item.result}`, alt: item.revised_prompt ?? "image" }),
};
const OPEN = new Set(["message", "mcp_approval_request"]);

/** @param {Object[]} items of an input or an output @returns {Node[]} */
export function render(items) {
  return items.map((item) => article(item, false));
}

/**
 * Show items that change.
 * @returns {{draw: (items: Object[], changed?: Iterable<number>) => void}} `changed` are the indices
 *   to draw again; without it, all
 */
export function live(root) {
  const drawn = [];
  return {
    draw(items, changed = items.keys()) {
      for (const index of [...changed].sort((a, b) => a - b)) {
        if (items[index] === undefined) continue;
        const isOpen = drawn[index]?.querySelector(":scope > details")?.open ?? false;
        const made = article(items[index], isOpen);
        if (drawn[index]) drawn[index].replaceWith(made);
        else append(root, made);
        drawn[index] = made;
      }
      while (drawn.length > items.length) drawn.pop()?.remove();
    },
  };
}

/** Return text in a box; a long one is cut, with a button for the rest. */
export function code(text, attributes = {}) {
  const whole = String(text ?? "");
  const box = el("pre", { tabindex: "0", ...attributes }, whole.slice(0, MAX_SHOWN));
  return whole.length > MAX_SHOWN ? [box, rest(box, whole)] : box;
}

function rest(box, whole) {
  const button = el("button", { type: "button", onClick: () => { replace(box, whole); button.remove(); } },
    `Show all ${whole.length} characters`);
  return button;
}

function article(item, isOpen) {
  const type = item.type ?? "message";
  const head = [
    el("span", { class: "kind" }, (HEADS[type] ?? (() => type))(item)),
    item.status && item.status !== "completed" && el("span", { class: "tag" }, item.status),
  ];
  const body = el("div", { class: "body" }, BODIES[type] ? BODIES[type](item) : code(pretty(item)));
  const attributes = { class: `item ${type} ${item.role ?? ""}`, "data-id": item.id };
  if (OPEN.has(type)) return el("article", attributes, el("div", { class: "head" }, head), body);
  const folded = el("details", {}, el("summary", { class: "head" }, head, preview(item)), body);
  folded.open = isOpen;
  return el("article", attributes, folded);
}

/** The first words of what is folded. */
function preview(item) {
  const first = (list) => list?.find?.((part) => part?.text)?.text;
  const found = first(item.summary) ?? first(item.content) ?? item.arguments ?? item.code ?? item.input ?? item.output;
  return typeof found === "string" && el("span", { class: "preview" }, found.slice(0, 120).replaceAll(/\s+/g, " "));
}

function parts(content) {
  if (typeof content === "string") return paragraph(content);
  return (content ?? []).filter(Boolean).map((part) => {
    if (part.type === "input_image" || part.type === "computer_screenshot") return image({ url: part.image_url, fileId: part.file_id });
    if (part.type === "input_file") {
      return file({ fileId: part.file_id, name: part.filename, data: part.file_data, url: part.file_url });
    }
    if (part.type === "refusal") return el("p", { class: "refusal" }, part.refusal);
    if (typeof part.text === "string") return [paragraph(part.text), citations(part.annotations)];
    return code(pretty(part));
  });
}

function paragraph(words) {
  const box = el("div", { class: "prose" }, words.slice(0, MAX_SHOWN));
  return words.length > MAX_SHOWN ? [box, rest(box, words)] : box;
}

function output(value) {
  return typeof value === "string" ? code(pretty(value)) : parts(value);
}

function citations(annotations) {
  if (!annotations?.length) return null;
  return el("ul", { class: "citations" }, annotations.filter(Boolean).map((each) => el("li", {}, citation(each))));
}

function citation(each) {
  if (each.type === "url_citation") return link(each.url, each.title || each.url);
  if (each.type === "container_file_citation") return containerFile(each.container_id, each.file_id, each.filename);
  if (each.file_id) return file({ fileId: each.file_id, name: each.filename });
  return pretty(each);
}

/** Return a link if the address is one of the web, or its text. */
function link(href, words) {
  const isWeb = safeHref(href) !== null && /^https?:/i.test(href);
  return isWeb ? el("a", { href, rel: "noopener noreferrer nofollow", target: "_blank" }, words) : `${words} (${href})`;
}

function sources(list) {
  return list?.length ? el("ul", {}, list.map((each) => el("li", {}, link(each.url ?? "", each.url ?? each.type)))) : null;
}

function labeled(name, ...nodes) {
  return el("section", {}, el("h4", {}, name), nodes);
}

function qualified(item) {
  return item.namespace ? `${item.namespace}.${item.name}` : item.name;
}
