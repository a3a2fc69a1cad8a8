/** The list of responses: filtered, paged, and asked for again every two seconds while it is seen. */

import { get } from "../api.js";
import { el, replace } from "../dom.js";
import { countOf, form, queryOf } from "../list/filters.js";
import { WAITS, count, doorOf, isRunning, seconds, shortId, speed, speedOf, stateOf, time, tokensOf, toolsOf, tookOf } from "../format.js";
import { nothing } from "../list/nothing.js";
import { matchOf, searchBox } from "../list/search.js";
import { poll } from "../poll.js";
import { go, link } from "../routes.js";
import { announce } from "../shell.js";

export const title = "Responses";

const POLL_MS = 2000;
const COLUMNS = ["State", "Response", "Model", "Created", "Duration", "In", "Out", "Tokens/s", "Tools", "Reason"];
/** What a response is called that has no text, as of a tool that only a program reads. */
const NO_TEXT = "(no text)";
const ROW_LINK = "a.opens-row";
const NUMBERS = new Set(["Duration", "In", "Out", "Tokens/s"]);
/** Which page came before a page, by their cursors: the API only goes forward. */
const before = new Map();
/** Which row was opened in which list, so that Back returns to it. */
const opened = { hash: "", id: "" };

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const rows = el("tbody", { role: "rowgroup" });
  const pages = el("nav", { class: "row pages", "aria-label": "Pages" });
  const error = el("p", { class: "error", role: "alert" });
  const summary = el("p", { class: "dim summary" });
  const empty = el("div", { class: "nothing" });
  const filters = el("details", { class: "card" },
    el("summary", {}, `Filters${countOf(params) ? ` (${countOf(params)})` : ""}`),
    form(params, (chosen) => go("responses", chosen)));
  filters.open = countOf(params) > 0;
  const shown = table(rows);
  const search = searchBox(params, (chosen) => go("responses", chosen));
  replace(root, el("h1", {}, title), search, filters, summary, error, shown, empty, pages);
  rows.addEventListener("keydown", (event) => move(rows, event));
  rows.addEventListener("click", remember);
  const drawn = new Map();
  let seenAt = null;
  const refresh = async (isFirst) => {
    try {
      const page = await get("/v1/responses", queryOf(params), signal);
      error.textContent = "";
      seenAt = Date.now() / 1000;
      draw(rows, drawn, page.data, params.search);
      shown.hidden = page.data.length === 0;
      drawEmpty(empty, params, page.data.length === 0 ? page : null);
      drawPages(pages, params, page);
      describe(summary, page, params.search, isFirst);
      if (isFirst) returnTo(rows);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (isFirst && problem.status !== 0 && problem.param !== "search") throw problem;
      lose(error, problem, drawn.size, seenAt, !params.search);
      summary.textContent = "";
      // What was said of the server's responses may be wrong by now.
      drawEmpty(empty, params, null);
      shown.hidden = drawn.size === 0;
    }
  };
  await refresh(true);
  if (!params.search) poll(() => refresh(false), signal, POLL_MS); // a search reads much, and what it found stays
}

function table(rows) {
  const heads = COLUMNS.map((name) => el("th", { scope: "col", role: "columnheader", class: NUMBERS.has(name) ? "number" : null }, name));
  return el("table", { class: "list", role: "table", "aria-label": "Responses" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads)), rows);
}

