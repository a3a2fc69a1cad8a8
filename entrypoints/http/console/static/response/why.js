/** Why a response ended, and what was ignored, repaired or tried again. */

import { el, replace } from "../dom.js";
import { awaitsApproval, counted, seconds } from "../format.js";

/** What the reason of an incomplete response means, and what to do. */
const REASONS = {
  max_output_tokens: "It reached max_output_tokens. Allow more, or let the model think less.",
  content_filter: "A filter of the server that runs the model cut it.",
  max_turns: "It had as many turns as the server allows (--tools-max-turns). Does the model call tools in a loop?",
  max_context: "The output of its tools did not fit into the model's context.",
  max_time: "It took as long as the server allows (--response-s).",
  steered: "Its client steered it; the response after it continues.",
};
const STATUSES = {
  completed: "Completed.",
  cancelled: "Cancelled by its client.",
  queued: "Waiting for its turn.",
  in_progress: "Running.",
};

/** What all writes of a response may take unnoticed. */
const SLOW_STORE_S = 0.1;

/** Fill a place with the sentences about a response. */
export function drawEnding(place, response) {
  const notes = notesOf(response);
  replace(
    place,
    el("p", { class: response.error ? "error" : response.incomplete_details || awaitsApproval(response) ? "warning" : "" }, endingOf(response)),
    notes.length > 0 && el("ul", { class: "notes" }, notes.map((each) => el("li", {}, each))),
  );
}

/** Return why it ended, in a sentence. */
export function endingOf(response) {
  const { error, incomplete_details: details } = response;
  if (error) return `Failed: ${error.code}: ${error.message}`;
  if (awaitsApproval(response)) return "It waits for you to approve or deny a call.";
  if (details) return `Incomplete: ${REASONS[details.reason] ?? details.reason}`;
  return STATUSES[response.status] ?? response.status;
}

function notesOf(response) {
  const metrics = response.metrics ?? {};
  const turns = metrics.turns ?? [];
  const notes = [];
  if (metrics.ignored?.length) notes.push(`Ignored, as they have no effect here: ${metrics.ignored.join(", ")}`);
  turns.forEach((turn, index) => {
    const where = `Turn ${index + 1}`;
    if (turn.is_repaired) notes.push(`${where}: the parser repaired what the model wrote${turn.repairs ? `: ${turn.repairs.join(", ")}` : ""}`);
    if (turn.unmarked_calls) notes.push(`${where}: ${counted(turn.unmarked_calls, "call")} without the model's markers`);
    if (turn.resumed_tokens) notes.push(`${where}: continued after ${counted(turn.resumed_tokens, "token")} of a server that was lost`);
    if (turn.attempts > 1) notes.push(`${where}: ${counted(turn.attempts, "model")} tried`);
    if (turn.kind === "budget") notes.push(`${where}: a whole budget was used`);
    if (turn.reason === "length") notes.push(`${where}: cut at its limit of tokens`);
    for (const call of turn.tool_calls ?? []) {
      if (call.result && !["ok", "approval_requested"].includes(call.result)) {
        notes.push(`${where}: ${[call.server, call.name].filter(Boolean).join("/")}: ${call.result} after ${seconds(call.seconds ?? 0)}`);
      }
    }
  });
  if (metrics.epoch > 1) notes.push(`${metrics.epoch} servers ran it, since others stopped; the last is ${metrics.server}`);
  for (const item of response.output ?? []) {
    if (!item.error) continue;
    const name = [item.server_label, item.name].filter(Boolean).join("/") || item.type;
    notes.push(`${name}: ${typeof item.error === "string" ? item.error : item.error.message ?? JSON.stringify(item.error)}`);
  }
  if (metrics.store_seconds >= SLOW_STORE_S) notes.push(`The store is slow: writes took ${seconds(metrics.store_seconds)}`);
  if (metrics.store_failures) notes.push(`${counted(metrics.store_failures, "write")} to the store failed and were repeated`);
  if (metrics.received_at && metrics.admitted_at - metrics.received_at > 1) {
    notes.push(`It waited ${seconds(metrics.admitted_at - metrics.received_at)} for its turn`);
  }
  return notes;
}
