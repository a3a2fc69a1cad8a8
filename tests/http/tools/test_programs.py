"""Programs over HTTP: JavaScript of the model's calls tools of the client's and the server's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, frames, script, text_of, wait_until

Json = dict[str, Any]

PROGRAMS = {"type": "programmatic_tool_calling"}
BOTH = ["direct", "programmatic"]
ODD = {
    "type": "mcp",
    "server_label": "odd",
    "require_approval": "never",
    "allowed_callers": ["programmatic"],
}


def function(name: str = "stock", callers: list[str] | None = None, **fields: Any) -> Json:
    return {
        "type": "function",
        "name": name,
        "parameters": {"type": "object", "properties": {"sku": {"type": "string"}}},
        "allowed_callers": ["programmatic"] if callers is None else callers,
        **fields,
    }


@pytest.fixture(scope="module")
def programs(serve_odd_tools: Any) -> Iterator[httpx.Client]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    with serve_odd_tools(
        **{"programs": True, "code.program_cpu_s": 1, "code.program_memory_mb": 16}
    ) as client:
        yield client


def program(code: str) -> Json:
    return {"call": "program", "args": {"code": code}}


def asked(code: str, *more: Any) -> Json:
    turns = more or ({"say": "Enough."},)
    return {"role": "user", "content": script(program(code), *turns)}


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def calls_of(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def output_of(response: Json) -> Json:
    [output] = [item for item in response["output"] if item["type"] == "program_output"]
    return dict(output)


def answers(response: Json, *outputs: Any) -> list[Json]:
    """Return outputs of the response's calls, in their order; what is no string is JSON."""
    return [
        {
            "type": "function_call_output",
            "call_id": call["call_id"],
            "output": output if isinstance(output, str) else json.dumps(output),
        }
        for call, output in zip(calls_of(response), outputs, strict=True)
    ]


SUM = """
const [a, b] = await Promise.all(["x", "y"].map((sku) => tools.stock({ sku })));
text(`${a.units + b.units} units`);
"""


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


def test_a_call_that_fails_throws(programs: httpx.Client, model: str) -> None:
    code = "try { await tools.odd__boom({}); } catch (error) { return 'caught ' + error.message; }"
    response = create(programs, model=model, input=[asked(code)], tools=[PROGRAMS, ODD])
    output = output_of(response)
    assert output["status"] == "completed"
    assert output["result"].startswith("caught ")


def test_calls_of_programs_count_toward_max_tool_calls(programs: httpx.Client, model: str) -> None:
    code = """
        const all = await Promise.allSettled([1, 2, 3].map((words) => tools.odd__say({ words })));
        return all.map((each) => each.status);
    """
    response = create(
        programs, model=model, input=[asked(code)], tools=[PROGRAMS, ODD], max_tool_calls=2
    )
    assert json.loads(output_of(response)["result"]) == ["fulfilled", "fulfilled", "rejected"]


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


def test_a_caller_that_there_is_not_is_refused(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": "Hello.", "tools": [function(callers=["everyone"])]}
    answer = http.post("/responses", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools[0].allowed_callers[0]"
    assert "programmatic" in error["message"]


def test_the_tool_can_be_forced(programs: httpx.Client, model: str) -> None:
    response = create(programs, model=model, input="Go.", tools=[PROGRAMS], tool_choice=PROGRAMS)
    assert kinds(response)[:2] == ["program", "program_output"]


def test_a_server_without_programs_names_what_has_no_effect(http: httpx.Client, model: str) -> None:
    tools = [PROGRAMS, function(), function("mine", BOTH)]
    body = {"model": model, "input": "Hello.", "tools": tools}
    answer = http.post("/responses", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-antiphon-ignored"] == ("tools[0], tools[1], tools[2].allowed_callers")


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
