/**
 * The server's API. Paths begin with a slash: "/v1/responses", "/console/state". The session's
 * cookie goes with each request; a 401 lets the shell show the sign-in form (SIGN_IN).
 */

/** Where the server is, also behind a proxy that puts a prefix before its paths. */
const ROOT = new URL("../..", import.meta.url);

/** What the API leaves out of items unless it is asked: the outputs of tools. */
export const OUTPUTS = [
  "code_interpreter_call.outputs", "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
];

/** The event on `document` that asks for the sign-in form. */
export const SIGN_IN = "antiphon-sign-in";

/** An answer that is no success. `status` 0: the server could not be reached. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string|null} code @param {string|null} param */
  constructor(status, message, code = null, param = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

/**
 * @param {string} path
 * @param {Object<string, any>} [params] of the query; arrays are repeated; null and "" left out
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the JSON of the answer
 */
export async function get(path, params, signal) {
  return (await request("GET", path, { params, signal })).json();
}

/** POST JSON. @returns {Promise<any>} */
export async function post(path, body, signal) {
  return (await request("POST", path, { body, signal })).json();
}

/** DELETE. @returns {Promise<any>} */
export async function remove(path, signal) {
  return (await request("DELETE", path, { signal })).json();
}

/** GET bytes. @returns {Promise<Blob>} */
export async function blob(path, signal) {
  return (await request("GET", path, { signal })).blob();
}

/**
 * Read a stream of events: POST `body`, or GET with these parameters. Returns at its end.
 * @param {string} path
 * @param {{body?: Object, params?: Object}} request
 * @param {(event: any) => void} onEvent gets the JSON of each event
 * @param {AbortSignal} [signal]
 */
export async function stream(path, { body, params }, onEvent, signal) {
  const answer = await request(body ? "POST" : "GET", path, { body, params, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = dataOf(frame);
      if (data !== null) onEvent(data);
    }
  }
}

function dataOf(frame) {
  const lines = frame.split("\n").filter((line) => line.startsWith("data:"));
  const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
  return data === "" || data === "[DONE]" ? null : JSON.parse(data);
}

/** Return the URL of a path with a query. */
export function url(path, params) {
  const made = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(params ?? {})) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") made.searchParams.append(name, String(each));
    }
  }
  return made;
}

async function request(method, path, { params, body, signal }) {
  const hasBody = body !== undefined && body !== null;
  let answer;
  try {
    answer = await fetch(url(path, params), {
      method,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      headers: hasBody ? { "content-type": "application/json" } : {},
      body: hasBody ? JSON.stringify(body) : undefined,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (answer.ok) return answer;
  const error = await errorOf(answer);
  if (error.status === 401 && path !== "/console/session") document.dispatchEvent(new CustomEvent(SIGN_IN));
  throw error;
}

async function errorOf(answer) {
  try {
    const { error } = await answer.json();
    return new ApiError(answer.status, error.message, error.code, error.param);
  } catch {
    return new ApiError(answer.status, `The server answered with status ${answer.status}.`);
  }
}
