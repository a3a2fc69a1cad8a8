/** Ask a model, or two: with files, tools, a schema and parameters; from a stored response, or anew. */

import { ApiError, get } from "../api.js";
import { append, el, replace } from "../dom.js";
import { bytes, pretty } from "../format.js";
import { Attachments } from "../playground/attachments.js";
import { Lane, wordsOf } from "../playground/lane.js";
import { recall, remember } from "../playground/memory.js";
import { Settings } from "../playground/settings.js";
import { render } from "../items/transcript.js";
import { inputOf } from "../response/actions.js";
import { showCopies } from "../response/copies.js";
import { requestOf, withoutId } from "../response/snippets.js";
import { link, note } from "../routes.js";

export const title = "Playground";

/** How far from its end a reader of the thread may be to see what comes. */
const NEAR_PX = 80;

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const [{ data }, state] = await Promise.all([get("/v1/models", null, signal), get("/console/state", null, signal)]);
  const play = new Playground(data.filter((model) => model.type !== "embedding"), state, signal);
  play.draw(root);
  if (params.previous) await play.continueFrom(params.previous);
  else if (params.again) await play.takeOver(params.again, params.upto);
  else play.recall();
  // From here on, a reload brings back what was changed, not the response.
  if (!signal.aborted && (params.previous || params.again)) note("playground");
  play.isFilled = true;
  play.remember();
}

class Playground {
  constructor(models, { requests, tenant }, signal) {
    this.models = models;
    this.signal = signal;
    this.tenant = tenant.name;
    this.maxBytes = requests.max_body_bytes;
    const options = models.map(({ id }) => el("option", { value: id }, id));
    this.model = el("select", { id: "model" }, options);
    this.second = el("select", { id: "second" }, el("option", { value: "" }, "no other"), models.map(({ id }) => el("option", { value: id }, id)));
    this.input = el("textarea", { id: "input", rows: 3, dir: "auto", spellcheck: "false", placeholder: "A message, or a JSON list of items", "aria-describedby": "problem" });
    this.attachments = new Attachments(requests, () => this.warn());
    const hosted = [...new Set(models.flatMap((model) => model.hosted_tools))];
    this.settings = new Settings(hosted, requests.tool_labels, () => this.remember());
    this.problem = el("p", { class: "error", role: "alert", id: "problem" });
    this.warning = el("p", { class: "warning", role: "status" });
    this.run = el("button", { type: "submit", class: "primary", "aria-keyshortcuts": "Control+Enter" }, "Run");
    this.stop = el("button", { type: "button", disabled: true, onClick: () => this.lanes.forEach((lane) => lane.stop()) }, "Stop");
    this.lanes = [new Lane(signal, this.page()), new Lane(signal, this.page())];
    this.output = el("section", { class: "output", "aria-label": "Thread", tabindex: "0", onScroll: () => this.notePlace() });
    this.isAtEnd = true;
    this.isFilled = false;
    this.isComparing = false;
  }

  page() {
    return { request: (lane) => this.request(lane), onChange: () => this.follow() };
  }

  draw(root) {
    const field = (input, label) => el("div", { class: "field" }, el("label", { for: input.id }, label), input);
    const head = el("div", { class: "row chat-head" }, el("h1", { class: "visually-hidden" }, title), field(this.model, "Model"), field(this.second, "Compare with"),
      el("button", { type: "button", onClick: () => { this.begin(); this.input.focus(); } }, "New thread"));
    const form = el("form", { class: "composer playground", onSubmit: (event) => { event.preventDefault(); this.send(); } },
      el("label", { for: "input", class: "visually-hidden" }, "Input"), this.input, this.attachments.node, this.warning, this.problem,
      el("div", { class: "row" }, this.run, this.stop, this.attachments.button,
        el("button", { type: "button", onClick: () => this.copy() }, "Save as…"),
        el("span", { class: "dim keys" }, el("kbd", {}, "Ctrl"), " + ", el("kbd", {}, "Enter"), " runs")));
    form.noValidate = true; // every fault is said in words, at its field
    replace(root, el("div", { class: "chat", onKeydown: (event) => this.press(event), onInput: () => this.remember(), onChange: () => this.choose() },
      head, this.settings.node, this.output, form));
    this.attachments.listen(root.firstChild);
    this.begin();
  }

