/** The list of responses: filtered, paged, and asked for again every two seconds while it is seen. */

import { get } from "../api.js";
import { el, replace } from "../dom.js";
import { countOf, form, queryOf } from "../filters.js";
import { count, isRunning, seconds, shortId, speed, speedOf, stateOf, time, tokensOf, toolsOf, tookOf } from "../format.js";
import { go, link } from "../routes.js";
import { announce } from "../shell.js";

export const title = "Responses";

const POLL_MS = 2000;
const COLUMNS = ["State", "Response", "Model", "Created", "Took", "In", "Out", "Tokens/s", "Tools", "Ended by"];
const NUMBERS = new Set(["Took", "In", "Out", "Tokens/s"]);
/** Which page came before a page, by their cursors: the API only goes forward. */
const before = new Map();

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const rows = el("tbody", { role: "rowgroup" });
  const pages = el("nav", { class: "row pages", "aria-label": "Pages" });
  const error = el("p", { class: "error", role: "alert" });
  const summary = el("p", { class: "dim summary" });
  const filters = el("details", { class: "card" },
    el("summary", {}, `Filters${countOf(params) ? ` (${countOf(params)})` : ""}`),
    form(params, (chosen) => go("responses", chosen)));
  filters.open = countOf(params) > 0;
  replace(root, el("h1", {}, title), filters, summary, error, table(rows), pages);
  rows.addEventListener("keydown", (event) => move(rows, event));
  const drawn = new Map();
  const refresh = async (isFirst) => {
    try {
      const page = await get("/v1/responses", queryOf(params), signal);
      error.textContent = "";
      draw(rows, drawn, page.data);
      drawPages(pages, params, page);
      describe(summary, page.data, isFirst);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (isFirst && problem.status !== 0) throw problem;
      error.textContent = problem.message;
    }
  };
  await refresh(true);
  poll(refresh, signal);
}

/** Ask again and again until the view is left; a page that nobody sees asks nothing. */
function poll(refresh, signal) {
  let timer = 0;
  const again = async () => {
    if (!document.hidden) await refresh(false);
    if (!signal.aborted) timer = setTimeout(again, POLL_MS);
  };
  timer = setTimeout(again, POLL_MS);
  const seen = () => !document.hidden && refresh(false);
  document.addEventListener("visibilitychange", seen, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
}

function table(rows) {
  const heads = COLUMNS.map((name) => el("th", { scope: "col", role: "columnheader", class: NUMBERS.has(name) ? "number" : null }, name));
  return el("table", { class: "list", role: "table", "aria-label": "Responses" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)), rows);
}

/** Draw rows; one that says the same as before is left alone. */
function draw(rows, drawn, responses) {
  const wanted = new Set(responses.map((each) => each.id));
  for (const [id, row] of drawn) {
    if (wanted.has(id)) continue;
    row.node.remove();
    drawn.delete(id);
  }
  responses.forEach((response, index) => {
    const cells = cellsOf(response);
    const signature = cells.map(([, value]) => value).join("\u0000");
    let row = drawn.get(response.id);
    if (row === undefined) {
      row = { node: el("tr", { role: "row", "data-id": response.id }), signature: "" };
      drawn.set(response.id, row);
    }
    if (row.signature !== signature) fill(row, response, cells, signature);
    if (rows.children[index] !== row.node) rows.insertBefore(row.node, rows.children[index] ?? null);
  });
  if (rows.children.length > responses.length) [...rows.children].slice(responses.length).forEach((each) => each.remove());
  if (responses.length === 0) {
    replace(rows, el("tr", { role: "row" }, el("td", { role: "cell", colspan: COLUMNS.length, class: "dim" }, "No response is like this.")));
  }
  const links = [...rows.querySelectorAll("a")];
  if (!links.some((each) => each.tabIndex === 0) && links.length) links[0].tabIndex = 0;
}

function fill(row, response, cells, signature) {
  const hadFocus = row.node.contains(document.activeElement);
  const wasReachable = row.node.querySelector("a")?.tabIndex === 0;
  row.signature = signature;
  row.node.className = isRunning(response) ? "running" : "";
  replace(row.node, cells.map(([name, value, node]) =>
    el("td", { role: "cell", "data-label": name, class: NUMBERS.has(name) ? "number" : null }, node ?? value)));
  const anchor = row.node.querySelector("a");
  anchor.tabIndex = wasReachable ? 0 : -1;
  if (hadFocus) anchor.focus();
}

function cellsOf(response) {
  const state = stateOf(response);
  const tokens = tokensOf(response);
  const values = [
    state, shortId(response.id), response.model, time(response.created_at), seconds(tookOf(response)),
    count(tokens.input), count(tokens.output), speed(speedOf(response)), toolsOf(response).join(", "),
    response.error?.code ?? response.incomplete_details?.reason ?? "",
  ];
  const nodes = {
    State: badge(state),
    Response: el("a", { href: link("responses", { id: response.id }), title: response.id }, shortId(response.id)),
  };
  return COLUMNS.map((name, index) => [name, values[index], nodes[name]]);
}

/** Return the state of a response as a colored word. */
export function badge(state) {
  return el("span", { class: `badge ${state}` }, state);
}

/** Arrows, Home and End move between the rows; Enter follows the link. */
function move(rows, event) {
  const links = [...rows.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  const steps = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 };
  const next = links[steps[event.key]];
  if (next === undefined) return;
  event.preventDefault();
  for (const each of links) each.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function drawPages(pages, params, page) {
  const last = page.last_id;
  const wanted = `${params.after ?? ""} ${page.has_more ? last : ""}`;
  if (pages.dataset.shown === wanted) return;
  pages.dataset.shown = wanted;
  if (page.has_more) before.set(last, params.after ?? "");
  replace(
    pages,
    params.after && el("a", { href: link("responses", { ...params, after: "" }) }, "First page"),
    params.after && before.has(params.after) &&
      el("a", { href: link("responses", { ...params, after: before.get(params.after) }), rel: "prev" }, "Page before"),
    page.has_more && el("a", { href: link("responses", { ...params, after: last }), rel: "next" }, "Next page"),
  );
}

function describe(summary, responses, isFirst) {
  const running = responses.filter(isRunning).length;
  const words = `${responses.length} shown, ${running} running`;
  if (summary.textContent === words) return;
  summary.textContent = words;
  if (isFirst) announce(words);
}