/** Draw rows; one that says the same as before is left alone. */
function draw(rows, drawn, responses, search) {
  const wanted = new Set(responses.map((each) => each.id));
  for (const [id, row] of drawn) {
    if (wanted.has(id)) continue;
    row.node.remove();
    drawn.delete(id);
  }
  responses.forEach((response, index) => {
    const cells = cellsOf(response, search);
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
  if (!rows.querySelector("a[tabindex='0']") && responses.length) reach(rows, rows.children[0]);
}

/** One row is reached by the tabulator, the others by arrows. */
function reach(rows, row) {
  for (const each of rows.querySelectorAll("a")) each.tabIndex = row.contains(each) ? 0 : -1;
}

function fill(row, response, cells, signature) {
  const focused = row.node.contains(document.activeElement) ? document.activeElement.className : null;
  const wasReachable = row.node.querySelector("a")?.tabIndex === 0;
  row.signature = signature;
  row.node.className = isRunning(response) ? "running" : "";
  replace(row.node, cells.map(([name, value, node]) =>
    el("td", { role: "cell", "data-label": name, class: NUMBERS.has(name) ? "number" : name === "Response" ? "words" : null }, node ?? value)));
  for (const each of row.node.querySelectorAll("a")) each.tabIndex = wasReachable ? 0 : -1;
  if (focused !== null) (row.node.querySelector(focused && `a.${focused}`) ?? row.node.querySelector("a")).focus();
}

function cellsOf(response, search) {
  const state = stateOf(response);
  const tokens = tokensOf(response);
  const { input: asked, output: answered } = { input: "", output: "", ...response.preview };
  const values = [
    state, `${asked}\u0000${answered}`, response.model, time(response.created_at), seconds(tookOf(response)),
    count(tokens.input), count(tokens.output), speed(speedOf(response)), toolsOf(response).join(", "),
    response.error?.code ?? response.incomplete_details?.reason ?? "",
  ];
  const nodes = {
    State: badge(state),
    Response: [
      el("a", { href: link("responses", { id: response.id }), title: response.id, class: "opens-row", dir: "auto" }, asked || answered || (response.preview ? NO_TEXT : shortId(response.id))),
      asked && answered && el("div", { class: "answered", dir: "auto" }, answered),
      matchOf(response, search),
      el("div", { class: "dim id" }, shortId(response.id), threadOf(response)),
    ],
    Model: doorOf(response) && [response.model, el("div", { class: "dim" }, doorOf(response))],
  };
  return COLUMNS.map((name, index) => [name, values[index], nodes[name] || undefined]);
}

/** Return a link to what a response continues. */
function threadOf(response) {
  const id = response.conversation?.id ?? (response.previous_response_id && response.id);
  return id && [" · ", el("a", { href: link("threads", { id }), class: "to-thread", "aria-label": `Thread of ${response.id}` }, "thread")];
}

/** Return the state of a response as a colored word. */
export function badge(state) {
  return el("span", { class: `badge ${state === WAITS ? "waits" : state}` }, state);
}

/** Say that the server does not answer, and how old the rows are that are still shown. */
function lose(error, problem, rows, seenAt, asksAgain) {
  const age = rows > 0 && seenAt !== null ? ` These rows are of ${time(seenAt)}.` : "";
  const again = asksAgain ? ` The page asks again every ${POLL_MS / 1000} seconds.` : "";
  error.textContent = `${problem.message}${age}${again}`;
}

/** Say why a page has no row; null: it has some, or nobody knows. */
function drawEmpty(empty, params, page) {
  const wanted = page === null ? "" : `${page.searched} ${page.last_id}`;
  if ((empty.dataset.shown ?? "") === wanted) return;
  empty.dataset.shown = wanted;
  replace(empty, page === null ? null : nothing(params, page));
}

function remember(event) {
  const id = event.target.closest("a")?.closest("tr")?.dataset.id;
  if (id) Object.assign(opened, { hash: location.hash, id });
}

/** After Back, the row that was opened has the focus again. */
function returnTo(rows) {
  if (opened.id === "" || opened.hash !== location.hash) return;
  const anchor = [...rows.children].find((row) => row.dataset.id === opened.id)?.querySelector("a");
  opened.id = "";
  if (!anchor) return;
  reach(rows, anchor.closest("tr"));
  anchor.focus({ preventScroll: true });
  anchor.scrollIntoView({ block: "center" });
}

/** Arrows, Home and End move between the rows; Enter follows the link. */
function move(rows, event) {
  const links = [...rows.querySelectorAll(ROW_LINK)];
  const at = links.indexOf(document.activeElement.closest("tr")?.querySelector(ROW_LINK));
  const steps = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 };
  const next = links[steps[event.key]];
  if (next === undefined) return;
  event.preventDefault();
  reach(rows, next.closest("tr"));
  next.focus();
}

function drawPages(pages, params, page) {
  const last = page.last_id;
  const wanted = `${params.after ?? ""} ${page.has_more ? last : ""} ${page.data.length > 0}`;
  if (pages.dataset.shown === wanted) return;
  pages.dataset.shown = wanted;
  if (page.has_more) before.set(last, params.after ?? "");
  replace(
    pages,
    params.after && el("a", { href: link("responses", { ...params, after: "" }) }, "First page"),
    params.after && before.has(params.after) &&
      el("a", { href: link("responses", { ...params, after: before.get(params.after) }), rel: "prev" }, "Previous page"),
    page.has_more && page.data.length > 0 &&
      el("a", { href: link("responses", { ...params, after: last }), rel: "next" }, "Next page"),
  );
}

function describe(summary, { data: responses, searched }, search, isFirst) {
  const running = responses.filter(isRunning).length;
  const rest = search ? `of ${count(searched)} searched` : `${running} running`;
  const words = responses.length === 0 ? "" : `${responses.length} shown, ${rest}`;
  if (summary.textContent === words) return;
  summary.textContent = words;
  if (isFirst) announce(words);
}
