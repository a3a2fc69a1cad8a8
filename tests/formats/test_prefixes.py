"""A model's next prompt continues its last prompt and output, whatever it wrote and called."""

# ruff: noqa: RUF001 - DeepSeek's markers contain a full-width bar

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.formats.chat_template import scripted_chat
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.format import ChatTemplateFormat
from antiphon.adapters.formats.chat_template.renderer import TemplateRenderer
from antiphon.adapters.formats.chat_template.scripted.markup import TOKENIZER as SCRIPTED
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.adapters.formats.harmony import HarmonyFormat
from antiphon.adapters.formats.harmony.encoding import load_encoding
from antiphon.adapters.formats.turn_cache import TurnCache
from antiphon.application.ports import Format, Prompt, Step, Turn
from antiphon.domain import content as c
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.tools import ToolSpec

from . import templates

TOOLS = (
    ToolSpec(name="look"),
    ToolSpec(name="note", kind="custom"),
    ToolSpec(name="calc__add", kind="mcp", namespace="calc", original_name="add"),
    ToolSpec(name="run", kind="python"),
    ToolSpec(name="calc__ask", kind="mcp_approval", namespace="calc", original_name="ask"),
)
HELLO = i.Message(role="user", content="Hello")


class Part(Struct, frozen=True):
    """A part of what a model writes; a call's `text` is its arguments."""

    kind: Literal["think", "say", "call"]
    text: str
    name: str = ""


Write = Callable[[Sequence[Part]], str]
Encode = Callable[[str], list[int]]


class Speaker(Struct, frozen=True):
    """A format and how its models write; `is_free` ones think, say and call in any order."""

    format: Format
    write: Write
    encode: Encode
    decode: Callable[[Sequence[int]], str]
    is_free: bool = False
    options: Mapping[str, Any] = {}


# --- markup ---------------------------------------------------------------------------------------


def harmony_text(parts: Sequence[Part]) -> str:
    headers = {"think": "<|channel|>analysis", "say": "<|channel|>commentary"}
    ends = {"call": "<|call|>"}
    written = []
    for part in parts:
        header = headers.get(part.kind, f" to=functions.{part.name}<|channel|>commentary json")
        written.append(f"{header}<|message|>{part.text}{ends.get(part.kind, '<|end|>')}")
    return "<|start|>assistant".join(written)


def hermes_text(parts: Sequence[Part]) -> str:
    texts = {"think": "<think>{0}</think>", "say": "{0}\n"}
    call = '<tool_call> {{"name":"{1}","arguments": {0}}}</tool_call>'
    return "".join(texts.get(part.kind, call).format(part.text, part.name) for part in parts)


def llama_text(parts: Sequence[Part]) -> str:
    calls = [part for part in parts if part.kind == "call"]
    return "; ".join(f'{{"name":"{each.name}","parameters":{each.text}}}' for each in calls)


def mistral_text(parts: Sequence[Part]) -> str:
    calls = [part for part in parts if part.kind == "call"]
    listed = ",".join(f'{{"name":"{each.name}","arguments":{each.text}}}' for each in calls)
    return f"{_text_of(parts)}[TOOL_CALLS][{listed}]"


def deepseek_text(parts: Sequence[Part]) -> str:
    calls = [part for part in parts if part.kind == "call"]
    listed = "".join(
        f"<｜tool▁call▁begin｜>{each.name}<｜tool▁sep｜>{each.text}<｜tool▁call▁end｜>"
        for each in calls
    )
    return f"{_text_of(parts)}<｜tool▁calls▁begin｜>{listed}<｜tool▁calls▁end｜>"


def _text_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if part.kind == "say")


# --- speakers -------------------------------------------------------------------------------------


