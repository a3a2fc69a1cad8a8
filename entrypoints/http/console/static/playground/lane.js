/** A thread with one model: each of its turns is shown as the model writes it. */

import { ApiError, OUTPUTS as OUTPUTS_SHOWN, get, post, stream } from "../api.js";
import { append, el, replace } from "../dom.js";
import { WAITS, count, isRunning, seconds, stateOf, tokensOf } from "../format.js";
import { apply, start } from "../items/fold.js";
import { live, render } from "../items/transcript.js";
import { requestsOf } from "../response/approvals.js";
import { showCopies } from "../response/copies.js";
import { link } from "../routes.js";
import { announce } from "../shell.js";
import { answersTo } from "./answers.js";

/** How long the page waits for the end of a response that was stopped. */
const SETTLE_MS = 300;
const SETTLE_ATTEMPTS = 30;
/** What a response can be continued from. */
const CONTINUED = ["completed", "incomplete"];

export class Lane {
  /**
   * @param {AbortSignal} signal ends it
   * @param {{request: (lane: Lane) => Object, onChange: () => void}} page `request` gives the fields
   *   of the next request, without its input; `onChange` is called when a turn begins, grows or ends
   */
  constructor(signal, page) {
    this.signal = signal;
    this.page = page;
    this.running = null;
    this.clear();
    signal.addEventListener("abort", () => this.stop());
  }

  /** Begin anew, after a response or nothing. */
  clear(previous = null) {
    this.stop();
    this.previous = previous;
    this.waiting = null;
  }

  /** Whether the model waits for outputs or an approval. */
  get isWaiting() {
    return this.waiting !== null;
  }

  stop() {
    this.running?.abort();
  }

  /**
   * Return a place for the next turns. If there are others beside it, it says whose it is, and can
   * be stopped alone.
   */
  place(model, isOne) {
    this.name = isOne ? `${model}: ` : "";
    this.stopButton = el("button", { type: "button", "aria-label": `Stop ${model}`, onClick: () => this.stop() }, "Stop");
    this.node = el("section", { class: "lane", "aria-label": `Answer of ${model}` },
      isOne && el("div", { class: "spread" }, el("h2", {}, model), this.stopButton));
    return this.node;
  }

  /**
   * Send a turn and follow it to its end.
   * @param {Object} request
   * @param {() => void} onAccepted called once the server has begun
   * @param {Object[]} [shown] items that are shown before the answer
   * @returns {Promise<void>} Raises: ApiError if it was refused, or did not end well
   */
  async ask(request, onAccepted, shown = []) {
    this.running = new AbortController();
    this.stopButton.hidden = false;
    const turn = this.begin(request, shown);
    this.page.onChange();
    const folded = start();
    const take = (event) => {
      if (folded.response === null && event.response) onAccepted();
      if (turn.firstAt === null && event.type.endsWith(".delta")) turn.firstAt = performance.now();
      apply(folded, event);
      turn.shown.draw(folded.items, [...folded.changed]);
      folded.changed.clear();
      if (folded.response) this.summarize(turn, folded.response);
      this.page.onChange();
      if (event.type === "error") throw new ApiError(500, event.message, event.code);
    };
    try {
      await stream("/v1/responses", { body: { ...request, include: OUTPUTS_SHOWN, stream: true } }, take, this.running.signal);
      this.end(turn, folded.response);
    } catch (error) {
      this.explain(error, turn, folded.response);
    } finally {
      this.running = null;
      this.stopButton.hidden = true;
      this.page.onChange();
    }
  }

  begin(request, shown) {
    const nodes = { summary: el("p", { class: "summary" }, "Waiting for the server …"), items: el("div", {}), figures: el("p", { class: "dim figures" }), more: el("div", {}) };
    append(this.node, el("div", { class: "exchange" }, render(shown), nodes.items, nodes.summary, nodes.figures, nodes.more));
    return { ...nodes, request, shown: live(nodes.items), startedAt: performance.now(), firstAt: null };
  }

  /** Say what became of a request that did not end well: stopped, refused, or broken off in the middle. */
  explain(error, turn, response) {
    if (error.name === "AbortError") {
      this.abandon(turn, response);
      return;
    }
    if (!(error instanceof ApiError)) throw error;
    const isRefused = error.status >= 400 && error.status < 500;
    if (response === null) replace(turn.summary, isRefused ? "The server refused the request." : "There is no answer.");
    else this.settle(turn, response);
    replace(turn.more, el("p", { class: "error" }, wordsOf(error)));
    throw error;
  }

  /** A background response runs on when nobody reads it, so it is cancelled. */
  async abandon(turn, response) {
    if (response === null) {
      replace(turn.summary, "Stopped before the server answered.");
      return;
    }
    this.summarize(turn, response, ", stopping …");
    if (response.background) await post(`/v1/responses/${encodeURIComponent(response.id)}/cancel`, {}).catch(() => {});
    await this.settle(turn, response);
  }

  /** Show the state that the server gives to a response that is no longer read. */
  async settle(turn, response) {
    for (let attempt = 0; attempt < SETTLE_ATTEMPTS && !this.signal.aborted; attempt += 1) {
      const known = await get(`/v1/responses/${encodeURIComponent(response.id)}`, { "include[]": "metrics" }, this.signal).catch(() => null);
      if (known === null) break;
      this.summarize(turn, known, isRunning(known) ? ", stopping …" : "");
      if (!isRunning(known)) return;
      await new Promise((resolve) => { setTimeout(resolve, SETTLE_MS); });
    }
    if (!this.signal.aborted) replace(turn.summary, "Stopped here. The server keeps nothing of it, or has not ended it yet.");
  }

  summarize(turn, response, more = "") {
    const state = response.status === "completed" && requestsOf(response).length > 0 ? WAITS : stateOf(response);
    replace(turn.summary, el("a", { href: link("responses", { id: response.id }) }, response.id), ` ${state}`, more);
  }

  end(turn, response) {
    if (response === null) {
      replace(turn.summary, "The server said nothing.");
      return;
    }
    announce(`${this.name}The response is ${stateOf(response)}.`);
    const tokens = tokensOf(response);
    const first = turn.firstAt === null ? [] : [`first words after ${seconds((turn.firstAt - turn.startedAt) / 1000)}`];
    const took = seconds((performance.now() - turn.startedAt) / 1000);
    replace(turn.figures, [response.model, took, ...first, `${count(tokens.input)} tokens in, ${count(tokens.output)} out`].join(" · "));
    if (CONTINUED.includes(response.status)) this.previous = response.id;
    const reason = response.error?.message ?? response.incomplete_details?.reason;
    this.waiting = answersTo(response, (input) => this.answer(input, turn));
    replace(turn.more, reason && el("p", { class: response.error ? "error" : "warning" }, reason), this.waiting,
      el("div", { class: "row" }, el("button", { type: "button", onClick: () => showCopies(turn.request, response) }, "Save this turn as…")));
  }

  /** Send what a response waited for. @returns {Promise<boolean>} whether the server has taken it */
  async answer(input, turn) {
    let request = null;
    let isSent = false;
    try {
      request = { ...this.page.request(this), input, previous_response_id: this.previous };
      await this.ask(request, () => { isSent = true; }, input);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      announce(wordsOf(error));
      if (request === null) append(turn.more, el("p", { class: "error" }, wordsOf(error)));
    }
    return isSent;
  }
}

/** Return an error with what it names. */
export function wordsOf({ param, message }) {
  return param ? `${param}: ${message}` : message;
}
