"""Calls that a program may not make, and calls of what only programs may call: neither runs."""

from __future__ import annotations

import json
import shutil
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script, text_of
from tests.support.programs import (
    ODD,
    PROGRAMS,
    Json,
    asked,
    calls_of,
    function,
    kinds,
    output_of,
)

TOOLS: list[Json] = [
    PROGRAMS,
    function("ours"),
    function("direct_only", ["direct"]),
    {"type": "function", "name": "unsaid", "parameters": {"type": "object"}},
    ODD,
]
FORBIDDEN = [
    "direct_only",
    "unsaid",
    "program",
    "programmatic_tool_calling",
    "web_search",
    "code_interpreter",
    "shell",
    "nope",
    "odd__nope",
    "odd",
    "OURS",
    " ours",
    "ours\u0000",
    "constructor",
    "toString",
    "valueOf",
    "__proto__",
    "hasOwnProperty",
    "toJSON",
    "",
]


def call_each(names: list[str]) -> str:
    """Return a program that writes what each of these calls comes to."""
    return f"""
        const results = {{}};
        for (const name of {json.dumps(names)}) {{
          try {{ results["called " + name] = await tools[name]({{}}); }}
          catch (error) {{ results["refused " + name] = error.message; }}
        }}
        return results;
    """


def test_a_program_is_refused_what_it_may_not_call(programs: httpx.Client, model: str) -> None:
    response = create(programs, model=model, input=[asked(call_each(FORBIDDEN))], tools=TOOLS)
    results = json.loads(output_of(response)["result"])
    assert list(results) == [f"refused {name}" for name in FORBIDDEN]
    assert all(told.startswith("Programs cannot call ") for told in results.values())
    assert not [kind for kind in kinds(response) if kind.endswith("_call")]
    assert text_of(response) == "Enough."


@pytest.mark.parametrize("name", ["then", "constructor", "__proto__", "toString"])
def test_a_tool_may_be_called_like_what_each_object_has(
    programs: httpx.Client, model: str, name: str
) -> None:
    code = f"await tools[{json.dumps(name)}]({{ sku: 'x' }})"
    tools = [PROGRAMS, function(name)]
    response = create(programs, model=model, input=[asked(code)], tools=tools)
    assert [call["name"] for call in calls_of(response)] == [name]


def test_it_is_refused_all_tools_that_the_request_does_not_offer_to_it(
    programs: httpx.Client, model: str
) -> None:
    tools = [PROGRAMS, function("direct_only", ["direct"])]
    code = call_each(["direct_only", "odd__say"])
    result = output_of(create(programs, model=model, input=[asked(code)], tools=tools))["result"]
    assert list(json.loads(result).values()) == [
        f"Programs cannot call {name}. They can call: none." for name in ("direct_only", "odd__say")
    ]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        {"call": "ours", "args": {"sku": "x"}, "unknown_tool": True},
        {"mcp": "say", "args": {"words": 1}, "unknown_tool": True},
    ],
)
def test_a_model_that_calls_what_only_programs_may_runs_nothing(
    programs: httpx.Client, model: str, call: Json, *, streams: bool
) -> None:
    """Models write what they like, also calls of tools that they were told of by their programs."""
    if "mcp" in call:
        call = {"call": "odd__say", **{name: call[name] for name in ("args", "unknown_tool")}}
    body = {"model": model, "input": script(call, {"say": "Well."}), "tools": TOOLS}
    answer = programs.post("/responses", json={**body, "stream": streams})
    assert answer.status_code == 200, answer.text
    response = frames(answer.text)[-1]["response"] if streams else answer.json()
    assert response["status"] == "completed"
    assert kinds(response) == ["mcp_list_tools", "message"], "what it wrote is only a text"


ENDLESS = {
    "calls of a tool that there is not": "for (;;) { try { await tools.nope({}) } catch {} }",
    "calls without arguments": "for (;;) { try { await tools.ours(1n) } catch {} }",
    "a million at once": (
        "const all = Array.from({ length: 1e6 }, () => tools.nope({}));"
        "return (await Promise.allSettled(all)).length"
    ),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_million_calls_end_with_what_the_model_can_read(
    programs: httpx.Client, kind: str
) -> None:
    model = "scripted-chat"
    response = create(programs, model=model, input=[asked(ENDLESS[kind])], tools=TOOLS)
    output = output_of(response)
    told = ("A program may make", "Error: the program", "the memory was full")
    assert any(each in output["result"] for each in told)
    assert text_of(response) == "Enough."
    again = create(programs, model=model, input=[asked("return 6 * 7")], tools=TOOLS)
    assert output_of(again)["result"] == "42"


def test_an_operator_says_how_many_calls_a_program_makes(serve_odd_tools: Any) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    with serve_odd_tools(**{"programs": True, "code.program_calls": 5}) as client:
        code = """
            let made = 0;
            try { for (;;) { await tools.odd__say({ words: 1 }); made += 1; } }
            catch (error) { return `${made}: ${error.message}`; }
        """
        response = create(client, model="scripted-chat", input=[asked(code)], tools=[PROGRAMS, ODD])
        assert output_of(response)["result"] == "5: A program may make 5 calls."
        assert kinds(response).count("mcp_call") == 5
