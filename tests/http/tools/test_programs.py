"""Programs over HTTP: JavaScript of the model's calls tools, which the client or the server runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script, text_of

Json = dict[str, Any]

PROGRAMS = {"type": "programmatic_tool_calling"}
BOTH = ["direct", "programmatic"]


def function(name: str = "stock", callers: list[str] | None = None, **fields: Any) -> Json:
    return {
        "type": "function",
        "name": name,
        "parameters": {"type": "object", "properties": {"sku": {"type": "string"}}},
        "allowed_callers": ["programmatic"] if callers is None else callers,
        **fields,
    }


@pytest.fixture(scope="module")
def program_server(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    given = {"programs": True, "code.program_cpu_s": 1, "store": "sqlite"}
    with serve_from(tmp_path_factory.mktemp("programs"), **given) as served:
        yield served


@pytest.fixture
def programs(program_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=program_server.api, timeout=30) as client:
        yield client


def program(code: str) -> Json:
    return {"call": "program", "args": {"code": code}}


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def answer(call: Json, output: Any, **fields: Any) -> Json:
    text = output if isinstance(output, str) else json.dumps(output)
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text, **fields}


def test_a_program_waits_for_the_clients_results_and_goes_on(
    programs: httpx.Client, model: str
) -> None:
    code = """
        const [a, b] = await Promise.all(["x", "y"].map((sku) => tools.stock({ sku })));
        text(`${a.units + b.units} units`);
    """
    asked = {"role": "user", "content": script(program(code), {"say": "Enough."})}
    tools = [PROGRAMS, function()]
    first = create(programs, model=model, input=[asked], tools=tools)
    written, *calls = first["output"]
    assert first["status"] == "completed"
    assert kinds(first) == ["program", "function_call", "function_call"]
    assert written["code"] == code
    assert [json.loads(call["arguments"]) for call in calls] == [{"sku": "x"}, {"sku": "y"}]
    caller = {"type": "program", "caller_id": written["call_id"]}
    assert [call["caller"] for call in calls] == [caller, caller]
    results = [answer(call, {"units": 20 + n}) for n, call in enumerate(calls)]
    second = create(
        programs, model=model, input=results, tools=tools, previous_response_id=first["id"]
    )
    output, message = second["output"]
    assert output == {
        "type": "program_output",
        "id": output["id"],
        "status": "completed",
        "call_id": written["call_id"],
        "result": "41 units",
    }
    assert text_of(second) == "Enough."
