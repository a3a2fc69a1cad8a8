"""Pictures of the console for the documentation: `ANTIPHON_TEST_PICTURES=1` takes them anew."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx
import pytest
from tests.browser.browser import PICTURES, Page
from tests.browser.playground.forms import PNG, ask, made, transfer
from tests.browser.test_activity import seed
from tests.browser.test_markdown import RICH
from tests.http.conftest import create, script, wait_until
from tests.support.fake_mcp_server import FakeMcpServer

from antiphon.adapters.stores.memory.store import MemoryStore

pytestmark = pytest.mark.browser

TAKES_PICTURES = "ANTIPHON_TEST_PICTURES" in os.environ  # read before the suite clears them
SIZE = (1200, 760)
THEMES = ("light", "dark")
VIEWS = {
    "list": "responses",
    "response": "responses/{agent}",
    "markdown": "responses/{rich}",
    "timeline": "responses/{agent}?tab=timeline",
    "raw": "responses/{agent}?tab=raw",
    "events": "responses/{agent}?tab=events",
    "thread": "threads/{turn}",
    "approvals": "approvals",
    "activity": "activity",
    "playground": "playground?previous={turn}",
    "playground_two": "playground?previous={turn}",
    "compare": "compare?left={before}&right={agent}",
    "state": "state",
}
READY = {
    "list": "tbody tr[data-id] .badge.writing",
    "thread": ".turn",
    "markdown": ".rich table",
    "approvals": ".card.approval",
    "activity": ".chart svg",
    "playground": ".output a",
    "playground_two": ".output a",
    "compare": "section[aria-label='Output']",
    "state": "[aria-label='You']",
}
"""What shows that a view is drawn; the tabs of a response have a panel."""


def write_in_playground(page: Page) -> None:
    page.run("document.querySelector('.settings details:nth-of-type(2)').open = true")
    page.click_text("Add a function")
    page.fill(".function input", "get_weather")
    ask(page, "And then?")
    made(page)
    transfer(page, "drop", ("lighthouse.png", "image/png", PNG), ("notes.md", "", b"# Notes"))
    page.wait(lambda: len(page.all(".chip")) == 2)
    page.fill("#input", "Where does she row to? The picture shows the coast.")
    page.run("document.querySelector('.settings').scrollTop = 0")


def compare_in_playground(page: Page) -> None:
    page.click("#second option[value='scripted-harmony']")
    ask(page, "And then?")
    page.wait(lambda: len(page.all(".figures:not(:empty)")) == 2)


WORK = {"playground": write_in_playground, "playground_two": compare_in_playground}
"""What a reader does in a view before its picture is taken."""


@pytest.fixture
def shown(serve: Any, tools: FakeMcpServer) -> Any:
    """A server that has done some work: its URL, and the ids that the views name."""
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    speed = {"scripted.tokens_per_s": 60.0}
    with (
        serve(store="sqlite", keep_traces="all", **allowed, **speed) as server,
        httpx.Client(base_url=server.api, timeout=30) as api,
    ):
        yield server.url, work(api, tools)


@pytest.fixture
def past(serve: Any) -> Any:
    """The URL of a server whose responses are of the last hours."""
    store = MemoryStore()
    asyncio.run(seed(store, ("qwen3-8b", "gpt-oss-20b", "llama-3.1-8b")))
    with serve(instead=store) as server:
        yield server.url


def work(api: httpx.Client, tools: FakeMcpServer) -> dict[str, str]:
    """Create responses of several kinds. Return the ids of the one with tools, and of another."""
    tool = {"type": "mcp", "server_label": "calc", "server_url": f"{tools.origin}/mcp"}
    sums = [{"mcp": "add", "args": {"a": 2, "b": 40}}, {"mcp": "look", "args": {}}]
    say = {"model": "scripted-chat", "background": True}
    chain = thread(api)
    rich = create(api, model="scripted-chat", input="Compare them.\n\n" + script({"say": RICH}))[
        "id"
    ]
    create(
        api,
        **say,
        input="Is the list still right?\n\n" + script({"mcp": "look", "args": {"page": 2}}),
        tools=[{**tool, "require_approval": "always"}],
    )
    before = create(api, **say, input=script({"say": "It is 41. The list has it."}))
    create(api, **say, input=script({"say": "word " * 40}), max_output_tokens=16)
    create(api, **say, input=script([{"say": "Half of an ans"}, {"fail": "server_error"}]))
    create(api, model="scripted-harmony", input="Say hello.", background=True)
    agent = create(
        api,
        **say,
        input="How much is 2 and 40?\n\n"
        + script(
            [{"think": "I need a sum, and a look at the list."}, *sums],
            {"say": "It is 42. The list has it, too."},
        ),
        tools=[{**tool, "require_approval": "never"}],
        instructions="Answer in one sentence.",
    )
    path = f"/responses/{agent['id']}"
    wait_until(lambda: api.get(path).json()["status"] == "completed")
    turn = [{"think": "They want a long story. " * 4}, {"say": "Once upon a time. " * 400}]
    create(api, **say, input=script(turn))
    create(api, **say, input=script([{"think": "Let me think about it. " * 300}]))
    return {"agent": agent["id"], "before": before["id"], "turn": chain, "rich": rich}


def thread(api: httpx.Client) -> str:
    """Create a chain with a fork. Return the id of its last response but one."""
    scenes = ("A lighthouse keeper finds a letter.", "It is from her brother.", "She rows out.")
    say = {"model": "scripted-chat"}
    turns = script(*({"say": scene} for scene in scenes))
    first = create(api, **say, input=f"Begin a story about the sea.\n\n{turns}")
    second = create(api, **say, input="Who wrote it?", previous_response_id=first["id"])
    fork = script({"say": "The letter is empty."})
    other = {"input": f"Make it a ghost story.\n\n{fork}", "previous_response_id": first["id"]}
    create(api, **say, **other)
    create(api, **say, input="And then?", previous_response_id=second["id"])
    return str(second["id"])


@pytest.mark.skipif(not TAKES_PICTURES, reason="set ANTIPHON_TEST_PICTURES=1 to take pictures")
def test_pictures_are_taken(visitor: Page, shown: Any, past: str) -> None:
    url, ids = shown
    page = Page(visitor.driver, url)
    page.resize(SIZE)
    for theme in THEMES:
        page.prefer(theme)
        for name, fragment in VIEWS.items():
            page.url = past if name == "activity" else url
            page.visit(fragment.format(**ids))
            ready = READY.get(name, "#panel > *")
            page.wait(lambda ready=ready: page.all(ready))
            if name in WORK:
                WORK[name](page)
            page.run("document.activeElement.blur(); document.fonts.ready")
            page.run("document.querySelector('.item.assistant .rich')?.scrollIntoView()")
            page.picture(f"{theme}/{name}")
    assert page.problems() == []


def test_each_picture_of_the_guide_is_there() -> None:
    names = {path.relative_to(PICTURES).as_posix() for path in PICTURES.glob("*/*.png")}
    assert {f"{theme}/{view}.png" for view in VIEWS for theme in THEMES} <= names
