/** Tabs: one panel at a time, chosen by the pointer or by arrows (WAI-ARIA, tabs pattern). */

import { el, replace } from "../dom.js";

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/**
 * @param {{name: string, label: string, draw: (panel: HTMLElement) => any}[]} rows `draw` fills the
 *   panel each time it is chosen
 * @param {string} chosen the name of the first panel
 * @param {(name: string) => void} onChange
 * @returns {{node: HTMLElement, choose: (name: string) => void}}
 */
export function tabs(rows, chosen, onChange) {
  const panel = el("div", { role: "tabpanel", id: "panel", class: "panel", tabindex: "0" });
  const buttons = rows.map(({ name, label }, index) =>
    el("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", class: "tab",
      onClick: () => choose(name), onKeydown: (event) => step(index, event),
    }, label));
  const step = (index, event) => {
    const to = { Home: 0, End: rows.length - 1 }[event.key] ?? (index + (STEPS[event.key] ?? NaN) + rows.length) % rows.length;
    if (Number.isNaN(to)) return;
    event.preventDefault();
    buttons[to].focus();
    choose(rows[to].name);
  };
  const choose = (name) => {
    const row = rows.find((each) => each.name === name) ?? rows[0];
    rows.forEach((each, index) => {
      buttons[index].setAttribute("aria-selected", String(each === row));
      buttons[index].tabIndex = each === row ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `tab-${row.name}`);
    replace(panel);
    onChange(row.name);
    const failed = (error) => error.name !== "AbortError" && replace(panel, el("p", { class: "error" }, error.message));
    Promise.resolve().then(() => row.draw(panel)).catch(failed);
  };
  const node = el("div", {}, el("div", { role: "tablist", "aria-label": "Parts", class: "tabs" }, buttons), panel);
  choose(chosen);
  return { node, choose };
}