def of_template(
    source: str, family: str, write: Write, end: str, *, is_free: bool = False
) -> Speaker:
    row = FAMILIES[family]
    markers = [*row.think_markers, *row.calls, *row.hidden_markers, *row.end_markers]
    tokenizer = WordTokenizer(list(dict.fromkeys(markers)))
    template = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    chat_format = ChatTemplateFormat(
        family,
        row,
        tokenizer,
        renderer=TemplateRenderer(template, tokenizer, row),
        stop_token_ids=[tokenizer.encode(each, special=True)[0] for each in row.end_markers],
    )
    return Speaker(
        chat_format,
        lambda parts: write(parts) + end,
        lambda text: tokenizer.encode(text, special=True),
        tokenizer.decode,
        is_free,
    )


def harmony() -> Speaker:
    return Speaker(
        HarmonyFormat(today=lambda: "2026-11-20"),
        harmony_text,
        load_encoding().encode_markup,
        load_encoding().text,
        is_free=True,
    )


def seeing_harmony() -> Speaker:
    return replace(harmony(), format=HarmonyFormat(image_tokens=4))


def scripted() -> Speaker:
    return Speaker(
        scripted_chat(),
        lambda parts: hermes_text(parts) + "<|im_end|>",
        lambda text: SCRIPTED.encode(text, special=True),
        SCRIPTED.decode,
        is_free=True,
    )


def qwen() -> Speaker:
    return of_template(templates.QWEN, "hermes", hermes_text, "<|im_end|>", is_free=True)


def llama() -> Speaker:
    return of_template(templates.LLAMA, "llama3_json", llama_text, "<|eom_id|>")


def mistral() -> Speaker:
    return of_template(templates.MISTRAL, "mistral_array", mistral_text, "</s>")


def deepseek() -> Speaker:
    return of_template(templates.DEEPSEEK, "deepseek_v31", deepseek_text, "<｜end▁of▁sentence｜>")


def thinking_deepseek() -> Speaker:
    """Only the prompt of its first turn opens the reasoning."""
    speaker = deepseek()

    def write(parts: Sequence[Part]) -> str:
        return "Hm</think>" + speaker.write(parts)

    return replace(speaker, write=write, options={"thinking": True})


def careless() -> Speaker:
    return of_template(templates.CARELESS, "hermes", hermes_text, "<|im_end|>", is_free=True)


SPEAKERS = [harmony, scripted, qwen, llama, mistral, deepseek, thinking_deepseek]


# --- a conversation -------------------------------------------------------------------------------


