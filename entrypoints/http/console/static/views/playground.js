/** Ask a model: with tools, a schema and settings; from a stored response, or anew. */

import { ApiError, OUTPUTS as OUTPUTS_SHOWN, get, post, stream } from "../api.js";
import { inputOf } from "../response/actions.js";
import { el, replace } from "../dom.js";
import { TERMINAL, apply, start } from "../items/fold.js";
import { isRunning, pretty, stateOf } from "../format.js";
import { link } from "../routes.js";
import { announce } from "../shell.js";
import { requestOf, withoutId } from "../response/snippets.js";
import { live } from "../items/transcript.js";

export const title = "Playground";

const OBJECT = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const EXAMPLES = {
  function: { type: "function", name: "get_weather", description: "Get the weather of a city.", parameters: OBJECT, strict: true },
  web_search: { type: "web_search" },
  code_interpreter: { type: "code_interpreter", container: { type: "auto" } },
  mcp: { type: "mcp", server_label: "docs", server_url: `${location.origin}/mcp`, require_approval: "always" },
};
const SCHEMA = { type: "json_schema", name: "place", strict: true, schema: OBJECT };
const EFFORTS = ["", "none", "minimal", "low", "medium", "high", "xhigh"];
/** The field that shows an error, by the beginning of the parameter that it names. */
const FIELD_OF = {
  input: "input", instructions: "instructions", tools: "tools", "text.format": "schema", text: "schema", model: "model",
  reasoning: "effort", temperature: "temperature", max_output_tokens: "max-output", previous_response_id: "previous",
};
/** How long the page waits for the end of a response that was stopped. */
const SETTLE_MS = 300;
const SETTLE_ATTEMPTS = 30;
const OUTPUTS = { function_call: "function_call_output", custom_tool_call: "custom_tool_call_output" };

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const { data } = await get("/v1/models", null, signal);
  const answering = data.filter((model) => model.type !== "embedding");
  const play = new Playground(answering.map((model) => model.id), signal);
  play.draw(root);
  if (params.previous) await play.continueFrom(params.previous);
  if (params.again) await play.takeOver(params.again, params.upto);
}

class Playground {
  constructor(models, signal) {
    this.signal = signal;
    const area = (id, rows, more) => el("textarea", { id, rows, spellcheck: "false", ...more });
    this.fields = {
      model: el("select", { id: "model" }, models.map((name) => el("option", { value: name }, name))),
      input: area("input", 5, { dir: "auto", placeholder: "A message, or a JSON array of items" }),
      instructions: area("instructions", 2, { dir: "auto" }),
      tools: area("tools", 5, { class: "code", placeholder: "[]", "aria-describedby": "tools-note" }),
      schema: area("schema", 4, { class: "code", placeholder: "JSON of text.format, or nothing" }),
      effort: el("select", { id: "effort" }, EFFORTS.map((name) => el("option", { value: name }, name || "the model's own"))),
      temperature: el("input", { id: "temperature", type: "number", min: 0, max: 2, step: 0.1 }),
      "max-output": el("input", { id: "max-output", type: "number", min: 1, step: 1 }),
      background: el("input", { id: "background", type: "checkbox" }),
      previous: el("input", { id: "previous", autocomplete: "off", spellcheck: "false" }),
    };
    this.extra = {};
    this.problem = el("p", { class: "error", role: "alert", id: "problem" });
    this.run = el("button", { type: "submit", class: "primary", "aria-keyshortcuts": "Control+Enter" }, "Run");
    this.stop = el("button", { type: "button", disabled: true, onClick: () => this.running?.abort() }, "Stop");
    this.output = el("section", { class: "output", "aria-label": "Output" });
    signal.addEventListener("abort", () => this.running?.abort());
  }

