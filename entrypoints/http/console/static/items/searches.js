/** What searches found: the passages of files, the pages of the web. */

import { el, safeHref } from "../dom.js";

/** Return a link if the address is one of the web, or its text. */
export function webLink(href, words) {
  const isWeb = safeHref(href) !== null && /^https?:/i.test(href);
  return isWeb ? el("a", { href, rel: "noopener noreferrer nofollow", target: "_blank" }, words) : `${words} (${href})`;
}

/** Return the passages of a file search. `box` shows a text. */
export function passages(results, box) {
  if (results === null || results === undefined) return null;
  if (results.length === 0) return el("p", { class: "dim" }, "Nothing was found.");
  return results.map((each) => el("section", {},
    el("h4", {}, each.filename || each.file_id || "passage", typeof each.score === "number" && ` (score ${each.score.toFixed(2)})`),
    box(each.text ?? "", "passage")));
}

/** Return the pages that a web search named, and what it showed to the model. */
export function pages(item, box) {
  const sources = item.action?.sources ?? [];
  const texts = (item.results ?? []).map((each) => each?.text).filter((text) => typeof text === "string");
  return [
    sources.length > 0 && el("ul", { class: "sources" }, sources.map((each) => el("li", {}, webLink(each.url ?? "", each.title || each.url || each.type)))),
    texts.map((text) => el("section", {}, el("h4", {}, "Shown to the model"), box(text, "result"))),
  ];
}
