"""Nothing overlaps or is cut: every view in every state, at four widths, light and dark."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.browser.boxes import faults_of
from tests.browser.browser import Page
from tests.browser.playground.forms import ask, open_settings, transfer
from tests.browser.test_markdown import RICH
from tests.browser.test_response import agent, mcp
from tests.http.conftest import create, script, wait_until
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = pytest.mark.browser

SIZES = ((390, 844), (1024, 768), (1440, 900), (1920, 1080))
THEMES = ("light", "dark")
MODEL = "scripted-chat"
LONG = "A sentence that is long enough to be cut somewhere, whatever the window. " * 4
UNBROKEN = "x" * 300
OPEN_ALL = "for (const each of document.querySelectorAll('main details')) each.open = true"


@pytest.fixture(scope="module")
def made(site: Any, keys: dict[str, str], tools: FakeMcpServer) -> dict[str, str]:
    """Responses of each kind: their ids by what the views below call them."""
    key = {"authorization": f"Bearer {keys['blue']}"}
    with httpx.Client(base_url=site.api, headers=key, timeout=30) as api:
        first = create(api, model=MODEL, input=script({"say": LONG}, {"say": UNBROKEN}))
        second = create(
            api,
            model=MODEL,
            input=f"{UNBROKEN} {LONG}",
            previous_response_id=first["id"],
            metadata={"team": "ops"},
        )
        failed = create(api, model=MODEL, input=script({"fail": "server_error"}), background=True)
        path = f"/responses/{failed['id']}"
        wait_until(lambda: api.get(path).json()["status"] == "failed")
        create(
            api, model=MODEL, input=script({"say": "word " * 99}), max_output_tokens=16, tools=[]
        )
        asked = {"mcp": "add", "args": {"a": 2, "b": 40}}
        waiting = create(
            api,
            model=MODEL,
            input=script([asked], {"say": "Done."}),
            tools=mcp(tools, require_approval="always"),
        )
        rich = create(api, model=MODEL, input=script({"say": RICH}))
        return {
            "markdown": rich["id"],
            "first": first["id"],
            "second": second["id"],
            "failed": failed["id"],
            "agent": agent(api, tools, frobnicate=1)["id"],
            "waiting": waiting["id"],
        }


def run_in_playground(page: Page) -> None:
    ask(page, script([{"think": LONG}, {"say": f"{LONG} {UNBROKEN}"}]))
    page.wait_for("done", ".output .summary")


def refuse_in_playground(page: Page) -> None:
    open_settings(page)
    page.fill("#tools", '[{"type": "function"}]')
    ask(page, "hi")
    page.wait_for("refused", ".output .summary")


def call_in_playground(page: Page) -> None:
    open_settings(page)
    page.click_text("Add a function")
    page.fill(".function input", "get_time_" + "x" * 55)
    ask(page, script({"call": "get_time_" + "x" * 55, "args": {"a": UNBROKEN}}))
    page.wait_for("Output of get_time", ".answers")


def approve_in_playground(page: Page, tools: FakeMcpServer) -> None:
    open_settings(page)
    page.fill("#tools", json.dumps(mcp(tools, require_approval="always")))
    ask(page, script({"mcp": "add", "args": {"a": 2, "b": UNBROKEN}}))
    page.wait_for("calc/add", ".answers")


def attach_in_playground(page: Page) -> None:
    names = ("a picture.png", UNBROKEN, LONG[:200], *"abcdefghij")
    transfer(page, "paste", *((name, "text/plain", b"x") for name in names), ("b", "", b""))
    page.wait(lambda: len(page.all(".chip")) == len(names))


def settings_in_playground(page: Page) -> None:
    open_settings(page)
    page.click_text("Add a function")
    page.fill(".function input", "get time")
    for field in ("#tools", "#schema", ".function textarea.code"):
        page.fill(field, f"{{{UNBROKEN}")


def compare_in_playground(page: Page) -> None:
    page.click("#second option[value='scripted-harmony']")
    ask(page, script([{"think": LONG}, {"say": f"{LONG} {UNBROKEN}"}]))
    page.wait(lambda: len(page.all(".figures:not(:empty)")) == 2)


def save_in_playground(page: Page) -> None:
    run_in_playground(page)
    page.click_text("Save this turn as…")
    page.wait_for("curl", "#copied")


def copy_as(page: Page) -> None:
    page.click_text("Copy as…")
    page.wait_for("curl", "#copied")


def ask_to_delete(page: Page) -> None:
    page.click_text("Delete")
    page.wait_for("It cannot be brought back", "dialog")


def open_all(page: Page) -> None:
    page.run(OPEN_ALL)


VIEWS: dict[str, tuple[str, str, Callable[[Page], None] | None]] = {
    "list": ("responses", "tbody tr[data-id]", None),
    "filters": ("responses?limit=20", "tbody tr[data-id]", open_all),
    "nothing found": ("responses?model=none", ".nothing p", open_all),
    "wrong filter": ("responses?status=sad", ".error", None),
    "transcript": ("responses/{agent}", ".item.assistant", open_all),
    "markdown": ("responses/{markdown}", ".rich table", None),
    "chain": ("responses/{second}", "[aria-label=Output] .item", open_all),
    "failed": ("responses/{failed}", ".ending .error", open_all),
    "approval": ("responses/{waiting}", ".item.mcp_approval_request", None),
    "approvals": ("approvals", ".card.approval", None),
    "thread": ("threads/{second}", ".turn", open_all),
    "no thread": ("threads", "#thread", None),
    "activity": ("activity", ".chart svg", open_all),
    "activity of a week": ("activity?span=week&by=key&only=of-blue", ".chart svg", None),
    "timeline": ("responses/{agent}?tab=timeline", "#panel table", None),
    "raw": ("responses/{second}?tab=raw", "#panel pre", open_all),
    "events": ("responses/{agent}?tab=events", "#scrub", open_all),
    "settings": ("responses/{agent}?tab=request", "#panel pre", None),
    "copy as": ("responses/{agent}", ".item.assistant", copy_as),
    "delete": ("responses/{agent}", ".item.assistant", ask_to_delete),
    "playground": ("playground", "#model option", None),
    "answered": ("playground", "#model option", run_in_playground),
    "refused": ("playground", "#model option", refuse_in_playground),
    "called": ("playground", "#model option", call_in_playground),
    "attached": ("playground", "#model option", attach_in_playground),
    "settings of the playground": ("playground", "#model option", settings_in_playground),
    "two models": ("playground", "#model option", compare_in_playground),
    "saved": ("playground", "#model option", save_in_playground),
    "compare": ("compare", "form", None),
    "compared": ("compare?left={first}&right={second}", "[aria-label=Output]", None),
    "state": ("state", "[aria-label=You]", None),
    "gone": ("responses/resp_none", ".error", None),
}
"""The address of each view, what shows that it is drawn, and what is done there before."""


def check(page: Page, view: str) -> None:
    found = []
    for theme in THEMES:
        page.prefer(theme)
        for size in SIZES:
            page.resize(size)
            page.run("return new Promise((done) => requestAnimationFrame(() => done()))")
            found += [f"{view}, {size[0]} px, {theme}: {each}" for each in faults_of(page)]
    assert found == []


@pytest.mark.parametrize("view", VIEWS)
def test_no_element_overlaps_another_or_is_cut(page: Page, made: dict[str, str], view: str) -> None:
    fragment, ready, work = VIEWS[view]
    page.visit(fragment.format(**made))
    page.wait(lambda: page.all(ready))
    if work is not None:
        work(page)
    check(page, view)


def test_an_approval_in_a_thread_does_not_overlap(page: Page, tools: FakeMcpServer) -> None:
    page.visit("playground")
    page.wait(lambda: page.all("#model option"))
    approve_in_playground(page, tools)
    check(page, "approval in a thread")


def test_the_form_for_the_key_does_not_overlap(visitor: Page) -> None:
    visitor.visit("responses")
    visitor.wait(lambda: visitor.all("#key"))
    open_all(visitor)
    check(visitor, "sign-in")


def test_a_new_server_does_not_overlap(visitor: Page, serve: Any) -> None:
    with serve() as server:
        page = Page(visitor.driver, server.url)
        page.visit("responses")
        page.wait(lambda: page.all(".nothing pre"))
        check(page, "new server")


@pytest.mark.parametrize(
    ("markup", "fault"),
    [
        ("<button style='position:absolute;left:9px;top:9px'>One</button>"
         "<button style='position:absolute;left:9px;top:19px'>Two</button>", "overlap"),
        ("<button style='position:absolute;left:380px;width:99px'>One</button>", "cut by"),
        ("<button style='width:30px;white-space:nowrap;overflow:hidden'>Words</button>", "wider"),
        ("<p style='width:9px;overflow-wrap:anywhere'>One letter a line</p>", "too narrow"),
    ],
)  # fmt: skip
def test_the_measure_finds_what_it_looks_for(page: Page, markup: str, fault: str) -> None:
    page.driver.get("data:text/html," + markup.replace("#", "%23"))
    page.resize((390, 844))
    assert any(each.startswith(fault) for each in faults_of(page))
