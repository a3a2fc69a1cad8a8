"""The scripted chat model's own language: how its prompts and its turns are written, and read back.

    <|im_start|>ROLE⏎TEXT<|im_end|>⏎          roles: tools, system, developer, user, assistant
    <|im_start|>tool⏎<tool_response>⏎TEXT⏎</tool_response><|im_end|>⏎
    an assistant's turn:  <think>⏎TEXT⏎</think>⏎⏎TEXT⏎<tool_call>⏎{JSON}⏎</tool_call>

Markers are tokens that no text becomes, so a user's text cannot pass for one. History is written by
what writes the model's turns: the next prompt begins with this prompt and what was generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from antiphon.adapters.formats.chat_template.format import ChatTemplateFormat
from antiphon.adapters.formats.chat_template.renderer import Renderer
from antiphon.adapters.formats.chat_template.transcript import (
    CallEntry,
    Entry,
    MessageEntry,
    OutputEntry,
    Piece,
    ReasoningEntry,
    chat_recall,
    function_of,
    transcript,
    written,
)
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.adapters.formats.tools import (
    CODE,
    mcp_model_name,
    model_tool_name,
    name_of_kind,
    offers_tool_of,
    prompt_tools,
    scripted_name,
    wrap_text,
)
from antiphon.adapters.formats.turn_cache import CachedTurn
from antiphon.application.ports import Json, Prompt, Turn
from antiphon.domain.errors import RequestError
from antiphon.domain.tools import PYTHON, ToolSpec

IMAGE_TOKENS = 85
LONGEST_REMEMBERED = 4096  # tokens

MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|image|>",
    "<|refusal|>",
    "<|/refusal|>",
)
TOKENIZER = WordTokenizer(MARKERS)
(
    START,
    END,
    THINK,
    THOUGHT,
    CALL,
    CALLED,
    RESPONSE,
    RESPONDED,
    IMAGE,
    REFUSAL,
    REFUSED,
) = range(1, len(MARKERS) + 1)
CLOSED_BY: Mapping[int, int] = {THINK: THOUGHT, CALL: CALLED, REFUSAL: REFUSED}
NEWLINE, BLANK_LINE = (
    TOKENIZER.encode("\n", special=False)[0],
    TOKENIZER.encode("\n\n", special=False)[0],
)
NAME = '{"name": '


def _encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, special=False)


def _head(role: str) -> list[int]:
    return [START, *_encode(role), NEWLINE]


HEADS: Mapping[str, list[int]] = {
    role: _head(role) for role in ("tools", "system", "developer", "user", "assistant", "tool")
}
TAIL = [END, NEWLINE]


class Writing:
    """An assistant's turn in the making: blocks and what joins them."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._last = ""

    def think(self, text: str) -> None:
        self._block("think", [THINK, NEWLINE, *_encode(text), NEWLINE, THOUGHT])

    def say(self, text: str) -> None:
        self._block("text", _encode(text))

    def refuse(self, text: str) -> None:
        self._block("text", [REFUSAL, *_encode(text), REFUSED])

    def call(self, name: str, arguments: str) -> None:
        call = f'{NAME}{written(name)}, "arguments": {arguments}}}'
        self._block("call", [CALL, NEWLINE, *_encode(call), NEWLINE, CALLED])

    def raw(self, text: str) -> None:
        self.ids += TOKENIZER.encode(text, special=True)
        self._last = ""

    def _block(self, kind: str, ids: list[int]) -> None:
        if ids:
            self.ids += _joint(self._last, kind)
            self.ids += ids
            self._last = kind


def _joint(last: str, kind: str) -> list[int]:
    """Return what joins two blocks of a turn; it belongs to neither."""
    if not last:
        return []
    return [BLANK_LINE if last == "think" or last == kind == "text" else NEWLINE]


class ScriptedRenderer(Renderer):
    """Writes prompts for the scripted chat model."""

    reads_images = True

    def __init__(self) -> None:
        self.turn_cache = chat_recall()

    def opens_reasoning(self, turn: Turn) -> bool:  # noqa: ARG002 - it never does
        return False

    async def render(self, turn: Turn) -> Prompt:
        prompt = _PromptWriting()
        tools = prompt_tools(turn)
        if tools:
            prompt.ids += HEADS["tools"]
            prompt.ids += _tools(msgspec.json.encode([function_of(tool) for tool in tools]))
            prompt.ids += TAIL
        if turn.instructions:
            prompt.add(MessageEntry("system", [("text", turn.instructions)]))
        for message in turn.previous_messages:
            prompt.add(_previous(message))
        entries = list(transcript(turn.items, turn.tools))
        places = self.turn_cache.places(turn.cache_salt, entries)
        for entry in self.turn_cache.turns(entries, places):
            if isinstance(entry, CachedTurn):
                prompt.repeat(entry)
            else:
                prompt.add(entry)
        prompt.close()
        prompt.ids += HEADS["assistant"]
        return Prompt(token_ids=prompt.ids, image_urls=prompt.image_urls, place=places[-1])


