/**
 * The items of a response as its events make them: what a client has seen after each of them.
 *
 *     const folded = start();
 *     for (const event of events) apply(folded, event);
 *     folded.items, folded.response, folded.changed (a Set of indices; the reader empties it)
 */

/** Deltas of texts in an item: the event, and the field that grows. */
const ITEM_TEXTS = {
  "response.function_call_arguments.delta": "arguments",
  "response.mcp_call_arguments.delta": "arguments",
  "response.custom_tool_call_input.delta": "input",
  "response.code_interpreter_call_code.delta": "code",
};
/** Deltas of texts in a part: the event, the list of parts, its index, and the field that grows. */
const PART_TEXTS = {
  "response.output_text.delta": ["content", "content_index", "text"],
  "response.reasoning_text.delta": ["content", "content_index", "text"],
  "response.refusal.delta": ["content", "content_index", "refusal"],
  "response.reasoning_summary_text.delta": ["summary", "summary_index", "text"],
};
const PARTS = {
  "response.content_part.added": ["content", "content_index"],
  "response.content_part.done": ["content", "content_index"],
  "response.reasoning_summary_part.added": ["summary", "summary_index"],
  "response.reasoning_summary_part.done": ["summary", "summary_index"],
};
const ITEMS = ["response.output_item.added", "response.output_item.done"];

/** The events that end a stream. */
export const TERMINAL = ["response.completed", "response.incomplete", "response.failed", "response.cancelled"];

export function start() {
  return { items: [], response: null, error: null, changed: new Set() };
}

/** Add an event. @returns {boolean} whether the stream has ended */
export function apply(folded, event) {
  if (event.response) folded.response = event.response;
  if (event.type === "error") folded.error = event;
  if (event.output_index !== undefined) {
    change(folded, event);
    folded.changed.add(event.output_index);
  }
  if (!TERMINAL.includes(event.type)) return false;
  folded.items = structuredClone(event.response.output);
  folded.items.forEach((_, index) => folded.changed.add(index));
  return true;
}

function change(folded, event) {
  if (ITEMS.includes(event.type)) {
    folded.items[event.output_index] = structuredClone(event.item);
    return;
  }
  const item = folded.items[event.output_index];
  if (item === undefined) return;
  if (event.type in ITEM_TEXTS) {
    const field = ITEM_TEXTS[event.type];
    item[field] = (item[field] ?? "") + event.delta;
  } else if (event.type in PARTS) {
    const [list, index] = PARTS[event.type];
    (item[list] ??= [])[event[index]] = structuredClone(event.part);
  } else if (event.type in PART_TEXTS) {
    const [list, index, field] = PART_TEXTS[event.type];
    const part = ((item[list] ??= [])[event[index]] ??= { type: "output_text" });
    part[field] = (part[field] ?? "") + event.delta;
  } else if (event.type === "response.output_text.annotation.added") {
    (item.content[event.content_index].annotations ??= [])[event.annotation_index] = event.annotation;
  } else if (event.type.startsWith("response.shell_call_command.")) {
    growCommand(item, event);
  }
}

function growCommand(item, event) {
  const commands = ((item.action ??= {}).commands ??= []);
  const before = commands[event.command_index] ?? "";
  commands[event.command_index] = event.command ?? before + event.delta;
}
