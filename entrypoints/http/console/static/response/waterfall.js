/** The timeline: queue, turns and tools side by side, as a drawing and as a table. */

import { el, replace, svg } from "../dom.js";
import { count, isRunning, seconds, speed } from "../format.js";

const ROW = 26;
const LEFT = 190;
const WIDTH = 1150;
const MAX_ROWS = 400;

/** Fill a panel with the timeline of a response. */
export function drawWaterfall(panel, response) {
  const metrics = response.metrics;
  if (!metrics) {
    replace(panel, el("p", {}, "The server has no times of this response."));
    return;
  }
  const end = metrics.ended_at ?? (isRunning(response) ? Date.now() / 1000 : lastOf(metrics));
  const bars = barsOf(metrics, end).slice(0, MAX_ROWS);
  replace(panel, el("div", { class: "scroll", tabindex: "0", "aria-label": "Timeline", role: "region" }, drawing(bars, metrics.received_at, end)), legend(), table(bars, metrics.received_at));
}

function lastOf(metrics) {
  const times = (metrics.turns ?? []).flatMap((turn) => [turn.ended_at, turn.last_token_at, turn.started_at]);
  return Math.max(metrics.received_at, ...times.filter(Boolean));
}

/** Return rows of `{label, kind, from, to, marks, ...}`; times are seconds since the epoch. */
function barsOf(metrics, end) {
  const bars = [];
  const admitted = metrics.admitted_at ?? end;
  bars.push({ label: "queue", kind: "queue", from: metrics.received_at, to: admitted, marks: [] });
  (metrics.turns ?? []).forEach((turn, index) => {
    const generated = turn.last_token_at ?? (turn.ended_at ? turn.admitted_at ?? turn.started_at : end);
    bars.push({
      label: `turn ${index + 1}${turn.kind && turn.kind !== "answer" ? ` (${turn.kind})` : ""}`,
      kind: "turn", from: turn.started_at, to: Math.max(generated, turn.started_at), turn,
      waits: turn.first_token_at ?? generated,
      marks: [["first token", turn.first_token_at], ["first text", turn.first_text_at]].filter(([, at]) => at),
    });
    for (const call of turn.tool_calls ?? []) {
      const to = call.result ? call.started_at + (call.seconds ?? 0) : end;
      bars.push({ label: [call.server, call.name].filter(Boolean).join("/"), kind: call.result === "ok" || !call.result ? "call" : "bad", from: call.started_at, to, call, marks: [] });
    }
  });
  return bars;
}

function drawing(bars, from, end) {
  const span = Math.max(end - from, 0.001);
  const x = (at) => LEFT + (Math.min(Math.max(at - from, 0), span) / span) * (WIDTH - LEFT - 10);
  const height = bars.length * ROW + 30;
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img", "aria-label": "Timeline; the table below has the same times", class: "waterfall" },
    [0, 0.25, 0.5, 0.75, 1].map((part) => {
      const at = LEFT + part * (WIDTH - LEFT - 10);
      return [
        svg("line", { x1: at, x2: at, y1: 0, y2: height - 22, class: "grid" }),
        svg("text", { x: at, y: height - 6, class: "axis", "text-anchor": part === 1 ? "end" : part === 0 ? "start" : "middle" }, seconds(part * span)),
      ];
    }),
    bars.map((bar, index) => row(bar, index * ROW, x)),
  );
}

function row(bar, y, x) {
  const width = Math.max(x(bar.to) - x(bar.from), 2);
  const waits = bar.kind === "turn" ? Math.max(x(bar.waits) - x(bar.from), 0) : 0;
  return svg(
    "g",
    {},
    svg("title", {}, `${bar.label}: ${seconds(bar.to - bar.from)}`),
    svg("text", { x: bar.call ? 18 : 4, y: y + 17, class: "label" }, bar.label.slice(0, 26)),
    svg("rect", { x: x(bar.from), y: y + 5, width, height: ROW - 10, rx: 3, class: `bar ${bar.kind}` }),
    waits > 0 && svg("rect", { x: x(bar.from), y: y + 5, width: Math.min(waits, width), height: ROW - 10, rx: 3, class: "bar waiting" }),
    bar.marks.map(([name, at]) => svg("line", { x1: x(at), x2: x(at), y1: y + 2, y2: y + ROW - 2, class: `mark ${name.replace(" ", "-")}` }, svg("title", {}, name))),
  );
}

function legend() {
  const kinds = [["queue", "queue"], ["waiting", "waits for the first token"], ["turn", "model writes"], ["call", "tool"], ["bad", "tool that failed"]];
  return el("p", { class: "legend dim" }, kinds.map(([kind, words]) => el("span", { class: `key ${kind}` }, words)));
}

function table(bars, from) {
  const heads = ["Step", "Starts after", "Duration", "First token after", "Tokens", "Tokens/s", "Result"];
  const body = bars.map((bar) => {
    const { turn, call } = bar;
    return el("tr", {}, [
      bar.label, seconds(bar.from - from), seconds(bar.to - bar.from),
      turn?.first_token_at ? seconds(turn.first_token_at - turn.started_at) : "",
      turn?.input_tokens ? `${count(turn.input_tokens)} in (${count(turn.cached_tokens ?? 0)} cached), ${count(turn.output_tokens ?? 0)} out` : "",
      turn?.tokens_per_second ? speed(turn.tokens_per_second) : "",
      turn ? [turn.reason, turn.engine && `on ${turn.engine}`].filter(Boolean).join(", ") : call ? call.result ?? "running" : "",
    ].map((value, index) => (index === 0 ? el("th", { scope: "row" }, value) : el("td", {}, value))));
  });
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Times" }, el("table", {},
    el("caption", {}, "Times of the turns and calls"),
    el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, body)));
}