@lru_cache(maxsize=64)
def _tools(told: bytes) -> tuple[int, ...]:
    return tuple(_encode(told.decode()))


def _previous(message: Json) -> MessageEntry:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in HEADS or not isinstance(content, str):
        raise RequestError(
            "A previous message needs a role and a text as content.",
            param="previous_input_messages",
        )
    return MessageEntry(role, [("text", content)])


class _PromptWriting:
    """A prompt in the making; `_turn` is the assistant's, as long as it goes on."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.image_urls: list[str] = []
        self._turn: Writing | None = None
        self._spoke = False

    def add(self, entry: Entry) -> None:
        match entry:
            case ReasoningEntry(text):
                self._going().think(text)
            case CallEntry(name, arguments, _):
                self._going().call(name, arguments)
            case MessageEntry("assistant", pieces):
                if self._spoke:  # nothing stood between: another turn of the model
                    self.close()
                self._say(self._going(), pieces)
                self._spoke = True
                return
            case MessageEntry(role, pieces):
                self.close()
                self.ids += HEADS[role]
                self._write(pieces)
                self.ids += TAIL
            case OutputEntry(_, _, pieces):
                self.close()
                self.ids += [*HEADS["tool"], RESPONSE, NEWLINE]
                self._write(pieces)
                self.ids += [NEWLINE, RESPONDED, *TAIL]
        self._spoke = False

    def repeat(self, own: CachedTurn[Entry]) -> None:
        """Add a turn as it was written, or, where that is not known, as one turn at least."""
        self.close()
        if own.token_ids is None:
            for entry in own.entries:
                self.add(entry)
            self.close()
        else:
            self.ids += [*HEADS["assistant"], *own.token_ids, NEWLINE]
        self._spoke = False

    def close(self) -> None:
        """End the assistant's turn, if one goes on."""
        if self._turn is not None:
            self.ids += HEADS["assistant"]
            self.ids += self._turn.ids
            self.ids += TAIL
        self._turn = None

    def _going(self) -> Writing:
        self._turn = self._turn or Writing()
        return self._turn

    def _say(self, turn: Writing, pieces: Sequence[Piece]) -> None:
        text = "".join(text for kind, text in pieces if kind == "text")
        refusal = "".join(text for kind, text in pieces if kind == "refusal")
        turn.say(text)
        if refusal:
            turn.refuse(refusal)

    def _write(self, pieces: Sequence[Piece]) -> None:
        for kind, text in pieces:
            if kind == "image":
                self.image_urls.append(text)
                self.ids += [IMAGE] * IMAGE_TOKENS
            else:
                self.ids += _encode(text)