  draw(root) {
    const { fields } = this;
    const field = (id, label, ...more) => el("div", { class: "field" }, el("label", { for: id }, label), fields[id], more);
    const examples = el("div", { class: "row", id: "tools-note" }, el("span", { class: "dim" }, "Add:"),
      Object.entries(EXAMPLES).map(([name, tool]) => el("button", { type: "button", onClick: () => this.addTool(tool) }, name)));
    const example = el("div", { class: "row" },
      el("button", { type: "button", onClick: () => { fields.schema.value = pretty(SCHEMA); } }, "Add a schema"));
    const form = el("form", {
      class: "playground", onSubmit: (event) => { event.preventDefault(); this.send(); },
      onKeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); },
    },
      field("model", "Model"), field("input", "Input"), this.problem,
      el("div", { class: "row" }, this.run, this.stop, el("span", { class: "dim" }, "or ", el("kbd", {}, "Ctrl"), " + ", el("kbd", {}, "Enter"))),
      field("instructions", "Instructions"),
      field("tools", "Tools (JSON)", examples), field("schema", "Answer's format (JSON)", example),
      el("div", { class: "row" }, field("effort", "Reasoning effort"), field("temperature", "Temperature"), field("max-output", "Max output tokens"), field("previous", "Previous response")),
      el("label", { class: "check", for: "background" }, fields.background, " in the background"));
    replace(root, el("h1", {}, title), el("div", { class: "beside" }, form, this.output));
  }

  addTool(tool) {
    const tools = this.json("tools") ?? [];
    this.fields.tools.value = pretty([...tools, tool]);
  }

  async continueFrom(id) {
    const response = await get(`/v1/responses/${encodeURIComponent(id)}`, null, this.signal);
    this.fill(requestOf(response, []));
    this.fields.input.value = "";
    this.fields.previous.value = id;
    this.fields.input.focus();
  }

  /** Fill the form with the request of a stored response; with `upto`, go on after that many items. */
  async takeOver(id, upto) {
    const [response, items] = await Promise.all([get(`/v1/responses/${encodeURIComponent(id)}`, null, this.signal), inputOf(id, this.signal)]);
    const request = requestOf(response, items);
    if (upto) request.input.push(...response.output.slice(0, Number(upto)).map(withoutId));
    this.fill(request);
  }

  fill({ model, input, instructions, tools, text, reasoning, temperature, max_output_tokens: most, background, ...others }) {
    const { fields } = this;
    const only = input.length === 1 && input[0].role === "user" ? input[0].content : null;
    const words = Array.isArray(only) && only.length === 1 && only[0].type === "input_text" ? only[0].text : only;
    fields.model.value = model;
    fields.input.value = typeof words === "string" ? words : input.length ? pretty(input) : "";
    fields.instructions.value = typeof instructions === "string" ? instructions : "";
    fields.tools.value = tools?.length ? pretty(tools) : "";
    fields.schema.value = text?.format ? pretty(text.format) : "";
    fields.effort.value = reasoning?.effort ?? "";
    fields.temperature.value = temperature ?? "";
    fields["max-output"].value = most ?? "";
    fields.background.checked = background === true;
    this.extra = others;
  }

  /** Return the JSON of a field, null if it is empty. Throws: an ApiError that names the field. */
  json(name) {
    const text = this.fields[name].value.trim();
    if (text === "") return null;
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new ApiError(400, `This is no JSON: ${error.message}`, "invalid_json", name === "schema" ? "text.format" : name);
    }
  }

  request() {
    const { fields } = this;
    const number = (name) => (fields[name].value === "" ? null : Number(fields[name].value));
    const text = fields.input.value;
    const optional = {
      instructions: fields.instructions.value || null, tools: this.json("tools"), temperature: number("temperature"),
      max_output_tokens: number("max-output"), previous_response_id: fields.previous.value.trim() || null,
      text: fields.schema.value.trim() ? { format: this.json("schema") } : null,
      reasoning: fields.effort.value ? { effort: fields.effort.value } : null, background: fields.background.checked || null,
    };
    const given = Object.fromEntries(Object.entries(optional).filter(([, value]) => value !== null));
    return { ...this.extra, ...given, model: fields.model.value, input: text.trimStart().startsWith("[") ? this.json("input") : text };
  }

  async send(input) {
    if (this.run.disabled) return;
    this.problem.textContent = "";
    for (const each of Object.values(this.fields)) each.removeAttribute("aria-invalid");
    try {
      const request = this.request();
      await this.stream(input === undefined ? request : { ...request, ...input });
    } catch (error) {
      if (error.name !== "AbortError") this.showProblem(error);
    }
  }

  showProblem(error) {
    if (!(error instanceof ApiError)) throw error;
    this.problem.textContent = error.param ? `${error.param}: ${error.message}` : error.message;
    const known = Object.keys(FIELD_OF).filter((name) => error.param?.startsWith(name));
    const id = known.length ? FIELD_OF[known.sort((a, b) => b.length - a.length)[0]] : null;
    if (id === null) return;
    this.fields[id].setAttribute("aria-invalid", "true");
    this.fields[id].setAttribute("aria-describedby", "problem");
    this.fields[id].focus();
  }

  async stream(request) {
    this.running = new AbortController();
    this.run.disabled = true;
    this.stop.disabled = false;
    const folded = start();
    const head = el("p", { class: "summary" }, "Waiting for the server …");
    const items = el("div", {});
    const more = el("div", {});
    replace(this.output, el("h2", {}, "Output"), head, items, more);
    this.output.scrollIntoView({ block: "nearest" });
    const shown = live(items);
    const take = (event) => {
      apply(folded, event);
      shown.draw(folded.items, [...folded.changed]);
      folded.changed.clear();
      if (folded.response) replace(head, this.summary(folded.response));
      if (event.type === "error") throw new ApiError(500, event.message, event.code);
    };
    try {
      const body = { ...request, include: OUTPUTS_SHOWN, stream: true };
      await stream("/v1/responses", { body }, take, this.running.signal);
    } catch (error) {
      if (error.name === "AbortError") this.abandon(folded.response, head);
      else this.explain(error, folded.response, head);
      throw error;
    } finally {
      this.run.disabled = false;
      this.stop.disabled = true;
    }
    this.end(folded, more);
  }

  /** Say what became of a request that did not end well: refused, or broken off in the middle. */
  explain(error, response, head) {
    if (response === null) replace(head, error.status >= 400 && error.status < 500 ? "The server refused the request." : "There is no answer.");
    else this.settle(response, head);
  }

  /** A background response runs on when nobody reads it, so it is cancelled. */
  async abandon(response, head) {
    if (response === null) {
      replace(head, "Stopped before the server answered.");
      return;
    }
    replace(head, this.summary(response), ", stopping …");
    if (response.background) await post(`/v1/responses/${encodeURIComponent(response.id)}/cancel`, {}).catch(() => {});
    await this.settle(response, head);
  }

  /** Show the state that the server gives to a response that is no longer read. */
  async settle(response, head) {
    for (let attempt = 0; attempt < SETTLE_ATTEMPTS && !this.signal.aborted; attempt += 1) {
      const known = await get(`/v1/responses/${encodeURIComponent(response.id)}`, { "include[]": "metrics" }, this.signal).catch(() => null);
      if (known === null) break;
      replace(head, this.summary(known), isRunning(known) ? ", stopping …" : "");
      if (!isRunning(known)) return;
      await new Promise((resolve) => { setTimeout(resolve, SETTLE_MS); });
    }
    if (!this.signal.aborted) replace(head, "Stopped here. The server keeps nothing of it, or has not ended it yet.");
  }

  summary(response) {
    return [el("a", { href: link("responses", { id: response.id }) }, response.id), ` ${stateOf(response)}`];
  }

  end({ response, items }, more) {
    if (response === null) return;
    announce(`The response is ${stateOf(response)}.`);
    if (response.error) this.problem.textContent = response.error.message;
    if (items.some((item) => item.type === "mcp_approval_request")) {
      replace(more, el("p", { class: "warning" }, "A call waits for your approval: ",
        el("a", { href: link("responses", { id: response.id }) }, "approve or deny it"), "."));
    }
    const waiting = items.filter((item) => item.type in OUTPUTS);
    if (waiting.length && TERMINAL.includes(`response.${response.status}`)) replace(more, this.answers(response, waiting));
    else if (response.status === "completed") this.fields.previous.value = response.id;
  }

  /** A form for the outputs of calls that the client runs. */
  answers(response, calls) {
    const rows = calls.map((call, index) => {
      const area = el("textarea", { id: `output-${index}`, rows: 2, required: true, spellcheck: "false" });
      const label = el("label", { for: `output-${index}` }, `Output of ${call.name}`);
      return { call, area, node: el("div", { class: "field" }, label, area) };
    });
    const send = (event) => {
      event.preventDefault();
      const input = rows.map(({ call, area }) => ({ type: OUTPUTS[call.type], call_id: call.call_id, output: area.value }));
      this.send({ input, previous_response_id: response.id });
    };
    return el("form", { class: "card answers", onSubmit: send }, el("h3", {}, "The model waits for these outputs"), rows.map(({ node }) => node),
      el("button", { type: "submit", class: "primary" }, "Send outputs"));
  }
}
