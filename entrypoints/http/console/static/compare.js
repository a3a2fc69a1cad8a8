/** Compare. */

import { el, replace } from "./dom.js";

export const title = "Compare";

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export function show(root, params, signal) {
  replace(root, el("h1", {}, title));
}
