/** The search for what was said: its box, and the words that it has found. */

import { el } from "../dom.js";

/**
 * Return the box.
 * @param {Object<string, string>} params of the address
 * @param {(params: Object<string, string>) => void} onChange gets all that is set now
 */
export function searchBox(params, onChange) {
  const input = el("input", {
    id: "search", type: "search", maxlength: "1000", dir: "auto", spellcheck: "false", autocomplete: "off",
    placeholder: "words", value: params.search ?? "",
  });
  const submit = (event) => {
    event.preventDefault();
    onChange({ ...params, after: "", search: input.value.trim() });
  };
  return el("form", { class: "row search", role: "search", "aria-label": "Search what was said", onSubmit: submit },
    el("label", { for: "search" }, "Search what was said"), input, el("button", { type: "submit" }, "Search"));
}

/** Return the text around what was found, with its words marked. */
export function matchOf(response, search) {
  if (!response.match) return null;
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return el("div", { class: "match", dir: "auto" }, marked(response.match, words));
}

function marked(text, words) {
  const lower = text.toLowerCase();
  const nodes = [];
  let shown = 0;
  // A letter may become two in lower case: then the places of the words are not known.
  while (lower.length === text.length) {
    const next = words.map((word) => [lower.indexOf(word, shown), word.length]).filter(([at]) => at >= 0)
      .sort(([at, length], [other, otherLength]) => at - other || otherLength - length)[0];
    if (next === undefined) break;
    const [at, length] = next;
    nodes.push(text.slice(shown, at), el("mark", {}, text.slice(at, at + length)));
    shown = at + length;
  }
  return [...nodes, text.slice(shown)];
}
