/**
 * Markdown as elements. The server answers a tree of nodes, and each kind of node makes one element
 * of this list; all text becomes text nodes. So nothing that a model wrote is markup.
 */

import { post } from "../api.js";
import { copyable } from "../copy.js";
import { el, replace } from "../dom.js";

const CHOICE = "antiphon-plain-text";
const MAX_CHARS = 20_000;
/** Of one request. */
const MAX_TEXTS = 50;
const MAX_ALL_CHARS = 60_000;
const MAX_KEPT = 300;
/** What no plain sentence has: most texts need not be sent. */
const MARKS = /[*_`#>|[\]\\~&]|^\s*([-+]|\d+[.)])\s|^\s*(=+|-+)\s*$|^( {4}|\t)/m;
const ADDRESS = /^(https?:\/\/|mailto:)/i;

const ELEMENTS = {
  paragraph: (_, children) => el("p", {}, children),
  heading: ({ level }, children) => el(level === 1 ? "h3" : "h4", {}, children),
  list: ({ start }, children) => (start === undefined ? el("ul", {}, children) : el("ol", { start }, children)),
  item: (_, children) => el("li", {}, children),
  quote: (_, children) => el("blockquote", {}, children),
  rule: () => el("hr", {}),
  break: () => el("br", {}),
  code: ({ text }) => el("code", {}, text),
  emphasis: (_, children) => el("em", {}, children),
  strong: (_, children) => el("strong", {}, children),
  fence: ({ text, language }) => [language && el("div", { class: "dim language" }, language), copyable(el("pre", { tabindex: "0" }, text), () => text, "code")],
  table: (_, children) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, el("table", {}, el("tbody", {}, children))),
  row: (_, children) => el("tr", {}, children),
  head: ({ align }, children) => el("th", { scope: "col", class: align }, children),
  cell: ({ align }, children) => el("td", { class: align }, children),
  link: ({ href }, children) => linkTo(href, children),
};

/** Trees by their texts, and the texts that wait for the next request. */
const kept = new Map();
let queued = [];

/** Return whether the reader has chosen plain text. */
export function isPlain() {
  try {
    return localStorage.getItem(CHOICE) === "true";
  } catch {
    return false;
  }
}

/** Return the button that turns Markdown into plain text and back. @param {() => void} onChange */
export function plainButton(onChange) {
  const turn = () => {
    try {
      if (isPlain()) localStorage.removeItem(CHOICE);
      else localStorage.setItem(CHOICE, "true");
    } catch {
      // Some browsers keep nothing: then all is shown as Markdown.
    }
    onChange();
  };
  return el("button", { type: "button", class: "quiet plain", "aria-pressed": String(isPlain()), onClick: turn }, "Plain text");
}

/** Return a box with a text, which becomes Markdown as soon as the server has read it. */
export function markdown(text) {
  const box = el("div", { class: "prose", dir: "auto" }, text);
  if (isPlain() || !MARKS.test(text)) return box;
  if (text.length > MAX_CHARS) return [box, el("p", { class: "dim" }, `Longer than ${MAX_CHARS.toLocaleString("en-US")} characters, so it is shown as plain text.`)];
  if (kept.has(text)) fill(box, kept.get(text));
  else queue(text, (tree) => fill(box, tree));
  return box;
}

function fill(box, tree) {
  if (tree === null) return; // too many nodes: it stays plain
  box.className = "rich";
  replace(box, tree.map(elementOf));
}

function elementOf(node) {
  if (typeof node === "string") return node;
  return ELEMENTS[node.kind](node, (node.children ?? []).map(elementOf));
}

/** A link that names another place than it leads to says where that is. */
function linkTo(href, children) {
  const place = placeOf(href);
  if (place === null) return children;
  const said = children.map((each) => (typeof each === "string" ? each : "")).join("");
  return [
    el("a", { href, title: href, rel: "noopener noreferrer", target: "_blank" }, children),
    said.includes(place) ? null : el("span", { class: "dim" }, ` (${place})`),
  ];
}

/** Return the host or the mail address of an address; null if it is none of the web. */
function placeOf(href) {
  if (!ADDRESS.test(href)) return null;
  try {
    const url = new URL(href);
    return url.host || url.pathname;
  } catch {
    return null;
  }
}

/** All texts that are drawn at once are one request, or a few. */
function queue(text, done) {
  if (queued.length === 0) setTimeout(() => send(queued.splice(0)), 0);
  queued.push({ text, done });
}

async function send(texts) {
  while (texts.length > 0) {
    let chars = 0;
    const many = texts.slice(0, MAX_TEXTS).findIndex(({ text }) => (chars += text.length) > MAX_ALL_CHARS);
    const some = texts.splice(0, many < 0 ? MAX_TEXTS : Math.max(many, 1));
    try {
      const { trees } = await post("/console/markdown", { texts: some.map(({ text }) => text) });
      some.forEach(({ text, done }, index) => {
        keep(text, trees[index]);
        done(trees[index]);
      });
    } catch {
      return; // what was not read stays plain
    }
  }
}

function keep(text, tree) {
  kept.set(text, tree);
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
}
