/** The list of responses. */

import { el, replace } from "./dom.js";

export const title = "Responses";

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  replace(root, el("h1", {}, title));
}