  press(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const form = event.target.closest(".answers");
    if (form instanceof HTMLFormElement) form.requestSubmit();
    else this.send();
  }

  /** The threads that are asked: that of the model, and of the one beside it. */
  get asked() {
    return this.second.value ? this.lanes : this.lanes.slice(0, 1);
  }

  /** Something else was chosen: a model, a file, the value of a field. */
  choose() {
    const isComparing = this.second.value !== "";
    // From here on, there are two threads.
    if (isComparing !== this.isComparing) this.lanes[1].clear(isComparing ? this.lanes[0].previous : null);
    this.isComparing = isComparing;
    this.hint();
    this.warn();
    this.remember();
  }

  /** Begin a thread, after a response or nothing. */
  begin(previous = "") {
    this.settings.previous = previous;
    this.lanes.forEach((lane) => lane.clear());
    this.showProblem(null);
    replace(this.output);
    this.choose();
  }

  /** Say after what a thread begins that has no turn yet. */
  hint() {
    const { previous } = this.settings;
    const words = previous ? ["Continues ", el("a", { href: link("responses", { id: previous }) }, previous), "."] : "Nothing was asked yet.";
    if (!this.output.querySelector(".round")) replace(this.output, el("p", { class: "dim" }, words));
  }

  /** Say before a request is sent that a model will not read it. */
  warn() {
    const names = [this.model.value, this.second.value].filter(Boolean);
    const blind = this.models.filter(({ id, input_modalities: read }) => names.includes(id) && read && !read.includes("image"));
    const said = this.attachments.hasImages && blind.length ? `${blind.map(({ id }) => id).join(" and ")} cannot read images.` : "";
    if (this.warning.textContent !== said) this.warning.textContent = said;
  }

  async continueFrom(id) {
    const response = await get(`/v1/responses/${encodeURIComponent(id)}`, null, this.signal);
    this.fill(requestOf(response, []));
    this.input.value = "";
    this.begin(id);
    this.input.focus();
  }

  /** Fill the form with the request of a stored response; with `upto`, go on after that many items. */
  async takeOver(id, upto) {
    const [response, items] = await Promise.all([get(`/v1/responses/${encodeURIComponent(id)}`, null, this.signal), inputOf(id, this.signal)]);
    const request = requestOf(response, items);
    if (upto) request.input.push(...response.output.slice(0, Number(upto)).map(withoutId));
    this.fill(request);
  }

  fill(request) {
    const { model, input } = request;
    const only = input.length === 1 && input[0].role === "user" ? input[0].content : null;
    const words = Array.isArray(only) && only.length === 1 && only[0].type === "input_text" ? only[0].text : only;
    this.model.value = model;
    this.input.value = typeof words === "string" ? words : input.length ? pretty(input) : "";
    this.settings.write(request);
    this.choose();
  }

  /** Return the fields of the next request of a thread but its input. Throws: an ApiError that names a field. */
  request(lane) {
    const { previous_response_id: begin, ...set } = this.settings.read();
    const previous = lane.previous ?? begin;
    const model = lane === this.lanes[0] ? this.model.value : this.second.value;
    return { ...set, ...(previous ? { previous_response_id: previous } : {}), model };
  }

