/** Playground. */

import { el, replace } from "./dom.js";

export const title = "Playground";

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export function show(root, params, signal) {
  replace(root, el("h1", {}, title));
}
