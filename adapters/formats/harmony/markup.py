"""Harmony for the scripted engine: what a prompt says, and a script's turn as tokens."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.container_exec import to_exec_arguments
from antiphon.adapters.formats.harmony.encoding import Encoding, load_encoding
from antiphon.adapters.formats.harmony.header import ASSISTANT
from antiphon.adapters.formats.harmony.messages import RawMessage, split
from antiphon.adapters.formats.harmony.tools import FUNCTIONS, is_hosted, name_of, recipient_of
from antiphon.adapters.formats.tools import (
    CODE,
    mcp_model_name,
    model_tool_name,
    name_of_kind,
    offers_tool_of,
    scripted_name,
    wrap_text,
)
from antiphon.domain.tools import CONTAINER, PYTHON, ToolSpec

Part = Mapping[str, Any]

_CALLS = ("call", "custom", "mcp", "python")


class HarmonyMarkup:
    """Loads the vocabulary on first use."""

    @property
    def _encoding(self) -> Encoding:
        return load_encoding()

    def read(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return a prompt's messages as (role, text).

        A role is system, developer, user, assistant (the visible text that a turn ends with),
        preamble (visible text that its turn goes on after), call (text: the tool's name), tool (its
        output) or reasoning.
        """
        ids = [token for token in token_ids if token != h.PLACEHOLDER]
        read = [
            self._role(message) for message in split(self._encoding, ids) if message.has_content
        ]
        return [
            ("preamble" if role == "assistant" and _goes_on(read, position) else role, text)
            for position, (role, text) in enumerate(read)
        ]

    def write(
        self, parts: Sequence[Part], *, tools: Sequence[ToolSpec], thinking: bool
    ) -> list[list[tuple[int, str]]]:
        """Return the tokens, with their texts, of one turn: a list for each part, then its end.

        They follow `<|start|>assistant`. `{"raw": …}` is written as it is and ended by nothing.
        """
        written: list[list[int]] = []
        end: list[int] = []  # what ends the message before
        begun = False
        for position, part in enumerate(parts):
            ids: list[int] = []
            if "raw" in part:
                ids, end = [*end, *self._encoding.encode_markup(str(part["raw"]))], []
                begun = True
            elif message := self._message(part, tools, parts[position:], thinking=thinking):
                join = [*end, h.START, *self._encoding.encode(ASSISTANT)] if begun else []
                ids, end = [*join, *message], [h.CALL if _is_call(part) else h.END]
                begun = True
            written.append(ids)
        if end == [h.END] or not begun:
            end = [h.RETURN]
        return self._with_texts([*written, end])

    def offers(self, part: Part, *, tools: Sequence[ToolSpec]) -> bool:
        return offers_tool_of(part, tools)

    def text(self, token_ids: Sequence[int]) -> str:
        return self._encoding.text(token_ids)

    def _role(self, message: RawMessage) -> tuple[str, str]:
        header = message.header
        if header.role != ASSISTANT:
            known = header.role in ("system", "developer", "user")
            return header.role if known else "tool", message.text
        if header.recipient is not None:
            return "call", header.recipient.removeprefix(FUNCTIONS)
        if header.channel == "analysis":
            return "reasoning", message.text
        return "assistant", message.text

    def _message(
        self, part: Part, tools: Sequence[ToolSpec], rest: Sequence[Part], *, thinking: bool
    ) -> list[int]:
        """Return a part's message without its end; nothing for a part that writes none."""
        match part:
            case {"think": text}:
                return self._said("analysis", text) if thinking else []
            case {"say": text}:
                calls_later = any(_is_call(later) for later in rest)
                phase = part.get("phase") or ("commentary" if calls_later else "final_answer")
                channel = "commentary" if phase == "commentary" else "final"
                return self._said(channel, str(text) * int(part.get("repeat", 1)))
            case {"refuse": text}:
                refusal = [*self._encoding.encode("final "), h.CONSTRAIN]
                refusal += self._encoding.encode("refusal")
                return [h.CHANNEL, *refusal, h.MESSAGE, *self._encoding.encode(str(text))]
            case {"call": name}:
                written, arguments = scripted_name(tools, str(name)), _arguments(part)
                own = (tool for tool in tools if is_hosted(tool) and tool.name == written)
                if (tool := next(own, None)) is not None:
                    given = to_exec_arguments(arguments) if tool.kind == CONTAINER else arguments
                    return self._addressed(name_of(tool), given)
                return self._called(written, arguments)
            case {"custom": name}:
                return self._called(str(name), wrap_text(str(part.get("input", ""))))
            case {"mcp": name}:
                server = part.get("server")
                label = str(server) if server else None
                offered = mcp_model_name(tools, str(name), label)
                written = offered or model_tool_name(tools, str(name), label)
                return self._called(written, _arguments(part))
            case {"python": code}:
                name = name_of_kind(PYTHON, tools)
                if name != PYTHON:
                    return self._called(name, wrap_text(str(code), CODE))
                return self._addressed(name, str(code))
        return []

    def _said(self, channel: str, text: object) -> list[int]:
        said = self._encoding.encode(str(text))
        return [h.CHANNEL, *self._encoding.encode(channel), h.MESSAGE, *said]

    def _addressed(self, name: str, given: str) -> list[int]:
        """One of Harmony's own tools is called while thinking."""
        header = self._encoding.encode(f"analysis to={recipient_of(name)} code")
        return [h.CHANNEL, *header, h.MESSAGE, *self._encoding.encode(given)]

    def _called(self, name: str, arguments: str) -> list[int]:
        to = self._encoding.encode(f"commentary to={recipient_of(name)} ")
        json_type = self._encoding.encode("json")
        body = self._encoding.encode(arguments)
        return [h.CHANNEL, *to, h.CONSTRAIN, *json_type, h.MESSAGE, *body]

    def _with_texts(self, written: Sequence[Sequence[int]]) -> list[list[tuple[int, str]]]:
        """A character of several tokens is the last one's text."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return [
            [(token, decoder.decode(self._encoding.spell((token,)))) for token in ids]
            for ids in written
        ]


def _is_call(part: Part) -> bool:
    return any(key in part for key in _CALLS)


def _arguments(part: Part) -> str:
    arguments = part.get("args", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _goes_on(read: Sequence[tuple[str, str]], position: int) -> bool:
    """Whether the assistant's turn at `position` says or calls something more."""
    for role, _ in read[position + 1 :]:
        if role != "reasoning":
            return role in ("assistant", "call")
    return False
