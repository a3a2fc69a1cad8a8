/** The start: which view an address shows. */

import { SIGN_IN } from "./api.js";
import { unwatch, watch } from "./approvals/waiting.js";
import { el, replace } from "./dom.js";
import { announce, checkSession, draw, main, mark, showSignIn } from "./shell.js";
import { go, read } from "./routes.js";
import * as activity from "./views/activity.js";
import * as approvals from "./views/approvals.js";
import * as compare from "./views/compare.js";
import * as list from "./views/list.js";
import * as playground from "./views/playground.js";
import * as response from "./views/response.js";
import * as state from "./views/state.js";
import * as thread from "./views/thread.js";

/**
 * A view is a module with `title` and `show(root, params, signal)`; `one` shows a single object. One
 * that is `under` another has no place of its own in the navigation.
 */
const VIEWS = [
  { name: "responses", label: "Responses", view: list, one: response },
  { name: "approvals", label: "Approvals", view: approvals },
  { name: "activity", label: "Activity", view: activity },
  { name: "playground", label: "Playground", view: playground },
  { name: "compare", label: "Compare", view: compare },
  { name: "state", label: "State", view: state },
  { name: "threads", under: "responses", view: thread },
];

let leaving = new AbortController();

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { name, params } = read();
  const row = VIEWS.find((each) => each.name === name);
  if (row === undefined) {
    go(VIEWS[0].name);
    return;
  }
  const view = params.id && row.one ? row.one : row.view;
  mark(row.under ?? name);
  document.title = `${view.title} · Antiphon`;
  const root = el("div", { class: "view", "data-shown": view.title });
  replace(main, root);
  announce(view.title);
  try {
    await view.show(root, params, leaving.signal);
  } catch (error) {
    if (error.name !== "AbortError") showError(root, error);
  }
  focusHeading(root);
}

function showError(root, error) {
  replace(
    root,
    el("h1", { tabindex: "-1" }, "This did not work"),
    el("p", { class: "error", role: "alert" }, error.message),
    el("p", {}, el("button", { type: "button", onClick: show }, "Try again")),
  );
}

function focusHeading(root) {
  const heading = root.querySelector("h1");
  if (heading === null || root.contains(document.activeElement)) return;
  heading.setAttribute("tabindex", "-1");
  heading.focus({ preventScroll: true });
}

function askForKey() {
  leaving.abort();
  unwatch();
  document.title = "Sign in · Antiphon";
  showSignIn(main, start);
}

async function start() {
  try {
    if (!await checkSession()) {
      askForKey();
      return;
    }
    watch();
    await show();
  } catch (error) {
    showError(main, error);
  }
}

draw(VIEWS.filter(({ label }) => label));
document.addEventListener(SIGN_IN, askForKey);
addEventListener("hashchange", show);
start();
