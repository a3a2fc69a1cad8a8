"""A format in which a word is a token, and requests in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.engines.scripted.markup import Markup
from antiphon.application.ports import EngineRequest, Prompt, Sampling, Turn
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import ToolChoice, ToolSpec

Token = tuple[int, str]


class WordMarkup(Markup):
    """`<role>` and the words of a message, one after the other; `<end>` ends a turn."""

    def __init__(self) -> None:
        self._words: list[str] = ["<end>"]
        self._ids: dict[str, int] = {"<end>": 0}

    def render(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return [
            token_id
            for role, text in messages
            for token_id in (self._id(f"<|{role}|>"), *(i for i, _ in self._tokens(text)))
        ]

    def read(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        _, *pieces = re.split(r"<\|(\w+)\|>", self.text(token_ids))
        return list(zip(pieces[::2], pieces[1::2], strict=True))

    def write(
        self, parts: Sequence[Mapping[str, Any]], *, tools: Sequence[ToolSpec], thinking: bool
    ) -> list[list[Token]]:
        return [*(self._tokens(self._text_of(part, thinking)) for part in parts), [(0, "")]]

    def offers(self, part: Mapping[str, Any], *, tools: Sequence[ToolSpec]) -> bool:
        called = {part[kind] for kind in ("call", "custom", "mcp") if kind in part}
        return called <= {tool.name for tool in tools}

    def text(self, token_ids: Sequence[int]) -> str:
        return "".join(self._words[token_id] for token_id in token_ids)

    def _text_of(self, part: Mapping[str, Any], thinking: bool) -> str:
        match part:
            case {"say": text}:
                return text * part.get("repeat", 1)
            case {"think": text}:
                return f"<think>{text}</think>" if thinking else ""
            case {"refuse": text} | {"raw": text}:
                return text
            case {"call": name} | {"mcp": name}:
                arguments = part.get("args", {})
                if not isinstance(arguments, str):
                    arguments = json.dumps(arguments)
                return f"<call>{name} {arguments}</call>"
            case {"custom": name}:
                return f"<call>{name} {part['input']}</call>"
        return ""

    def _tokens(self, text: str) -> list[Token]:
        return [(self._id(word), word) for word in re.findall(r"<[^>]*>|\s*[^\s<]+|\s+|<", text)]

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


@pytest.fixture
def markup() -> WordMarkup:
    return WordMarkup()


@pytest.fixture
def engine(markup: WordMarkup) -> ScriptedEngine:
    return ScriptedEngine(markup, context_length=2000)


@pytest.fixture
def request_for(markup: WordMarkup) -> Callable[..., EngineRequest]:
    """`request_for(*messages, tools=…, …)`: a request; one text stands for one user message."""
    numbers = count()

    def build(
        *messages: tuple[str, str] | str,
        tools: Sequence[ToolSpec] = (),
        choice: ToolChoice = ToolChoice(),  # noqa: B008  (frozen)
        text_format: Mapping[str, Any] | None = None,
        effort: str | None = None,
        cache_salt: str | None = None,
        **sampling: Any,
    ) -> EngineRequest:
        rendered = [("user", m) if isinstance(m, str) else m for m in messages]
        return EngineRequest(
            request_id=f"run_{next(numbers)}",
            model="scripted",
            prompt=Prompt(token_ids=markup.render(rendered)),
            sampling=Sampling(**sampling),
            cache_salt=cache_salt,
            turn=Turn(
                model="scripted",
                items=(),
                tools=tools,
                choice=choice,
                text=TextConfig(format=dict(text_format or {"type": "text"})),
                effort=effort,
            ),
        )

    return build
