/** A field for JSON, which says while somebody writes whether it is JSON. */

import { ApiError } from "../api.js";
import { el, replace } from "../dom.js";

/** What a field wants, in words, and whether a value is that. */
const WANTED = {
  object: ["a JSON object", (value) => typeof value === "object" && value !== null && !Array.isArray(value)],
  list: ["a JSON list", Array.isArray],
};

export class JsonField {
  /**
   * @param {string} id
   * @param {string} label
   * @param {{wants: "object"|"list", param: string, rows?: number, placeholder?: string}} options
   *   `param`: what an error names
   */
  constructor(id, label, { wants, param, rows = 4, placeholder = "" }, ...more) {
    [this.wanted, this.isWanted] = WANTED[wants];
    this.param = param;
    this.verdict = el("p", { class: "verdict dim", id: `${id}-verdict`, role: "status" });
    this.area = el("textarea", {
      id, rows, placeholder, class: "code", spellcheck: "false", "aria-describedby": `${id}-verdict`, onInput: () => this.check(),
    });
    this.node = el("div", { class: "field" }, el("label", { for: id }, label), this.area, this.verdict, more);
  }

  get text() {
    return this.area.value;
  }

  set text(text) {
    this.area.value = text;
    this.check();
  }

  /** Return the value, null if the field is empty. Throws: an ApiError that names the field. */
  read() {
    const { value, fault } = this.parse();
    if (fault) throw new ApiError(400, fault, "invalid_json", this.param);
    return value;
  }

  parse() {
    if (this.text.trim() === "") return { value: null, fault: null };
    try {
      const value = JSON.parse(this.text);
      return this.isWanted(value) ? { value, fault: null } : { value: null, fault: `This must be ${this.wanted}.` };
    } catch (error) {
      return { value: null, fault: `This is no JSON: ${error.message}` };
    }
  }

  check() {
    const { value, fault } = this.parse();
    const said = fault ?? (value === null ? "" : `This is ${this.wanted}.`);
    if (this.verdict.textContent !== said) replace(this.verdict, said);
    this.verdict.classList.toggle("error", fault !== null);
    if (fault) this.area.setAttribute("aria-invalid", "true");
    else this.area.removeAttribute("aria-invalid");
  }
}