  /** Return the input: a text, or items if it is a list of them or has files. Throws: an ApiError. */
  content() {
    const text = this.input.value;
    const parts = this.attachments.parts();
    const isList = /^\s*\[\s*(\{|\])/.test(text);
    if (text.trim() === "" && parts.length === 0) throw new ApiError(400, "Write a message, or attach a file.", "missing", "input");
    if (isList) return [...items(text), ...(parts.length ? [{ role: "user", content: parts }] : [])];
    if (parts.length === 0) return text;
    return [{ role: "user", content: [...(text.trim() ? [{ type: "input_text", text }] : []), ...parts] }];
  }

  async send() {
    await this.attachments.reading;
    if (this.run.disabled) return;
    this.showProblem(null);
    const sent = { text: this.input.value, files: [...this.attachments.entries] };
    let requests;
    try {
      requests = this.asked.map((lane) => this.checked(lane));
    } catch (error) {
      this.showProblem(error);
      return;
    }
    const accepted = () => {
      if (this.input.value === sent.text) this.input.value = "";
      this.attachments.forget(sent.files);
      this.remember();
    };
    this.isAtEnd = true;
    this.show(requests);
    const endings = await Promise.allSettled(requests.map(([lane, request]) => lane.ask(request, accepted)));
    const failed = endings.findIndex(({ status }) => status === "rejected");
    if (failed >= 0) this.showProblem(endings[failed].reason, requests.length > 1 ? requests[failed][1].model : "");
    this.remember();
  }

  /** Show what is asked, and a place for each answer below it. */
  show(requests) {
    const { input } = requests[0][1];
    const asked = typeof input === "string" ? [{ role: "user", content: input }] : input;
    if (!this.output.querySelector(".round")) replace(this.output, this.settings.previous ? [...this.output.childNodes] : []);
    append(this.output, el("div", { class: "round" }, render(asked),
      el("div", { class: "lanes" }, requests.map(([lane, { model }]) => lane.place(model, requests.length > 1)))));
  }

  /** Return a thread with its next request. Throws: an ApiError for what need not be sent to be refused. */
  checked(lane) {
    if (lane.isWaiting) throw new ApiError(400, "The model waits: answer its calls above, or begin a new thread.");
    const request = { ...this.request(lane), input: this.content() };
    const size = new Blob([JSON.stringify(request)]).size;
    if (size > this.maxBytes) throw new ApiError(413, `The request has ${bytes(size)}; this server takes ${bytes(this.maxBytes)}.`, "too_large", "input");
    return [lane, request];
  }

  copy() {
    this.showProblem(null);
    try {
      showCopies({ ...this.request(this.lanes[0]), input: this.content() });
    } catch (error) {
      this.showProblem(error);
    }
  }

  /** Show an error at the field that it names, or none. */
  showProblem(error, of = "") {
    this.marked?.removeAttribute("aria-invalid");
    this.marked = null;
    if (error !== null && !(error instanceof ApiError)) throw error;
    this.problem.textContent = error === null ? "" : `${of ? `${of}: ` : ""}${wordsOf(error)}`;
    const field = error?.param ? this.fieldOf(error.param) : null;
    if (field === null) return;
    field.setAttribute("aria-invalid", "true");
    field.focus();
    this.marked = field;
  }

  fieldOf(param) {
    if (param.startsWith("input")) return this.input;
    return param === "model" ? this.model : this.settings.fieldOf(param);
  }

  /** A thread has begun, grown or ended. */
  follow() {
    const isRunning = this.lanes.some(({ running }) => running !== null);
    this.run.disabled = isRunning;
    this.stop.disabled = !isRunning;
    if (this.isAtEnd) this.output.scrollTop = this.output.scrollHeight;
  }

  notePlace() {
    const { scrollTop, scrollHeight, clientHeight } = this.output;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }

  remember() {
    if (this.signal.aborted || !this.isFilled) return;
    const settings = this.settings.values;
    if (this.lanes[0].previous) settings.parameters.previous = this.lanes[0].previous;
    remember(this.tenant, { model: this.model.value, second: this.second.value, input: this.input.value, settings });
  }

  recall() {
    const kept = recall(this.tenant);
    if (kept === null) return;
    const has = (name) => this.models.some(({ id }) => id === name);
    if (has(kept.model)) this.model.value = kept.model;
    if (has(kept.second)) this.second.value = kept.second;
    this.input.value = kept.input;
    this.settings.values = kept.settings;
    this.choose();
  }
}

function items(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ApiError(400, `This is no JSON: ${error.message}`, "invalid_json", "input");
  }
}
