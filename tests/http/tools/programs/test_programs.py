"""Programs over HTTP: JavaScript of the model's calls tools of the client's and the server's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, frames, script, text_of, wait_until
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


def test_a_program_waits_for_the_clients_results_and_goes_on(
    programs: httpx.Client, model: str
) -> None:
    tools = [PROGRAMS, function()]
    first = create(programs, model=model, input=[asked(SUM)], tools=tools)
    written, *calls = first["output"]
    assert first["status"] == "completed"
    assert kinds(first) == ["program", "function_call", "function_call"]
    assert written["code"] == SUM
    assert [json.loads(call["arguments"]) for call in calls] == [{"sku": "x"}, {"sku": "y"}]
    caller = {"type": "program", "caller_id": written["call_id"]}
    assert [call["caller"] for call in calls] == [caller, caller]
    second = create(
        programs,
        model=model,
        input=answers(first, {"units": 20}, {"units": 21}),
        tools=tools,
        previous_response_id=first["id"],
    )
    output = output_of(second)
    assert output.pop("id").startswith("prgo_")
    assert output == {
        "type": "program_output",
        "status": "completed",
        "call_id": written["call_id"],
        "result": "41 units",
    }
    assert kinds(second) == ["program_output", "message"]
    assert text_of(second) == "Enough."


def by_previous_response(client: httpx.Client, first: Json, _: Json) -> Json:
    return {"previous_response_id": first["id"], "input": []}


def by_items(client: httpx.Client, first: Json, question: Json) -> Json:
    return {"store": False, "input": [question, *first["output"]]}


def by_conversation(client: httpx.Client, first: Json, _: Json) -> Json:
    return {"conversation": first["conversation"]["id"], "input": []}


@pytest.mark.parametrize("link", [by_previous_response, by_items, by_conversation])
@pytest.mark.parametrize("mode", ["whole", "streamed", "background"])
def test_a_program_of_several_rounds_goes_on_however_its_items_come(
    programs: httpx.Client,
    model: str,
    mode: str,
    link: Callable[[httpx.Client, Json, Json], Json],
) -> None:
    code = """
        let sku = "a";
        while (sku) sku = (await tools.stock({ sku })).next;
        return "end";
    """
    question = asked(code, {"say": "Done."})
    body = {"model": model, "tools": [PROGRAMS, function()]}
    if link is by_conversation:
        body["conversation"] = programs.post("/conversations", json={}).json()["id"]
    if mode == "background" and link is by_items:
        return  # what is not stored cannot run in the background
    if link is by_items:
        body["store"] = False
    items = [question]
    response = _run(programs, mode, **body, input=items)
    for following in ("b", "c", None):
        output = {"next": following}
        given = answers(response, output)
        assert kinds(response)[-1] == "function_call"
        links = link(programs, response, question)
        items = [*items, *response["output"], *given] if link is by_items else given
        response = _run(programs, mode, **(body | links | {"input": items}))
    assert output_of(response)["result"] == "end"
    assert text_of(response) == "Done."


def _run(client: httpx.Client, mode: str, **body: Any) -> Json:
    """Return the response however it is asked for; a stream ends as the stored response reads."""
    if mode == "whole":
        return create(client, **body)
    if mode == "background":
        made = create(client, **body, background=True)
        path = f"/responses/{made['id']}"
        wait_until(lambda: client.get(path).json()["status"] not in ("queued", "in_progress"))
        return dict(client.get(path).json())
    events = frames(client.post("/responses", json={**body, "stream": True}).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    end = events[-1]["response"]
    done = [event["item"] for event in events if event["type"].endswith("output_item.done")]
    assert done == end["output"]
    if body.get("store") is not False:
        assert client.get(f"/responses/{end['id']}").json() == end
    return dict(end)


def test_calls_that_the_server_runs_go_on_in_the_same_response(
    programs: httpx.Client, model: str
) -> None:
    code = """
        const texts = await Promise.all([1, 2].map((words) => tools.odd__say({ words })));
        return texts.join("") + (await tools.odd__say({ words: 3 }));
    """
    response = create(programs, model=model, input=[asked(code)], tools=[PROGRAMS, ODD])
    assert kinds(response) == [
        "mcp_list_tools",
        "program",
        *["mcp_call"] * 3,
        "program_output",
        "message",
    ]
    written = response["output"][1]
    for call in response["output"][2:5]:
        assert call["status"] == "completed"
        assert call["caller"] == {"type": "program", "caller_id": written["call_id"]}
    assert output_of(response)["result"] == "word " * 6
    assert programs.get(f"/responses/{response['id']}").json() == response


def test_a_round_may_have_calls_of_both(programs: httpx.Client, model: str) -> None:
    code = """
        const [ours, theirs] = await Promise.all([
          tools.odd__say({ words: 1 }), tools.stock({ sku: "x" }),
        ]);
        return [ours, theirs, await tools.odd__say({ words: 2 })];
    """
    tools = [PROGRAMS, ODD, function()]
    first = create(programs, model=model, input=[asked(code)], tools=tools)
    assert kinds(first) == ["mcp_list_tools", "program", "mcp_call", "function_call"]
    second = create(
        programs,
        model=model,
        input=answers(first, "seven"),
        tools=tools,
        previous_response_id=first["id"],
    )
    assert kinds(second) == ["mcp_call", "program_output", "message"]
    assert json.loads(output_of(second)["result"]) == ["word ", "seven", "word word "]


@pytest.mark.parametrize(
    ("output", "schema", "read"),
    [
        ('{"a": [1]}', None, "object"),
        ("[1]", None, "object"),
        ("12", None, "string"),
        ("12", {"type": "integer"}, "number"),
        ("twelve", {"type": "integer"}, "string"),
        ('{"a', None, "string"),
        ("", None, "string"),
    ],
)
def test_a_result_is_json_where_it_can_be(
    programs: httpx.Client, output: str, schema: Json | None, read: str
) -> None:
    tools = [PROGRAMS, function(output_schema=schema)]
    first = create(
        programs,
        model="scripted-chat",
        input=[asked("return typeof (await tools.stock({}))")],
        tools=tools,
    )
    second = create(
        programs,
        model="scripted-chat",
        input=answers(first, output),
        tools=tools,
        previous_response_id=first["id"],
    )
    assert output_of(second)["result"] == read


def test_custom_tools_and_patches_are_called_as_their_items(
    programs: httpx.Client, model: str
) -> None:
    code = """
        const [said, patched] = await Promise.all([
          tools.speak("Hello."),
          tools.apply_patch({ operation: { type: "delete_file", path: "a.txt" } }),
        ]);
        return { said, patched };
    """
    tools = [
        PROGRAMS,
        {"type": "custom", "name": "speak", "allowed_callers": ["programmatic"]},
        {"type": "apply_patch", "allowed_callers": BOTH},
    ]
    first = create(programs, model=model, input=[asked(code)], tools=tools)
    written, custom, patch = first["output"]
    caller = {"type": "program", "caller_id": written["call_id"]}
    assert (custom["type"], custom["input"]) == ("custom_tool_call", "Hello.")
    assert patch["operation"] == {"type": "delete_file", "path": "a.txt"}
    assert custom["caller"] == patch["caller"] == caller
    given = [
        {"type": "custom_tool_call_output", "call_id": custom["call_id"], "output": "Hi."},
        {
            "type": "apply_patch_call_output",
            "call_id": patch["call_id"],
            "status": "completed",
            "output": "gone",
            "caller": caller,
        },
    ]
    second = create(
        programs, model=model, input=given, tools=tools, previous_response_id=first["id"]
    )
    assert json.loads(output_of(second)["result"]) == {"said": "Hi.", "patched": "gone"}


def test_each_tool_has_the_callers_that_it_allows(programs: httpx.Client, model: str) -> None:
    code = """
        for (const name of ["mine", "only_mine", "nope"]) {
          try { await tools[name]({}); } catch (error) { text(error.message); }
        }
    """
    tools = [PROGRAMS, function("mine", BOTH), function("only_mine", ["direct"]), function("ours")]
    first = create(programs, model=model, input=[asked(code)], tools=tools)
    [call] = calls_of(first)
    assert call["name"] == "mine"
    second = create(
        programs,
        model=model,
        input=answers(first, "ok"),
        tools=tools,
        previous_response_id=first["id"],
    )
    assert output_of(second)["result"].splitlines() == [
        "Programs cannot call only_mine. They can call: mine, ours.",
        "Programs cannot call nope. They can call: mine, ours.",
    ]
    refused = programs.post(
        "/responses",
        json={"model": model, "input": script({"call": "ours", "args": {}}), "tools": tools},
    )
    assert refused.status_code == 400, "the model itself is not offered it"


def test_the_model_is_told_what_programs_can_call(programs: httpx.Client, model: str) -> None:
    tools = [PROGRAMS, function(description="Counts.", output_schema={"type": "integer"})]
    response = create(
        programs, model=model, input="Hello.", tools=tools, enable_response_messages=True
    )
    prompt = json.dumps(response["input_messages"])
    assert "tools.stock(input): Counts." in prompt
    assert "Returns: " in prompt
    without = create(programs, model=model, input="Hello.", enable_response_messages=True)
    assert "tools.stock" not in json.dumps(without["input_messages"])


def test_the_model_sees_the_program_and_its_output_alone(
    programs: httpx.Client, model: str
) -> None:
    code = "const s = await tools.stock({ sku: 'q7' }); text('so ' + s.length)"
    tools = [PROGRAMS, function()]
    first = create(programs, model=model, input=[asked(code)], tools=tools)
    body = {"model": model, "tools": tools, "enable_response_messages": True}
    question = {"role": "user", "content": script({"say": "On."})}
    second = create(
        programs, input=answers(first, "secret"), previous_response_id=first["id"], **body
    )
    third = create(programs, input=[question], previous_response_id=second["id"], **body)
    for response in (second, third):
        prompt = json.dumps(response["input_messages"])
        assert "so 6" in prompt
        assert "secret" not in prompt
    counted = programs.post(
        "/responses/input_tokens",
        json={"model": model, "tools": tools, "previous_response_id": second["id"], "input": "x"},
    )
    assert counted.status_code == 200
    items = programs.get(f"/responses/{second['id']}/input_items").json()["data"]
    assert "secret" in json.dumps(items)


@pytest.mark.parametrize("approve", [True, False, None])
def test_a_call_that_needs_approval_waits_for_it(
    programs: httpx.Client, model: str, approve: bool | None
) -> None:
    code = "try { return await tools.odd__say({ words: 2 }); } catch (error) { return `${error}`; }"
    tools = [PROGRAMS, {**ODD, "require_approval": "always"}]
    first = create(programs, model=model, input=[asked(code)], tools=tools)
    *_, written, request = first["output"]
    assert request["type"] == "mcp_approval_request"
    caller = {"type": "program", "caller_id": written["call_id"]}
    assert request["caller"] == caller
    given: list[Json] = [{"role": "user", "content": "Go on."}]
    if approve is not None:
        response = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        given = [{**response, "approve": approve}]
    second = create(
        programs, model=model, input=given, tools=tools, previous_response_id=first["id"]
    )
    if approve:
        assert kinds(second) == ["mcp_call", "program_output", "message"]
        assert second["output"][0]["caller"] == caller
        assert output_of(second)["result"] == "word word "
    else:
        assert output_of(second)["result"] == "Error: The user did not approve this call."


CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}


@pytest.mark.slow
def test_a_program_runs_code_and_commands_in_the_container(serve_odd_tools: Any) -> None:
    code = """
        await tools.python("open('/mnt/data/a.txt', 'w').write('7')");
        const [shell] = await tools.shell({ commands: ["cat /mnt/data/a.txt"] });
        return [shell.stdout, await tools.python("print(6 * 7)")];
    """
    given = {"code_interpreter": True, "shell": True, "programs": True, "code.cgroup": "off"}
    tools = [PROGRAMS, *({**tool, "allowed_callers": ["programmatic"]} for tool in (CODE, SHELL))]
    with serve_odd_tools(**given) as client:
        for model in ("scripted-chat", "scripted-harmony"):
            response = create(client, model=model, input=[asked(code)], tools=tools)
            assert kinds(response) == [
                "program",
                "code_interpreter_call",
                "shell_call",
                "shell_call_output",
                "code_interpreter_call",
                "program_output",
                "message",
            ]
            caller = {"type": "program", "caller_id": response["output"][0]["call_id"]}
            assert all(item["caller"] == caller for item in response["output"][1:5])
            assert json.loads(output_of(response)["result"]) == ["7", "42\n"]


def test_a_conversation_with_programs_is_truncated_and_compacted(
    programs: httpx.Client, model: str
) -> None:
    tools = [PROGRAMS, function()]
    body: Json = {"model": model, "tools": tools}
    last: Json = {}
    for _ in range(2):
        first = create(programs, input=[asked(SUM)], **body, **last)
        given = answers(first, {"units": 1}, {"units": 2})
        second = create(programs, input=given, previous_response_id=first["id"], **body)
        last = {"previous_response_id": second["id"]}
    question = {"role": "user", "content": script({"say": "On."})}
    response = create(programs, input=[question], truncation="auto", **body, **last)
    assert text_of(response) == "On."
    compacted = programs.post("/responses/compact", json={"model": model, **last})
    assert compacted.status_code == 200, compacted.text
    items = [*compacted.json()["output"], question]
    assert text_of(create(programs, input=items, **body)) == "On."
    management = [{"type": "compaction", "compact_threshold": 1000}]
    first = create(programs, input=[asked(SUM)], context_management=management, **body, **last)
    given = answers(first, {"units": 1}, {"units": 2})
    second = create(
        programs,
        input=given,
        previous_response_id=first["id"],
        context_management=management,
        **body,
    )
    assert output_of(second)["result"] == "3 units"


def test_what_the_client_says_beside_the_results_comes_after_the_output(
    programs: httpx.Client, model: str
) -> None:
    tools = [PROGRAMS, function()]
    first = create(programs, model=model, input=[asked(SUM)], tools=tools)
    given = [*answers(first, {"units": 1}, {"units": 2}), {"role": "user", "content": "So?"}]
    second = create(
        programs,
        model=model,
        input=given,
        tools=tools,
        previous_response_id=first["id"],
        enable_response_messages=True,
    )
    prompt = json.dumps(second["input_messages"])
    assert prompt.index("3 units") < prompt.index("So?")


def test_the_tool_can_be_forced(programs: httpx.Client, model: str) -> None:
    response = create(programs, model=model, input="Go.", tools=[PROGRAMS], tool_choice=PROGRAMS)
    assert kinds(response)[:2] == ["program", "program_output"]


def test_the_official_client_reads_the_items(programs: httpx.Client, model: str) -> None:
    with OpenAI(base_url=str(programs.base_url), api_key="none") as client:
        tools: Any = [PROGRAMS, function()]
        first = client.responses.create(model=model, input=[asked(SUM)], tools=tools)  # type: ignore[list-item]
        assert [item.type for item in first.output] == ["program", *["function_call"] * 2]
        outputs: Any = answers(first.model_dump(), {"units": 1}, {"units": 2})
        second = client.responses.create(
            model=model, input=outputs, tools=tools, previous_response_id=first.id
        )
        assert second.output_text == "Enough."
