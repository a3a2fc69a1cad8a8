/** Where a prompt leaves the prompt and output that it should continue. */

const AROUND = 160;

/**
 * Compare the last turn of the response before with the first prompt of this one.
 * @returns {{shared: string, parent: string, prompt: string, parentToken?: number, token?: number}|null}
 *   the text around the first difference, or null if a trace is missing
 */
export function differenceOf(parentBundle, bundle) {
  const parentTurn = parentBundle.turns.findLast((turn) => turn.prompt !== undefined);
  const turn = bundle.turns.find((each) => each.prompt !== undefined);
  if (!parentTurn || !turn) return null;
  const before = parentTurn.prompt + (parentTurn.output ?? "");
  const at = firstDifference(before, turn.prompt);
  const index = bundle.prefix?.differs_at;
  const tokensBefore = [...(parentTurn.prompt_token_ids ?? []), ...(parentTurn.output_token_ids ?? [])];
  return {
    shared: (at > AROUND ? "…" : "") + before.slice(Math.max(at - AROUND, 0), at),
    parent: before.slice(at, at + AROUND),
    prompt: turn.prompt.slice(at, at + AROUND),
    parentToken: tokensBefore[index],
    token: turn.prompt_token_ids?.[index],
  };
}

/** Return the index of the first character that differs. */
export function firstDifference(one, other) {
  const end = Math.min(one.length, other.length);
  for (let index = 0; index < end; index += 1) {
    if (one[index] !== other[index]) return index;
  }
  return end;
}
