"""The page of one response: each of its parts, while it runs and after it has ended."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.http.conftest import create, script, stream, wait_until
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = pytest.mark.browser

TABS = ("Transcript", "Timeline", "Raw", "Events", "Settings")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
RIGHT, LEFT, HOME_KEY = "\ue014", "\ue012", "\ue011"
ADD = {"mcp": "add", "args": {"a": 2, "b": 40}}
LOOK = {"mcp": "look", "args": {}}


def mcp(tools: FakeMcpServer, **fields: Any) -> list[dict[str, Any]]:
    tool = {"type": "mcp", "server_label": "calc", "server_url": f"{tools.origin}/mcp"}
    return [{**tool, "require_approval": "never", **fields}]


def agent(api: httpx.Client, tools: FakeMcpServer, **fields: Any) -> dict[str, Any]:
    """A response with reasoning, two calls side by side, and an answer."""
    turns = script(
        [{"think": "I need a sum and a look."}, ADD, LOOK], {"say": "It is 42, and it looks fine."}
    )
    body = {"model": "scripted-chat", "input": turns, "tools": mcp(tools), **fields}
    return stream(api, **body)  # followed, so that all of its times are known


def show(page: Page, response: dict[str, Any], tab: str = "") -> None:
    page.visit(f"responses/{response['id']}" + (f"?tab={tab}" if tab else ""))
    page.wait_for(response["id"], ".facts")


def test_the_transcript_is_readable_and_folds_what_is_long(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    response = agent(api, tools, instructions="Be exact.", metadata={"team": "ops"})
    show(page, response)
    page.wait_for("It is 42, and it looks fine.", ".item.message.assistant")
    assert "@@script" in page.text(".item.message.user")
    assert page.run("return document.querySelector('.item.reasoning details').open") is False
    page.click(".item.reasoning summary")
    page.wait_for("I need a sum and a look.", ".item.reasoning .prose")
    page.click(".item.mcp_call summary")
    page.wait_for("42", ".item.mcp_call .body")
    assert "calc/add" in page.text(".item.mcp_call")
    page.click_text("instructions", "summary")
    page.wait_for("Be exact.", "#panel")
    page.click_text("Settings", "button")
    page.wait_for('"team": "ops"', "#panel")
    assert page.fragment.endswith("?tab=request")
    assert page.problems() == []


def test_the_timeline_has_turns_calls_and_a_table(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    show(page, agent(api, tools), "timeline")
    page.wait(lambda: page.all("svg.waterfall .bar.call"))
    assert len(page.all("svg.waterfall .bar.queue")) == 1
    assert len(page.all("svg.waterfall .bar.turn")) == 3
    assert page.all("svg.waterfall .mark.first-token")
    shown = page.text("#panel table")
    for words in ("queue", "turn 1 (tools)", "calc/add", "calc/look", "turn 3", "stop", "in ("):
        assert words in shown, words


def test_the_raw_view_shows_the_prompt_and_special_tokens(page: Page, api: httpx.Client) -> None:
    turn = [{"think": "Hm."}, {"say": "Hello."}]
    response = create(api, model="scripted-chat", input=script(turn), instructions="Be kind.")
    show(page, response, "raw")
    page.wait(lambda: page.all("#panel mark.special"))
    assert "<|im_start|>" in page.text("#panel mark.special")
    assert "Be kind." in page.text("#panel pre[aria-label=Prompt]")
    assert "Hello." in page.text("#panel pre[aria-label=Output]")
    assert "Hello." in page.text("#panel .item.message")


def test_the_raw_view_names_the_first_token_that_differs(page: Page, api: httpx.Client) -> None:
    first = create(api, model="scripted-chat", input=script({"say": "One."}, {"say": "Two."}))
    second = create(
        api,
        model="scripted-chat",
        input="Go on.",
        instructions="Be kind.",
        previous_response_id=first["id"],
    )
    prefix = api.get(f"/responses/{second['id']}/explain").json()["prefix"]
    show(page, second, "raw")
    page.wait_for(f"differs at token {prefix['differs_at']}", ".prefix")
    page.wait(lambda: len(page.all(".prefix mark.differs")) == 2)
    assert "token id" in page.text(".prefix")
    assert first["id"] in page.text(".facts")


def test_without_a_trace_the_raw_view_says_how_to_keep_one(page: Page, serve: Any) -> None:
    with serve() as server, httpx.Client(base_url=server.api, timeout=20) as api:
        response = create(api, model="scripted-chat", input="Hello.")
        other = Page(page.driver, server.url)
        show(other, response, "raw")
        other.wait_for("--keep-traces all", "#panel")


def test_events_are_scrubbed_stepped_and_played(page: Page, api: httpx.Client) -> None:
    turn = [{"think": "Hm."}, {"say": "One two three four.", "chunk": 1, "tick": 0.05}]
    response = create(api, model="scripted-chat", input=script(turn), background=True)
    path = f"/responses/{response['id']}"
    wait_until(lambda: api.get(path).json()["status"] == "completed")
    show(page, response, "events")
    page.wait_for("response.completed", ".events .here")
    seen = "section[aria-label='What a client has seen']"
    page.wait_for("One two three four.", seen)
    page.run("document.querySelector('#scrub').focus()")
    page.press(HOME_KEY)
    page.wait_for("response.created", ".events .here")
    assert "One" not in page.text(seen)
    page.press(RIGHT)
    assert page.text(".events .here").startswith("0") or "1 " in page.text(".events .here")
    page.click_text("Step")
    page.click_text("Step back")
    page.press(LEFT)
    page.click_text("Play")
    page.wait(lambda: 0 < len(page.text(f"{seen} .assistant .prose")) < 19)
    page.wait_for("One two three four.", seen)
    page.wait(lambda: page.text(".player .primary") == "Play")
    assert page.problems() == []


@pytest.mark.parametrize(
    ("turn", "fields", "sentence"),
    [
        ({"fail": "server_error"}, {}, "Failed: server_error"),
        ({"say": "word " * 99}, {"max_output_tokens": 16}, "Incomplete: It reached max_output"),
        ({"say": "Hello."}, {}, "Completed."),
        ({"say": "Hello."}, {"service_tier": "scale"}, "no effect here: service_tier"),
        ({"raw": "<tool_call>\nhm\n</tool_call>"}, {}, "repaired"),
    ],
)
def test_the_page_says_why_a_response_ended(
    page: Page, api: httpx.Client, turn: Any, fields: Any, sentence: str
) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    body = {"input": script(turn), "background": True, "tools": tools, **fields}
    response = create(api, model="scripted-chat", **body)
    path = f"/responses/{response['id']}"
    wait_until(lambda: api.get(path).json()["status"] not in ("queued", "in_progress"))
    show(page, response)
    page.wait_for(sentence, ".ending")


def test_a_running_response_is_followed(page: Page, api: httpx.Client) -> None:
    turn = [{"think": "Hm."}, {"say": "word " * 60, "chunk": 1, "tick": 0.05}]
    response = create(api, model="scripted-chat", input=script(turn), background=True)
    show(page, response)
    said = ".item.message.assistant .prose"
    page.wait(lambda: 0 < len(page.text(said)) < 200)
    early = len(page.text(said))
    page.wait(lambda: len(page.text(said)) > early)
    assert "writing" in page.text(".facts") or "running" in page.text(".facts")
    page.wait_for("done", ".facts")
    page.wait(lambda: page.text(said).strip() == ("word " * 60).strip())
    assert page.problems() == []


def test_events_of_a_running_response_are_those_that_were_seen(
    page: Page, api: httpx.Client
) -> None:
    turn = {"say": "word " * 80, "chunk": 1, "tick": 0.1}
    response = create(api, model="scripted-chat", input=script(turn), background=True)
    show(page, response)
    page.wait(lambda: page.text(".item.message.assistant .prose"))
    page.click_text("Events", "button")
    page.wait_for("response.output_text.delta", "#panel")
    assert "response.completed" not in page.text("#panel")
    page.wait_for("response.completed", "#panel")


def test_the_page_names_what_a_tool_said_when_it_failed(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    body = {"input": script({"say": "Hm."}), "background": True}
    refused = [{**mcp(tools)[0], "server_url": f"{tools.origin}/refused"}]
    response = create(api, model="scripted-chat", tools=refused, **body)
    path = f"/responses/{response['id']}"
    wait_until(lambda: api.get(path).json()["status"] not in ("queued", "in_progress"))
    show(page, response)
    page.wait_for("HTTP status 401", ".ending")


def test_images_and_files_are_shown(page: Page, api: httpx.Client) -> None:
    def upload(name: str, content: bytes) -> str:
        answer = api.post("/files", files={"file": (name, content)}, data={"purpose": "user_data"})
        return str(answer.json()["id"])

    image, text = upload("dot.png", PIXEL), upload("notes.txt", b"Buy bread.")
    data = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
    content = [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "file_id": image},
        {"type": "input_image", "image_url": data},
        {"type": "input_file", "file_id": text},
    ]
    response = create(api, model="scripted-chat", input=[{"role": "user", "content": content}])
    show(page, response)
    widths = "return [...document.querySelectorAll('img')].map((image) => image.naturalWidth)"
    page.wait(lambda: page.run(widths) == [1, 1])
    page.click_text("Show")
    page.wait_for("Buy bread.", ".file-body pre")
    assert page.problems() == []


def test_a_keyboard_goes_through_the_tabs(page: Page, api: httpx.Client) -> None:
    show(page, create(api, model="scripted-chat", input="Hello."))
    page.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    for label in (*TABS[1:], TABS[0]):
        page.press(RIGHT)
        page.wait(lambda label=label: page.focus == label)
        assert page.text("[role=tab][aria-selected=true]") == label
        page.wait(lambda: page.text("#panel"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tab", ["transcript", "timeline", "raw", "events", "request"])
def test_no_part_has_a_barrier(
    page: Page, api: httpx.Client, tools: FakeMcpServer, tab: str, theme: str
) -> None:
    page.prefer(theme)
    show(page, agent(api, tools, frobnicate=1), tab)
    page.wait(lambda: page.text("#panel"))
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.barriers() == []


@pytest.mark.parametrize("tab", ["transcript", "timeline", "raw", "events", "request"])
def test_a_phone_shows_each_part_without_scrolling_sideways(
    page: Page, api: httpx.Client, tools: FakeMcpServer, tab: str
) -> None:
    page.resize(PHONE)
    show(page, agent(api, tools), tab)
    page.wait(lambda: page.text("#panel"))
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    assert not page.is_wider_than_the_window()


def test_a_long_conversation_is_folded_and_the_answer_is_in_view(
    page: Page, api: httpx.Client
) -> None:
    turns = [{"say": f"Answer {number}. " + "word " * 200} for number in range(60)]
    response = create(api, model="scripted-chat", input=script(*turns))
    for number in range(1, 60):
        response = create(
            api,
            model="scripted-chat",
            input=f"Question {number}?",
            previous_response_id=response["id"],
        )
    show(page, response)
    page.wait_for("Question 59?", "section[aria-label=Input] .item.user")
    page.wait_for("Answer 59.", "section[aria-label=Output] .item.assistant")
    top = "return document.querySelector('[aria-label=Output] .item').getBoundingClientRect().top"
    assert 0 < page.run(top) < page.run("return innerHeight")
    assert page.run("return document.querySelectorAll('.item').length") == 2
    page.click(".earlier summary")
    page.wait_for("Answer 58.", ".earlier")
    assert "Question 1?" not in page.text(".earlier")
    for _ in range(2):
        shown = page.run("return document.querySelectorAll('.earlier .item').length")
        page.click_text("Items before these")
        page.wait(
            lambda n=shown: page.run(
                f"return document.querySelectorAll('.earlier .item').length > {n}"
            )
        )
    page.wait_for("Question 1?", ".earlier")
    assert "Items before these" not in page.text(".earlier")


def test_the_first_question_of_a_conversation_has_no_history(page: Page, api: httpx.Client) -> None:
    show(page, create(api, model="scripted-chat", input="Hello."))
    page.wait_for("Hello.", "section[aria-label=Input]")
    assert not page.all(".earlier")


def test_text_that_is_written_from_right_to_left_is_shown_so(page: Page, api: httpx.Client) -> None:
    said = [{"type": "input_text", "text": "שלום עולם"}]
    response = create(api, model="scripted-chat", input=[{"role": "user", "content": said}])
    show(page, response)
    page.wait(lambda: page.all(".item.user .prose"))
    direction = "return getComputedStyle(document.querySelector('.item.user .prose')).direction"
    assert page.run(direction) == "rtl"


COPIED = """
window.__copied = [];
navigator.clipboard.writeText = async (text) => { window.__copied.push(text); };
"""


def test_ids_texts_and_settings_are_copied(page: Page, api: httpx.Client) -> None:
    response = create(api, model="scripted-chat", input=script({"say": "Copy me."}))
    show(page, response)
    page.wait_for("Copy me.", ".item.assistant")
    page.run(COPIED)
    page.click("button[aria-label='Copy id']")
    page.click(".item.assistant button[aria-label='Copy message']")
    page.wait_for("Copied", ".item.assistant button")
    page.click_text("Settings")
    page.click("button[aria-label='Copy settings']")
    page.wait(lambda: len(page.run("return window.__copied")) == 3)
    copied = page.run("return window.__copied")
    assert copied[:2] == [response["id"], "Copy me."]
    assert json.loads(copied[2])["id"] == response["id"]


def test_a_page_without_a_clipboard_copies_nevertheless(page: Page, api: httpx.Client) -> None:
    show(page, create(api, model="scripted-chat", input="Hello."))
    page.run("navigator.clipboard.writeText = async () => { throw new Error('not allowed'); }")
    page.click("button[aria-label='Copy id']")
    page.wait_for("Copied", "button[aria-label='Copy id']")
    assert page.focus == "Copied" or page.focus == "Copy"


def test_events_that_are_gone_are_explained(visitor: Page, serve: Any) -> None:
    with serve(keep_events_s=0.0) as server, httpx.Client(base_url=server.api) as api:
        response = create(api, model="scripted-chat", input="Hello.")
        page = Page(visitor.driver, server.url)
        show(page, response, "events")
        page.wait_for("The events of this response are gone.", "#panel")
        assert "keeps them for 0 s after the end" in page.text("#panel")
        assert "--keep-events-s" in page.text("#panel")
        assert page.problems() == []


def test_a_tree_of_agents_is_walked_by_links(page: Page, api: httpx.Client) -> None:
    task = {"task_name": "north", "message": script({"say": "Snow."})}
    turns = [{"call": "spawn_agent", "args": task}, {"call": "wait_agent"}, {"say": "All told."}]
    answer = api.post(
        "/responses",
        json={"model": "scripted-chat", "input": script(*turns), "multi_agent": {"enabled": True}},
        headers={"OpenAI-Beta": "responses_multi_agent=v1"},
    )
    response = answer.json()
    show(page, response)
    page.wait_for("All told.", "#panel")
    assert "message from /root/north to /root" in page.text("#panel")
    page.wait_for("/root/north", ".facts .plain")
    page.click(".facts .plain a")
    page.wait_for("Started by", ".facts")
    assert response["id"] in page.text(".facts")
    page.wait_for("Snow.", "#panel")
