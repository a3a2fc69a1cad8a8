/** Dialogs: over the page, until they are closed. */

import { append, el } from "./dom.js";

/**
 * Show a dialog; Escape and its last button close it.
 * @param {string} title @param {Node[]} body @param {Node[]} actions before the button that closes
 */
export function dialog(title, body, actions) {
  const made = el("dialog", { "aria-label": title, onClose: () => made.remove() },
    el("h2", {}, title), body,
    el("div", { class: "row" }, actions, el("button", { type: "button", onClick: () => made.close() }, "Close")));
  append(document.body, made);
  made.showModal();
}
