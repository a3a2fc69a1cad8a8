/** How many responses wait for an approval: the number in the navigation, and what the inbox shows. */

import { get } from "../api.js";
import { poll } from "../poll.js";
import { announce, countIn } from "../shell.js";

const ASK_MS = 15_000;
/** More of them are behind a link. */
const PAGE = 20;

let leaving = new AbortController();
let known = 0;

/** Keep the number in the navigation true until the reader has signed out. */
export function watch() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const ask = () => waiting({}, signal).catch(() => {}); // the next time may work
  ask();
  poll(ask, signal, ASK_MS);
}

/** Ask no more: nobody is signed in. */
export function unwatch() {
  leaving.abort();
  known = 0;
  countIn("approvals", "");
}

/**
 * Return a page of the list of responses that wait, the newest first.
 * @param {{after?: string}} params
 * @param {AbortSignal} [signal]
 */
export async function waiting({ after }, signal) {
  const page = await get("/v1/responses", { awaits_approval: true, limit: PAGE, after, "include[]": "metrics" }, signal);
  if (!after) show(page);
  return page;
}

function show({ data, has_more: hasMore }) {
  const many = data.reduce((sum, each) => sum + each.preview.approvals.filter((approval) => !approval.response_id).length, 0);
  countIn("approvals", many === 0 ? "" : `${many}${hasMore && data.length === PAGE ? "+" : ""}`);
  if (many > known) announce(`${many === 1 ? "One call waits" : `${many} calls wait`} for approval.`);
  known = many;
}
