/**
 * Items of a response, readable: `render(items)` returns an article for each. Reasoning and the
 * bodies of tools are folded. `live(root)` shows items that change.
 */

import { copyButton, copyable } from "../copy.js";
import { append, el, replace } from "../dom.js";
import { failureOf } from "./failures.js";
import { pretty } from "../format.js";
import { markdown } from "./markdown.js";
import { containerFile, containerFiles, file, image } from "./media.js";
import { pages, passages, webLink } from "./searches.js";

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
  agent_message: (item) => `message from ${item.author ?? "?"} to ${item.recipient ?? "?"}`,
  multi_agent_call: (item) => `agents: ${item.action}`,
  multi_agent_call_output: (item) => `agents: ${item.action} output`,
  program: () => "program",
  program_output: () => "program output",
  shell_call: () => "shell",
  shell_call_output: () => "shell output",
};
const BODIES = {
  message: (item) => parts(item.content, item.role === "assistant" && isWhole(item)),
  reasoning: (item) => [
    parts(item.summary ?? [], isWhole(item)), parts(item.content ?? [], isWhole(item)),
    item.encrypted_content && el("p", { class: "dim" }, "Sealed: only the server can read it."),
  ],
  function_call: (item) => code(pretty(item.arguments), "arguments"),
  function_call_output: (item) => output(item.output),
  custom_tool_call: (item) => said(item.input, "input"),
  custom_tool_call_output: (item) => output(item.output),
  mcp_call: (item) => [
    labeled("Arguments", code(pretty(item.arguments), "arguments")),
    item.output !== null && item.output !== undefined && labeled("Output", said(pretty(item.output))),
    item.error && el("p", { class: "error", dir: "auto" }, typeof item.error === "string" ? item.error : pretty(item.error)),
  ],
  mcp_list_tools: (item) => [
    item.error && el("p", { class: "error" }, String(item.error)),
    el("dl", {}, (item.tools ?? []).map((tool) => [el("dt", {}, el("code", {}, tool.name)), el("dd", {}, tool.description)])),
  ],
  mcp_approval_request: (item) => code(pretty(item.arguments), "arguments"),
  mcp_approval_response: (item) => item.reason && el("p", { dir: "auto" }, item.reason),
  web_search_call: (item) => [code(pretty(withoutSources(item.action)), "action"), pages(item, said)],
  file_search_call: (item) => passages(item.results, said),
  code_interpreter_call: (item) => [
    labeled("Code", code(item.code ?? "", "code")),
    (item.outputs ?? []).map((each) => (each.type === "image"
      ? labeled("Image", image({ url: each.url, alt: "image that the code made" }))
      : labeled("Output", failureOf(item) ? el("div", { class: "failed-output" }, said(each.logs ?? "")) : said(each.logs ?? "")))),
    item.container_id && containerFiles(item.container_id),
  ],
  agent_message: (item) => parts((item.content ?? []).map?.((part) => ({ text: part.text ?? part.encrypted_content })) ?? item.content),
  multi_agent_call: (item) => code(pretty(item.arguments), "arguments"),
  multi_agent_call_output: (item) => (item.output ?? []).map((part) => said(pretty(part.text ?? ""))),
  program: (item) => code(item.code ?? "", "code"),
  program_output: (item) => said(item.result ?? ""),
  shell_call: (item) => code((item.action?.commands ?? []).join("\n"), "commands"),
  shell_call_output: (item) => (item.output ?? []).map((each) => [
    each.stdout && labeled("stdout", said(each.stdout)), each.stderr && labeled("stderr", said(each.stderr)),
    el("p", { class: "dim" }, pretty(each.outcome ?? {})),
  ]),
  image_generation_call: (item) => item.result && image({ url: `data:image/${item.output_format ?? "png"};base64,${item.result}`, alt: item.revised_prompt ?? "image" }),
};
const OPEN = new Set(["message", "agent_message", "mcp_approval_request"]);
/** Calls whose output is what people look for. */
const SHOWS_OUTPUT = new Set(["code_interpreter_call", "program_output", "shell_call_output"]);

/** @param {Object[]} items of an input or an output @returns {Node[]} */
export function render(items) {
  return items.map((item) => article(item));
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
        const isOpen = drawn[index]?.querySelector(":scope > details")?.open;
        const made = article(items[index], isOpen);
        if (drawn[index]) drawn[index].replaceWith(made);
        else append(root, made);
        drawn[index] = made;
      }
      while (drawn.length > items.length) drawn.pop()?.remove();
    },
  };
}

