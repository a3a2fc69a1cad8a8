/** What can be done with a response. */

import { ApiError, blob, get, post, remove } from "../api.js";
import { dialog } from "../dialog.js";
import { el, save } from "../dom.js";
import { isRunning } from "../format.js";
import { go, link } from "../routes.js";
import { answer, answersOf, calledName, requestsOf } from "./approvals.js";
import { showCopies } from "./copies.js";
import { requestOf } from "./snippets.js";

const MAX_INPUT = 2000;

/** Return the buttons for a response. @param {Object} response @returns {Node[]} */
export function buttons(response) {
  const problem = el("p", { class: "error", role: "alert" });
  const act = (label, work, attributes = {}) => el("button", {
    type: "button", ...attributes, onClick: (event) => attempt(event.target, problem, work),
  }, label);
  const path = `/v1/responses/${encodeURIComponent(response.id)}`;
  const isDone = !isRunning(response);
  return [
    approvals(response, problem),
    response.background && !isDone && act("Cancel", () => post(`${path}/cancel`, {})),
    isDone && el("a", { class: "button", href: link("playground", { previous: response.id }) }, "Continue"),
    isDone && goOnAfter(response),
    el("a", { class: "button", href: link("playground", { again: response.id }) }, "Run again"),
    el("a", { class: "button", href: link("compare", { left: response.previous_response_id ?? "", right: response.id }) }, "Compare"),
    act("Copy as…", async () => showCopies(requestOf(response, await inputOf(response.id)), response)),
    act("Download bundle", async () => save(await blob(`${path}/explain`), `${response.id}.json`)),
    act("Delete", () => confirmDelete(path), { class: "danger" }),
    problem,
  ].filter(Boolean);
}

/** Return the whole input of a response. @param {string} id @returns {Promise<Object[]>} */
export async function inputOf(id, signal) {
  const items = [];
  for (let after = ""; ;) {
    const page = await get(`/v1/responses/${encodeURIComponent(id)}/input_items`, { order: "asc", limit: 100, after }, signal);
    items.push(...page.data);
    if (!page.has_more || items.length >= MAX_INPUT) return items;
    after = page.last_id;
  }
}

async function attempt(button, problem, work) {
  problem.textContent = "";
  button.disabled = true;
  try {
    await work();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    problem.textContent = error.message;
  } finally {
    button.disabled = false;
  }
}

/** Those that wait are answered at once; each is approved or denied, and only once. */
function approvals(response, problem) {
  const states = answersOf(response);
  const all = requestsOf(response);
  const requests = all.filter((item) => !states.get(item.id));
  if (all.length === 0 || isRunning(response)) return null;
  if (requests.length === 0) return answered([...new Set(states.values())]);
  const rows = requests.map((item) => {
    const choice = el("select", { "aria-label": `Answer to ${calledName(item)}` },
      el("option", { value: "true" }, "approve"), el("option", { value: "false" }, "deny"));
    return { item, choice, row: el("label", {}, `${calledName(item)} `, choice) };
  });
  const send = async () => {
    const id = await answer(response, rows.map(({ item, choice }) => [item.id, choice.value === "true"]));
    go("responses", { id });
  };
  const button = el("button", { type: "button", class: "primary", onClick: (event) => attempt(event.target, problem, send) }, "Answer");
  return el("div", { class: "approvals row", role: "group", "aria-label": "Approvals" }, rows.map(({ row }) => row), button);
}

function answered(ids) {
  return el("div", { class: "approvals row" }, "Answered in ", ids.map((id) => el("a", { href: link("responses", { id }) }, id)));
}

/** Choose the item after which another run goes on. */
function goOnAfter(response) {
  const items = response.output ?? [];
  if (items.length < 2) return null;
  const choose = (event) => go("playground", { again: response.id, upto: event.target.value });
  return el("select", { "aria-label": "Continue after an item", onChange: choose },
    el("option", { value: "" }, "Continue after…"),
    items.map((item, index) => el("option", { value: index + 1 }, `${index + 1}. ${item.type}`)));
}

function confirmDelete(path) {
  const really = async () => {
    await remove(path);
    go("responses");
  };
  const problem = el("p", { class: "error", role: "alert" });
  const button = el("button", {
    type: "button", class: "danger",
    onClick: async (event) => {
      await attempt(event.target, problem, really);
      if (problem.textContent === "") event.target.closest("dialog").close();
    },
  }, "Delete it");
  dialog("Delete this response?", [el("p", {}, "It cannot be brought back. Responses that follow it keep what they read."), problem], [button]);
}
