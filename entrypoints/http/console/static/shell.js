/** What is around every view: navigation, theme, sign-in, and what screen readers are told. */

import { el, replace } from "./dom.js";
import { get, post, remove } from "./api.js";
import { forget } from "./playground/memory.js";
import { link } from "./routes.js";

const THEME = "antiphon-theme";
const status = el("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
const account = el("div", { class: "account" });
export const main = el("main", { id: "main", tabindex: "-1" });

/** Tell users of screen readers what has changed. */
export function announce(words) {
  status.textContent = words;
}

/** Draw the shell. `views` are rows of `{name, label}` that the navigation shows. */
export function draw(views) {
  showTheme(storedTheme());
  replace(
    document.body,
    el("a", { class: "skip", href: "#main", onClick: skip }, "Skip to content"),
    el(
      "header",
      { class: "top" },
      el("a", { class: "brand", href: link("responses") }, "Antiphon"),
      el(
        "nav",
        { "aria-label": "Views" },
        views.map(({ name, label }) => el("a", { href: link(name), "data-view": name }, label, el("span", { class: "count" }))),
      ),
      account,
    ),
    main,
    status,
  );
}

/** Mark the view in the navigation. */
export function mark(name) {
  for (const each of document.querySelectorAll("nav [data-view]")) {
    if (each.dataset.view === name) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

/** Show a number that waits beside the name of a view; "" for none. */
export function countIn(name, number) {
  const place = document.querySelector(`nav [data-view="${name}"] .count`);
  if (place.dataset.shown === number) return;
  place.dataset.shown = number;
  replace(place, number && [number, el("span", { class: "visually-hidden" }, " waiting")]);
}

/** Ask who is signed in, and show it. @returns {Promise<boolean>} whether the API can be used */
export async function checkSession() {
  const session = await get("/console/session");
  const who = session.needed && session.valid;
  replace(
    account,
    who && el("span", { class: "who", title: `tenant ${session.tenant}` }, session.key || session.tenant),
    themeButton(),
    who && el("button", { type: "button", class: "quiet", id: "sign-out", onClick: signOut }, "Sign out"),
  );
  return session.valid;
}

/** Show the form for the key. `onDone` is called when the key was accepted. */
export function showSignIn(root, onDone) {
  const key = el("input", {
    id: "key", type: "password", name: "key", required: true, autocomplete: "current-password",
    spellcheck: "false", "aria-describedby": "key-note",
  });
  const error = el("p", { class: "error", role: "alert" });
  const send = async (event) => {
    event.preventDefault();
    try {
      await post("/console/session", { key: key.value.trim() });
      key.value = "";
      await onDone();
    } catch (problem) {
      error.textContent = problem.message;
      key.focus();
    }
  };
  replace(
    root,
    el(
      "form",
      { class: "sign-in card", onSubmit: send },
      el("h1", { tabindex: "-1" }, "Sign in"),
      el("label", { for: "key" }, "API key"),
      key,
      el("p", { id: "key-note", class: "dim" }, "This browser then has a session of eight hours. The key is not kept here."),
      el("details", {}, el("summary", {}, "Where do I get a key?"),
        el("p", {}, "From whoever runs this server. They create one on the server's machine, and it is shown once:"),
        el("pre", { tabindex: "0" }, "antiphon keys create --name NAME"),
        el("p", { class: "dim" }, "It is the key that programs send as ", el("code", {}, "Authorization: Bearer"), ".")),
      error,
      el("button", { type: "submit", class: "primary" }, "Sign in"),
    ),
  );
  key.focus();
}

async function signOut() {
  await remove("/console/session");
  forget();
  location.reload();
}

function skip(event) {
  event.preventDefault();
  main.focus();
}

function themeButton() {
  const button = el("button", { type: "button", class: "quiet", id: "theme", onClick: () => turn(button) });
  label(button);
  return button;
}

function turn(button) {
  const chosen = isDark() ? "light" : "dark";
  try {
    localStorage.setItem(THEME, chosen);
  } catch {
    // Some browsers keep nothing: then the choice lasts as long as the page.
  }
  showTheme(chosen);
  label(button);
}

function label(button) {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function storedTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

function showTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