/** Return text in a box, with a button that copies it; a long one is cut, with a button for the rest. */
export function code(text, name = "text", attributes = {}) {
  const whole = String(text ?? "");
  const box = el("pre", { tabindex: "0", ...attributes }, whole.slice(0, MAX_SHOWN));
  return [copyable(box, () => whole, name), whole.length > MAX_SHOWN && rest(box, whole)];
}

/** Return what a tool said, in any language, in a box. */
function said(text, name = "output") {
  return code(text, name, { dir: "auto" });
}

function rest(box, whole) {
  const button = el("button", { type: "button", onClick: () => { replace(box, whole); button.remove(); } },
    `Show all ${whole.length} characters`);
  return button;
}

function article(item, isOpen) {
  const type = item.type ?? "message";
  const failure = failureOf(item);
  const head = [
    item.agent && el("span", { class: "tag agent" }, item.agent.agent_name),
    el("span", { class: "kind" }, (HEADS[type] ?? (() => type))(item)),
    failure && el("span", { class: "tag bad" }, failure),
    !failure && item.status && item.status !== "completed" && el("span", { class: "tag" }, item.status),
  ];
  const body = el("div", { class: "body" }, BODIES[type] ? BODIES[type](item) : code(pretty(item), "item"));
  const attributes = { class: `item ${type} ${item.role ?? ""} ${failure ? "failed" : ""}`, "data-id": item.id };
  if (OPEN.has(type)) {
    const copies = type === "message" && item.status !== "in_progress" && wordsOf(item) !== "" && copyButton(() => wordsOf(item), "message");
    return el("article", attributes, el("div", { class: "head spread" }, el("span", {}, head), copies), body);
  }
  const folded = el("details", {}, el("summary", { class: "head" }, head, preview(item)), body);
  folded.open = isOpen ?? SHOWS_OUTPUT.has(type);
  return el("article", attributes, folded);
}

function wordsOf(item) {
  if (typeof item.content === "string") return item.content;
  return (item.content ?? []).map((part) => part?.text ?? part?.refusal ?? "").filter(Boolean).join("\n");
}

function withoutSources(action) {
  const { sources, ...others } = action ?? {};
  return others;
}

/** The first words of what is folded. */
function preview(item) {
  const first = (list) => list?.find?.((part) => part?.text)?.text;
  const found = first(item.summary) ?? first(item.content) ?? item.arguments ?? item.code ?? item.input ?? item.output;
  return typeof found === "string" && el("span", { class: "preview", dir: "auto" }, found.slice(0, 120).replaceAll(/\s+/g, " "));
}

/** What a model still writes is plain: half a table is none. */
function isWhole(item) {
  return item.status !== "in_progress";
}

/** `isRich`: a model wrote it, so it may be Markdown. */
function parts(content, isRich = false) {
  if (typeof content === "string") return isRich ? markdown(content) : paragraph(content);
  return (content ?? []).filter(Boolean).map((part) => {
    if (part.type === "input_image" || part.type === "computer_screenshot") return image({ url: part.image_url, fileId: part.file_id });
    if (part.type === "input_file") {
      return file({ fileId: part.file_id, name: part.filename, data: part.file_data, url: part.file_url });
    }
    if (part.type === "refusal") return el("p", { class: "refusal", dir: "auto" }, part.refusal);
    if (typeof part.text === "string") return [isRich ? markdown(part.text) : paragraph(part.text), citations(part.annotations)];
    return code(pretty(part), "part");
  });
}

function paragraph(words) {
  const box = el("div", { class: "prose", dir: "auto" }, words.slice(0, MAX_SHOWN));
  return words.length > MAX_SHOWN ? [box, rest(box, words)] : box;
}

function output(value) {
  return typeof value === "string" ? said(pretty(value)) : parts(value);
}

function citations(annotations) {
  if (!annotations?.length) return null;
  return el("ul", { class: "citations" }, annotations.filter(Boolean).map((each) => el("li", {}, citation(each))));
}

function citation(each) {
  if (each.type === "url_citation") return webLink(each.url, each.title || each.url);
  if (each.type === "container_file_citation") return containerFile(each.container_id, each.file_id, each.filename);
  if (each.file_id) return file({ fileId: each.file_id, name: each.filename });
  return pretty(each);
}

function labeled(name, ...nodes) {
  return el("section", {}, el("h4", {}, name), nodes);
}

function qualified(item) {
  return item.namespace ? `${item.namespace}.${item.name}` : item.name;
}