class ScriptedMarkup:
    """What the scripted engine needs of this language, to play a part in it."""

    def read(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return the prompt's messages as (role, text)."""
        return [message for block in _blocks(token_ids) for message in _messages(block)]

    def write(
        self, parts: Sequence[Mapping[str, Any]], *, tools: Sequence[ToolSpec], thinking: bool
    ) -> list[list[tuple[int, str]]]:
        """Return the tokens of a model's turn: a list for each part, then one for its end."""
        turn = Writing()
        written_parts: list[list[tuple[int, str]]] = []
        for part in parts:
            start = len(turn.ids)
            _play(part, turn, tools=tools, thinking=thinking)
            written_parts.append(_spelled(turn.ids[start:]))
        ended = bool(turn.ids) and turn.ids[-1] == END
        return [*written_parts, [] if ended else _spelled([END])]

    def offers(self, part: Mapping[str, Any], *, tools: Sequence[ToolSpec]) -> bool:
        return offers_tool_of(part, tools)

    def text(self, token_ids: Sequence[int]) -> str:
        return TOKENIZER.decode(token_ids)


def scripted_chat() -> ChatTemplateFormat:
    """Return the format of the scripted chat model."""
    return ChatTemplateFormat(
        "scripted", TOKENIZER, renderer=ScriptedRenderer(), stop_token_ids=[END]
    )


# --- writing --------------------------------------------------------------------------------------


def _play(
    part: Mapping[str, Any], turn: Writing, *, tools: Sequence[ToolSpec], thinking: bool
) -> None:
    match part:
        case {"say": text}:
            turn.say(text * part.get("repeat", 1))
        case {"think": text} if thinking:
            turn.think(text)
        case {"call": name}:
            turn.call(scripted_name(tools, name), _arguments(part))
        case {"custom": name}:
            turn.call(name, wrap_text(part.get("input", "")))
        case {"mcp": name}:
            turn.call(_mcp_name(name, part.get("server"), tools), _arguments(part))
        case {"python": code}:
            turn.call(name_of_kind(PYTHON, tools), wrap_text(code, CODE))
        case {"refuse": text}:
            turn.refuse(text)
        case {"raw": text}:
            turn.raw(text)


def _arguments(part: Mapping[str, Any]) -> str:
    arguments = part.get("args", {})
    return arguments if isinstance(arguments, str) else written(arguments)


def _mcp_name(name: str, server: str | None, tools: Sequence[ToolSpec]) -> str:
    full = mcp_model_name(tools, name, server) or model_tool_name(tools, name, server)
    return full if any(tool.name == full for tool in tools) else name


def _spelled(ids: Sequence[int]) -> list[tuple[int, str]]:
    # Scripts repeat: so do the turns that they make the model write.
    return list(_remembered(tuple(ids))) if len(ids) <= LONGEST_REMEMBERED else _spell(ids)


def _spell(ids: Sequence[int]) -> list[tuple[int, str]]:
    texts = TOKENIZER.spell(ids)
    return [(token, "" if token == END else text) for token, text in zip(ids, texts, strict=True)]


_remembered = lru_cache(128)(_spell)


# --- reading --------------------------------------------------------------------------------------


def _blocks(token_ids: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield role and content of each message that is complete."""
    ids = list(token_ids)
    start = 0
    while START in ids[start : start + 1]:
        try:
            head = ids.index(NEWLINE, start)
            end = ids.index(END, head)
        except ValueError:
            return
        yield TOKENIZER.decode(ids[start + 1 : head]), ids[head + 1 : end]
        start = end + len(TAIL)


def _messages(block: tuple[str, list[int]]) -> Iterator[tuple[str, str]]:
    role, ids = block
    if role == "assistant":
        yield from _assistant(ids)
    elif role == "tool":
        yield "tool", _text(ids[2:-2])
    elif role != "tools":
        yield role, _text(ids)


def _text(ids: Sequence[int]) -> str:
    return TOKENIZER.decode([token for token in ids if token != IMAGE])


def _assistant(ids: list[int]) -> Iterator[tuple[str, str]]:
    """Read a turn: its reasoning, then what it said, in one, then its calls."""
    said: list[str] = []
    calls: list[str] = []
    start = 0
    while start < len(ids):
        opening = next((n for n in range(start, len(ids)) if ids[n] in CLOSED_BY), len(ids))
        if opening > start:
            said.append(_between(ids[start:opening], before=start > 0, after=opening < len(ids)))
        if opening == len(ids):
            break
        closing = _index(ids, CLOSED_BY[ids[opening]], opening)
        inside = ids[opening + 1 : closing]
        if ids[opening] == THINK:
            yield "reasoning", _text(inside[1:-1])
        elif ids[opening] == CALL:
            calls.append(_called(_text(inside[1:-1])))
        else:
            said.append(_text(inside))
        start = closing + 1
    text = "".join(said)
    if text:
        yield ("preamble" if calls else "assistant"), text
    yield from (("call", name) for name in calls)


def _between(ids: list[int], *, before: bool, after: bool) -> str:
    """Return what was said, without what joins it to the blocks around it."""
    joints = (NEWLINE, BLANK_LINE)
    if before and ids[0] in joints:
        ids = ids[1:]
    if after and ids and ids[-1] in joints:
        ids = ids[:-1]
    return _text(ids)


def _index(ids: list[int], token: int, start: int) -> int:
    try:
        return ids.index(token, start)
    except ValueError:
        return len(ids)


def _called(call: str) -> str:
    try:
        name, _ = json.JSONDecoder().raw_decode(call, len(NAME))
    except ValueError:
        return call
    return str(name)
