/** Figures over time: how many responses, how they ended, how fast they were; by model, key and door. */

import { get } from "../api.js";
import { chart } from "../charts/chart.js";
import { el, replace } from "../dom.js";
import { count, doorName, percent, seconds, speed, time } from "../format.js";
import { poll } from "../poll.js";
import { link } from "../routes.js";

export const title = "Activity";

const POLL_MS = 15_000;
const SPANS = [["hour", "Hour"], ["day", "Day"], ["week", "Week"]];
const GROUPINGS = [["model", "Model"], ["key", "Key"], ["door", "API"]];
const LAST = { hour: "the last hour", day: "the last day", week: "the last week" };

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const chosen = { span: "hour", by: "model", ...params };
  const place = el("div", { class: "activity" });
  replace(root, el("h1", {}, title), choices(chosen), place);
  const refresh = async () => {
    const report = await get("/console/activity", chosen, signal);
    // What is open, and what has the focus, stays: the next time may be better.
    if (place.querySelector("details[open]") || place.contains(document.activeElement)) return;
    draw(place, report, chosen);
  };
  await refresh();
  poll(() => refresh().catch(() => {}), signal, POLL_MS);
}

function choices(chosen) {
  const row = (name, label, rows) => el("nav", { class: "row choice", "aria-label": label }, el("span", { class: "dim" }, label),
    rows.map(([value, words]) => el("a", {
      href: link("activity", { ...chosen, ...(name === "by" ? { only: "" } : {}), [name]: value }),
      "aria-current": chosen[name] === value ? "true" : null,
    }, words)));
  return el("div", { class: "row choices" }, row("span", "Last", SPANS), row("by", "By", GROUPINGS),
    chosen.only !== undefined && el("p", { class: "row" }, `Only ${nameOf(chosen.only, chosen.by)} `,
      el("a", { href: link("activity", { span: chosen.span, by: chosen.by }) }, "Show all")));
}

function draw(place, report, chosen) {
  const requests = report.groups.reduce((sum, each) => sum + each.figures.requests, 0);
  if (requests === 0) {
    replace(place, coverage(report, chosen), el("p", {}, `There is no response of ${LAST[chosen.span]} here.`));
    return;
  }
  replace(place, coverage(report, chosen), groups(report, chosen),
    el("div", { class: "cards charts" }, chartsOf(report, chosen).map((each) => chart(each, report))));
}

/** Say of which responses the figures are: they count what the store has, and not all of it. */
function coverage(report, { span }) {
  const whole = `They count your stored responses of ${LAST[span]}, whichever server ran them`;
  const cut = `They count your ${count(report.read)} newest stored responses, which reach back to ${time(report.covered_from)}; older ones were not read`;
  return el("p", { class: "dim coverage" }, "The figures are of the store, by the time of the request. ", report.covered_from === null ? whole : cut,
    ". Responses that were deleted, have expired or have ", el("code", {}, '"store": false'), " are not among them.");
}

function groups({ groups: rows }, chosen) {
  const head = [GROUPINGS.find(([value]) => value === chosen.by)[1], "Requests", "Not completed", "First token p50", "p95", "Tokens/s p50", "Tokens in", "Cached", "Tokens out", "Queue p95", "Tool calls"];
  const body = rows.map(({ name, figures }) => el("tr", {},
    el("th", { scope: "row" }, name === "" ? nameOf(name, chosen.by) : el("a", { href: link("activity", { ...chosen, only: name }) }, nameOf(name, chosen.by))),
    [count(figures.requests), `${count(figures.ended_badly)} (${percent(figures.ended_badly / figures.requests)})`,
      seconds(figures.first_token?.p50), seconds(figures.first_token?.p95), speed(figures.tokens_per_second?.p50),
      count(figures.input_tokens), percent(figures.cached_tokens / figures.input_tokens), count(figures.output_tokens),
      seconds(figures.queue?.p95), count(figures.tool_calls)].map((value) => el("td", { class: "number" }, value))));
  return el("div", { class: "scroll card", tabindex: "0", role: "region", "aria-label": "In all" },
    el("table", {}, el("caption", {}, "In all"),
      el("thead", {}, el("tr", {}, head.map((name, index) => el("th", { scope: "col", class: index ? "number" : null }, name)))), el("tbody", {}, body)));
}

function chartsOf(report, chosen) {
  const listed = (filters) => (bucket) => listOf(bucket, report, chosen, filters);
  const none = (what) => `No ${what} in this time.`;
  const percentiles = (figure) => [
    { name: "p95", style: "s1", of: ({ figures }) => figures[figure]?.p95 ?? null, link: listed({}) },
    { name: "p50", style: "s0", of: ({ figures }) => figures[figure]?.p50 ?? null, link: listed({}) },
  ];
  const named = (field, names, filtersOf, words = (name) => name) => [...names, ""].map((name, index) => ({
    name: name === "" ? "others" : words(name), style: name === "" ? "s6" : `s${index}`,
    of: (bucket) => bucket[field][name] ?? 0, link: listed(name === "" ? {} : filtersOf(name)),
  })).filter((each) => report.buckets.some((bucket) => each.of(bucket)));
  const tokens = (name, style, of) => ({ name, style, of: ({ figures }) => of(figures), link: listed({}) });
  return [
    { name: "Requests", written: count, isWhole: true, none: none("request"), series: named("groups", report.names, (name) => ({ [chosen.by]: name }), (name) => nameOf(name, chosen.by)) },
    { name: "Not completed, by reason", written: count, isWhole: true, none: "All responses that have ended are complete.", series: named("reasons", report.reasons, (name) => (name === "cancelled" ? { status: name } : { error: name })) },
    { name: "Time to first token", written: seconds, isOverlay: true, none: none("first token"), series: percentiles("first_token") },
    { name: "Tokens a second, while a model writes", written: speed, isOverlay: true, none: none("speed"), series: percentiles("tokens_per_second") },
    { name: "Tokens", written: count, isWhole: true, none: none("token"), series: [
      tokens("in, cached", "s2", (figures) => figures.cached_tokens), tokens("in", "s0", (figures) => figures.input_tokens - figures.cached_tokens),
      tokens("out", "s3", (figures) => figures.output_tokens),
    ] },
    { name: "Wait in the queue", written: seconds, isOverlay: true, none: none("wait"), series: percentiles("queue") },
    { name: "Calls of tools", written: count, isWhole: true, none: none("call"), series: named("tools", report.tools, (name) => ({ tool: name })) },
  ];
}

/** The list of the responses of a bar: it begins behind the newer ones, so that it need not search them. */
function listOf(bucket, { step }, { by, only }, filters) {
  return link("responses", {
    created_after: bucket.at - 1, created_before: bucket.at + step, after: bucket.after, ...(only ? { [by]: only } : {}), ...filters,
  });
}

function nameOf(name, by) {
  if (name === "") return by === "key" ? "no key" : "unknown";
  return by === "door" ? doorName(name) : name;
}
