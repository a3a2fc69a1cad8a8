/** How an item failed, in a word or two for the head of its card; null if it did not. */

/** What Python prints before an error that nobody caught. */
const TRACEBACK = "Traceback (most recent call last):";
const FAILED = new Set(["failed", "incomplete"]);

/** @param {Object} item @returns {string|null} */
export function failureOf(item) {
  if (item.error) return "failed";
  if (item.type === "code_interpreter_call" && FAILED.has(item.status) === false) return errorOf(item);
  if (item.type === "shell_call_output") return outcomeOf(item);
  return FAILED.has(item.status) ? item.status : null;
}

/** The server calls code that raised an error completed: the error is its output. */
function errorOf(item) {
  const logs = (item.outputs ?? []).map((each) => each.logs ?? "").join("\n");
  if (!logs.includes(TRACEBACK)) return null;
  const last = logs.trimEnd().split("\n").at(-1);
  return /^[\w.]+(:|$)/.test(last) ? last.split(":")[0] : "error";
}

function outcomeOf(item) {
  const bad = (item.output ?? []).map((each) => each.outcome ?? {})
    .find((outcome) => outcome.type === "timeout" || (outcome.exit_code ?? 0) !== 0);
  if (bad === undefined) return null;
  return bad.type === "timeout" ? "timed out" : `exit code ${bad.exit_code}`;
}