class Talk:
    """A conversation with a model; `results` are those of its latest calls."""

    def __init__(self, speaker: Speaker, *, salt: str = "a") -> None:
        self.speaker = speaker
        self.turn = Turn(
            model="m",
            items=[HELLO],
            tools=TOOLS,
            cache_salt=salt,
            template_kwargs=speaker.options,
        )
        self._ids = 0
        self.results: list[str] = []

    @property
    def prompt(self) -> list[int]:
        return list(self._render().token_ids)

    @property
    def text(self) -> str:
        return self.speaker.decode(self.prompt)

    def write(self, parts: Sequence[Part], cuts: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        """Let the model write, answer its calls, and return its prompt and its output."""
        text = self.speaker.write(parts)
        return self.write_text(text, cuts)

    def write_text(self, text: str, cuts: Sequence[int] = ()) -> tuple[list[int], list[int]]:
        prompt, output = self._render(), retokenized(self.speaker.encode(text), self.speaker, cuts)
        parser = self.speaker.format.make_parser(self.turn, prompt)
        deltas = [*parser.feed(Step(text=text, token_ids=output)), *parser.end()]
        items, answers = self._items(deltas)
        self.speaker.format.remember(
            self.turn, prompt, token_ids=output, parser=parser, items=items
        )
        self.add(*items, *answers)
        return list(prompt.token_ids), output

    def _render(self) -> Prompt:
        return asyncio.run(self.speaker.format.render(self.turn))

    def add(self, *items: i.Item) -> None:
        self.turn = replace(self.turn, items=[*self.turn.items, *items])

    def _items(self, deltas: Sequence[d.Delta]) -> tuple[list[i.Item], list[i.Item]]:
        """Fold deltas into items and results; a call that the server runs holds its result."""
        items: list[i.Item] = []
        answers: list[i.Item] = []
        text, call = "", None
        self.results = []
        for delta in [*deltas, d.ItemEnd()]:
            if isinstance(delta, d.CallStart):
                call = delta
            elif isinstance(delta, d.ItemEnd | d.TextDelta) and call is not None:
                self._ids += 1
                self.results.append(f"result of {self._ids}.")
                item, answer = _to_call(call, text, f"call{self._ids:05}", self.results[-1])
                items.append(item)
                answers += answer
                text, call = "", None
            if isinstance(delta, d.TextDelta):
                items = _with_text(items, delta)
            elif isinstance(delta, d.ReasoningDelta):
                items.append(i.Reasoning(content=(c.ReasoningText(text=delta.text),)))
            elif isinstance(delta, d.ArgumentsDelta):
                text += delta.text
        return items, answers


def _with_text(items: list[i.Item], delta: d.TextDelta) -> list[i.Item]:
    content = (c.OutputText(text=delta.text),)
    phase: Any = delta.phase
    return [*items, i.Message(role="assistant", content=content, phase=phase)]


def _to_call(
    call: d.CallStart, text: str, call_id: str, result: str
) -> tuple[i.Item, list[i.Item]]:
    match call.kind:
        case "mcp":
            label, name = call.namespace or "", call.name
            item = i.McpCall(
                id=call_id, server_label=label, name=name, arguments=text, output=result
            )
            return item, []
        case "mcp_approval":
            label, name = call.namespace or "", call.name
            asked = i.McpApprovalRequest(id=call_id, server_label=label, name=name, arguments=text)
            # Approved, and run when the next response starts.
            approved = i.McpApprovalResponse(approval_request_id=call_id, approve=True)
            ran = i.McpCall(server_label=label, name=name, arguments=text, output=result)
            return asked, [approved, ran]
        case "python":
            logs = ({"type": "logs", "logs": result},)
            return i.CodeInterpreterCall(id=call_id, code=text, container_id="c", outputs=logs), []
        case "custom":
            output: i.Item = i.CustomToolCallOutput(call_id=call_id, output=result)
            return i.CustomToolCall(call_id=call_id, name=call.name, input=text), [output]
    answer = i.FunctionCallOutput(call_id=call_id, output=result)
    return i.FunctionCall(call_id=call_id, name=call.name, arguments=text), [answer]


def retokenized(ids: list[int], speaker: Speaker, cuts: Sequence[int]) -> list[int]:
    """Return tokens of the same text, with some words in more pieces."""
    out = list(ids)
    for cut in cuts:
        place = cut % len(out)
        word = speaker.decode([out[place]])
        halves = [speaker.encode(word[:1]), speaker.encode(word[1:])]
        if word.isalpha() and word.isascii() and len(word) > 1:
            out[place : place + 1] = halves[0] + halves[1]
    return out


# --- the property ---------------------------------------------------------------------------------

texts = st.sampled_from(["Well.", "Let me look\n\nagain", " déjà vu ", "a { b", "\n", "thinking"])
arguments = {
    "look": st.sampled_from(["{}", '{ "x" :1}', '{"a":"\\u0041"}']),
    "note": st.sampled_from(['{"input":"x"}', '{ "input" : "\\u0041 b" }']),
    "calc__add": st.sampled_from(['{"a":1}', "{}", '{"a": [ ]}']),
    "run": st.sampled_from(['{"code":"1+1"}', '{ "code": "x\\ny" }']),
    "calc__ask": st.sampled_from(['{"q":1}', "{}"]),
}
calls = st.sampled_from(sorted(arguments)).flatmap(
    lambda name: arguments[name].map(lambda text: Part("call", text, name))
)
prose = texts.flatmap(lambda text: st.sampled_from([Part("think", text), Part("say", text)]))
turns = st.tuples(
    st.lists(prose | calls, max_size=4), calls, st.lists(st.integers(0, 50), max_size=3)
).map(lambda drawn: ([*drawn[0], drawn[1]], drawn[2]))


@pytest.mark.parametrize("speaker_of", SPEAKERS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(written=st.lists(turns, min_size=1, max_size=5))
def test_a_prompt_begins_with_the_last_prompt_and_its_output(
    speaker_of: Callable[[], Speaker], written: list[tuple[list[Part], list[int]]]
) -> None:
    talk = Talk(speaker_of())
    for parts, cuts in written:
        asked = parts if talk.speaker.is_free else [part for part in parts if part.kind != "think"]
        prompt, output = talk.write(asked, cuts)
        after = talk.prompt
        assert after[: len(prompt) + len(output)] == prompt + output
        rest = talk.speaker.decode(after[len(prompt) + len(output) :])
        assert [rest.count(each) for each in talk.results] == [1] * len(talk.results)


CALLS = [
    Part("call", '{"a":1}', "calc__add"),
    Part("call", '{ "code": "1" }', "run"),
    Part("call", "{}", "look"),
]


@pytest.mark.parametrize("speaker_of", [*SPEAKERS, careless])
def test_a_turn_that_is_not_cached_is_rendered_anew(
    speaker_of: Callable[[], Speaker],
) -> None:
    talk, elsewhere = Talk(speaker_of()), Talk(speaker_of())
    for _ in range(2):
        talk.write(CALLS)
        elsewhere.turn = talk.turn
        assert all(each in elsewhere.text for each in talk.results)
    prompt, output = elsewhere.write(CALLS)  # it is cached from here on
    if speaker_of is not careless:
        assert elsewhere.prompt[: len(prompt) + len(output)] == prompt + output


@pytest.mark.parametrize("speaker_of", SPEAKERS)
def test_tenants_do_not_share_cached_turns(speaker_of: Callable[[], Speaker]) -> None:
    speaker = speaker_of()
    mine, theirs = Talk(speaker, salt="a"), Talk(speaker, salt="b")
    mine.write([Part("call", '{"a":   "letters"}', "look")], cuts=range(50))
    theirs.turn = replace(mine.turn, cache_salt="b")
    assert mine.prompt != theirs.prompt


@pytest.mark.parametrize("speaker_of", [harmony, scripted, qwen])
def test_calls_of_a_turn_stay_together_when_its_reasoning_is_dropped(
    speaker_of: Callable[[], Speaker],
) -> None:
    talk = Talk(speaker_of())
    talk.write([Part("think", "Let me think"), *CALLS])
    talk.turn = replace(
        talk.turn, items=[each for each in talk.turn.items if not isinstance(each, i.Reasoning)]
    )
    talk.add(i.Message(role="user", content="And now?"))
    places = [talk.text.index(name) for name in ("calc__add", "run", "look")]
    assert "Let me think" not in talk.text
    assert max(places[0], talk.text.index('"a"')) < talk.text.index(talk.results[0])
    assert talk.text.index('"1"') < talk.text.index(talk.results[0])


@pytest.mark.parametrize("speaker_of", SPEAKERS)
def test_a_turn_that_the_client_changed_is_not_repeated(
    speaker_of: Callable[[], Speaker],
) -> None:
    talk = Talk(speaker_of())
    talk.write([Part("call", '{"a": "before"}', "look")])
    changed = [
        replace(item, arguments='{"a": "after"}') if isinstance(item, i.FunctionCall) else item
        for item in talk.turn.items
    ]
    talk.turn = replace(talk.turn, items=changed)
    assert "after" in talk.text
    assert "before" not in talk.text


@pytest.mark.parametrize("speaker_of", SPEAKERS)
def test_two_answers_to_the_same_prompt_are_both_continued_exactly(
    speaker_of: Callable[[], Speaker],
) -> None:
    speaker = speaker_of()
    talks = [Talk(speaker), Talk(speaker)]
    written = [
        talk.write([Part("call", f'{{"a":   {n}}}', "look")]) for n, talk in enumerate(talks)
    ]
    for talk, (prompt, output) in zip(talks, written, strict=True):
        assert talk.prompt[: len(prompt) + len(output)] == prompt + output


MALFORMED = {
    harmony: "<|channel|>commentary to=functions.look and so<|message|>{}<|call|>",
    qwen: "<tool_call>never <tool_call>{}</tool_call>",
}


@pytest.mark.parametrize("speaker_of", MALFORMED)
def test_malformed_markup_is_not_repeated_to_the_model(
    speaker_of: Callable[[], Speaker],
) -> None:
    talk = Talk(speaker_of())
    markup = MALFORMED[speaker_of] + ("<|im_end|>" if speaker_of is qwen else "")
    prompt, output = talk.write_text(markup)
    talk.add(i.Message(role="user", content="And now?"))
    assert talk.prompt[: len(prompt) + len(output)] != prompt + output


def test_a_template_with_one_call_per_message_gets_each_call_with_its_result() -> None:
    talk = Talk(llama())
    talk.write(CALLS)
    elsewhere = Talk(llama())
    elsewhere.turn = talk.turn
    text = elsewhere.text
    first, second, third = (text.index(f'"name": "{each.name}"') for each in CALLS)
    assert first < text.index(talk.results[0]) < second < text.index(talk.results[1]) < third


def test_the_least_recently_used_turns_are_evicted_first() -> None:
    turn_cache: TurnCache[str] = TurnCache(
        lambda entry: "other" if entry.isupper() else "model", max_bytes=3000
    )
    for asked in ("A", "B", "C", "D", "E"):
        turn_cache.remember(turn_cache.fingerprint(None, [asked]).of_all, ["said"], [1, 2, 3, 4])

    def group(*entries: str) -> list[Any]:
        return list(turn_cache.group_turns(entries, turn_cache.fingerprint(None, entries)))

    assert group("A", "said") == ["A", "said"]
    assert list(group("E", "said")[1].token_ids) == [1, 2, 3, 4]


class Counting(WordTokenizer):
    """Counts the characters that it encodes."""

    encoded = 0

    def encode(self, text: str, *, special: bool) -> list[int]:
        self.encoded += len(text)
        return super().encode(text, special=special)


def test_only_new_text_in_a_prompt_is_encoded() -> None:
    row = FAMILIES["hermes"]
    tokenizer = Counting([*row.think_markers, *row.calls, *row.hidden_markers, *row.end_markers])
    renderer = TemplateRenderer(ChatTemplate({"default": templates.QWEN}, {}), tokenizer, row)
    chat_format = ChatTemplateFormat(
        "hermes", row, tokenizer, renderer=renderer, stop_token_ids=[5, 6]
    )
    ends = tokenizer.token_id("<|im_end|>")
    assert ends in chat_format.stop_token_ids
    talk = Talk(Speaker(chat_format, hermes_text, lambda text: [*text.encode(), ends], str))
    talk.add(i.Message(role="user", content=10_000 * "word "))
    talk.write([Part("call", "{}", "look")])
    before = tokenizer.encoded
    assert len(talk.prompt) > 10_000
    assert tokenizer.encoded - before < 1000


@pytest.mark.parametrize("speaker_of", [scripted, seeing_harmony])
def test_a_different_image_makes_a_different_conversation(
    speaker_of: Callable[[], Speaker],
) -> None:
    def shown(letter: str) -> i.Message:
        image = c.InputImage(image_url=f"data:image/png;base64,{letter}")
        return i.Message(role="user", content=(image,))

    talk = Talk(speaker_of())
    talk.add(shown("A"))
    call = Part("call", '{ "a":   1 }', "look")
    prompt, output = talk.write([call], cuts=range(50))
    assert talk.prompt[: len(prompt) + len(output)] == prompt + output
    _, _, *rest = talk.turn.items
    talk.turn = replace(talk.turn, items=[HELLO, shown("B"), *rest])
    assert talk.prompt[: len(prompt) + len(output)] != prompt + output
