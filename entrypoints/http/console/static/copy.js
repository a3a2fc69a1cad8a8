/** Buttons that copy: an id, a text, JSON, code. */

import { el } from "./dom.js";
import { announce } from "./shell.js";

const SAID_MS = 2000;

/**
 * @param {() => string} read gives the text when the button is pressed
 * @param {string} name of what is copied, for screen readers
 * @returns {HTMLElement}
 */
export function copyButton(read, name) {
  return el("button", {
    type: "button", class: "copy", "aria-label": `Copy ${name}`, onClick: (event) => copy(event.currentTarget, read()),
  }, "Copy");
}

/** Return a box of text beside the button that copies all of it. */
export function copyable(box, read, name) {
  return el("div", { class: "copyable" }, box, copyButton(read, name));
}

async function copy(button, text) {
  const said = (await isWritten(text, button)) ? "Copied" : "Not copied";
  button.textContent = said;
  announce(`${said}.`);
  setTimeout(() => { button.textContent = "Copy"; }, SAID_MS);
}

/** Browsers give the clipboard only to pages with https or of this machine; others copy a selection. */
async function isWritten(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text, button);
  }
}

function copySelected(text, button) {
  const area = el("textarea", { class: "visually-hidden", readonly: true, value: text, "aria-label": "Text to copy" });
  // Behind a dialog, nothing can be selected.
  (button.closest("dialog") ?? document.body).append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  button.focus();
  return isDone;
}
