/** The inbox: the calls that wait for a yes or a no, of all responses. */

import { ApiError, get } from "../api.js";
import { Choices } from "../approvals/choices.js";
import { waiting } from "../approvals/waiting.js";
import { el, replace } from "../dom.js";
import { count, shortId, time } from "../format.js";
import { poll } from "../poll.js";
import { answer, answersOf, requestsOf } from "../response/approvals.js";
import { link } from "../routes.js";
import { announce } from "../shell.js";

export const title = "Approvals";

const POLL_MS = 2000;

/** @param {HTMLElement} root @param {Object<string, string>} params @param {AbortSignal} signal */
export async function show(root, params, signal) {
  const heading = el("h1", { tabindex: "-1" }, title);
  const error = el("p", { class: "error", role: "alert" });
  const empty = el("div", { class: "nothing" });
  const list = el("div", { class: "inbox" });
  const more = el("nav", { class: "row pages", "aria-label": "Pages" });
  replace(root, heading, error, empty, list, more);
  const cards = new Map();
  const refresh = async () => {
    try {
      const page = await waiting(params, signal);
      error.textContent = "";
      await draw(list, cards, page.data, heading, signal);
      describe(empty, more, page, cards.size, params);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (!(problem instanceof ApiError)) throw problem;
      error.textContent = `${problem.message} The page asks again every ${POLL_MS / 1000} seconds.`;
      more.dataset.shown = "";
      replace(empty); // what it said may be wrong by now
    }
  };
  await refresh();
  poll(refresh, signal, POLL_MS);
}

/** Add a card for what waits now, and remove those that were answered elsewhere. */
async function draw(list, cards, summaries, heading, signal) {
  const wanted = new Set(summaries.map((each) => each.id));
  for (const [id, card] of cards) {
    if (wanted.has(id) || card.isUsed) continue;
    if (card.node.contains(document.activeElement)) heading.focus();
    announce("A call was answered elsewhere.");
    card.node.remove();
    cards.delete(id);
  }
  const added = summaries.filter((each) => !cards.has(each.id));
  const responses = await Promise.all(added.map((each) => read(each.id, signal)));
  for (const response of responses.filter(Boolean)) cards.set(response.id, new Card(response));
  const shown = [...cards.values()].sort((one, other) => other.since - one.since);
  shown.forEach(({ node }, index) => {
    if (list.children[index] !== node) list.insertBefore(node, list.children[index] ?? null);
  });
}

async function read(id, signal) {
  try {
    return await get(`/v1/responses/${encodeURIComponent(id)}`, { "include[]": "metrics" }, signal);
  } catch (problem) {
    if (problem.status === 404) return null; // deleted meanwhile
    throw problem;
  }
}

/** The calls of a response. `isUsed`: the reader has answered, so the card stays until they leave. */
class Card {
  constructor(response) {
    const answered = answersOf(response);
    this.response = response;
    this.since = response.completed_at ?? response.created_at;
    this.isUsed = false;
    this.choices = new Choices(requestsOf(response).filter((item) => !answered.get(item.id)), (answers) => this.send(answers));
    this.node = el("article", { class: "card approval", "data-id": response.id }, this.choices.nodes, facts(response, this.since));
  }

  async send(answers) {
    this.choices.disable(true);
    this.choices.say("Sending…");
    try {
      const id = await answer(this.response, answers);
      this.end(this.choices.said(), id);
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      const first = problem.code === "already_answered" ? /'(resp_\w+)'/.exec(problem.message)?.[1] : undefined;
      if (first) {
        this.end("It was answered before, and each call is answered once.", first);
        return;
      }
      this.choices.disable(false);
      this.choices.say(el("p", { class: "error" }, problem.message));
    }
  }

  end(words, id) {
    const hadFocus = this.node.contains(document.activeElement) || document.activeElement === document.body;
    this.isUsed = true;
    this.choices.close();
    const anchor = el("a", { href: link("responses", { id }) }, id);
    this.choices.say(el("p", {}, words, " The answer is in ", anchor, "."));
    if (hadFocus) anchor.focus();
    waiting({}).catch(() => {}); // the number in the navigation
  }
}

/** From which response the calls are, who asked for it, and since when they wait. */
function facts(response, since) {
  const asked = response.preview?.input || shortId(response.id);
  const key = response.metrics?.key_name;
  return el("dl", { class: "pairs" }, [
    ["Response", el("a", { href: link("responses", { id: response.id }), dir: "auto" }, asked)],
    ["Asked by", [response.model, key && `, for the key ${key}`]],
    ["Waits since", time(since)],
  ].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function describe(empty, more, page, cards, params) {
  const wanted = `${cards} ${page.has_more && page.last_id} ${page.has_more ? "" : page.searched === 0}`;
  if (more.dataset.shown === wanted) return;
  more.dataset.shown = wanted;
  replace(empty, cards === 0 && words(page, params));
  replace(more,
    params.after && el("a", { href: link("approvals") }, "Newest"),
    page.has_more && el("a", { href: link("approvals", { after: page.last_id }) }, page.data.length > 0 ? "Older calls" : "Search on"));
}

function words({ has_more: hasMore, searched }, { after }) {
  const among = hasMore || after ? `None of the ${count(searched)} responses that were searched here waits for an answer.` : "No call waits for an answer.";
  return [
    el("p", {}, among),
    el("p", { class: "dim" }, "A model's call of an MCP server waits here if its tool has ", el("code", {}, "require_approval"), ". It appears by itself."),
  ];
}
