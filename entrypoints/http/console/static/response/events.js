/** The stored events: scrubbed with a slider, stepped through, and played at their real speed. */

import { get } from "../api.js";
import { el, replace } from "../dom.js";
import { apply, start } from "../items/fold.js";
import { isRunning, seconds } from "../format.js";
import { code, live } from "../items/transcript.js";

const NEIGHBORS = 12;
const MAX_PAUSE_S = 5;

/** Fill a panel with events: `{at, event}`, in order; without any, say why. */
export async function drawEvents(panel, events, response, signal) {
  if (events.length === 0) {
    replace(panel, await missing(response, signal));
    return;
  }
  new Player(panel, events, signal).draw();
}

async function missing(response, signal) {
  if (isRunning(response)) return el("p", {}, "No event has come yet. They appear here when the response has ended.");
  const { server: { keep_events_s: kept } } = await get("/console/state", null, signal);
  const ended = response.metrics?.ended_at ?? response.completed_at ?? response.created_at;
  const age = Date.now() / 1000 - ended;
  return [
    el("p", {}, `The events of this response are gone. The server keeps them for ${seconds(kept)} after the end, so that clients ` +
      `can read a stream again; this response ended ${seconds(age)} ago.`),
    age < kept && el("p", {}, "They are gone sooner if the server restarts, or if others need the room (--keep-events)."),
    el("p", {}, "What they made is in the Transcript, and their times are in the Timeline. To keep events longer, start the server with ",
      el("code", {}, "--keep-events-s"), "."),
  ];
}

class Player {
  constructor(panel, events, signal) {
    this.panel = panel;
    this.events = events;
    this.from = events.find((each) => each.at !== null && each.at !== undefined)?.at ?? 0;
    this.at = events.length - 1;
    this.timer = 0;
    this.folded = start();
    this.foldedTo = -1;
    signal.addEventListener("abort", () => this.pause());
  }

  draw() {
    this.slider = el("input", {
      type: "range", id: "scrub", min: "0", max: String(this.events.length - 1), step: "1", value: String(this.at),
      "aria-label": "Event", onInput: () => { this.pause(); this.show(Number(this.slider.value)); },
    });
    this.play = el("button", { type: "button", class: "primary", onClick: () => (this.timer ? this.pause() : this.start()) }, "Play");
    this.where = el("output", { for: "scrub", class: "dim" });
    this.near = el("ol", { class: "events", "aria-label": "Events around it" });
    this.body = el("div", {});
    this.items = el("div", {});
    const step = (by) => () => { this.pause(); this.show(this.at + by); };
    replace(
      this.panel,
      el("div", { class: "row player" }, this.play,
        el("button", { type: "button", onClick: step(-1) }, "Step back"),
        el("button", { type: "button", onClick: step(1) }, "Step"), this.where),
      this.slider,
      el("div", { class: "beside" },
        el("section", { "aria-label": "Events" }, this.near, this.body),
        el("section", { "aria-label": "What a client has seen" }, el("h2", {}, "What a client has seen"), this.items)),
    );
    this.shown = live(this.items);
    this.show(this.at);
  }

  show(index) {
    this.at = Math.min(Math.max(index, 0), this.events.length - 1);
    this.slider.value = String(this.at);
    const { at, event } = this.events[this.at];
    this.where.textContent = `${this.at + 1} of ${this.events.length}${at ? `, after ${seconds(at - this.from)}` : ""}`;
    this.slider.setAttribute("aria-valuetext", `${this.where.textContent}: ${event.type}`);
    const first = Math.max(Math.min(this.at - NEIGHBORS / 2, this.events.length - NEIGHBORS), 0);
    const near = this.events.slice(first, first + NEIGHBORS);
    replace(this.near, near.map((each, offset) => this.line(each, first + offset)));
    replace(this.body, code(JSON.stringify(event, null, 2), "event", { "aria-label": "Event as JSON" }));
    this.fold();
  }

  line({ at, event }, index) {
    const isHere = index === this.at;
    const words = [`${event.sequence_number} ${event.type}`, event.delta && typeof event.delta === "string" && ` ${JSON.stringify(event.delta.slice(0, 40))}`];
    return el("li", { class: isHere ? "here" : "", "aria-current": isHere ? "true" : null },
      el("span", { class: "dim number" }, at ? seconds(at - this.from) : ""), " ", words);
  }

  /** Bring the items to the state after this event; backwards, from the beginning. */
  fold() {
    if (this.foldedTo > this.at) {
      this.folded = start();
      this.foldedTo = -1;
      replace(this.items);
      this.shown = live(this.items);
    }
    while (this.foldedTo < this.at) {
      this.foldedTo += 1;
      apply(this.folded, this.events[this.foldedTo].event);
    }
    this.shown.draw(this.folded.items, [...this.folded.changed]);
    this.folded.changed.clear();
  }

  start() {
    if (this.at === this.events.length - 1) this.show(0);
    this.play.textContent = "Pause";
    this.next();
  }

  /** Show the next event when as much time has passed as had passed then. */
  next() {
    const [now, then] = [this.events[this.at], this.events[this.at + 1]];
    if (then === undefined) {
      this.pause();
      return;
    }
    const pause = now.at && then.at ? Math.min(Math.max(then.at - now.at, 0), MAX_PAUSE_S) : 0;
    this.timer = setTimeout(() => { this.show(this.at + 1); this.next(); }, pause * 1000);
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
  }
}
