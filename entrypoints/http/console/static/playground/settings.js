/** The fields of a request but its model and input: parameters, tools, a schema, and what has no field here. */

import { el, replace } from "../dom.js";
import { pretty } from "../format.js";
import { JsonField } from "./json_field.js";
import { isPublic } from "./memory.js";
import { PARAMS, Parameters } from "./parameters.js";
import { Tools } from "./tools.js";

const OBJECT = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const SCHEMA = { type: "json_schema", name: "place", strict: true, schema: OBJECT };
/** The types of JSON schemas: with any other, a value is a whole `text.format`. */
const SCHEMA_TYPES = new Set([undefined, "object", "array", "string", "number", "integer", "boolean", "null"]);
const SHOWN = new Set(["model", "input", "tools", "text", ...PARAMS]);
const NARROW = "(max-width: 60rem)";

export class Settings {
  /** @param {string[]} hosted types of tools @param {string[]} labels of MCP servers @param {() => void} onChange */
  constructor(hosted, labels, onChange) {
    this.onChange = onChange;
    this.extra = {};
    this.others = el("div", {});
    this.parameters = new Parameters();
    this.tools = new Tools(hosted, labels, (names) => { this.parameters.offerFunctions(names); onChange(); });
    const example = el("button", { type: "button", onClick: () => { this.schema.text = pretty(SCHEMA); onChange(); } }, "Add a schema");
    this.schema = new JsonField("schema", "A JSON schema, or a whole text.format", { wants: "object", param: "text.format" }, el("div", { class: "row" }, example));
    const group = (name, isOpen, ...body) => el("details", { open: isOpen }, el("summary", {}, name), body);
    this.node = el("details", { class: "settings card", open: !matchMedia(NARROW).matches }, el("summary", {}, "Settings"),
      group("Parameters", true, this.parameters.node, this.others), group("Tools", false, this.tools.node), group("Answer's schema", false, this.schema.node));
  }

  /** Return the fields that are set. Throws: an ApiError that names a field. */
  read() {
    const set = this.parameters.read();
    const format = this.schema.read();
    const tools = this.tools.read();
    return { ...this.extra, ...set, ...(tools ? { tools } : {}), ...(format ? { text: { format: formatOf(format) } } : {}) };
  }

  /** Show the fields of a request. */
  write(request) {
    this.parameters.write(request);
    this.tools.write(request.tools ?? []);
    this.schema.text = request.text?.format ? pretty(request.text.format) : "";
    const hasField = (name, value) => SHOWN.has(name) && (typeof value !== "object" || name !== "instructions" && name !== "tool_choice" || value.type === "function");
    this.keep(Object.fromEntries(Object.entries(request).filter(([name, value]) => !hasField(name, value))));
  }

  /** Fields that have no place here are sent nevertheless, and named. */
  keep(extra) {
    this.extra = extra;
    const names = Object.keys(extra);
    replace(this.others, names.length > 0 && el("p", { class: "row" }, `Also sent: ${names.join(", ")}`,
      el("button", { type: "button", onClick: () => { this.keep({}); this.onChange(); } }, "Leave out")));
  }

  /** The response after which a thread begins, "" for none. */
  get previous() {
    return this.parameters.inputs.previous.value.trim();
  }

  set previous(id) {
    this.parameters.inputs.previous.value = id;
  }

  /** What may be kept of what is chosen and written. */
  get values() {
    const extra = Object.fromEntries(Object.entries(this.extra).filter(([name, value]) => isPublic({ [name]: value })));
    return { parameters: this.parameters.values, tools: this.tools.values, schema: this.schema.text, extra };
  }

  set values({ parameters, tools, schema, extra }) {
    this.tools.values = tools;
    this.parameters.values = parameters;
    this.schema.text = schema;
    this.keep(extra);
  }

  /** Return the field of a parameter that an error names, in sight; or null. */
  fieldOf(param) {
    const field = this.find(param);
    for (let at = field?.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
    return field;
  }

  find(param) {
    if (/^tools\b/.test(param)) return this.tools.fieldOf(param);
    return /^text\b/.test(param) ? this.schema.area : this.parameters.fieldOf(param);
  }
}

/** Return a `text.format`: a schema alone gets a name. */
function formatOf(value) {
  return SCHEMA_TYPES.has(value.type) || Array.isArray(value.type) ? { type: "json_schema", name: "answer", strict: true, schema: value } : value;
}
