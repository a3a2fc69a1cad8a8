/** Calls that wait for a yes or a no, and the answer to them. */

import { post } from "../api.js";

/** Return the requests for approval in the output of a response. @returns {Object[]} items */
export function requestsOf(response) {
  return (response.output ?? []).filter((item) => item.type === "mcp_approval_request");
}

/** Return which responses have answered the requests of a response, by the id of the request. */
export function answersOf(response) {
  return new Map((response.preview?.approvals ?? []).map((each) => [each.id, each.response_id]));
}

/** Return the label of the server and the name of the tool. */
export function calledName(item) {
  return `${item.server_label}/${item.name}`;
}

/** Return the items that answer calls. @param {[string, boolean][]} answers */
export function answerItems(answers) {
  return answers.map(([id, isApproved]) => ({ type: "mcp_approval_response", approval_request_id: id, approve: isApproved }));
}

/**
 * Answer calls of a response, all of them at once: what follows is one response. It runs in the
 * background, as whoever answers may close the page.
 * @param {Object} response
 * @param {[string, boolean][]} answers the ids of the requests, and whether each is approved
 * @returns {Promise<string>} the id of the response that follows
 */
export async function answer(response, answers) {
  const input = answerItems(answers);
  const { tools, model, instructions, conversation } = response;
  const before = conversation ? { conversation: conversation.id } : { previous_response_id: response.id };
  const body = { model, tools, input, background: true, ...before, ...(instructions ? { instructions } : {}) };
  return (await post("/v1/responses", body)).id;
}
