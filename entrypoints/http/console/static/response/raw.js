/** The raw view: the prompt as the model read it and the text as it wrote it, beside the items. */

import { copyable } from "../copy.js";
import { el, replace } from "../dom.js";
import { counted } from "../format.js";
import { differenceOf } from "./prefix.js";
import { render } from "../items/transcript.js";

/** Special tokens of Harmony, of chat templates, and tags that models write around thoughts and calls. */
const SPECIAL = /<\|[^<>|\n]{1,60}\|>|<｜[^<>｜\n]{1,60}｜>|<\/?(?:think|tool_call|tool_response|tools|bos|eos|s|unk|pad|start_of_turn|end_of_turn)>|\[\/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|SYSTEM_PROMPT|THINK|ARGS)\]/g;
const MAX_SHOWN = 30_000;
const MAX_MARKS = 3000;

/**
 * Fill a panel.
 * @param {HTMLElement} panel
 * @param {Object} bundle of GET /v1/responses/{id}/explain
 * @param {(id: string) => Promise<Object|null>} other gives the bundle of the response before
 */
export async function drawRaw(panel, bundle, other) {
  const traced = bundle.turns.filter((turn) => turn.prompt !== undefined || turn.output !== undefined || turn.upstream_request);
  const prefix = el("section", { class: "prefix" });
  replace(
    panel,
    bundle.missing.map((reason) => el("p", { class: "warning" }, reason)),
    bundle.turns.length === 0 && el("p", {}, "To keep what models read and write, start the server with ",
      el("code", {}, "--keep-traces all"), " (or ", el("code", {}, "failed"), "). It is encrypted in the store and deleted with its response."),
    prefix,
    el("div", { class: "beside" },
      el("section", { "aria-label": "Raw text" }, bundle.turns.map((turn, index) => traced.includes(turn) && drawTurn(turn, index))),
      el("section", { "aria-label": "Items read from it" }, el("h2", {}, "Items read from it"), render(bundle.response.output))),
  );
  if (bundle.prefix) await drawPrefix(prefix, bundle, other);
}

function drawTurn(turn, index) {
  const facts = [
    turn.model, turn.format, turn.prompt_tokens && `${counted(turn.prompt_tokens, "token")} in`,
    turn.output_tokens && `${counted(turn.output_tokens, "token")} out`, turn.reason && `ended by ${turn.reason}`,
  ];
  return el(
    "article",
    { class: "raw-turn" },
    el("h2", {}, `Turn ${index + 1}`),
    el("p", { class: "dim" }, facts.filter(Boolean).join(" · ")),
    turn.cut?.length > 0 && el("p", { class: "warning" }, `Left out or shortened, to stay within --keep-trace-bytes: ${turn.cut.join(", ")}`),
    turn.upstream_request && [el("h3", {}, "Request to the model server"), marked(JSON.stringify(turn.upstream_request, null, 2), "Request")],
    turn.prompt !== undefined && [el("h3", {}, "Prompt"), marked(turn.prompt, "Prompt")],
    turn.output !== undefined && [el("h3", {}, "Written by the model"), marked(turn.output, "Output")],
  );
}

/** Return text in which special tokens are marked. */
export function marked(text, label) {
  const box = el("pre", { class: "raw", tabindex: "0", "aria-label": label }, pieces(text.slice(0, MAX_SHOWN)));
  const shown = copyable(box, () => text, label.toLowerCase());
  if (text.length <= MAX_SHOWN) return shown;
  const button = el("button", { type: "button", onClick: () => { replace(box, pieces(text)); button.remove(); } }, `Show all ${text.length} characters`);
  return [shown, button];
}

function pieces(text) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(SPECIAL)) {
    if (found.length >= MAX_MARKS) break;
    found.push(text.slice(at, match.index), el("mark", { class: "special" }, match[0]));
    at = match.index + match[0].length;
  }
  return [...found, text.slice(at)];
}

async function drawPrefix(place, bundle, other) {
  const { prefix } = bundle;
  const shared = `${prefix.shared_tokens} of the ${counted(prefix.parent_tokens, "token")}`;
  const sentence = prefix.differs_at === null
    ? `The prompt contains all of ${prefix.previous_response_id}: ${shared} are shared.`
    : `The prompt shares ${shared} of ${prefix.previous_response_id}, and differs at token ${prefix.differs_at}.`;
  replace(place, el("h2", {}, "Prefix"), el("p", {}, sentence));
  if (prefix.differs_at === null) return;
  const parent = await other(prefix.previous_response_id);
  const difference = parent && differenceOf(parent, bundle);
  if (!difference) return;
  const token = (id) => (id === undefined ? "" : ` (token id ${id})`);
  replace(place, [...place.childNodes],
    el("div", { class: "beside" },
      el("div", {}, el("h3", {}, `Before${token(difference.parentToken)}`), context(difference.shared, difference.parent)),
      el("div", {}, el("h3", {}, `Now${token(difference.token)}`), context(difference.shared, difference.prompt))));
}

function context(shared, different) {
  return el("pre", { class: "raw", tabindex: "0" }, shared, el("mark", { class: "differs" }, different || "(the end)"));
}
