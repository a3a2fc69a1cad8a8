/** Calls that wait, each with two buttons. One is answered at once; of several, all answers go together. */

import { el, replace } from "../dom.js";
import { counted, pretty } from "../format.js";
import { code } from "../items/transcript.js";
import { calledName } from "../response/approvals.js";

export class Choices {
  /** @param {Object[]} calls that wait @param {(answers: [string, boolean][]) => void} onChosen gets them once */
  constructor(calls, onChosen) {
    this.calls = calls;
    this.onChosen = onChosen;
    this.chosen = new Map();
    this.buttons = [];
    this.outcome = el("div", { class: "outcome", role: "status" });
    this.nodes = [
      calls.map((item) => this.call(item)),
      calls.length > 1 && el("p", { class: "dim" }, `The answers to these ${calls.length} calls go to the model together.`),
      this.outcome,
    ];
  }

  call(item) {
    const name = calledName(item);
    const buttons = [[true, "Approve", "primary"], [false, "Deny", "danger"]].map(([isApproved, label, style]) => el("button", {
      type: "button", class: style, "aria-label": `${label} ${name}`, "aria-pressed": this.calls.length > 1 ? "false" : null,
      onClick: () => this.choose(item, isApproved),
    }, label));
    this.buttons.push({ item, buttons });
    return el("section", { "aria-label": name }, el("h2", {}, name), code(pretty(item.arguments), "arguments", { dir: "auto" }),
      el("div", { class: "row" }, buttons));
  }

  choose(item, isApproved) {
    this.chosen.set(item.id, isApproved);
    for (const each of this.buttons.filter(({ item: { id } }) => this.calls.length > 1 && id === item.id)) {
      each.buttons.forEach((button, index) => button.setAttribute("aria-pressed", String((index === 0) === isApproved)));
    }
    const left = this.calls.length - this.chosen.size;
    if (left > 0) this.say(`${counted(left, "call")} of this response left to answer.`);
    else this.onChosen([...this.chosen]);
  }

  say(...nodes) {
    replace(this.outcome, nodes);
  }

  /** Return in words what was chosen. */
  said() {
    const approved = [...this.chosen.values()].filter(Boolean).length;
    if (this.chosen.size === 1) return approved ? "Approved." : "Denied.";
    return `${approved} approved, ${this.chosen.size - approved} denied.`;
  }

  disable(isDisabled) {
    for (const { buttons } of this.buttons) buttons.forEach((each) => { each.disabled = isDisabled; });
  }

  /** They were answered: nothing is left to press. */
  close() {
    for (const { buttons } of this.buttons) buttons.forEach((each) => each.remove());
  }
}
