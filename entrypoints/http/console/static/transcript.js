/**
 * Items of a response, readable.
 * `render(items, {pending})` returns nodes: an article for each item.
 */

import { el } from "./dom.js";

/** @param {Object[]} items of the input or the output @returns {Node[]} */
export function render(items) {
  return items.map((item) => el("article", { class: "item" }, item.type));
}
