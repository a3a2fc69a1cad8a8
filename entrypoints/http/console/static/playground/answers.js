/** What a response waits for: outputs of calls that the client runs, and approvals of MCP calls. */

import { answerItems, requestsOf } from "../response/approvals.js";
import { Choices } from "../approvals/choices.js";
import { el } from "../dom.js";
import { code } from "../items/transcript.js";
import { pretty } from "../format.js";

/** Calls that the client runs, and the type of their output. */
const OUTPUTS = { function_call: "function_call_output", custom_tool_call: "custom_tool_call_output" };
/** Calls that the client runs, but this page cannot. */
const ELSEWHERE = new Set(["computer_call", "local_shell_call", "apply_patch_call"]);

let made = 0;

/**
 * Return nodes that ask for all that a response waits for, or null if it waits for nothing.
 * @param {Object} response
 * @param {(input: Object[]) => Promise<void>} send gets the items that answer
 */
export function answersTo(response, send) {
  if (response.status !== "completed") return null;
  const answered = new Set(response.output.map((item) => item.type.endsWith("_call_output") && item.call_id));
  const calls = response.output.filter((item) => item.type in OUTPUTS && item.caller?.type !== "program" && !answered.has(item.call_id));
  const requests = requestsOf(response);
  const others = response.output.filter(({ type, call_id: id }) => ELSEWHERE.has(type) && !answered.has(id));
  if (others.length) {
    return el("p", { class: "warning" }, `The model waits for the output of a ${others[0].type}, which this page cannot give. A client can, after this response.`);
  }
  if (requests.length && calls.length === 0) return approvals(requests, send);
  return calls.length || requests.length ? outputs(calls, requests, send) : null;
}

function approvals(requests, send) {
  const choices = new Choices(requests, (answers) => {
    choices.disable(true);
    choices.say("Sending…");
    send(answerItems(answers)).then((isSent) => {
      choices.disable(false);
      if (isSent) choices.close();
      choices.say(isSent ? choices.said() : "Not sent.");
    });
  });
  return el("div", { class: "card approval answers" }, choices.nodes);
}

/** A form for the outputs; calls that need an approval are answered with it. */
function outputs(calls, requests, send) {
  made += 1;
  const rows = calls.map((call, index) => {
    const id = `output-${made}-${index}`;
    const area = el("textarea", { id, rows: 2, required: true, spellcheck: "false", dir: "auto" });
    const given = code(pretty(call.arguments ?? call.input ?? ""), "arguments", { dir: "auto" });
    return { call, area, node: el("div", { class: "field" }, el("label", { for: id, dir: "auto" }, `Output of ${call.name}`), given, area) };
  });
  const choices = requests.map((item, index) => {
    const id = `approval-${made}-${index}`;
    const select = el("select", { id }, el("option", { value: "true" }, "approve"), el("option", { value: "" }, "deny"));
    return { item, select, node: el("div", { class: "field" }, el("label", { for: id }, `Call of ${item.server_label}/${item.name}`), code(pretty(item.arguments), "arguments"), select) };
  });
  const button = el("button", { type: "submit", class: "primary" }, "Send outputs");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    const outputItems = rows.map(({ call, area }) => ({ type: OUTPUTS[call.type], call_id: call.call_id, output: area.value }));
    const isSent = await send([...outputItems, ...answerItems(choices.map(({ item, select }) => [item.id, select.value === "true"]))]);
    if (isSent) form.remove();
    else button.disabled = false;
  };
  const form = el("form", { class: "card answers", onSubmit: submit }, el("h3", {}, "The model waits for these outputs"),
    rows.map(({ node }) => node), choices.map(({ node }) => node), button);
  return form;
}
