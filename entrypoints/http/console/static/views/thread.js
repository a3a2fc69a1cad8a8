/** A thread: the responses of a chain or a conversation below one another, with its forks. */

import { ApiError, get } from "../api.js";
import { el, replace } from "../dom.js";
import { count, counted, isRunning } from "../format.js";
import { poll } from "../poll.js";
import { go, link } from "../routes.js";
import { announce } from "../shell.js";
import { treeOf, wayFrom } from "../threads/tree.js";
import { Turn } from "../threads/turn.js";

export const title = "Thread";

const POLL_MS = 3000;
const PAGE = 100;
/** A longer fork is folded at first. */
const MAX_OPEN = 5;

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  if (!params.id) {
    replace(root, el("h1", {}, title), form());
    return;
  }
  const place = { summary: el("p", { class: "dim summary" }), error: el("p", { class: "error", role: "alert" }), notes: el("div", {}), turns: el("div", { class: "thread" }) };
  const turns = new Map();
  const shown = { ids: null, nodes: [] };
  const refresh = async () => {
    const thread = await (params.id.startsWith("conv_") ? conversation(params, signal) : chain(params, signal));
    place.error.textContent = "";
    draw(place, turns, shown, thread, params, signal);
  };
  await refresh();
  replace(root, el("h1", {}, title), place.summary, place.error, place.notes, place.turns);
  toNewest(turns, shown.newest);
  poll(() => refresh().catch((problem) => {
    if (problem.name === "AbortError") return;
    if (!(problem instanceof ApiError)) throw problem;
    place.error.textContent = `${problem.message} The page asks again every ${POLL_MS / 1000} seconds.`;
  }), signal, POLL_MS);
}

/** The newest turn is seen first, and a keyboard begins there. */
function toNewest(turns, id) {
  const newest = turns.get(id);
  if (newest === undefined) return;
  newest.node.scrollIntoView({ block: "end" });
  newest.focus();
}

async function chain({ id }, signal) {
  const thread = await get(`/console/threads/${encodeURIComponent(id)}`, null, signal);
  return { ...thread, beforeOf: (response) => response.previous_response_id };
}

/** The newest responses of a conversation, in which each continues the one before. */
async function conversation({ id, after }, signal) {
  const page = await get("/v1/responses", { conversation: id, limit: PAGE, after, "include[]": "metrics" }, signal);
  const data = page.data.reverse();
  return { data, older: page.has_more ? page.last_id : null, searched: page.searched, beforeOf: (_, index) => data[index - 1]?.id ?? null };
}

function draw(place, turns, shown, thread, params, signal) {
  const beginnings = treeOf(thread.data, params.id, thread.beforeOf);
  for (const { id } of thread.data) if (!turns.has(id)) turns.set(id, new Turn(signal));
  const ids = thread.data.map((each) => each.id).join(" ");
  const all = [];
  const list = (node) => el("ol", { class: "turns" }, wayFrom(node).map((each) => {
    all.push(each);
    return el("li", {}, turns.get(each.response.id).node, each.branches.map((branch, index) => fork(branch, index, each, list)));
  }));
  if (ids !== shown.ids) {
    const focused = document.activeElement;
    replace(place.turns, beginnings.map(list));
    if (focused?.isConnected) focused.focus({ preventScroll: true });
    shown.nodes = all;
  } else {
    // The tree is the same, so its nodes stay; only what they say may differ.
    const byId = new Map(thread.data.map((each) => [each.id, each]));
    for (const node of shown.nodes) node.response = byId.get(node.response.id);
  }
  shown.ids = ids;
  for (const node of shown.nodes) turns.get(node.response.id).draw(node, node.response.id === params.id);
  shown.newest = beginnings.length ? wayFrom(beginnings.at(-1)).at(-1).response.id : undefined;
  describe(place, thread, shown.nodes, params);
}

function fork(branch, index, { branches }, list) {
  const name = `Fork${branches.length > 1 ? ` ${index + 1}` : ""}: ${counted(branch.size, "response")}`;
  return el("details", { class: "fork", open: branch.size <= MAX_OPEN }, el("summary", { class: "head" }, name), list(branch));
}

function describe({ summary, notes }, thread, nodes, params) {
  const forks = nodes.reduce((sum, each) => sum + each.branches.length, 0);
  const running = thread.data.filter(isRunning).length;
  const words = `${counted(thread.data.length, "response")}, ${counted(forks, "fork")}, ${running} running`;
  if (summary.textContent === words) return;
  if (summary.textContent !== "") announce(words);
  summary.textContent = words;
  replace(notes,
    thread.data.length === 0 && el("p", {}, thread.older ? `None of ${count(thread.searched)} responses that were searched is of this conversation.` : "No response is of this conversation."),
    thread.earlier && el("p", {}, el("a", { href: link("threads", { id: thread.earlier }) }, "Responses before these")),
    thread.older && el("p", {}, el("a", { href: link("threads", { ...params, after: thread.older }) }, "Responses before these")),
    thread.deleted && el("p", { class: "dim" }, "The response before these was deleted or has expired."),
    thread.has_more && el("p", { class: "dim" }, `${count(thread.searched)} responses of the list were searched for what continues these. There are more: forks or later responses may be missing.`));
}

function form() {
  const input = el("input", { id: "thread", name: "thread", autocomplete: "off", spellcheck: "false", placeholder: "resp_… or conv_…" });
  const send = (event) => {
    event.preventDefault();
    go("threads", { id: input.value.trim() });
  };
  return el("form", { class: "row", onSubmit: send }, el("label", { for: "thread" }, "A response or a conversation"), input,
    el("button", { type: "submit", class: "primary" }, "Show"));
}
