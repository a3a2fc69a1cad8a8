/** Two responses beside each other: what was asked, what was written, and how long it took. */

import { OUTPUTS, get } from "../api.js";
import { inputOf } from "../response/actions.js";
import { el, replace } from "../dom.js";
import { count, pretty, seconds, speed, speedOf, stateOf, tokensOf, tookOf } from "../format.js";
import { diffWords } from "../response/words.js";
import { go, link } from "../routes.js";

export const title = "Compare";

const NOT_SETTINGS = new Set([
  "id", "object", "created_at", "completed_at", "status", "output", "usage", "metrics", "error", "incomplete_details", "usage_per_turn",
]);

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const place = el("div", {});
  replace(root, el("h1", {}, title), form(params), place);
  if (!params.left || !params.right) {
    replace(place, el("p", { class: "dim" }, "Give the ids of two responses."));
    return;
  }
  const [left, right] = await Promise.all([load(params.left, signal), load(params.right, signal)]);
  replace(place, figures(left, right), settings(left, right), texts("Input", left.input, right.input), texts("Output", left.output, right.output));
}

function form(params) {
  const field = (name) => el("input", { id: name, name, value: params[name] ?? "", autocomplete: "off", spellcheck: "false" });
  const [left, right] = [field("left"), field("right")];
  const send = (event) => {
    event.preventDefault();
    go("compare", { left: left.value.trim(), right: right.value.trim() });
  };
  return el("form", { class: "row", onSubmit: send },
    el("label", { for: "left" }, "Left"), left, el("label", { for: "right" }, "Right"), right,
    el("button", { type: "submit", class: "primary" }, "Compare"));
}

async function load(id, signal) {
  const path = `/v1/responses/${encodeURIComponent(id)}`;
  const [response, items] = await Promise.all([get(path, { "include[]": ["metrics", ...OUTPUTS] }, signal), inputOf(id, signal)]);
  return { response, input: items.map(readable).join("\n\n"), output: response.output.map(readable).join("\n\n") };
}

/** Return an item as text in which words can be compared. */
function readable(item) {
  const said = (parts) => (typeof parts === "string" ? parts : (parts ?? []).map((part) => part.text ?? part.refusal ?? `[${part.type}]`).join("\n"));
  if (item.type === "message" || item.type === undefined) return `${item.role}:\n${said(item.content)}`;
  if (item.type === "reasoning") return `reasoning:\n${said(item.content?.length ? item.content : item.summary)}`;
  const { id, type, status, ...others } = item;
  return `${type}:\n${pretty(others)}`;
}

function figures({ response: left }, { response: right }) {
  const rows = [
    ["Id", (each) => el("a", { href: link("responses", { id: each.id }) }, each.id)],
    ["State", stateOf], ["Model", (each) => each.model], ["Duration", (each) => seconds(tookOf(each))],
    ["Turns", (each) => count(each.metrics?.turns?.length)],
    ["Tokens in", (each) => count(tokensOf(each).input)], ["Cached", (each) => count(tokensOf(each).cached)],
    ["Tokens out", (each) => count(tokensOf(each).output)], ["Reasoning", (each) => count(tokensOf(each).reasoning)],
    ["Tokens/s", (each) => speed(speedOf(each))],
  ];
  return table("Figures", ["", "Left", "Right"], rows.map(([name, of]) => [name, of(left), of(right)]));
}

function settings({ response: left }, { response: right }) {
  const names = [...new Set([...Object.keys(left), ...Object.keys(right)])].filter((name) => !NOT_SETTINGS.has(name));
  const rows = names.map((name) => [name, pretty(left[name] ?? null), pretty(right[name] ?? null)]).filter(([, one, other]) => one !== other);
  if (rows.length === 0) return el("p", {}, "All settings are the same.");
  return table("Settings that differ", ["Setting", "Left", "Right"], rows.map(([name, ...values]) => [name, ...values.map((value) => el("pre", { tabindex: "0" }, value))]));
}

function table(name, head, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name },
    el("table", {}, el("caption", {}, name),
      el("thead", {}, el("tr", {}, head.map((each) => (each ? el("th", { scope: "col" }, each) : el("td", {}))))),
      el("tbody", {}, rows.map(([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, first), others.map((each) => el("td", {}, each)))))));
}

function texts(name, left, right) {
  const { pieces, isExact } = diffWords(left, right);
  const side = (wanted, style) => el("pre", { class: "raw", tabindex: "0", dir: "auto", "aria-label": `${name}, ${style}` },
    pieces.filter((piece) => piece.side === "both" || piece.side === wanted)
      .map((piece) => (piece.side === "both" ? piece.text : el("mark", { class: wanted === "left" ? "removed" : "added" }, piece.text))));
  const isSame = pieces.every((piece) => piece.side === "both");
  return el("section", { "aria-label": name }, el("h2", {}, name),
    isSame ? el("p", {}, "The same on both sides.") : null,
    isExact ? null : el("p", { class: "dim" }, "Too long to compare word by word: all between the first and the last difference is marked."),
    el("div", { class: "beside" }, side("left", "left"), side("right", "right")));
}
