/** The parameters of a request as fields. What is empty is not sent. */

import { ApiError } from "../api.js";
import { el, replace } from "../dom.js";

const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh"];
const CHOICES = ["auto", "none", "required"];

/** Each parameter: its field, what the API calls it, and how it is written. */
const FIELDS = [
  { id: "instructions", label: "Instructions", kind: "text" },
  { id: "effort", label: "Reasoning effort", param: "reasoning", kind: "choice", options: EFFORTS },
  { id: "tool-choice", label: "Tool choice", param: "tool_choice", kind: "choice", options: CHOICES },
  { id: "temperature", label: "Temperature", kind: "number", min: 0, max: 2, step: 0.1 },
  { id: "top-p", label: "Top p", param: "top_p", kind: "number", min: 0, max: 1, step: 0.05 },
  { id: "max-output", label: "Max output tokens", param: "max_output_tokens", kind: "number", min: 1, step: 1 },
  { id: "seed", label: "Seed", kind: "number", step: 1 },
  { id: "previous", label: "Begin after response", param: "previous_response_id", kind: "line" },
  { id: "background", label: "In the background", kind: "check" },
];
/** Values that are no text, number or boolean. */
const READ = {
  effort: (value) => ({ reasoning: { effort: value } }),
  "tool-choice": (value) => ({ tool_choice: CHOICES.includes(value) ? value : { type: "function", name: value.replace(/^call /, "") } }),
};
const WRITE = {
  effort: ({ reasoning }) => reasoning?.effort,
  "tool-choice": ({ tool_choice: choice }) => (choice?.type === "function" ? `call ${choice.name}` : choice),
};

/** The names of the fields of a request that are shown here. */
export const PARAMS = FIELDS.map(({ id, param }) => param ?? id);

export class Parameters {
  constructor() {
    this.inputs = Object.fromEntries(FIELDS.map((field) => [field.id, inputOf(field)]));
    this.node = el("div", { class: "parameters" }, FIELDS.map(({ id, label, kind }) => (kind === "check"
      ? el("label", { class: "check whole", for: id }, this.inputs[id], label)
      : el("div", { class: kind === "text" || kind === "line" ? "field whole" : "field" }, el("label", { for: id }, label), this.inputs[id]))));
  }

  /** Return the fields of a request that are set. Throws: an ApiError that names the field. */
  read() {
    const request = {};
    for (const { id, param = id, kind, label } of FIELDS) {
      const input = this.inputs[id];
      if (input.validity.badInput) throw new ApiError(400, `${label} must be a number.`, "invalid_value", param);
      const value = kind === "check" ? input.checked : input.value;
      if (value === false || (typeof value === "string" && value.trim() === "")) continue;
      Object.assign(request, READ[id]?.(value) ?? { [param]: kind === "number" ? Number(value) : kind === "line" ? value.trim() : value });
    }
    return request;
  }

  /** Show the fields of a request. */
  write(request) {
    const shown = FIELDS.map(({ id, param = id }) => [id, WRITE[id] ? WRITE[id](request) : request[param]]);
    this.values = Object.fromEntries(shown);
  }

  get values() {
    return Object.fromEntries(FIELDS.map(({ id, kind }) => [id, kind === "check" ? this.inputs[id].checked : this.inputs[id].value]));
  }

  set values(values) {
    for (const { id, kind, options } of FIELDS) {
      const value = values[id] ?? "";
      if (kind === "check") this.inputs[id].checked = value === true;
      else if (typeof value !== "object") {
        if (options && value !== "") offer(this.inputs[id], [...options, String(value)]);
        this.inputs[id].value = value;
      }
    }
  }

  /** Let the functions with these names be chosen. */
  offerFunctions(names) {
    const select = this.inputs["tool-choice"];
    const chosen = select.value;
    offer(select, [...CHOICES, ...names.map((name) => `call ${name}`), ...(chosen ? [chosen] : [])]);
    select.value = chosen;
  }

  /** Return the field of a parameter that an error names, or null. */
  fieldOf(param) {
    const found = FIELDS.find(({ id, param: name = id }) => param === name || param.startsWith(`${name}.`));
    return found ? this.inputs[found.id] : null;
  }
}

function inputOf({ id, kind, options, label, ...limits }) {
  if (kind === "text") return el("textarea", { id, rows: 2, spellcheck: "false", dir: "auto" });
  if (kind === "check") return el("input", { id, type: "checkbox" });
  if (kind === "number") return el("input", { id, type: "number", min: limits.min, max: limits.max, step: limits.step });
  if (kind === "line") return el("input", { id, autocomplete: "off", spellcheck: "false" });
  return offer(el("select", { id }), options);
}

function offer(select, options) {
  return replace(select, el("option", { value: "" }, "not sent"), [...new Set(options)].map((name) => el("option", { value: name }, name)));
}
