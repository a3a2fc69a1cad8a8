"""What a model, a tool or a client wrote is never markup: it is shown, and nothing of it runs."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import httpx
import pytest
from tests.browser.browser import Page
from tests.http.conftest import create, script, wait_until
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = pytest.mark.browser

TAG = "<img src=x onerror=\"window.__ran.push('{where}')\">"
SCRIPT = "<script>window.__ran.push('{where}')</script>"
SVG = "<svg onload=\"window.__ran.push('{where}')\"><style>*{{display:none}}</style></svg>"
LINK = "javascript:window.__ran.push('{where}')"
MARKDOWN = (
    "[a](javascript:window.__ran.push('link'))",
    "[a](JaVaScRiPt&colon;window.__ran.push('entity'))",
    "[a](java\nscript:window.__ran.push('line'))",
    "[a](data:text/html,<script>window.__ran.push('data')</script>)",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](//127.0.0.1:1/x) [d](#/playground) [e](/v1/x)",
    '[a](<https://a.example/" onclick="window.__ran.push(\'title\')> "t\\" onload=x")',
    "[a][r]\n\n[r]: javascript:window.__ran.push('reference')",
    "<javascript:window.__ran.push('autolink')> <https://a.example/\"onclick=x>",
    "![x](http://127.0.0.1:1/pixel.png) ![x](javascript:1) ![x](data:image/svg+xml,<svg/onload=1>)",
    "# <img src=x onerror=\"window.__ran.push('heading')\">",
    "<img src=x onerror=\"window.__ran.push('block')\">\n\n<script>window.__ran.push(1)</script>",
    "```<img/src=x/onerror=window.__ran.push(2)>\n<script>window.__ran.push('fence')</script>\n```",
    "`<script>window.__ran.push('code')</script>`",
    "| <svg onload=window.__ran.push('head')> |\n|---|\n| <style>*{display:none}</style> |",
    "> <iframe srcdoc='<script>parent.__ran.push(3)</script>'></iframe>",
    "https://[ [a](https://[) [b](http://%zz) [c](mailto:a@b?subject=<img>)",
    "*" * 300 + "a" + "*" * 300 + " " + "> " * 300 + "[" * 300,
)
"""What a model may write to get more than text out of Markdown."""


def payload(where: str) -> str:
    return " ".join(each.format(where=where) for each in (TAG, SCRIPT, SVG, LINK))


@pytest.fixture
def hostile() -> Iterator[FakeMcpServer]:
    """An MCP server whose names, descriptions and outputs are markup."""
    from tests.support import fake_mcp_server

    with fake_mcp_server.site() as site:
        schema = {"type": "object", "description": payload("schema")}
        site.tools = [{"name": "add", "description": payload("description"), "inputSchema": schema}]
        site.says = {"add": payload("tool output")}
        yield site


@pytest.fixture
def responses(api: httpx.Client, hostile: FakeMcpServer) -> list[str]:
    """Responses that have a payload in each place where others can write."""
    tool = {"type": "mcp", "server_label": "calc", "server_url": f"{hostile.origin}/mcp"}
    svg = base64.b64encode(SVG.format(where="svg file").encode()).decode()
    name = payload("file name")[:200] + ".html"
    answer = api.post(
        "/files",
        files={"file": (name.replace("/", "_"), payload("file").encode())},
        data={"purpose": "user_data"},
    )
    content = [
        {"type": "input_text", "text": payload("input")},
        {"type": "input_image", "image_url": f"data:image/svg+xml;base64,{svg}"},
        {"type": "input_file", "file_id": answer.json()["id"], "filename": name},
    ]
    call = {"mcp": "add", "args": {"a": payload("arguments")}}
    turns = script([{"think": payload("reasoning")}, call], {"say": payload("text")})
    first = create(
        api,
        model="scripted-chat",
        input=turns,
        tools=[{**tool, "require_approval": "never"}],
        instructions=payload("instructions"),
        metadata={payload("name")[:60]: payload("value")},
        **{payload("field")[:60]: 1},
    )
    media = api.post(
        "/responses",
        json={"model": "scripted-chat", "input": [{"role": "user", "content": content[:1]}]},
    ).json()
    file = api.post(
        "/responses",
        json={"model": "scripted-chat", "input": [{"role": "user", "content": content[2:]}]},
    ).json()
    failed = create(
        api,
        model="scripted-chat",
        input=script({"call": "f", "args": payload("call")}),
        tools=[{"type": "function", "name": "f", "description": payload("function")}],
        previous_response_id=first["id"],
    )
    wanted = create(
        api,
        model="scripted-chat",
        input=script({"mcp": "add", "args": {"a": payload("approval")}}),
        tools=[{**tool, "require_approval": "always"}],
    )
    return [each["id"] for each in (first, media, file, failed, wanted) if "id" in each]


def test_nothing_that_others_wrote_runs(
    page: Page, api: httpx.Client, responses: list[str]
) -> None:
    assert len(responses) == 5
    page.visit("responses")
    page.wait(lambda: len(page.all("tbody tr")) >= len(responses))
    for response_id in responses:
        for tab in ("transcript", "timeline", "raw", "events", "request"):
            page.go(f"responses/{response_id}?tab={tab}")
            page.wait_for(response_id, ".facts")
            page.wait(lambda: page.text("#panel"))
            page.run("for (const each of document.querySelectorAll('details')) each.open = true")
            for button in page.all(".file button:first-of-type"):
                button.click()
            for step in page.all(".player button:nth-of-type(2)"):
                step.click()
            unsafe = page.run(
                "return [...document.querySelectorAll('main *')].filter((node) => "
                "['SCRIPT', 'STYLE', 'IFRAME', 'OBJECT'].includes(node.tagName) || "
                "[...node.attributes].some((each) => each.name.startsWith('on') || "
                "/^\\\\s*javascript:/i.test(each.value))).map((node) => node.outerHTML)"
            )
            assert unsafe == []
    page.go(f"threads/{responses[0]}")
    page.wait(lambda: len(page.all(".turn")) == 2)
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    page.wait(lambda: page.all(".turn .item.assistant"))
    assert page.all("main img, main script, main [onerror]") == []
    page.go("approvals")
    page.wait_for("approval", f'article[data-id="{responses[-1]}"] pre')
    assert page.all("main img, main script, main [onerror]") == []
    assert page.problems() == []


def test_what_others_wrote_is_shown_as_text(
    page: Page, api: httpx.Client, responses: list[str]
) -> None:
    page.visit(f"responses/{responses[0]}")
    page.wait_for(payload("text"), ".item.message.assistant .body")
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    for where in ("reasoning", "tool output", "description", "instructions"):
        page.wait_for(TAG.format(where=where).split(" ")[0])
        assert where in page.text()
    assert page.problems() == []


def test_no_markdown_that_a_model_wrote_runs_or_asks_another_host(
    page: Page, api: httpx.Client
) -> None:
    texts = [f"**{number}** {text}" for number, text in enumerate(MARKDOWN)]
    say = [{"think": "\n\n".join(texts)}, {"say": "\n\n".join(texts)}]
    made = [create(api, model="scripted-chat", input=script(say))]
    made += [create(api, model="scripted-chat", input=script({"say": text})) for text in MARKDOWN]
    for response in made:
        page.visit(f"responses/{response['id']}")
        page.wait(lambda: page.all(".item.assistant .rich"))
        page.run("for (const each of document.querySelectorAll('details')) each.open = true")
        assert page.all("main img, main script, main svg, main style, main iframe") == []
        unsafe = page.run(
            "return [...document.querySelectorAll('.rich *')].filter((node) => "
            "[...node.attributes].some((each) => each.name.startsWith('on'))).concat("
            "[...document.querySelectorAll('.rich a')].filter((node) => "
            "!/^(https?:[/][/]|mailto:)/.test(node.href) || "
            "!/^(https?:[/][/]|mailto:)/i.test(node.getAttribute('href')) || "
            "node.rel !== 'noopener noreferrer')).map((node) => node.outerHTML)"
        )
        assert unsafe == []
    assert page.problems() == []


def test_an_error_that_has_markup_is_text(page: Page) -> None:
    page.visit("responses")
    page.wait_for("Responses", "h1")
    page.run("location.hash = arguments[0]", "#/responses/" + TAG.format(where="id"))
    page.wait_for("This did not work")
    page.go("responses?model=" + TAG.format(where="model"))
    page.wait_for("matches the filters")
    page.go("responses?status=" + TAG.format(where="status"))
    page.wait_for("'status' must be one or more of")
    assert page.problems() == []


def test_the_policy_stops_what_the_page_would_run(visitor: Page) -> None:
    """The net below: were there a mistake in a module, the browser would still run nothing."""
    page = visitor
    page.visit("responses")
    page.wait_for("Sign in", "h1")
    attempts: tuple[str, ...] = (
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "const s = document.createElement('script'); s.textContent = 'window.__ran.push(1)'",
        "window.trustedTypes.createPolicy('p', {createHTML: (x) => x})",
    )
    for attempt in attempts:
        stopped = page.run(f"try {{ {attempt}; return false }} catch {{ return true }}")
        assert stopped, attempt
    page.run(
        "const a = document.createElement('a'); a.href = \"javascript:window.__ran.push('a')\"; "
        "document.body.append(a); a.click();"
        "const i = document.createElement('img'); i.src = 'http://127.0.0.1:1/x'; "
        "document.body.append(i);"
    )
    page.wait(lambda: len(page.run("return window.__stopped")) >= 6)
    assert page.run("return window.__ran") == []


def test_a_response_that_fails_with_markup_is_text(page: Page, api: httpx.Client) -> None:
    turns = script([{"say": payload("before")}, {"fail": "server_error"}])
    failed = create(api, model="scripted-chat", input=turns, background=True)
    path = f"/responses/{failed['id']}"
    wait_until(lambda: api.get(path).json()["status"] == "failed")
    page.visit(f"responses/{failed['id']}")
    page.wait_for("Failed: server_error", ".ending")
    assert page.problems() == []
