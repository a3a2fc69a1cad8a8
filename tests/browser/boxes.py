"""Measures the boxes of a page: which overlap, which are cut, and which are too narrow to read."""

from __future__ import annotations

from typing import Any

from tests.browser.browser import Page

MEASURE = r"""
const ATOMS = "h1, h2, h3, h4, button, a, input, select, textarea, label, summary, pre, img, " +
  "svg, p, li, dt, dd, th, td, legend, output, meter, .badge, .tag, .who, caption";
const SCROLLS = ["auto", "scroll"];
const TOLERANCE = 2;

function named(element) {
  const words = (element.innerText ?? element.value ?? "").trim().slice(0, 30);
  const style = element.getAttribute("class") ?? "";
  return `<${element.localName}${element.id ? "#" + element.id : ""}.${style}> ${words}`;
}

// The part of an element that is seen: its ancestors may scroll or cut it.
function clipped(element, box) {
  let { left, top, right, bottom } = box;
  for (let at = element.parentElement; at; at = at.parentElement) {
    const { overflowX, overflowY } = getComputedStyle(at);
    const around = at.getBoundingClientRect();
    if (overflowX !== "visible") {
      left = Math.max(left, around.left);
      right = Math.min(right, around.right);
    }
    if (overflowY !== "visible") {
      top = Math.max(top, around.top);
      bottom = Math.min(bottom, around.bottom);
    }
  }
  return { left, top, right, bottom };
}

function scrolls(element) {
  for (let at = element; at; at = at.parentElement) {
    if (at !== document.body && SCROLLS.includes(getComputedStyle(at).overflowX)) return true;
  }
  return false;
}

const isHidden = (element) => element.closest(".visually-hidden, .skip") !== null ||
  (element.closest("table.list thead") !== null && innerWidth <= 960);
const atoms = [...document.querySelectorAll(ATOMS)].filter((each) =>
  each.checkVisibility({ visibilityProperty: true }) && !isHidden(each) &&
  !(document.querySelector("dialog[open]") && !each.closest("dialog")));
const boxes = atoms.map((element) => ({
  element,
  parts: [...element.getClientRects()].map((box) => clipped(element, box))
    .filter((box) => box.right - box.left > 1 && box.bottom - box.top > 1),
}));

const found = [];
for (const [index, one] of boxes.entries()) {
  for (const other of boxes.slice(index + 1)) {
    if (one.element.contains(other.element) || other.element.contains(one.element)) continue;
    const isOver = one.parts.some((a) => other.parts.some((b) =>
      Math.min(a.right, b.right) - Math.max(a.left, b.left) > TOLERANCE &&
      Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > TOLERANCE));
    if (isOver) found.push(`overlap: ${named(one.element)} and ${named(other.element)}`);
  }
}
for (const { element, parts } of boxes) {
  const width = document.documentElement.clientWidth;
  const box = element.getBoundingClientRect();
  const style = getComputedStyle(element);
  if (!scrolls(element) && parts.length && (box.right > width + 1 || box.left < -1)) {
    found.push(`cut by the window: ${named(element)}`);
  }
  const mayScroll = SCROLLS.includes(style.overflowX) || style.textOverflow === "ellipsis";
  const isControl = ["input", "textarea"].includes(element.localName);
  const isInline = style.display === "inline" || element.localName === "svg";
  const isWider = element.scrollWidth > element.clientWidth + TOLERANCE;
  if (isWider && !mayScroll && !isControl && !isInline) {
    found.push(`wider than its box: ${named(element)}`);
  }
  const words = element.children.length === 0 ? element.textContent.trim() : "";
  const size = parseFloat(style.fontSize);
  if (words.length > 8 && box.width < 3 * size && box.height > 4 * size) {
    found.push(`too narrow to read: ${named(element)}`);
  }
}
if (document.documentElement.scrollWidth > document.documentElement.clientWidth) {
  found.push("the page is wider than the window");
}
return found;
"""


def faults_of(page: Page) -> list[str]:
    """Return what overlaps, is cut or is too narrow in the page, as it is drawn now."""
    found: Any = page.run(MEASURE)
    return list(dict.fromkeys(found))
