"""What servers stream, in the forms that are seen in real ones, becomes the same deltas."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.adapters.chat_completions.turns import TOOLS, join

from antiphon.adapters.formats.unmarked_calls import search_of
from antiphon.adapters.models.chat_completions.chunks import decode_chunk
from antiphon.adapters.models.chat_completions.options import Think
from antiphon.adapters.models.chat_completions.reader import ChunkReader
from antiphon.adapters.models.chat_completions.usage import UsageMeter
from antiphon.adapters.upstreams.event_stream import EventSplitter
from antiphon.application.ports import Sampling, Turn
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import EngineError
from antiphon.domain.tools import ToolChoice, ToolSpec

Json = dict[str, Any]
ADD = ("call", "add", "function", '{"a": 1}')
NOW = ("call", "now", "function", '{"b": 2}')


def call(name: str | None = None, arguments: Any = None, **fields: Any) -> Json:
    """Return a piece of a call; fields that are not given are absent."""
    function = {"name": name, "arguments": arguments}
    return {"function": {k: v for k, v in function.items() if v is not None}, **fields}


def calls(*pieces: Json) -> Json:
    return {"tool_calls": list(pieces)}


def read_deltas(
    pieces: Sequence[Json],
    *,
    finish: str | None = "tool_calls",
    think: Think = "field",
    search: bool = False,
    **fields: Any,
) -> list[Any]:
    """Read chunks with these deltas, and return what they say; `search` the text for calls."""
    asked = turn(**fields)
    reader = ChunkReader(
        asked, UsageMeter(10, None), think=think, search=search_of(asked) if search else None
    )
    chunks = [{"choices": [{"delta": piece}]} for piece in pieces]
    chunks += [{"choices": [{"delta": {}, "finish_reason": finish}]}]
    deltas = [delta for chunk in chunks for delta in reader.feed(encode(chunk))]
    return join([*deltas, *reader.end()])


def turn(**fields: Any) -> Turn:
    items = fields.pop("items", [i.Message(role="user", content="Hi")])
    return Turn(model="m", items=items, tools=TOOLS, **fields)


def chunk_of(delta: Json) -> Json:
    return {"choices": [{"delta": delta}]}


def encode(chunk: Json) -> Any:
    return decode_chunk(msgspec.json.encode(chunk))


BOTH_CALLS: dict[str, Sequence[Json]] = {
    "in pieces": [
        calls(call("add", "", index=0, id="c1")),
        calls(call(None, '{"a"', index=0)),
        calls(call(None, ": 1}", index=0)),
        calls(call("now", "", index=1, id="c2")),
        calls(call(None, '{"b": 2}', index=1)),
    ],
    "whole": [calls(call("add", '{"a": 1}', index=0)), calls(call("now", '{"b": 2}', index=1))],
    "whole in one chunk": [
        calls(call("add", '{"a": 1}', index=0), call("now", '{"b": 2}', index=1))
    ],
    "without indexes": [calls(call("add", '{"a": 1}')), calls(call("now", '{"b": 2}'))],
    "without indexes in one chunk": [calls(call("add", '{"a": 1}'), call("now", '{"b": 2}'))],
    "all with the index 0": [
        calls(call("add", '{"a": 1}', index=0, id="c1")),
        calls(call("now", '{"b": 2}', index=0, id="c2")),
    ],
    "all with the index 0 in pieces": [
        calls(call("add", "", index=0, id="c1")),
        calls(call(None, '{"a": 1}', index=0)),
        calls(call("now", "", index=0, id="c2")),
        calls(call(None, '{"b": 2}', index=0)),
    ],
    "from the index 1": [
        calls(call("add", '{"a"', index=1)),
        calls(call(None, ": 1}", index=1)),
        calls(call("now", '{"b": 2}', index=2)),
    ],
    "first with the index of the tool": [
        calls(call("add", "", index=7, id="c1")),
        calls(call(None, '{"a": 1}', index=0)),
        calls(call("now", "", index=8, id="c2")),
        calls(call(None, '{"b": 2}', index=1)),
    ],
    "with an id anew in each piece": [
        calls(call("add", "", index=0, id="x1")),
        calls(call(None, '{"a": ', index=0, id="x2")),
        calls(call(None, "1}", index=0, id="x3")),
        calls(call("now", "", index=1, id="x4")),
        calls(call(None, '{"b": 2}', index=1, id="x5")),
    ],
    "with empty names and ids in later pieces": [
        calls(call("add", "", index=0, id="c1")),
        calls(call("", '{"a": 1}', index=0, id="")),
        calls(call("now", "", index=1, id="c2")),
        calls(call("", '{"b": 2}', index=1, id="")),
    ],
    "with the whole name in each piece": [
        calls(call("add", "", index=0, id="c1")),
        calls(call("add", '{"a": ', index=0, id="c1")),
        calls(call("add", "1}", index=0, id="c1")),
        calls(call("now", '{"b": ', index=1, id="c2")),
        calls(call("now", "2}", index=1, id="c2")),
    ],
    "with the name in each piece, and no id": [
        calls(call("add", "", index=0)),
        calls(call("add", '{"a": ', index=0)),
        calls(call("add", "1}", index=0)),
        calls(call("add", "", index=0)),
        calls(call("now", '{"b": 2}', index=1)),
    ],
    "interleaved": [
        calls(call("add", "", index=0, id="c1"), call("now", "", index=1, id="c2")),
        calls(call(None, '{"b": ', index=1)),
        calls(call(None, '{"a": ', index=0)),
        calls(call(None, "2}", index=1)),
        calls(call(None, "1}", index=0)),
    ],
    "with objects as arguments": [
        calls(call("add", {"a": 1}, index=0)),
        calls(call("now", {"b": 2}, index=1)),
    ],
    "as an object instead of a list": [
        {"tool_calls": call("add", {"a": 1}, index=0)},
        {"tool_calls": call("now", {"b": 2}, index=0)},
    ],
    "with the name after the id": [
        calls({"index": 0, "id": "c1"}),
        calls(call("add", '{"a": 1}', index=0)),
        calls({"index": 1, "id": "c2", "function": None}),
        calls(call("now", '{"b": 2}', index=1)),
    ],
    "with the names in pieces": [
        calls(call("a", "", index=0, id="c1")),
        calls(call("dd", "", index=0)),
        calls(call(None, '{"a": 1}', index=0)),
        calls(call("no", "", index=1, id="c2")),
        calls(call("w", '{"b": 2}', index=1, id="c2")),
    ],
    "with the names in pieces under one index": [
        calls(call("a", index=0, id="c1")),
        calls(call("d", index=0)),
        calls(call("d", '{"a": 1}', index=0)),
        calls(call("n", index=0, id="c2")),
        calls(call("ow", '{"b": 2}', index=0)),
    ],
    "with names that grow": [
        calls(call("a", "", id="c1")),
        calls(call("ad", "", id="c1")),
        calls(call("add", "", id="c1")),
        calls(call("add", '{"a": 1}', id="c1")),
        calls(call("functions.n", "", id="c2")),
        calls(call("functions.now", '{"b": 2}', id="c2")),
    ],
    "with another id or name before any arguments": [
        calls(call("add", "", index=0, id="c1")),
        calls(call(None, '{"a": 1}', index=0, id="c1"), call("now", "", index=0, id="c2")),
        calls(call(None, '{"b": 2}', index=0, id="c2")),
    ],
    "with arguments encoded twice": [
        calls(call("add", r'"{\"a\": 1}"', index=0)),
        calls(call("now", r'"{\"b\": 2}"', index=1)),
    ],
    "with arguments encoded twice in pieces": [
        calls(call("add", '"', index=0, id="c1")),
        calls(call(None, r"{\"a", index=0)),
        calls(call(None, "\\", index=0)),
        calls(call(None, '": 1}"', index=0)),
        calls(call("now", r'"{\"b\": 2}"', index=0, id="c2")),
    ],
    "with null beside what there is": [
        calls({"index": None, "id": None, "function": {"name": "add", "arguments": None}}),
        calls({"index": None, "id": None, "function": {"name": None, "arguments": '{"a": 1}'}}),
        calls({"index": None, "id": None, "function": {"name": "now", "arguments": '{"b": 2}'}}),
    ],
    "with indexes as texts": [
        calls(call("add", '{"a": ', index="0", id="c1")),
        calls(call(None, "1}", index="0")),
        calls(call("now", '{"b": 2}', index="1", id="c2")),
    ],
    "with blank text around": [
        {"content": "\n\n"},
        calls(call("add", '{"a": 1}', index=0)),
        {"content": "\n"},
        calls(call("now", '{"b": 2}', index=1)),
        {"content": "\n"},
    ],
}


def test_the_same_tool_is_called_twice_with_one_index_and_ids_anew() -> None:
    pieces = [
        calls(call("add", "", index=0, id="x1")),
        calls(call(None, '{"a": 1}', index=0, id="x2")),
        calls(call("add", "", index=0, id="x3")),
        calls(call(None, '{"a": 1}', index=0, id="x4")),
    ]
    assert read_deltas(pieces) == [ADD, ADD]


@pytest.mark.parametrize(
    "arguments", [None, "", " ", "null", '""', [], {}, "{}", r'"{}"', " null\n"]
)
def test_a_call_without_arguments_has_an_empty_object(arguments: Any) -> None:
    function = {"name": "now", "arguments": arguments}
    assert read_deltas([calls({"index": 0, "function": function})]) == [
        ("call", "now", "function", "{}")
    ]


@pytest.mark.parametrize("arguments", ["[1]", "7", '"a"', "nullable", r'"\"a\""'])
def test_other_arguments_are_left_as_they_are(arguments: str) -> None:
    for pieces in ([arguments], list(arguments)):
        chunks = [calls(call(None, piece, index=0)) for piece in pieces]
        read = read_deltas([calls(call("add", "", index=0)), *chunks])
        assert read == [("call", "add", "function", arguments)]


def test_a_new_id_or_name_under_one_index_is_another_call() -> None:
    pieces = [calls(call("now", index=0, id=f"c{number}")) for number in range(3)]
    pieces.append(calls(call("add", '{"a": 1}', index=0, id="c3")))
    assert read_deltas(pieces) == [("call", "now", "function", "{}")] * 3 + [ADD]


@pytest.mark.parametrize("pieces", [["get", "_weather"], ["get_wea", "ther"], ["get_weather"]])
@pytest.mark.parametrize("ids", [{}, {"id": "c1"}])
def test_a_name_that_begins_another_waits_for_its_arguments(
    pieces: Sequence[str], ids: Json
) -> None:
    tools = [ToolSpec(name="get"), ToolSpec(name="get_weather")]
    reader = ChunkReader(Turn(model="m", items=[], tools=tools), UsageMeter(1, None))
    chunks = [calls(call(piece, "", index=0, **ids)) for piece in pieces]
    deltas = [each for piece in chunks for each in reader.feed(encode(chunk_of(piece)))]
    deltas += reader.feed(encode(chunk_of(calls(call(None, "{}", index=0)))))
    assert join([*deltas, *reader.end()]) == [("call", "get_weather", "function", "{}")]


def test_a_name_that_can_be_no_other_is_written_at_once() -> None:
    reader = ChunkReader(turn(), UsageMeter(1, None))
    deltas = reader.feed(encode(chunk_of(calls(call("add", "", index=0, id="c1")))))
    assert deltas == [d.CallStart("add", "c1")]


@pytest.mark.parametrize("form", BOTH_CALLS)
def test_two_calls_are_read_in_every_form(form: str) -> None:
    assert read_deltas(BOTH_CALLS[form]) == [ADD, NOW]


@pytest.mark.parametrize("form", BOTH_CALLS)
def test_without_parallel_calls_only_the_first_is_made(form: str) -> None:
    assert read_deltas(BOTH_CALLS[form], parallel_tool_calls=False) == [ADD]


@pytest.mark.parametrize("form", ["in pieces", "interleaved", "without indexes"])
@pytest.mark.parametrize("finish", ["stop", "tool_calls", "eos_token", None])
def test_calls_are_made_whatever_the_reason_to_end_is(form: str, finish: str | None) -> None:
    assert read_deltas(BOTH_CALLS[form], finish=finish) == [ADD, NOW]


TEXTS: dict[str, tuple[Sequence[Json], list[Any]]] = {
    "reasoning_content": (
        [{"reasoning_content": "Hm"}, {"reasoning_content": "."}, {"content": "Hi"}],
        [("ReasoningDelta", "Hm."), ("TextDelta", "Hi")],
    ),
    "both names of reasoning": (
        [{"reasoning": "Hm.", "reasoning_content": "Hm.", "content": None}, {"content": "Hi"}],
        [("ReasoningDelta", "Hm."), ("TextDelta", "Hi")],
    ),
    "parts": (
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]},
            {"content": [{"type": "text", "text": "Hi"}, {"type": "reference", "ids": [1]}]},
        ],
        [("ReasoningDelta", "Hm."), ("TextDelta", "Hi")],
    ),
    "a refusal": ([{"refusal": "No"}, {"refusal": "."}], [("RefusalDelta", "No.")]),
    "only a role": (
        [{"role": "assistant", "content": ""}, {"content": "Hi"}],
        [("TextDelta", "Hi")],
    ),
    "text after a call": (
        [calls(call("add", '{"a": 1}', index=0)), {"content": "Done."}],
        [ADD, ("TextDelta", "Done.")],
    ),
    "text within a call": (
        [
            calls(call("add", '{"a": ', index=0)),
            {"content": "So."},
            calls(call(None, "1}", index=0)),
        ],
        [ADD, ("TextDelta", "So.")],
    ),
    "a call without arguments": (
        [calls(call("now", index=0))],
        [("call", "now", "function", "{}")],
    ),
    "a call with null": (
        [calls({"index": 0, "function": {"name": "now", "arguments": None}})],
        [("call", "now", "function", "{}")],
    ),
    "an old function call": (
        [
            {"function_call": {"name": "add", "arguments": '{"a":'}},
            {"function_call": {"arguments": " 1}"}},
        ],
        [ADD],
    ),
    "a tool that was not offered": (
        [calls(call("rm", '{"a": 1}', index=0))],
        [("TextDelta", '{"name": "rm", "arguments": "{\\"a\\": 1}"}')],
    ),
    "reasoning, text and a call in one chunk": (
        [{"reasoning": "Hm.", "content": "Hi", **calls(call("add", '{"a": 1}', index=0))}],
        [("ReasoningDelta", "Hm."), ("TextDelta", "Hi"), ADD],
    ),
    "a custom tool's arguments encoded twice": (
        [calls(call("note", r'"{\"input\": \"a\\nb\"}"', index=0))],
        [("call", "note", "custom", "a\nb")],
    ),
    "a custom tool's text in quotes": (
        [calls(call("note", '"{a}" is JSON', index=0))],
        [("call", "note", "custom", '"{a}" is JSON')],
    ),
    "a custom tool": (
        [calls(call("note", '{"inp', index=0)), calls(call(None, 'ut": "a\\nb"}', index=0))],
        [("call", "note", "custom", "a\nb")],
    ),
    "a custom tool without wrapping": (
        [calls(call("note", "plain ", index=0)), calls(call(None, "text", index=0))],
        [("call", "note", "custom", "plain text")],
    ),
}


@pytest.mark.parametrize("form", TEXTS)
def test_texts_and_calls_are_read(form: str) -> None:
    pieces, deltas = TEXTS[form]
    assert read_deltas(pieces) == deltas


def test_a_call_that_was_cut_stays_open() -> None:
    pieces = [calls(call("add", '{"a"', index=0, id="c1"))]
    reader = ChunkReader(turn(), UsageMeter(1, None))
    deltas = reader.feed(encode({"choices": [{"delta": pieces[0], "finish_reason": "length"}]}))
    deltas += reader.end()
    assert deltas == [d.CallStart("add", "c1"), d.ArgumentsDelta('{"a"')]
    assert reader.finish == "length"


def test_an_id_of_the_server_is_kept_unless_the_conversation_has_it() -> None:
    old = i.FunctionCall(call_id="c1", name="add", arguments="{}")
    pieces = [calls(call("add", "{}", index=0, id="c1"), call("add", "{}", index=1, id="c2"))]
    reader = ChunkReader(turn(items=[old]), UsageMeter(1, None))
    deltas = [*reader.feed(encode({"choices": [{"delta": pieces[0]}]})), *reader.end()]
    ids = [delta.call_id for delta in deltas if isinstance(delta, d.CallStart)]
    assert ids == [None, "c2"]


def test_calls_that_the_choice_excludes_are_text() -> None:
    choice = ToolChoice(mode="required", names=frozenset({"now"}))
    kinds = [each[0] for each in read_deltas(BOTH_CALLS["whole"], choice=choice)]
    assert kinds == ["TextDelta", "call"]


@pytest.mark.parametrize(
    ("think", "text"),
    [("tags", "<think>\nHm.\n</think>\n\nHi <think>"), ("open", "Hm.</think>Hi <think>")],
)
@given(st.data())
def test_tags_of_reasoning_are_read_however_they_are_cut(
    think: Think, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    deltas = read_deltas([{"content": part} for part in parts], think=think)
    assert deltas == [("ReasoningDelta", "Hm."), ("TextDelta", "Hi <think>")]


def test_tags_are_text_unless_the_options_say_otherwise() -> None:
    assert read_deltas([{"content": "<think>x</think>"}]) == [("TextDelta", "<think>x</think>")]


STREAM = b"".join(
    [
        b": ping\n\n",
        *(
            b"data: " + msgspec.json.encode({"choices": [{"delta": piece}]}) + b"\r\n\r\n"
            for piece in ({"content": "Grüße ✓"}, *BOTH_CALLS["interleaved"])
        ),
        b'data:{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}\n',
        b"data: [DONE]",
    ]
)


@given(st.sets(st.integers(1, len(STREAM) - 1), max_size=60))
def test_the_same_bytes_give_the_same_deltas_however_they_arrive(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    splitter, meter = EventSplitter(), UsageMeter(1, None)
    reader = ChunkReader(turn(), meter)
    events: list[bytes] = []
    for start, end in pairwise(places):
        events += splitter.feed(STREAM[start:end])
    *events, last = [*events, *splitter.end()]
    assert last == b"[DONE]"
    deltas = [delta for event in events for delta in reader.feed(decode_chunk(event))]
    assert join([*deltas, *reader.end()]) == [("TextDelta", "Grüße ✓"), ADD, NOW]
    assert (meter.usage.input, meter.usage.output) == (5, 9)


def test_an_answer_that_is_not_streamed_is_read_too() -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": [call("add", '{"a": 1}')]}
    chunk = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {}}
    reader = ChunkReader(turn(), UsageMeter(1, None))
    assert join([*reader.feed(encode(chunk)), *reader.end()]) == [("TextDelta", "Hi"), ADD]
    assert reader.message()["content"] == "Hi"
    assert reader.finish == "stop"


USAGES: dict[str, tuple[Json, tuple[int, int, int, int]]] = {
    "openai": (
        {
            "prompt_tokens": 50,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 32},
            "completion_tokens_details": {"reasoning_tokens": 4},
        },
        (50, 32, 9, 4),
    ),
    "deepseek": (
        {"prompt_tokens": 50, "completion_tokens": 9, "prompt_cache_hit_tokens": 32},
        (50, 32, 9, 0),
    ),
    "moonshot": ({"prompt_tokens": 50, "completion_tokens": 9, "cached_tokens": 8}, (50, 8, 9, 0)),
    "null details": (
        {"prompt_tokens": 50, "completion_tokens": 9, "prompt_tokens_details": None},
        (50, 0, 9, 0),
    ),
    "nothing": ({}, (10, 0, 1, 0)),
}


@pytest.mark.parametrize("form", USAGES)
def test_usage_is_read_in_every_form(form: str) -> None:
    reported, expected = USAGES[form]
    meter = UsageMeter(10, 7)
    reader = ChunkReader(turn(), meter)
    reader.feed(encode({"choices": [{"delta": {"content": "Hi"}}]}))
    reader.feed(encode({"choices": [], "usage": reported}))
    usage = meter.usage
    assert (usage.input, usage.cached, usage.output, usage.reasoning) == expected
    assert usage.tool_output == usage.input - 7


def test_logprobs_are_those_of_the_text() -> None:
    token = {"token": "✓", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "x"}]}
    chunk = {"choices": [{"delta": {"content": "✓"}, "logprobs": {"content": [token]}}]}
    reader = ChunkReader(turn(sampling=Sampling(logprobs=1)), UsageMeter(1, None))
    [text] = reader.feed(encode(chunk))
    assert isinstance(text, d.TextDelta)
    [logprob] = text.logprobs
    assert bytes(logprob.bytes).decode() == "✓"
    assert [each.token for each in logprob.top_logprobs] == ["x"]


@pytest.mark.parametrize("reason", ["error", "abort", "network_error"])
def test_a_reason_to_end_that_is_a_failure_fails_the_turn(reason: str) -> None:
    with pytest.raises(EngineError):
        read_deltas([{"content": "Hi"}], finish=reason)


ERRORS: Sequence[tuple[Json, str]] = [
    ({"error": "overloaded"}, ": overloaded"),
    ({"error": {"message": "overloaded", "code": 529}}, ": overloaded"),
    ({"error": {"message": "overloaded"}, "choices": [{"delta": {"content": ""}}]}, ": overloaded"),
    ({"object": "error", "message": "overloaded\nby key-1", "code": 500}, ": overloaded by …"),
    ({"error": {}}, "."),
]


@pytest.mark.parametrize(("chunk", "said"), ERRORS)
def test_an_error_in_the_stream_fails_the_turn_with_its_message(chunk: Json, said: str) -> None:
    reader = ChunkReader(
        turn(), UsageMeter(1, None), redact=lambda text: text.replace("key-1", "…")
    )
    with pytest.raises(EngineError) as failed:
        reader.feed(encode(chunk))
    assert str(failed.value) == f"The model server failed while it wrote the answer{said}"


def test_usage_before_the_end_counts() -> None:
    meter = UsageMeter(10, None)
    reader = ChunkReader(turn(), meter)
    usage = {"prompt_tokens": 50, "completion_tokens": 9}
    for chunk in (
        chunk_of({"content": "Hi"}),
        {"choices": [], "usage": usage},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None},
    ):
        reader.feed(encode(chunk))
    assert (meter.usage.input, meter.usage.output) == (50, 9)


@pytest.mark.parametrize(
    "data", [b"{", b"7", b'{"choices": 7}', b'{"choices":[{"delta":{"content":"\xff"}}]}']
)
def test_an_event_that_cannot_be_read_fails_the_turn(data: bytes) -> None:
    with pytest.raises(EngineError):
        decode_chunk(data)


def test_endless_calls_fail_the_turn() -> None:
    reader = ChunkReader(turn(), UsageMeter(1, None))
    with pytest.raises(EngineError):
        for number in range(10_000):
            reader.feed(encode({"choices": [{"delta": calls(call("add", "{}", index=number))}]}))


@pytest.mark.timeout(20)
def test_reading_a_call_costs_as_much_as_it_is_long() -> None:
    pieces = [calls(call("add", '{"a": "', index=0, id="c1"))]
    pieces += [calls(call(None, "12345}", index=0))] * 100_000
    assert read_deltas([*pieces, calls(call(None, '"}', index=0))])[0][0] == "call"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", ["", "<think>Hm."])
def test_reading_blank_lines_costs_as_much_as_there_are(start: str) -> None:
    deltas = read_deltas([{"content": start}, *[{"content": "\n"}] * 100_000], think="tags")
    assert "".join(text for _, text in deltas).strip() == start.removeprefix("<think>")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (" \n Hi", [("TextDelta", " \n Hi")]),
        (" \n <thin", [("TextDelta", " \n <thin")]),
        ("<think>\nA \n </thi B\n\n</think>\nC", [("ReasoningDelta", "A \n </thi B"), "C"]),
        ("<think>A \n", [("ReasoningDelta", "A \n")]),
        ("<think>A \n </thi", [("ReasoningDelta", "A \n </thi")]),
    ],
)
def test_blanks_within_a_text_stay_and_those_around_tags_do_not(text: str, read: list[Any]) -> None:
    expected = [("TextDelta", each) if isinstance(each, str) else each for each in read]
    for pieces in ([text], list(text)):
        assert read_deltas([{"content": part} for part in pieces], think="tags") == expected


# --- calls without markers ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 100])
def test_json_in_the_content_that_calls_a_tool_is_a_call(size: int) -> None:
    text = 'Now:\n```json\n{"name": "add", "arguments": {"a": 1}}\n```'
    pieces = [{"content": text[at : at + size]} for at in range(0, len(text), size)]
    searched = read_deltas(pieces, finish="stop", search=True)
    assert searched == [("TextDelta", "Now:"), ADD]
    assert read_deltas(pieces, finish="stop") == [("TextDelta", text)]


def test_a_call_that_the_server_sends_as_text_too_is_one_call() -> None:
    content = {"content": '{"name": "add", "arguments": {"a": 1}}'}
    pieces = [content, calls(call("add", '{"a": 1}', index=0, id="x"))]
    assert read_deltas(pieces, search=True) == [ADD]
