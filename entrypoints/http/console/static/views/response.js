/** One response: why it ended, and its transcript, timeline, raw texts, events and settings. */

import { ApiError, OUTPUTS, get, stream } from "../api.js";
import { buttons } from "../response/actions.js";
import { copyButton } from "../copy.js";
import { el, replace } from "../dom.js";
import { drawEvents } from "../response/events.js";
import { apply, start } from "../items/fold.js";
import { count, doorOf, isRunning, seconds, speed, speedOf, stateOf, time, tokensOf, tookOf } from "../format.js";
import { drawInput } from "../items/history.js";
import { plainButton } from "../items/markdown.js";
import { badge } from "./list.js";
import { drawRaw } from "../response/raw.js";
import { link, note } from "../routes.js";
import { announce } from "../shell.js";
import { tabs } from "../response/tabs.js";
import { code, live, render } from "../items/transcript.js";
import { drawWaterfall } from "../response/waterfall.js";
import { drawEnding } from "../response/why.js";

export const title = "Response";

const POLL_MS = 2000;
const MAX_SEEN = 20_000;
const PLACES = { input: "the input", tool_call: "a tool call", tool_result: "a tool's result", output: "the output" };
const VERDICTS = { pass: "passed", replace: "replaced parts of", refuse: "refused", stop: "stopped", failed: "gave no verdict on" };
const HIDDEN = new Set(["output", "metrics", "object"]);

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const page = new Page(params, signal);
  await page.load();
  page.draw(root);
  if (isRunning(page.response)) page.follow();
}

/** What the parts of the page share. */
class Page {
  constructor(params, signal) {
    this.id = params.id;
    this.params = params;
    this.signal = signal;
    this.folded = start();
    this.head = el("div", { class: "facts" });
    this.ending = el("div", { class: "ending" });
    this.actions = el("div", { class: "actions" });
    this.bundled = null;
    this.seen = [];
  }

  get path() {
    return `/v1/responses/${encodeURIComponent(this.id)}`;
  }

  async load() {
    this.response = await get(this.path, { "include[]": ["metrics", ...OUTPUTS] }, this.signal);
    this.bundled = null;
    if (!isRunning(this.response)) this.folded.items = structuredClone(this.response.output);
  }

  /** Return the bundle, which is asked for once. */
  bundle() {
    this.bundled ??= get(`${this.path}/explain`, null, this.signal);
    return this.bundled;
  }

  /** Return the stored events, or those that this page has seen of a response that runs. */
  async events() {
    const { events } = await this.bundle();
    return events.length > 0 ? events : [...this.seen];
  }

  draw(root) {
    this.drawHead();
    const rows = [
      { name: "transcript", label: "Transcript", draw: (panel) => this.drawTranscript(panel) },
      { name: "timeline", label: "Timeline", draw: (panel) => drawWaterfall(panel, this.response) },
      { name: "raw", label: "Raw", draw: async (panel) => drawRaw(panel, await this.bundle(), (id) => this.other(id)) },
      { name: "events", label: "Events", draw: async (panel) => drawEvents(panel, await this.events(), this.response, this.signal) },
      { name: "request", label: "Settings", draw: (panel) => this.drawSettings(panel) },
    ];
    this.tabs = tabs(rows, this.params.tab ?? "transcript", (name) => {
      this.tab = name;
      note("responses", { ...this.params, tab: name === "transcript" ? "" : name });
    });
    replace(root, el("h1", {}, title), this.head, this.actions, this.ending, this.tabs.node);
  }

  drawHead() {
    const { response } = this;
    const tokens = tokensOf(response);
    const facts = [
      ["Id", [el("code", {}, response.id), " ", copyButton(() => response.id, "id")]], ["State", badge(stateOf(response))], ["Model", response.model],
      doorOf(response) && ["API", doorOf(response)],
      ["Created", time(response.created_at)], ["Duration", seconds(tookOf(response))],
      ["Tokens", `${count(tokens.input)} in (${count(tokens.cached)} cached), ${count(tokens.output)} out (${count(tokens.reasoning)} reasoning)`],
      ["Tokens/s", speed(speedOf(response))],
      response.previous_response_id && ["Previous response", this.linkTo(response.previous_response_id)],
      response.conversation && ["Conversation", el("a", { href: link("responses", { conversation: response.conversation.id }) }, response.conversation.id)],
      ["Thread", el("a", { href: link("threads", { id: response.conversation?.id ?? response.id }) }, "all turns")],
      ...this.familyFacts(),
      ...this.guardFacts(),
    ];
    const rows = facts.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    // What has the focus stays: a keyboard would lose its place.
    if (!this.head.contains(document.activeElement)) replace(this.head, el("dl", {}, rows));
    if (this.actions.dataset.status !== response.status) replace(this.actions, buttons(response));
    this.actions.dataset.status = response.status;
    drawEnding(this.ending, response);
  }

