/** How numbers, times and states are written. */

const NUMBER = new Intl.NumberFormat("en-US");
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { year: "numeric", month: "short", day: "2-digit" });

/** What a response is doing, by its status or, while it runs, by `metrics.phase`. */
const STATES = {
  queued: "queued", completed: "done", failed: "failed", incomplete: "incomplete", cancelled: "cancelled",
};
const PHASES = { queued: "queued", starting: "starting", thinking: "thinking", writing: "writing", tool: "tool" };

const DOORS = { responses: "", chat_completions: "Chat Completions", messages: "Messages", completions: "Completions" };

export const RUNNING = ["queued", "in_progress"];

/** What a completed response is called whose client has to approve a call. */
export const WAITS = "waiting for approval";

/** Return one word, or a few. */
export function stateOf(response) {
  if (awaitsApproval(response)) return WAITS;
  return STATES[response.status] ?? PHASES[response.metrics?.phase] ?? "running";
}

/** Return whether a call of the response is neither approved nor denied. */
export function awaitsApproval(response) {
  return response.status === "completed" && (response.preview?.approvals ?? []).some((each) => !each.response_id);
}

/** Return the API that the client of a response speaks, "" for this server's own. */
export function doorOf(response) {
  const door = response.metrics?.door ?? "responses";
  return DOORS[door] ?? door;
}

/** Return what people call an API that clients speak. */
export function doorName(door) {
  return door === "responses" ? "Responses" : DOORS[door] ?? door;
}

/** Return whether more will happen to the response. */
export function isRunning(response) {
  return RUNNING.includes(response.status);
}

/** Return a share between 0 and 1. */
export function percent(share) {
  return Number.isFinite(share) ? `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %` : "–";
}

export function count(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

/** Return a size, such as "1.2 MB": a thousand bytes are a kB. */
export function bytes(size) {
  if (size < 1000) return counted(size, "byte");
  return size < 999_950 ? `${(size / 1000).toFixed(1)} kB` : `${(size / 1_000_000).toFixed(1)} MB`;
}

/** Return "1 token", "2 tokens". */
export function counted(value, noun) {
  return `${NUMBER.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Return a duration of so many seconds. */
export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 100) return `${value.toFixed(2)} s`;
  const whole = Math.round(value);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

/** Return a time of the epoch; the day too, unless it is today. */
export function time(epoch) {
  if (epoch === null || epoch === undefined) return "–";
  const date = new Date(epoch * 1000);
  const today = DAY.format(new Date()) === DAY.format(date);
  return today ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
}

export function speed(value) {
  if (value === null || value === undefined) return "–";
  return value < 100 ? value.toFixed(1) : NUMBER.format(Math.round(value));
}

/** Return an id that is short enough for a table. */
export function shortId(id) {
  return id.length > 18 ? `${id.slice(0, 13)}…` : id;
}

/** Return how long the response took so far, in seconds. */
export function tookOf(response, now = Date.now() / 1000) {
  const metrics = response.metrics ?? {};
  const from = metrics.received_at ?? response.created_at;
  const to = metrics.ended_at ?? response.completed_at ?? (isRunning(response) ? now : null);
  return to === null ? null : Math.max(to - from, 0);
}

/** Return the tokens of a response, also while it runs. */
export function tokensOf(response) {
  const turns = response.metrics?.turns ?? [];
  const sum = (name) => turns.reduce((total, turn) => total + (turn[name] ?? 0), 0);
  const usage = response.usage;
  return {
    input: usage?.input_tokens ?? (turns.length ? sum("input_tokens") : null),
    output: usage?.output_tokens ?? (turns.length ? sum("output_tokens") : null),
    cached: usage?.input_tokens_details?.cached_tokens ?? sum("cached_tokens"),
    reasoning: usage?.output_tokens_details?.reasoning_tokens ?? sum("reasoning_tokens"),
  };
}

/** Return the tokens a second of the last turn that wrote any. */
export function speedOf(response) {
  const turns = response.metrics?.turns ?? [];
  return turns.findLast((turn) => turn.tokens_per_second !== undefined)?.tokens_per_second ?? null;
}

/** Return the names of the tools that were called. */
export function toolsOf(response) {
  const calls = (response.metrics?.turns ?? []).flatMap((turn) => turn.tool_calls ?? []);
  return [...new Set(calls.filter((call) => call.name !== "tools/list").map((call) => call.name))];
}

/** Return JSON for people; text that is no JSON stays as it is. */
export function pretty(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
