/** A response of a thread: what was asked and answered in short, and the whole of it when asked for. */

import { OUTPUTS, get } from "../api.js";
import { el, replace } from "../dom.js";
import { count, isRunning, seconds, shortId, stateOf, time, tokensOf, tookOf } from "../format.js";
import { drawInput } from "../items/history.js";
import { render } from "../items/transcript.js";
import { link } from "../routes.js";
import { badge } from "../views/list.js";

/** A card that can be drawn again: it keeps its node, and what is open in it. */
export class Turn {
  constructor(signal) {
    this.signal = signal;
    this.seen = "";
    this.node = el("article", { class: "turn card" });
    this.body = el("div", {});
    this.whole = el("details", { onToggle: () => this.load() }, el("summary", {}, "Whole turn"), this.body);
  }

  /** @param {{response: Object, number: number}} turn @param {boolean} isAsked whether the address names it */
  draw({ response, number }, isAsked) {
    const tokens = tokensOf(response);
    const { input: asked, output: answered } = { input: "", output: "", ...response.preview };
    const figures = [response.model, time(response.created_at), isRunning(response) ? "" : seconds(tookOf(response)), `${count(tokens.input)} in, ${count(tokens.output)} out`];
    const seen = JSON.stringify([number, stateOf(response), asked, answered, figures, isAsked]);
    if (seen === this.seen) return;
    this.seen = seen;
    this.response = response;
    const hadFocus = this.node.contains(document.activeElement);
    const reason = response.error?.code ?? response.incomplete_details?.reason;
    this.node.dataset.id = response.id;
    this.node.className = `turn card${isAsked ? " asked-for" : ""}`;
    replace(this.node,
      el("div", { class: "head spread" },
        el("span", {}, el("a", { href: link("responses", { id: response.id }), title: response.id, "aria-current": isAsked ? "true" : null }, `${number}. ${shortId(response.id)}`), " ", badge(stateOf(response))),
        el("span", { class: "dim" }, figures.filter(Boolean).join(" · "))),
      asked && el("p", { class: "asked", dir: "auto" }, asked),
      answered && el("p", { class: "answer", dir: "auto" }, answered),
      !asked && !answered && el("p", { class: "dim" }, isRunning(response) ? "It runs." : "(no text)"),
      reason && el("p", { class: response.error ? "error" : "warning" }, reason),
      this.whole);
    if (hadFocus) this.focus();
    if (this.whole.open) this.load(true);
  }

  focus() {
    this.node.querySelector("a").focus({ preventScroll: true });
  }

  /** Ask for all that was said in this turn, once it is opened. */
  async load(isAnew = false) {
    if (!this.whole.open || (this.body.hasChildNodes() && !isAnew)) return;
    const path = `/v1/responses/${encodeURIComponent(this.response.id)}`;
    const [input, output] = [el("section", { "aria-label": "Input" }), el("section", { "aria-label": "Output" })];
    replace(this.body, input, el("h2", {}, "Output"), output);
    try {
      const [response] = await Promise.all([get(path, { "include[]": OUTPUTS }, this.signal), drawInput(input, path, this.signal)]);
      replace(output, render(response.output));
    } catch (error) {
      if (error.name !== "AbortError") replace(this.body, el("p", { class: "error" }, error.message));
    }
  }
}
