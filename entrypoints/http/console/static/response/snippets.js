/** Requests as text, to copy: curl, Python, JavaScript, and scripts for the scripted models. No key is in them. */

const CALLS = new Set(["function_call", "custom_tool_call", "mcp_call", "code_interpreter_call", "program"]);
const RUN_BY_SERVER = new Set(["mcp_call", "code_interpreter_call", "program"]);
/** Fields of a response that were its request's, where they differ from the default. */
const SETTINGS = {
  model: null, instructions: null, tools: [], tool_choice: "auto", parallel_tool_calls: true, temperature: 1, top_p: 1,
  max_output_tokens: null, max_tool_calls: null, truncation: "disabled", service_tier: "auto", metadata: {}, top_logprobs: 0,
};

/** What OpenAI's SDK for Python knows by name; it takes all else in `extra_body`. */
const SDK_FIELDS = new Set(
  ("background context_management conversation include input instructions max_output_tokens max_tool_calls metadata model " +
    "parallel_tool_calls previous_response_id prompt prompt_cache_key reasoning safety_identifier service_tier store " +
    "temperature text tool_choice tools top_logprobs top_p truncation user").split(" "),
);

/**
 * Return the request that makes such a response again.
 * @param {Object} response
 * @param {Object[]} items the whole input, earlier responses included
 */
export function requestOf(response, items) {
  const request = {};
  for (const [name, plain] of Object.entries(SETTINGS)) {
    const value = response[name];
    if (value !== undefined && value !== null && JSON.stringify(value) !== JSON.stringify(plain)) request[name] = value;
  }
  if (response.text?.format && response.text.format.type !== "text") request.text = { format: response.text.format };
  if (response.reasoning?.effort) request.reasoning = { effort: response.reasoning.effort };
  if (response.background) request.background = true;
  delete request.service_tier;
  request.input = items.map(withoutId);
  return request;
}

/** Return an item as a client may send it: ids are the server's. */
export function withoutId(item) {
  const { id, status, ...others } = item;
  return item.type === "message" || item.type === undefined ? others : { ...others, ...(id ? { id } : {}) };
}

/**
 * @param {Object} request
 * @param {string} base the URL of the API, with /v1
 * @returns {string} a command. The body is its input: an argument could not be as long as a picture
 */
export function curl(request, base) {
  return `curl ${quoted(`${base}/responses`)} \\\n  -H "Authorization: Bearer $ANTIPHON_API_KEY" \\\n` +
    `  -H "Content-Type: application/json" \\\n  -d @- <<'JSON'\n${JSON.stringify(request, null, 2)}\nJSON\n`;
}

export function python(request, base) {
  const own = Object.entries(request).filter(([name]) => !SDK_FIELDS.has(name));
  const fields = Object.entries(request).filter(([name]) => SDK_FIELDS.has(name));
  if (own.length) fields.push(["extra_body", Object.fromEntries(own)]);
  return "import os\n\nfrom openai import OpenAI\n\n" +
    `client = OpenAI(\n    base_url=${JSON.stringify(base)},\n    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),\n)\n` +
    `response = client.responses.create(\n${fields.map(([name, value]) => `    ${name}=${literal(value, 1)},\n`).join("")})\n` +
    `print(${request.background ? "response.id, response.status" : "response.output_text"})\n`;
}

export function javascript(request, base) {
  // In an object literal, this name would set the prototype.
  const body = JSON.stringify(request, null, 2).replaceAll('"__proto__":', '["__proto__"]:');
  return 'import OpenAI from "openai";\n\n' +
    `const client = new OpenAI({\n  baseURL: ${JSON.stringify(base)},\n  apiKey: process.env.ANTIPHON_API_KEY ?? "none",\n});\n` +
    `const response = await client.responses.create(${body});\n` +
    `console.log(${request.background ? "response.id, response.status" : "response.output_text"});\n`;
}

/** Return a word as a shell reads it. */
function quoted(word) {
  return `'${word.replaceAll("'", "'\\''")}'`;
}

/** Return a message that makes a scripted model write the same items. */
export function script(response) {
  const turns = [[]];
  const output = response.output.filter((item) => item.caller?.type !== "program"); // it calls again
  output.forEach((item, index) => {
    const part = partOf(item);
    if (part === null) return;
    turns.at(-1).push(part);
    const next = output[index + 1];
    if (RUN_BY_SERVER.has(item.type) && !CALLS.has(next?.type)) turns.push([]);
  });
  const played = turns.filter((turn) => turn.length).map((turn) => (turn.length === 1 ? turn[0] : turn));
  return `@@script ${JSON.stringify(played)}`;
}

function partOf(item) {
  if (item.type === "program") return { call: "program", args: { code: item.code } };
  if (item.type === "message") return { say: texts(item.content) };
  if (item.type === "reasoning") return { think: texts(item.content?.length ? item.content : item.summary) };
  if (item.type === "function_call") return { call: item.name, args: item.arguments };
  if (item.type === "custom_tool_call") return { custom: item.name, input: item.input };
  if (item.type === "mcp_call") return { mcp: item.name, args: item.arguments };
  if (item.type === "code_interpreter_call") return { python: item.code ?? "" };
  return null;
}

function texts(parts) {
  return (parts ?? []).map((part) => part.text ?? part.refusal ?? "").join("");
}

/** Return a value as Python writes it. */
function literal(value, depth) {
  const [inner, outer] = ["    ".repeat(depth + 1), "    ".repeat(depth)];
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const rows = Array.isArray(value)
    ? value.map((each) => literal(each, depth + 1))
    : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return rows.length === 0 ? open + close : `${open}\n${rows.map((row) => inner + row).join(",\n")},\n${outer}${close}`;
}
