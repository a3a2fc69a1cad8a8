/**
 * Charts of figures over time: bars as SVG, and below them the same numbers as a table. The bars are
 * for the eye and the pointer; the table, with its links, is for screen readers and keyboards.
 */

import { el, replace, svg } from "../dom.js";

const HEIGHT = 170;
const LEFT = 62;
const BOTTOM = 24;
const TOP = 8;
const TIMES = 4;
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric" });
const DAY_S = 24 * 3600;

/**
 * @typedef {{name: string, style: string, of: (bucket: Object) => number|null, link?: (bucket: Object) => string|null}} Series
 *   `style` is the class of its bars; `link` the list that a bar opens
 * @param {{name: string, series: Series[], written: (value: number) => string, isOverlay?: boolean, isWhole?: boolean, none: string}} chart
 *   an overlay draws its series before each other, the largest first; else they stand on each other.
 *   `isWhole`: its values are whole numbers. `none` is said if no bar has a value
 * @param {{begins_at: number, ends_at: number, step: number, covered_from: number|null, buckets: Object[]}} report
 * @returns {HTMLElement}
 */
export function chart(chart, report) {
  const rows = report.buckets.filter((bucket) => chart.series.some((each) => each.of(bucket)));
  const body = rows.length === 0 ? el("p", { class: "dim" }, chart.none) : [legend(chart.series), drawn(chart, report, rows), numbers(chart, report, rows)];
  return el("section", { class: "card chart", "aria-label": chart.name }, el("h2", {}, chart.name), body);
}

function legend(series) {
  if (series.length === 0) return null;
  return el("p", { class: "legend dim" }, series.map(({ name, style }) => el("span", { class: `key ${style}` }, name)));
}

/** A drawing as wide as its place, drawn again when that changes, so that its text keeps its size. */
function drawn(chart, report, rows) {
  const place = el("div", { class: "plot" });
  new ResizeObserver(([{ contentRect: { width } }]) => {
    if (place.dataset.width === String(Math.floor(width)) || width === 0) return;
    place.dataset.width = String(Math.floor(width));
    replace(place, drawing(chart, report, rows, Math.floor(width)));
  }).observe(place);
  return place;
}

function drawing(chart, report, rows, width) {
  const { begins_at: from, ends_at: to, step } = report;
  const [x, high] = [(at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - 4), HEIGHT - TOP - BOTTOM];
  const most = nice(Math.max(...rows.map((bucket) => heightOf(chart, bucket))));
  const y = (value) => TOP + high * (1 - value / most);
  const slot = x(from + step) - x(from);
  const bar = { width: Math.max(slot - (slot > 6 ? 2 : 0.5), 1), high, y };
  return svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", class: "waterfall",
    "aria-label": `${chart.name}; the table below has the same numbers`,
  },
  report.covered_from !== null && report.covered_from > from &&
    svg("rect", { x: LEFT, y: TOP, width: x(report.covered_from) - LEFT, height: high, class: "unknown" }, svg("title", {}, "not read")),
  [0, most / 2, most].filter((value) => !chart.isWhole || Number.isInteger(value)).map((value) => [
    svg("line", { x1: LEFT, x2: width - 4, y1: y(value), y2: y(value), class: "grid" }),
    svg("text", { x: LEFT - 6, y: y(value) + 4, class: "axis", "text-anchor": "end" }, chart.written(value)),
  ]),
  [...Array(TIMES + 1).keys()].map((index) => {
    const at = from + ((to - from) * index) / TIMES;
    const anchor = index === 0 ? "start" : index === TIMES ? "end" : "middle";
    return svg("text", { x: x(at), y: HEIGHT - 6, class: "axis", "text-anchor": anchor }, timeOf(at, to - from));
  }),
  rows.map((bucket) => column(chart, bucket, x(bucket.at), bar, report)));
}

function heightOf({ series, isOverlay }, bucket) {
  const values = series.map((each) => each.of(bucket) ?? 0);
  return isOverlay ? Math.max(...values) : values.reduce((sum, each) => sum + each, 0);
}

function column({ series, isOverlay, written }, bucket, x, { width, high, y }, report) {
  let below = 0;
  return series.map((each) => {
    const value = each.of(bucket) ?? 0;
    if (value === 0) return null;
    const top = y(below + value);
    const height = Math.max(y(below) - top, 1);
    if (!isOverlay) below += value;
    const target = each.link?.(bucket);
    const open = target && (() => { location.hash = target; });
    return svg("rect", { x, y: Math.min(top, TOP + high - height), width, height, class: `bar ${each.style}${target ? " opens" : ""}`, ...(open ? { onClick: open } : {}) },
      svg("title", {}, `${spanOf(bucket, report)}: ${written(value)} ${each.name}`));
  });
}

/** The table is made when it is opened: it has a row for each bar. */
function numbers(chart, report, rows) {
  const place = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Numbers of: ${chart.name}` });
  const fill = () => {
    if (!folded.open || place.hasChildNodes()) return;
    replace(place, el("table", {}, el("caption", {}, chart.name),
      el("thead", {}, el("tr", {}, ["Time", ...chart.series.map((each) => each.name)].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.toReversed().map((bucket) => el("tr", {}, el("th", { scope: "row" }, spanOf(bucket, report)),
        chart.series.map((each) => el("td", {}, cell(each, bucket, chart.written))))))));
  };
  const folded = el("details", { onToggle: fill }, el("summary", {}, "Numbers"), place);
  return folded;
}

function cell(series, bucket, written) {
  const value = series.of(bucket);
  if (value === null || value === undefined) return "–";
  const target = value === 0 ? null : series.link?.(bucket);
  return target ? el("a", { href: target }, written(value)) : written(value);
}

/** Return the times of a bar. */
function spanOf({ at }, { step, begins_at: from, ends_at: to }) {
  const day = to - from > DAY_S ? `${DAY.format(at * 1000)}, ` : "";
  return `${day}${CLOCK.format(at * 1000)}–${CLOCK.format((at + step) * 1000)}`;
}

function timeOf(at, span) {
  return span > DAY_S ? DAY.format(at * 1000) : CLOCK.format(at * 1000);
}

/** Return the next number above that people like at an axis. */
function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((each) => each * unit).find((each) => each >= value * 0.999);
}
