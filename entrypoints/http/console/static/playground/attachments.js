/** Images and files of the next message: chosen, pasted or dropped; shown with a way to remove them. */

import { el, replace } from "../dom.js";
import { bytes, counted } from "../format.js";
import { announce } from "../shell.js";

/** The types that models see; any other file is shown to them as its text. */
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
/** Room in a request for all that is no file. */
const RESERVED_BYTES = 64 * 1024;

export class Attachments {
  /** @param {{max_body_bytes: number, max_media: number}} limits of a request @param {() => void} onChange */
  constructor(limits, onChange) {
    this.limits = limits;
    this.onChange = onChange;
    this.entries = [];
    /** Ends once all files that were added are read. */
    this.reading = Promise.resolve();
    this.input = el("input", { id: "files", type: "file", multiple: true, class: "visually-hidden", onChange: () => this.choose() });
    this.chips = el("ul", { class: "chips", "aria-label": "Attached files" });
    this.problem = el("p", { class: "error", role: "alert" });
    this.button = [this.input, el("label", { for: "files", class: "button" }, "Attach files")];
    this.node = el("div", {}, this.chips, this.problem);
  }

  /** Take the files that are pasted into an element, or dropped on it. */
  listen(element) {
    element.addEventListener("paste", (event) => this.take(event, event.clipboardData));
    element.addEventListener("drop", (event) => this.take(event, event.dataTransfer));
    element.addEventListener("dragover", (event) => {
      if ([...event.dataTransfer.types].includes("Files")) event.preventDefault();
    });
  }

  take(event, transfer) {
    const files = [...(transfer?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    this.add(files);
  }

  choose() {
    const files = [...this.input.files];
    this.input.value = ""; // the same file may be chosen again
    this.add(files);
  }

  /** Read files, after those before; what cannot be sent is said and left out. @param {File[]} files */
  add(files) {
    this.reading = this.reading.then(() => this.addAll(files));
  }

  async addAll(files) {
    const faults = [];
    for (const file of files) {
      const fault = this.fault(file) ?? (await this.read(file));
      if (fault) faults.push(fault);
    }
    this.draw(faults);
    this.onChange();
    announce(`${counted(this.entries.length, "file")} attached.`);
  }

  fault(file) {
    const { max_body_bytes: most, max_media: many } = this.limits;
    if (this.entries.length >= many) return `${file.name} is left out: a request may have ${counted(many, "file")}.`;
    if (file.size === 0) return `${file.name} is empty.`;
    if (this.bytes + encodedBytes(file.size) + RESERVED_BYTES <= most) return null;
    const others = this.entries.length > 0 ? ` together with ${counted(this.entries.length, "other file")}` : "";
    return `${file.name} (${bytes(file.size)}) is too large${others}: a request may have ${bytes(most)}, and files take a third more in it.`;
  }

  async read(file) {
    try {
      this.entries.push({ name: file.name, type: file.type, size: file.size, url: await dataUrl(file) });
      return null;
    } catch {
      return `${file.name} cannot be read.`;
    }
  }

  get bytes() {
    return this.entries.reduce((sum, { url }) => sum + url.length, 0);
  }

  get hasImages() {
    return this.entries.some(({ type }) => IMAGES.has(type));
  }

  /** Return the parts of a message. */
  parts() {
    return this.entries.map(({ name, type, url }) => (IMAGES.has(type)
      ? { type: "input_image", image_url: url } : { type: "input_file", filename: name, file_data: url }));
  }

  /** Forget these files, which were sent; those that were added meanwhile stay. */
  forget(sent) {
    this.entries = this.entries.filter((each) => !sent.includes(each));
    this.draw([]);
    this.onChange();
  }

  draw(faults) {
    replace(this.chips, this.entries.map((entry) => el("li", { class: "chip" },
      IMAGES.has(entry.type) && el("img", { src: entry.url, alt: "", class: "thumb" }),
      el("span", { class: "file-name", dir: "auto" }, entry.name), el("span", { class: "dim" }, bytes(entry.size)),
      el("button", { type: "button", class: "quiet", "aria-label": `Remove ${entry.name}`, onClick: () => this.remove(entry) }, "×"))));
    replace(this.problem, faults.join(" "));
  }

  remove(entry) {
    this.forget([entry]);
    announce(`${entry.name} removed.`);
    this.input.focus();
  }
}

function encodedBytes(size) {
  return Math.ceil(size / 3) * 4;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
