"""A page of the console in Chromium: what a reader does with it, and what went wrong in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = Path(__file__).parents[2] / "docs" / "images" / "console"
WAIT_S = 20.0
WIDE = (1280, 900)
PHONE = (360, 740)

# Before the page's own scripts: what the policy stopped, what a payload has run, what took long.
WATCH = """
window.__stopped = [];
window.__ran = [];
window.__longest = 0;
addEventListener("securitypolicyviolation", (event) => {
  window.__stopped.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
addEventListener("error", (event) => window.__stopped.push(`error: ${event.message}`));
addEventListener("unhandledrejection", (event) => {
  window.__stopped.push(`rejected: ${event.reason}`);
});
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) {
    window.__longest = Math.max(window.__longest, duration);
  }
}).observe({ type: "longtask", buffered: true });
"""
SIGN_IN = """
const [key, done] = arguments;
fetch("/console/session", {
  method: "POST", body: JSON.stringify({ key }), headers: { "content-type": "application/json" },
}).then((answer) => done(answer.status));
"""


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Start Chromium without a window; skip the test where there is none."""
    selenium = pytest.importorskip("selenium", reason="pip install 'antiphon[browser]'")
    assert selenium
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium here: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(each)
    for each in ("--force-device-scale-factor=1", *arguments):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        started.set_script_timeout(WAIT_S)
        started.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        yield started
    finally:
        started.quit()


class Page:
    """The console of one server, as one reader sees it."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url

    # --- what a reader does ---

    def visit(self, fragment: str = "") -> None:
        """Load the console anew at a view, for example `responses?status=failed`."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/console" + (f"#/{fragment}" if fragment else ""))

    def go(self, fragment: str) -> None:
        """Show another view of the page that is loaded."""
        self.run("location.hash = arguments[0]", f"#/{fragment}")

    def sign_in(self, key: str) -> None:
        """Get a session without the form, which has a test of its own."""
        self.driver.get(f"{self.url}/console")
        assert self.driver.execute_async_script(SIGN_IN, key) == 200

    def click(self, css: str) -> None:
        self.wait(lambda: self.all(css), f"nothing is {css}")
        element = self.all(css)[0]
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def click_text(self, text: str, css: str = "button, a, summary") -> None:
        """Click what has this text."""
        found: list[Any] = []
        # What is drawn anew meanwhile is looked for again.
        self.wait(
            lambda: found.extend(self._with_text(text, css)) or found, f"nothing says {text!r}"
        )
        element = found[0]
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def fill(self, css: str, text: str) -> None:
        """Write into a field, in place of what was there."""
        self.wait(lambda: self.all(css), f"nothing is {css}")
        element = self.all(css)[0]
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.clear()
        element.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def resize(self, size: tuple[int, int]) -> None:
        """Give the page this size in pixels, also below what a window may have."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, theme: str) -> None:
        """Say that the reader prefers `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # --- what a reader sees ---

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, css: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", css)
        return found

    def text(self, css: str = "body") -> str:
        """Return the visible text of the first such element, "" if there is none."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.run(script, css))

    def value(self, css: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).value", css))

    @property
    def fragment(self) -> str:
        return str(self.run("return location.hash"))

    @property
    def focus(self) -> str:
        """The text or the label of what has the focus."""
        script = (
            "const at = document.activeElement; return at.innerText || at.ariaLabel || at.id || ''"
        )
        return str(self.run(script))

    def wait(self, holds: Callable[[], Any], or_else: str = "it did not happen in time") -> None:
        from selenium.common.exceptions import TimeoutException, WebDriverException
        from selenium.webdriver.support.ui import WebDriverWait

        wait = WebDriverWait(self.driver, WAIT_S, 0.05, ignored_exceptions=[WebDriverException])
        try:
            wait.until(lambda _: holds())
        except TimeoutException:
            said = self.run("return document.body.innerText.slice(0, 3000)")
            pytest.fail(f"{or_else}\n{self.fragment}\n{said}\n{self.problems()}")

    def wait_for(self, text: str, css: str = "body") -> None:
        """Wait until an element says this."""
        self.wait(lambda: text in self.text(css), f"{css} does not say {text!r}")

    def _with_text(self, text: str, css: str) -> list[Any]:
        return [each for each in self.all(css) if each.text.strip() == text and each.is_displayed()]

    # --- what went wrong ---

    def problems(self) -> list[str]:
        """Return what the policy stopped, what failed, and what a payload has run."""
        watched = self.run("return [...(window.__stopped ?? []), ...(window.__ran ?? [])]")
        logged = [each["message"] for each in self.driver.get_log("browser") if _is_bad(each)]
        return [*watched, *logged]

    def longest_task_ms(self) -> float:
        return float(self.run("return window.__longest"))

    def is_wider_than_the_window(self) -> bool:
        script = (
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        return bool(self.run(script))

    def barriers(self) -> list[str]:
        """Return what axe-core finds serious or critical in the view."""
        if not AXE.exists():
            pytest.skip("axe-core is not installed: make test-browser installs it with npm")
        self.run(AXE.read_text(encoding="utf-8") + "\nwindow.axe = axe;")
        script = (
            "const done = arguments[0]; axe.run(document).then((found) => done(found.violations))"
        )
        found = self.driver.execute_async_script(script)
        return [
            f"{each['id']}: {node['html'][:300]} {node.get('failureSummary', '')}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def picture(self, name: str) -> None:
        """Take a picture for the documentation, if `ANTIPHON_TEST_PICTURES` was set."""
        file = PICTURES / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(file))


def _is_bad(entry: dict[str, Any]) -> bool:
    # A refused request is logged by Chromium, whatever the page makes of it.
    is_refused_request = "Failed to load resource" in entry["message"]
    return entry["level"] == "SEVERE" and not is_refused_request
