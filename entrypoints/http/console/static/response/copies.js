/** A request in the forms in which it can be copied. */

import { url } from "../api.js";
import { dialog } from "../dialog.js";
import { el, replace, save } from "../dom.js";
import { code } from "../items/transcript.js";
import { curl, javascript, python, script } from "./snippets.js";

const CODE = [
  { label: "curl", make: curl, file: "request.sh" },
  { label: "Python", make: python, file: "request.py" },
  { label: "JavaScript", make: javascript, file: "request.mjs" },
];
const SCRIPT = { label: "Script for the scripted model", make: (request, base, response) => script(response), file: "script.txt" };

/** Show a dialog with a request as code and, if there is a response, as a script that makes it again. */
export function showCopies(request, response = null) {
  const base = url("/v1").href;
  const place = el("div", {});
  const forms = response === null ? CODE : [...CODE, SCRIPT];
  let shown = null;
  const choose = (button, form) => {
    shown = { text: form.make(request, base, response), file: form.file };
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
    replace(place, code(shown.text, form.label, { id: "copied" }));
  };
  const buttons = forms.map((form) => el("button", { type: "button", onClick: (event) => choose(event.currentTarget, form) }, form.label));
  choose(buttons[0], forms[0]);
  const saving = el("button", { type: "button", onClick: () => save(new Blob([shown.text]), shown.file) }, "Save as a file");
  dialog("Copy as", [el("div", { class: "row" }, buttons), place], [saving]);
}
