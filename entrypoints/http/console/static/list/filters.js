/** The form of the list's filters: each is a parameter of `GET /v1/responses` and of the address. */

import { el } from "../dom.js";

/** Besides the statuses of the API, one is a filter of its own. */
const WAITING = "awaits_approval";
const STATUSES = [
  ["", "any"], [WAITING, "waiting for approval"], ["queued,in_progress", "running"], ["queued", "queued"], ["in_progress", "in progress"],
  ["completed", "completed"], ["failed,incomplete,cancelled", "not completed"], ["failed", "failed"],
  ["incomplete", "incomplete"], ["cancelled", "cancelled"],
];
const ORDERS = [["", "newest first"], ["asc", "oldest first"]];
const SIZES = [["", "50"], ["20", "20"], ["100", "100"]];

/** Filters that are text: the parameter, what people read, and an example. */
const TEXTS = [
  ["model", "Model", ""],
  ["tool", "Tool", "name or type"],
  ["error", "Error", "max_output_tokens"],
  ["key", "Key", "name or id"],
  ["door", "API", "chat_completions"],
  ["conversation", "Conversation", "conv_…"],
  ["previous_response_id", "Previous response", "resp_…"],
];
const TIMES = [["created_after", "Created after"], ["created_before", "Created before"]];

/** Parameters of the address that are the API's own, besides `metadata[NAME]`. */
const NAMES = new Set(["search", "status", WAITING, "order", "limit", "after", ...TEXTS.map(([name]) => name), ...TIMES.map(([name]) => name)]);

/** Return the query of the API for the parameters of an address. */
export function queryOf(params) {
  const known = Object.entries(params).filter(([name]) => NAMES.has(name) || /^metadata\[.+\]$/s.test(name));
  return { limit: 50, ...Object.fromEntries(known), "include[]": "metrics" };
}

/** Return how many filters are set, besides the search. */
export function countOf(params) {
  return Object.keys(params).filter((name) => !["order", "limit", "after", "search"].includes(name)).length;
}

/**
 * Return the form.
 * @param {Object<string, string>} params what is set
 * @param {(params: Object<string, string>) => void} onChange gets all that is set now
 */
export function form(params, onChange) {
  const [name, value] = metadataOf(params);
  const made = el(
    "form",
    { class: "filters", role: "search", "aria-label": "Filter responses", onSubmit: (event) => { event.preventDefault(); onChange({ ...read(made), search: params.search }); } },
    select("status", "State", STATUSES, params[WAITING] ? WAITING : params.status),
    TEXTS.map(([field, label, example]) => input(field, label, { value: params[field] ?? "", placeholder: example })),
    TIMES.map(([field, label]) => input(field, label, { type: "datetime-local", step: "1", value: localTime(params[field]) })),
    input("metadata_name", "Metadata name", { value: name }),
    input("metadata_value", "Metadata value", { value }),
    select("order", "Order", ORDERS, params.order),
    select("limit", "Rows", SIZES, params.limit),
    el("div", { class: "row" },
      el("button", { type: "submit", class: "primary" }, "Apply"),
      el("button", { type: "button", onClick: () => onChange({}) }, "Clear")),
  );
  return made;
}

function read(made) {
  const values = Object.fromEntries([...made.elements].filter((each) => each.name).map((each) => [each.name, each.value.trim()]));
  const { metadata_name: name, metadata_value: value, ...params } = values;
  for (const [field] of TIMES) {
    if (params[field]) params[field] = String(Date.parse(params[field]) / 1000);
  }
  if (params.status === WAITING) Object.assign(params, { status: "", [WAITING]: "true" });
  return name ? { ...params, [`metadata[${name}]`]: value } : params;
}

function metadataOf(params) {
  const found = Object.entries(params).find(([name]) => name.startsWith("metadata["));
  return found ? [found[0].slice(9, -1), found[1]] : ["", ""];
}

function localTime(epoch) {
  if (!epoch || Number.isNaN(Number(epoch))) return "";
  const date = new Date(Number(epoch) * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function input(name, label, attributes) {
  return el("div", { class: "field" }, el("label", { for: `f-${name}` }, label),
    el("input", { id: `f-${name}`, name, spellcheck: "false", autocomplete: "off", ...attributes }));
}

function select(name, label, options, value = "") {
  const made = el("select", { id: `f-${name}`, name }, options.map(([each, words]) => el("option", { value: each }, words)));
  made.value = value;
  return el("div", { class: "field" }, el("label", { for: `f-${name}` }, label), made);
}
