"""Programs that fail, reach a limit, or cannot go on: the model and the client are told why."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from tests.http.conftest import create, script, text_of
from tests.support.programs import (
    BOTH,
    ODD,
    PROGRAMS,
    SUM,
    Json,
    answers,
    asked,
    calls_of,
    function,
    kinds,
    output_of,
)

pytestmark = pytest.mark.slow

ENDS = {
    # code: the end of the output
    "throw new TypeError('odd')": "TypeError: odd (line 1)",
    "text('one'); throw { a: 1 }": 'one\nError: {"a":1}',
    "throw null": "Error: null was thrown, or the memory was full.",
    "const = 1": "SyntaxError:",
    "while (true) {}": "Error: the program computed for more than 1 seconds.",
    "for (;;) await 1": "Error: the program computed for more than 1 seconds.",
    "const f = () => f(); f()": "RangeError: Maximum call stack size exceeded (line 1)",
    "return 'x'.repeat(1e9)": "InternalError: out of memory (line 1)",
    "text('x'.repeat(300000))": "Error: A program may write 262144 characters.",
    "await new Promise(() => {})": "Error: the program waits for something that never happens.",
    "await fetch('http://127.0.0.1')": "ReferenceError: fetch is not defined (line 1)",
    "await import('fs')": "ReferenceError: could not load module",
    "await tools.stock('x')": "Error: stock: the input must be an object.",
    "await tools.stock(1n)": "Error: stock: the arguments must be JSON.",
    "await tools.stock({ a: 'x'.repeat(2e6) })": "arguments may have 1048576 characters.",
}


@pytest.mark.parametrize("code", ENDS)
def test_a_program_that_fails_ends_with_the_reason(programs: httpx.Client, code: str) -> None:
    response = create(
        programs, model="scripted-chat", input=[asked(code)], tools=[PROGRAMS, function()]
    )
    output = output_of(response)
    assert output["status"] == "incomplete"
    assert ENDS[code] in output["result"]
    assert (response["status"], text_of(response)) == ("completed", "Enough.")


def test_a_program_makes_a_thousand_calls_in_portions(programs: httpx.Client) -> None:
    code = """
        const calls = Array.from({ length: 1001 }, () => tools.stock("").catch((e) => e.message));
        return new Set(await Promise.all(calls)).size + (await calls[1000]);
    """
    response = create(
        programs, model="scripted-chat", input=[asked(code)], tools=[PROGRAMS, function()]
    )
    assert output_of(response)["result"] == "2A program may make 1000 calls."
    code = "await Promise.all(Array.from({ length: 40 }, (_, n) => tools.stock({ sku: `${n}` })))"
    response = create(
        programs, model="scripted-chat", input=[asked(code)], tools=[PROGRAMS, function()]
    )
    assert len(calls_of(response)) == 32


ERRORS: dict[str, Json] = {
    "No such page.\nTry 2.": {
        "type": "mcp_tool_execution_error",
        "content": [
            {"type": "text", "text": "No such page."},
            {"type": "text", "text": "Try 2."},
        ],
    },
    'It is "closed".': {"type": "mcp_tool_execution_error", "content": 'It is "closed".'},
    "The server answered with HTTP status 503.": {
        "type": "http_error",
        "code": 503,
        "message": "The server answered with HTTP status 503.",
    },
    "Bad params.": {"type": "mcp_protocol_error", "code": -32602, "message": "Bad params."},
    '{"type":"odd"}': {"type": "odd"},
}
"""What a program reads -> the error of a call."""


@pytest.mark.parametrize("message", ERRORS)
def test_a_call_that_fails_throws_what_the_server_says(
    programs: httpx.Client, model: str, message: str
) -> None:
    call = f"tools.odd__boom({json.dumps({'error': ERRORS[message]})})"
    shown = "[error instanceof Error, error.message]"
    ways = [
        f"try {{ await {call}; }} catch (error) {{ return {shown}; }}",
        f"return {call}.catch((error) => {shown})",
        f"const [it] = await Promise.allSettled([{call}]); "
        "return [it.status === 'rejected', it.reason.message]",
    ]
    for code in ways:
        response = create(programs, model=model, input=[asked(code)], tools=[PROGRAMS, ODD])
        output = output_of(response)
        assert output["status"] == "completed"
        assert json.loads(output["result"]) == [True, message]
    response = create(programs, model=model, input=[asked(f"await {call}")], tools=[PROGRAMS, ODD])
    uncaught = output_of(response)
    assert (uncaught["status"], uncaught["result"]) == ("incomplete", f"Error: {message}")


def test_a_call_of_a_tool_that_breaks_throws(programs: httpx.Client, model: str) -> None:
    code = "try { await tools.odd__boom({}); } catch (error) { return 'caught ' + error.message; }"
    response = create(programs, model=model, input=[asked(code)], tools=[PROGRAMS, ODD])
    result = output_of(response)["result"]
    assert result.startswith("caught ")
    assert "{" not in result


def test_calls_of_programs_count_toward_max_tool_calls(programs: httpx.Client, model: str) -> None:
    code = """
        const all = await Promise.allSettled([1, 2, 3].map((words) => tools.odd__say({ words })));
        return all.map((each) => each.status);
    """
    response = create(
        programs, model=model, input=[asked(code)], tools=[PROGRAMS, ODD], max_tool_calls=2
    )
    assert json.loads(output_of(response)["result"]) == ["fulfilled", "fulfilled", "rejected"]


def changed_code(items: list[Json]) -> list[Json]:
    return [
        {**item, "code": item["code"].replace("'x'", "'y'")} if "code" in item else item
        for item in items
    ]


def swapped_calls(items: list[Json]) -> list[Json]:
    return [items[0], items[2], items[1]]


@pytest.mark.parametrize("change", [changed_code, swapped_calls])
def test_a_repeat_that_differs_ends_with_an_error_and_mixes_nothing_up(
    programs: httpx.Client, model: str, change: Callable[[list[Json]], list[Json]]
) -> None:
    code = "await Promise.all(['x', 'z'].map((sku) => tools.stock({ sku })))"
    question, tools = asked(code), [PROGRAMS, function()]
    first = create(programs, model=model, input=[question], tools=tools)
    items = [question, *change(first["output"]), *answers(first, "1", "2")]
    second = create(programs, model=model, input=items, tools=tools, store=False)
    output = output_of(second)
    assert output["status"] == "incomplete"
    assert "it made another call than before: stock(" in output["result"]
    assert text_of(second) == "Enough."


def test_a_program_ends_if_the_request_has_the_tool_no_more(
    programs: httpx.Client, http: httpx.Client, model: str
) -> None:
    question, tools = asked(SUM), [PROGRAMS, function()]
    first = create(programs, model=model, input=[question], tools=tools)
    items = [question, *first["output"], *answers(first, "1", "2")]
    for client, reason in ((programs, "another call"), (http, "does not run programs")):
        second = create(client, model=model, input=items, store=False)
        assert output_of(second)["status"] == "incomplete"
        assert reason in output_of(second)["result"]
        assert text_of(second) == "Enough."


def test_every_call_must_have_its_output(programs: httpx.Client, model: str) -> None:
    tools = [PROGRAMS, function()]
    first = create(programs, model=model, input=[asked(SUM)], tools=tools)
    body = {"model": model, "tools": tools, "previous_response_id": first["id"]}
    answer = programs.post("/responses", json={**body, "input": answers(first, "1", "2")[:1]})
    assert answer.status_code == 400
    assert calls_of(first)[1]["call_id"] in answer.json()["error"]["message"]


def test_a_program_that_was_cut_off_never_runs(programs: httpx.Client, model: str) -> None:
    code = "await tools.odd__say({ words: 1 }); " + "text('long');" * 50
    tools = [PROGRAMS, ODD]
    first = create(programs, model=model, input=[asked(code)], tools=tools, max_output_tokens=30)
    assert first["status"] == "incomplete"
    assert "mcp_call" not in kinds(first)
    assert "program" not in kinds(first)


def test_a_program_that_was_cancelled_does_not_go_on_and_the_model_is_told(
    programs: httpx.Client, model: str
) -> None:
    code = "await tools.odd__say({ words: 1 }); await tools.odd__hang({}); return 'end'"
    body = {"model": model, "tools": [PROGRAMS, ODD]}
    begun = create(programs, input=[asked(code)], background=True, **body)
    path = f"/responses/{begun['id']}"
    with programs.stream("GET", path, params={"stream": "true"}) as stream:
        lines = (line for line in stream.iter_lines() if '"mcp_call"' in line)
        assert next(line for line in lines if '"name":"hang"' in line)
    cancelled = programs.post(f"{path}/cancel").json()
    assert kinds(cancelled) == ["mcp_list_tools", "program", "mcp_call", "mcp_call"]
    question = {"role": "user", "content": script({"say": "On."})}
    response = create(
        programs,
        input=[question],
        previous_response_id=begun["id"],
        enable_response_messages=True,
        **body,
    )
    assert kinds(response) == ["program_output", "message"]
    assert output_of(response)["status"] == "incomplete"
    assert "the program was stopped with its response" in output_of(response)["result"]
    assert text_of(response) == "On."
    prompt = json.dumps(response["input_messages"])
    assert prompt.index("was stopped with its response") < prompt.index("On.")


def test_a_caller_that_there_is_not_is_refused(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": "Hello.", "tools": [function(callers=["everyone"])]}
    answer = http.post("/responses", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[0].allowed_callers[0]"
    assert "programmatic" in error["message"]


def test_a_server_without_programs_names_what_has_no_effect(http: httpx.Client, model: str) -> None:
    tools = [PROGRAMS, function(), function("mine", BOTH)]
    body = {"model": model, "input": "Hello.", "tools": tools}
    answer = http.post("/responses", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-antiphon-ignored"] == ("tools[0], tools[1], tools[2].allowed_callers")
