"""Harmony for the scripted engine: reads prompts, and writes a script's turn as tokens."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.container_exec import to_exec_arguments
from antiphon.adapters.formats.harmony.encoding import Encoding, load_encoding
from antiphon.adapters.formats.harmony.header import ASSISTANT
from antiphon.adapters.formats.harmony.messages import RawMessage, split_messages
from antiphon.adapters.formats.harmony.tools import FUNCTIONS, is_hosted, name_of, recipient_of
from antiphon.adapters.formats.tools import CODE, offers_tool_of, scripted_name, wrap_text
from antiphon.domain.kinds.function import model_tool_name
from antiphon.domain.kinds.mcp import mcp_model_name
from antiphon.domain.tools import CONTAINER, PYTHON, ToolSpec
from antiphon.domain.vocabulary.shown import name_of_kind

Part = Mapping[str, Any]

_CALL_PARTS = ("call", "custom", "mcp", "python")


class HarmonyMarkup:
    """Reads prompts and writes turns; loads the vocabulary on first use."""

    @property
    def _encoding(self) -> Encoding:
        return load_encoding()

    def read(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return a prompt's messages as (role, text).

        A role is system, developer, user, assistant (the visible text at the end of a turn),
        preamble (visible text before the end of a turn), call (text: the tool's name), tool (its
        output) or reasoning.
        """
        ids = [token for token in token_ids if token != h.PLACEHOLDER]
        messages = [
            self._role_and_text(message)
            for message in split_messages(self._encoding, ids)
            if message.has_content
        ]
        return [
            ("preamble" if role == "assistant" and _is_continued(messages, n) else role, text)
            for n, (role, text) in enumerate(messages)
        ]

    def write(
        self, parts: Sequence[Part], *, tools: Sequence[ToolSpec], thinking: bool
    ) -> list[list[tuple[int, str]]]:
        """Return the tokens of a turn with their texts: a list for each part, then one for the end.

        They follow `<|start|>assistant`. `{"raw": …}` is written as it is and gets no end token.
        """
        tokens: list[list[int]] = []
        end: list[int] = []  # ends the previous message
        has_started = False
        for position, part in enumerate(parts):
            ids: list[int] = []
            if "raw" in part:
                ids, end = [*end, *self._encoding.encode_markup(str(part["raw"]))], []
                has_started = True
            elif message := self._write_message(part, tools, parts[position:], thinking=thinking):
                join = [*end, h.START, *self._encoding.encode(ASSISTANT)] if has_started else []
                ids, end = [*join, *message], [h.CALL if _is_call(part) else h.END]
                has_started = True
            tokens.append(ids)
        if end == [h.END] or not has_started:
            end = [h.RETURN]
        return self._with_texts([*tokens, end])

    def offers(self, part: Part, *, tools: Sequence[ToolSpec]) -> bool:
        return offers_tool_of(part, tools)

    def text(self, token_ids: Sequence[int]) -> str:
        return self._encoding.text(token_ids)

    def _role_and_text(self, message: RawMessage) -> tuple[str, str]:
        header = message.header
        if header.role != ASSISTANT:
            is_tool = header.role not in ("system", "developer", "user")
            return "tool" if is_tool else header.role, message.text
        if header.recipient is not None:
            return "call", header.recipient.removeprefix(FUNCTIONS)
        if header.channel == "analysis":
            return "reasoning", message.text
        return "assistant", message.text

    def _write_message(
        self, part: Part, tools: Sequence[ToolSpec], rest: Sequence[Part], *, thinking: bool
    ) -> list[int]:
        """Return a part's message without its end token, [] for a part without a message."""
        match part:
            case {"think": text}:
                return self._text_message("analysis", text) if thinking else []
            case {"say": text}:
                calls_later = any(_is_call(later) for later in rest)
                phase = part.get("phase") or ("commentary" if calls_later else "final_answer")
                channel = "commentary" if phase == "commentary" else "final"
                return self._text_message(channel, str(text) * int(part.get("repeat", 1)))
            case {"refuse": text}:
                refusal = [*self._encoding.encode("final "), h.CONSTRAIN]
                refusal += self._encoding.encode("refusal")
                return [h.CHANNEL, *refusal, h.MESSAGE, *self._encoding.encode(str(text))]
            case {"call": name}:
                model_name, arguments = scripted_name(tools, str(name)), _arguments(part)
                hosted = (tool for tool in tools if is_hosted(tool) and tool.name == model_name)
                if (tool := next(hosted, None)) is None:
                    return self._function_call(model_name, arguments)
                is_exec = tool.kind == CONTAINER
                body = to_exec_arguments(arguments) if is_exec else arguments
                return self._hosted_call(name_of(tool), body)
            case {"custom": name}:
                return self._function_call(str(name), wrap_text(str(part.get("input", ""))))
            case {"mcp": name}:
                server = part.get("server")
                label = str(server) if server else None
                offered = mcp_model_name(tools, str(name), label)
                model_name = offered or model_tool_name(tools, str(name), label)
                return self._function_call(model_name, _arguments(part))
            case {"python": code}:
                name = name_of_kind(PYTHON, tools)
                if name != PYTHON:
                    return self._function_call(name, wrap_text(str(code), CODE))
                return self._hosted_call(name, str(code))
        return []

    def _text_message(self, channel: str, text: object) -> list[int]:
        body = self._encoding.encode(str(text))
        return [h.CHANNEL, *self._encoding.encode(channel), h.MESSAGE, *body]

    def _hosted_call(self, name: str, body: str) -> list[int]:
        """Return a call of one of Harmony's own tools, in the channel of reasoning."""
        header = self._encoding.encode(f"analysis to={recipient_of(name)} code")
        return [h.CHANNEL, *header, h.MESSAGE, *self._encoding.encode(body)]

    def _function_call(self, name: str, arguments: str) -> list[int]:
        to = self._encoding.encode(f"commentary to={recipient_of(name)} ")
        json_type = self._encoding.encode("json")
        body = self._encoding.encode(arguments)
        return [h.CHANNEL, *to, h.CONSTRAIN, *json_type, h.MESSAGE, *body]

    def _with_texts(self, tokens: Sequence[Sequence[int]]) -> list[list[tuple[int, str]]]:
        """Pair tokens with their texts; the last token of a character has the whole character."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decode_bytes = self._encoding.decode_bytes

        def text_of(token: int) -> str:
            encoded = decode_bytes((token,))
            is_plain = encoded.isascii() and not decoder.getstate()[0]
            return encoded.decode() if is_plain else decoder.decode(encoded)

        return [[(token, text_of(token)) for token in ids] for ids in tokens]


def _is_call(part: Part) -> bool:
    return any(key in part for key in _CALL_PARTS)


def _arguments(part: Part) -> str:
    arguments = part.get("args", {})
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _is_continued(messages: Sequence[tuple[str, str]], position: int) -> bool:
    """Whether the assistant's turn has a call after `position`.

    Two messages in a row are two turns, as in chat templates.
    """
    for place in range(position + 1, len(messages)):
        if (role := messages[place][0]) != "reasoning":
            return role == "call"
    return False
