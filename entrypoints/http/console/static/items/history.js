/**
 * The input of a response: what its request added is shown, what came before is folded. A chain of
 * sixty responses has all of its items in each input; they are read when somebody asks for them.
 */

import { OUTPUTS, get } from "../api.js";
import { el, replace } from "../dom.js";
import { counted } from "../format.js";
import { render } from "./transcript.js";

const PAGE = 50;
/** A short history is not worth a click. */
const MAX_OPEN = 4;
const FROM_CLIENTS = new Set([
  "function_call_output", "custom_tool_call_output", "mcp_approval_response", "computer_call_output", "local_shell_call_output",
]);

/** Fill a place with the input of a response, whose path is given. */
export async function drawInput(place, path, signal) {
  const read = (after) => get(`${path}/input_items`, { order: "desc", limit: PAGE, after, "include[]": OUTPUTS }, signal);
  const page = await read("");
  const items = page.data.reverse();
  const isShort = items.length <= MAX_OPEN && !page.has_more;
  const own = isShort ? 0 : beginOfOwn(items);
  replace(place, own > 0 && earlier(items.slice(0, own), page, read), el("h2", {}, "Input"), render(items.slice(own)));
}

/** Return the index from which on no item is the model's; the last item is always the request's. */
function beginOfOwn(items) {
  let at = items.length - 1;
  while (at > 0 && isFromClient(items[at - 1])) at -= 1;
  return at;
}

function isFromClient(item) {
  return (item.type ?? "message") === "message" ? item.role !== "assistant" : FROM_CLIENTS.has(item.type);
}

function earlier(items, page, read) {
  const body = el("div", {});
  const more = page.has_more ? "more than " : "";
  const folded = el("details", { class: "earlier", onToggle: () => { if (folded.open && !body.hasChildNodes()) open(body, items, page, read); } },
    el("summary", { class: "head" }, `Earlier in this conversation: ${more}${counted(items.length, "item")}`), body);
  return folded;
}

/** Show the newest of the earlier items; a button above them adds those before. */
function open(body, items, page, read) {
  const older = page.has_more && olderButton(body, page.last_id, read);
  replace(body, older, render(items));
}

async function add(button, body, after, read) {
  button.disabled = true;
  const page = await read(after);
  const [first] = body.querySelectorAll("article");
  const height = body.offsetHeight;
  first.before(...render(page.data.reverse()));
  scrollBy(0, body.offsetHeight - height);
  if (page.has_more) button.replaceWith(olderButton(body, page.last_id, read));
  else button.remove();
}

function olderButton(body, after, read) {
  const button = el("button", { type: "button", onClick: () => add(button, body, after, read) }, "Items before these");
  return button;
}
