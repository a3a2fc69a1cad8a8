"""What a reader does in the playground, for its tests."""

from __future__ import annotations

import base64
from typing import Any

from tests.browser.browser import Page

MODEL = "scripted-chat"
TOOL = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
EVIL = "<img src=x onerror=\"window.__ran.push('img')\"><script>window.__ran.push(1)</script>"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
TRANSFER = """
const [css, kind, files] = arguments;
const data = new DataTransfer();
for (const [name, type, encoded] of files) {
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  data.items.add(new File([bytes], name, { type }));
}
const options = { bubbles: true, cancelable: true };
document.querySelector(css).dispatchEvent(kind === "paste"
  ? new ClipboardEvent("paste", { ...options, clipboardData: data })
  : new DragEvent(kind, { ...options, dataTransfer: data }));
"""


def open_playground(page: Page, settings: bool = True) -> None:
    """Load the playground, with all of its settings unfolded."""
    page.visit("playground")
    page.wait(lambda: page.all("#model option"))
    if settings:
        open_settings(page)


def open_settings(page: Page) -> None:
    page.run(
        "for (const each of document.querySelectorAll('.settings, .settings details')) "
        "each.open = true"
    )


def fold_settings(page: Page) -> None:
    page.run("for (const each of document.querySelectorAll('.settings details')) each.open = false")


def ask(page: Page, text: str) -> None:
    page.fill("#input", text)
    page.click_text("Run")


def made(page: Page, css: str = ".output") -> str:
    """Return the id of the last response of a thread, once it has ended."""
    last = f"const all = document.querySelectorAll('{css} .exchange');"
    last += " return all[all.length - 1]"
    page.wait(lambda: " done" in page.run(f"{last}.querySelector('.summary').innerText"))
    return str(page.run(f"{last}.querySelector('.summary a').innerText"))


def transfer(page: Page, kind: str, *files: tuple[str, str, bytes], css: str = "#input") -> None:
    """Paste or drop files: their names, types and bytes."""
    sent: list[Any] = [
        (name, kind, base64.b64encode(content).decode()) for name, kind, content in files
    ]
    page.run(TRANSFER, css, kind, sent)
