"""Messages with a header, as Inkling and Muse write them, are read as what the header says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.domain import deltas as d

Read = Callable[..., list[d.Delta]]

START = "<|start|>assistant"
BLOCK = (
    '<atem:function_calls>\n<atem:invoke name="get_weather">\n'
    '<atem:parameter name="city">Oslo</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
)
CALL = [
    d.CallStart("get_weather"),
    d.ArgumentsDelta('{"city": "Oslo"}'),
    d.ItemEnd(),
]
JSON_CALL = '{"name": "get_weather", "args": {"city": "Oslo"}}<|end_message|>'


@pytest.mark.parametrize(
    ("family", "text", "expected"),
    [
        ("muse", f" to=get_weather<|message|>{BLOCK}", CALL),
        ("muse", f"{START} to=get_weather<|message|>{BLOCK}<|eot|>", CALL),
        ("muse", f"to=functions.get_weather<|message|>{BLOCK}<|eom|>", CALL),
        ("muse", f"<|message|>{BLOCK}", CALL),
        ("inkling", f"<|content_invoke_tool_json|>{JSON_CALL}", CALL),
        ("inkling", f"get_weather<|content_invoke_tool_json|>{JSON_CALL}", CALL),
        ("inkling", f"<|message_model|>weather<|content_invoke_tool_json|>{JSON_CALL}", CALL),
    ],
)
def test_a_header_is_no_text(read: Read, family: str, text: str, expected: list[d.Delta]) -> None:
    assert read(family, text) == expected
    assert read(family, text, cuts=range(1, len(text))) == expected


@pytest.mark.parametrize("family", ["muse", "muse_glimmer"])
@pytest.mark.parametrize("name", ["self", "user"])
def test_a_call_that_is_quoted_in_a_message_is_none(read: Read, family: str, name: str) -> None:
    kind = d.ReasoningDelta if name == "self" else d.TextDelta
    text = f" to={name}<|message|>I would write {BLOCK} then.<|eom|>"
    assert read(family, text) == [kind(f"I would write {BLOCK} then."), d.ItemEnd()]


@pytest.mark.parametrize(
    ("family", "kind"), [("muse", d.ReasoningDelta), ("muse_glimmer", d.TextDelta)]
)
def test_a_message_to_nobody(read: Read, family: str, kind: Callable[[str], d.Delta]) -> None:
    assert read(family, "<|message|>Hm.<|eom|>") == [kind("Hm."), d.ItemEnd()]


@pytest.mark.parametrize("name", ["self", "user", "get_weather"])
def test_a_header_ends_a_message_that_was_not_closed(read: Read, name: str) -> None:
    rest = BLOCK if name == "get_weather" else "More."
    deltas = read("muse", f" to=self<|message|>Hm. to={name}<|message|>{rest}<|eom|>")
    shown = "".join(getattr(delta, "text", "") for delta in deltas)
    assert shown.split(maxsplit=1)[0].startswith("Hm.")
    assert "to=" not in shown
    assert ([delta for delta in deltas if isinstance(delta, d.CallStart)] == CALL[:1]) is (
        rest == BLOCK
    )


@pytest.mark.parametrize(
    "text",
    [
        "Set goto=there and to=here.",
        "to=",
        "It is called to=get_weather.",
        "a to=get_weather or to=",
    ],
)
@pytest.mark.parametrize("family", ["muse", "muse_glimmer"])
def test_what_only_begins_like_a_header_is_text(read: Read, family: str, text: str) -> None:
    assert read(family, text) == [d.TextDelta(text)]
    assert read(family, text, cuts=range(1, len(text))) == [d.TextDelta(text)]


@pytest.mark.parametrize("text", ["hello", "hello world", "get_weather is a tool"])
def test_the_first_word_of_a_turn_is_text(read: Read, text: str) -> None:
    assert read("inkling", f"{text}<|end_message|>") == [d.TextDelta(text), d.ItemEnd()]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("muse", "to=launch<|message|>Go now."),
        ("inkling", 'launch<|content_invoke_tool_json|>{"name": "launch", "args": {}}'),
    ],
)
def test_the_header_of_what_is_no_call_stays_text(read: Read, family: str, text: str) -> None:
    assert read(family, text) == [d.TextDelta(text)]
