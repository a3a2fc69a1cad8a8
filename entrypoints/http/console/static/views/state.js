/** The state of the server: models, queue, store, cache, and what is this tenant's own. */

import { get } from "../api.js";
import { el, replace } from "../dom.js";
import { count, seconds, time, tokensOf } from "../format.js";

export const title = "State";

const POLL_MS = 3000;
const RECENT = 100;

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const place = el("div", { class: "cards" });
  replace(root, el("h1", {}, title), place);
  await draw(place, signal);
  const poll = setInterval(() => { if (!document.hidden) draw(place, signal).catch(() => {}); }, POLL_MS);
  signal.addEventListener("abort", () => clearInterval(poll));
}

async function draw(place, signal) {
  const [state, recent, containers] = await Promise.all([
    get("/console/state", null, signal),
    get("/v1/responses", { limit: RECENT, "include[]": "metrics" }, signal),
    get("/v1/containers", { limit: 100 }, signal).catch(() => null),
  ]);
  replace(place, models(state), server(state), work(state), tenant(state), cache(recent.data), sandboxes(containers));
}

function card(name, ...body) {
  return el("section", { class: "card", "aria-label": name }, el("h2", {}, name), body);
}

function facts(rows) {
  return el("dl", { class: "pairs" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function server({ server: { id, version, started_at: startedAt, state, engine, store, store_kind: kind } }) {
  return card("Server", facts([
    ["State", health(state)], ["Engines", health(engine)], ["Store", [`${kind}: `, health(store)]],
    ["Up for", seconds(Date.now() / 1000 - startedAt)], ["Since", time(startedAt)], ["Version", version], ["Id", el("code", {}, id)],
  ]));
}

function health(word) {
  return el("span", { class: word === "ok" ? "good" : "warning" }, word);
}

function models({ models: rows }) {
  const head = ["Model", "State", "Context", "Format", "Reads", "Effort", "Tools run here"];
  const body = rows.map((model) => el("tr", {},
    el("th", { scope: "row" }, model.names[0], model.names.length > 1 && el("div", { class: "dim" }, model.names.slice(1).join(", "))),
    [health(model.state), count(model.context_length), model.format ?? "–", (model.input_modalities ?? []).join(", ") || "–",
      (model.efforts ?? []).join(", ") || "–", model.hosted_tools.join(", ") || "–"].map((value) => el("td", {}, value))));
  return card("Models", el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Models" },
    el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, body))));
}

function work({ runs, connections, memory }) {
  const worked = Object.values(memory.work_bytes).reduce((sum, each) => sum + each, 0);
  const phases = Object.entries(runs.phases).map(([phase, many]) => `${many} ${phase}`).join(", ");
  return card("Work on this server, of all tenants", facts([
    ["Running", `${count(runs.running)}${phases ? ` (${phases})` : ""}`],
    ["Background", used(runs.background, runs.background_slots, "Background")],
    ["Wait for a run", count(runs.waiting)], ["Wait for room for their prompt", count(runs.waiting_for_tokens)],
    ["Wait in the store", count(runs.queued)], ["Oldest", seconds(runs.oldest_seconds)],
    ["Streams", count(connections.streams)], ["WebSockets", count(connections.websockets)], ["Connections", count(connections.open)],
    ["Bytes in work", used(worked, memory.max_work_bytes, "Bytes in work")],
  ]));
}

function cache(responses) {
  const sums = { input: 0, cached: 0 };
  for (const each of responses) {
    const tokens = tokensOf(each);
    sums.input += tokens.input ?? 0;
    sums.cached += tokens.cached ?? 0;
  }
  const share = sums.input === 0 ? null : sums.cached / sums.input;
  return card("Prefix cache", el("p", {}, `Of your last ${responses.length} responses:`),
    el("meter", { min: 0, max: 1, value: share ?? 0, "aria-label": "Share of prompt tokens from the cache" }),
    el("p", {}, share === null ? "no prompt tokens yet" : `${(share * 100).toFixed(1)} % of ${count(sums.input)} prompt tokens were cached`));
}

/** An amount beside its limit, if there is one, and how full that is. */
function used(amount, limit, name) {
  if (limit === null || limit === undefined) return count(amount);
  return [
    el("meter", { min: 0, max: limit, high: limit * 0.8, optimum: 0, value: amount, "aria-label": `${name}: use of the limit` }),
    ` ${count(amount)} of ${count(limit)}`,
  ];
}

function tenant({ tenant: { name, key, responses, bytes, max_responses: maxResponses, max_bytes: maxBytes, waiting, limits } }) {
  const rows = limits.map((each) => [each.name, used(each.used, each.limit, each.name)]);
  return card("You", facts([
    ["Tenant", name], ["Key", key || "none needed"], ["Stored responses", used(responses, maxResponses, "Stored responses")],
    ["Stored bytes", used(bytes, maxBytes, "Stored bytes")], ["Waiting in the store", count(waiting)], ...rows,
  ]));
}

function sandboxes(containers) {
  if (containers === null) return null;
  const rows = containers.data.map((each) => el("li", {}, el("code", {}, each.id), ` ${each.name ?? ""} ${each.status ?? ""}`));
  return card("Your containers", rows.length ? el("ul", {}, rows) : el("p", { class: "dim" }, "none in use"));
}
