/** What the list says when it has no row: on a new server, for a filter, and after the last page. */

import { get, url } from "../api.js";
import { copyable } from "../copy.js";
import { el, replace } from "../dom.js";
import { countOf } from "./filters.js";
import { count } from "../format.js";
import { link } from "../routes.js";

/**
 * @param {Object<string, string>} params of the address
 * @param {{has_more: boolean, searched?: number}} page
 * @returns {Node[]}
 */
export function nothing(params, page) {
  const searched = page.searched ?? 0;
  const wanted = `matches the ${[params.search && "search", countOf(params) > 0 && "filters"].filter(Boolean).join(" and the ")}`;
  if (countOf(params) === 0 && !params.search) return params.after ? [sentence("There are no more responses after this page.")] : newServer();
  if (page.has_more) {
    return [
      sentence(`None of the ${count(searched)} responses that were searched here ${wanted}. There are more, which have not been searched yet.`),
      el("p", {}, el("a", { href: link("responses", { ...params, after: page.last_id }) }, "Search on")),
    ];
  }
  if (params.after) return [sentence(`None of the last ${count(searched)} responses ${wanted}: the search has reached the end.`)];
  if (searched === 0) return [sentence(`There are no responses yet, so none ${wanted}.`)];
  return [sentence(`None of all ${count(searched)} responses ${wanted}.`)];
}

function sentence(words) {
  return el("p", {}, words);
}

function newServer() {
  const request = el("div", {});
  drawRequest(request).catch(() => {});
  return [
    sentence("There are no responses yet. Each one that you create appears here by itself."),
    el("p", {}, el("a", { class: "button", href: link("playground") }, "Try it in the playground"), " or send a request:"),
    request,
    el("p", { class: "dim" }, "Responses with ", el("code", {}, '"store": false'), " are never listed."),
  ];
}

/** A request that works here: for a model of this server, with a key if it needs one. */
async function drawRequest(place) {
  const [{ data }, session] = await Promise.all([get("/v1/models"), get("/console/session")]);
  const key = session.needed ? '  -H "Authorization: Bearer $ANTIPHON_API_KEY" \\\n' : "";
  const body = JSON.stringify({ model: data[0]?.id ?? "MODEL", input: "Say hello." }).replaceAll("'", "'\\''");
  const command = `curl ${url("/v1/responses").href} \\\n  -H "Content-Type: application/json" \\\n${key}  -d '${body}'`;
  replace(place, copyable(el("pre", { tabindex: "0" }, command), () => command, "command"));
}
