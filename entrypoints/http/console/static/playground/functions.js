/** Functions that the client runs, each as a small form. */

import { ApiError } from "../api.js";
import { append, el } from "../dom.js";
import { pretty } from "../format.js";
import { JsonField } from "./json_field.js";

const NAME = /^[A-Za-z0-9_-]{1,64}$/;
const PLAIN = { type: "object", properties: {}, additionalProperties: false };
const SHOWN = new Set(["type", "name", "description", "parameters", "strict"]);

/** Return whether the form can show a tool whole. */
export function isShown(tool) {
  return tool.type === "function" && Object.keys(tool).every((name) => SHOWN.has(name));
}

let made = 0;

export class ToolForm {
  /** @param {Object} tool @param {(form: ToolForm) => void} onRemove */
  constructor({ name = "", description = "", parameters = PLAIN, strict = null }, onRemove) {
    made += 1;
    const id = (part) => `function-${made}-${part}`;
    this.name = el("input", { id: id("name"), value: name, autocomplete: "off", spellcheck: "false", "aria-describedby": id("fault"), onInput: () => this.check() });
    this.fault = el("p", { class: "error", id: id("fault"), role: "status" });
    this.description = el("textarea", { id: id("description"), rows: 2, value: description ?? "", dir: "auto" });
    this.parameters = new JsonField(id("parameters"), "Parameters (JSON schema)", { wants: "object", param: "parameters", rows: 5 });
    this.parameters.text = typeof parameters === "string" ? parameters : pretty(parameters ?? {});
    this.strict = el("input", { id: id("strict"), type: "checkbox", checked: strict === true });
    this.given = strict;
    const field = (input, label) => el("div", { class: "field" }, el("label", { for: input.id }, label), input);
    this.legend = el("legend", { dir: "auto" });
    this.node = el("fieldset", { class: "function" }, this.legend,
      field(this.name, "Name"), this.fault, field(this.description, "Description"), this.parameters.node,
      el("div", { class: "row" }, el("label", { class: "check", for: id("strict") }, this.strict, "Strict"),
        el("button", { type: "button", onClick: () => onRemove(this) }, "Remove")));
    this.check();
  }

  check() {
    const isRight = NAME.test(this.name.value);
    this.legend.textContent = this.name.value ? `Function ${this.name.value}` : "Function";
    this.fault.textContent = isRight || this.name.value === "" ? "" : "A name has up to 64 letters, digits, _ and -.";
    if (this.fault.textContent) this.name.setAttribute("aria-invalid", "true");
    else this.name.removeAttribute("aria-invalid");
  }

  /** Return the tool. `path` is what an error names. Throws: an ApiError. */
  read(path) {
    const name = this.name.value.trim();
    if (name === "") throw new ApiError(400, "A function needs a name.", "missing", `${path}.name`);
    const { value, fault } = this.parameters.parse();
    if (fault) throw new ApiError(400, fault, "invalid_json", `${path}.parameters`);
    const description = this.description.value;
    const strict = this.strict.checked || (this.given === null ? null : false);
    return {
      type: "function", name, ...(description ? { description } : {}), parameters: value ?? PLAIN, ...(strict === null ? {} : { strict }),
    };
  }

  /** What a reader has written, right or not. */
  get values() {
    return { name: this.name.value, description: this.description.value, parameters: this.parameters.text, strict: this.strict.checked || this.given };
  }

  /** Return the field that an error names, by what follows the tool's path. */
  fieldOf(rest) {
    if (rest.startsWith(".parameters")) return this.parameters.area;
    return rest.startsWith(".description") ? this.description : this.name;
  }
}

/** The forms of all functions. */
export class ToolForms {
  constructor(onChange) {
    this.onChange = onChange;
    this.forms = [];
    this.place = el("div", {});
    this.node = el("div", {}, this.place,
      el("button", { type: "button", onClick: () => this.add({}).name.focus() }, "Add a function"));
  }

  add(tool) {
    const form = new ToolForm(tool, (each) => this.remove(each));
    this.forms.push(form);
    append(this.place, form.node);
    this.onChange();
    return form;
  }

  remove(form) {
    this.forms = this.forms.filter((each) => each !== form);
    form.node.remove();
    this.onChange();
    this.node.querySelector(":scope > button").focus();
  }

  /** Show these and no others. */
  set(tools) {
    for (const { node } of this.forms) node.remove();
    this.forms = [];
    tools.forEach((tool) => this.add(tool));
    this.onChange();
  }

  get names() {
    return this.forms.map(({ name }) => name.value.trim()).filter((name) => NAME.test(name));
  }
}
