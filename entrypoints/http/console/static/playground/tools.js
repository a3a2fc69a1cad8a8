/**
 * The tools of a request: those that this server runs as checkboxes, its MCP servers by label,
 * functions as forms, and whatever else there is as JSON.
 */

import { el } from "../dom.js";
import { pretty } from "../format.js";
import { ToolForms, isShown } from "./functions.js";
import { JsonField } from "./json_field.js";
import { isPublic } from "./memory.js";

/** How a tool that this server runs is asked for; one that is not here needs nothing but its type. */
const HOSTED = {
  code_interpreter: { container: { type: "auto" } },
  shell: { environment: { type: "container_auto" } },
};
const FILE_SEARCH = "file_search";
const EXAMPLES = {
  "MCP server by URL": { type: "mcp", server_label: "docs", server_url: `${location.origin}/mcp`, require_approval: "always" },
  "Tool with free text": { type: "custom", name: "note", description: "Write a note." },
};
const APPROVALS = ["always", "never"];

export class Tools {
  /** @param {string[]} hosted types of tools @param {string[]} labels of MCP servers @param {(names: string[]) => void} onFunctions */
  constructor(hosted, labels, onFunctions) {
    const check = (id, value) => ({ value, input: el("input", { id, type: "checkbox" }) });
    this.hosted = hosted.filter((type) => type !== "mcp").map((type) => check(`tool-${type}`, type));
    this.labels = labels.map((label) => check(`mcp-${label}`, label));
    this.stores = el("input", { id: "vector-stores", autocomplete: "off", spellcheck: "false", placeholder: "vs_…, vs_…" });
    this.approval = el("select", { id: "approval" }, el("option", { value: "" }, "not sent"), APPROVALS.map((each) => el("option", { value: each }, each)));
    this.functions = new ToolForms(() => onFunctions(this.functions.names));
    this.functions.node.addEventListener("input", () => onFunctions(this.functions.names));
    const examples = el("div", { class: "row" }, Object.entries(EXAMPLES).map(([name, tool]) => el("button", {
      type: "button", onClick: () => { this.other.text = pretty([...(this.other.parse().value ?? []), tool]); this.other.area.dispatchEvent(new Event("input", { bubbles: true })); },
    }, name)));
    this.other = new JsonField("tools", "Other tools (JSON)", { wants: "list", param: "tools", rows: 3, placeholder: "[]" }, examples);
    this.node = el("div", {}, this.checks("Run by this server", this.hosted, this.hosted.some(({ value }) => value === FILE_SEARCH) && this.field(this.stores, "Vector stores to search")),
      this.checks("MCP servers", this.labels, this.labels.length > 0 && this.field(this.approval, "Approval of calls")),
      el("h3", {}, "Functions"), this.functions.node, this.other.node);
  }

  field(input, label) {
    return el("div", { class: "field" }, el("label", { for: input.id }, label), input);
  }

  checks(legend, entries, more) {
    if (entries.length === 0) return null;
    return el("fieldset", {}, el("legend", {}, legend),
      entries.map(({ value, input }) => el("label", { class: "check", for: input.id }, input, el("span", {}, value))), more);
  }

  /** Return the list of tools, null if there is none. Throws: an ApiError that names a field. */
  read() {
    const sources = [];
    const add = (field, tool) => sources.push({ field, tool });
    for (const { value, input } of this.hosted.filter((each) => each.input.checked)) {
      const ids = this.stores.value.split(/[\s,]+/).filter(Boolean);
      if (value === FILE_SEARCH) add(() => this.stores, { type: value, vector_store_ids: ids });
      else add(() => input, { type: value, ...HOSTED[value] });
    }
    const approval = this.approval.value ? { require_approval: this.approval.value } : {};
    for (const { value, input } of this.labels.filter((each) => each.input.checked)) {
      add(() => input, { type: "mcp", server_label: value, ...approval });
    }
    for (const form of this.functions.forms) {
      add((rest) => form.fieldOf(rest), null);
      this.sources = sources; // an error of the form itself is shown at its field, too
      sources.at(-1).tool = form.read(`tools[${sources.length - 1}]`);
    }
    for (const tool of this.other.read() ?? []) add(() => this.other.area, tool);
    this.sources = sources;
    return sources.length ? sources.map(({ tool }) => tool) : null;
  }

  /** Return the field of a parameter that an error names. */
  fieldOf(param) {
    const [, index, rest] = /^tools\[(\d+)\](.*)/.exec(param) ?? [];
    return this.sources?.[Number(index)]?.field(rest) ?? this.other.area;
  }

  /** Show the tools of a request. */
  write(tools) {
    const left = [...tools];
    const take = (isIt) => {
      const index = left.findIndex(isIt);
      return index < 0 ? null : left.splice(index, 1)[0];
    };
    const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
    for (const { value, input } of this.hosted) {
      const found = value === FILE_SEARCH
        ? take((tool) => same(Object.keys(tool).sort(), ["type", "vector_store_ids"]) && tool.type === value)
        : take((tool) => same(tool, { type: value, ...HOSTED[value] }));
      input.checked = found !== null;
      if (found?.vector_store_ids) this.stores.value = found.vector_store_ids.join(", ");
    }
    const byLabel = left.filter((tool) => tool.type === "mcp" && this.labels.some(({ value }) => value === tool.server_label));
    const approval = byLabel[0]?.require_approval ?? "";
    this.approval.value = APPROVALS.includes(approval) ? approval : "";
    for (const { value, input } of this.labels) {
      const wanted = { type: "mcp", server_label: value, ...(this.approval.value ? { require_approval: approval } : {}) };
      input.checked = take((tool) => same(tool, wanted)) !== null;
    }
    this.functions.set(left.filter(isShown));
    const others = left.filter((tool) => !isShown(tool));
    this.other.text = others.length ? pretty(others) : "";
  }

  /** What a reader has chosen and written; other tools only if nothing in them may be secret. */
  get values() {
    const chosen = (entries) => entries.filter(({ input }) => input.checked).map(({ value }) => value);
    const others = (this.other.parse().value ?? []).filter(isPublic);
    return {
      hosted: chosen(this.hosted), labels: chosen(this.labels), stores: this.stores.value, approval: this.approval.value,
      functions: this.functions.forms.map((form) => form.values), other: others.length ? pretty(others) : "",
    };
  }

  set values({ hosted = [], labels = [], stores = "", approval = "", functions = [], other = "" }) {
    for (const { value, input } of this.hosted) input.checked = hosted.includes(value);
    for (const { value, input } of this.labels) input.checked = labels.includes(value);
    this.stores.value = stores;
    this.approval.value = approval;
    this.functions.set(functions);
    this.other.text = other;
  }
}