  /** Return where the response stands in a tree of agents: a link up, and one to each agent below. */
  familyFacts() {
    const { agent, parent_response_id: parent, agents = [] } = this.response.metrics ?? {};
    return [
      agent && ["Agent", el("code", {}, agent)],
      parent && ["Started by", this.linkTo(parent)],
      agents.length > 0 && ["Sub-agents", el("ul", { class: "plain" }, agents.map((each) =>
        el("li", {}, el("a", { href: link("responses", { id: each.response_id }) }, each.name), " ", badge(each.status))))],
    ];
  }

  /** Return how often each guard said what, and where. */
  guardFacts() {
    const { guards = [] } = this.response.metrics ?? {};
    const said = ({ guard, place, verdict, count: times }) =>
      el("li", { class: verdict === "pass" ? "" : "warning" }, el("code", {}, guard), ` ${VERDICTS[verdict]} ${PLACES[place]}`, times > 1 ? `, ${count(times)} times` : "");
    return [guards.length > 0 && ["Guards", el("ul", { class: "plain" }, guards.map(said))]];
  }

  linkTo(id) {
    return el("a", { href: link("responses", { id }) }, id);
  }

  /** Return the bundle of another response, or null if it is gone. */
  async other(id) {
    try {
      return await get(`/v1/responses/${encodeURIComponent(id)}/explain`, null, this.signal);
    } catch (error) {
      if (error instanceof ApiError) return null;
      throw error;
    }
  }

  async drawTranscript(panel) {
    const input = el("section", { "aria-label": "Input" });
    const output = el("section", { "aria-label": "Output" });
    const turnPlain = () => {
      this.tabs.choose("transcript");
      setTimeout(() => panel.querySelector(".plain")?.focus());
    };
    replace(panel, el("div", { class: "row switch" }, plainButton(turnPlain)), this.instructions(), input, el("h2", {}, "Output"), output);
    this.shown = live(output);
    this.shown.draw(this.folded.items);
    await drawInput(input, this.path, this.signal);
  }

  instructions() {
    const { instructions } = this.response;
    if (!instructions) return null;
    const body = typeof instructions === "string" ? code(instructions, "instructions", { dir: "auto" }) : render(instructions);
    return el("details", { class: "item" }, el("summary", { class: "head" }, "instructions"), body);
  }

  drawSettings(panel) {
    const settings = Object.fromEntries(Object.entries(this.response).filter(([name]) => !HIDDEN.has(name)));
    replace(panel, code(JSON.stringify(settings, null, 2), "settings"));
  }

  /** Follow the events of a response that runs; where that fails, ask again and again. */
  async follow() {
    const poll = setInterval(() => this.refresh().catch(() => {}), POLL_MS);
    this.signal.addEventListener("abort", () => clearInterval(poll));
    this.folded = start();
    try {
      await stream(this.path, { params: { stream: true, "include[]": OUTPUTS } }, (event) => this.take(event), this.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
    }
    while (!this.signal.aborted && isRunning(this.response)) {
      await new Promise((resolve) => { setTimeout(resolve, POLL_MS / 4); });
      await this.refresh().catch(() => {});
    }
    clearInterval(poll);
    if (this.signal.aborted) return;
    announce(`The response is ${stateOf(this.response)}.`);
    this.tabs.choose(this.tab);
  }

  take(event) {
    apply(this.folded, event);
    if (this.seen.length < MAX_SEEN) this.seen.push({ at: Date.now() / 1000, event });
    if (this.waiting) return;
    this.waiting = setTimeout(() => this.drawChanges(), 100);
  }

  drawChanges() {
    this.waiting = 0;
    if (this.tab === "transcript" && !this.signal.aborted) this.shown?.draw(this.folded.items, [...this.folded.changed]);
    this.folded.changed.clear();
  }

  async refresh() {
    if (document.hidden) return;
    await this.load();
    this.drawHead();
    if (this.tab === "timeline" && isRunning(this.response)) this.tabs.choose("timeline");
  }
}
