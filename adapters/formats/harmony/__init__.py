"""Harmony, the format of gpt-oss, with its channels, recipients and special tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony import messages
from antiphon.adapters.formats.harmony.constraint import constraint
from antiphon.adapters.formats.harmony.markup import HarmonyMarkup
from antiphon.adapters.formats.harmony.parser import HarmonyParser
from antiphon.adapters.formats.harmony.renderer import EFFORTS, Renderer, date_at
from antiphon.application.ports import Constraint, Format, Json, Parser, Prompt, Turn
from antiphon.domain.items import Item

__all__ = ["HarmonyFormat", "HarmonyMarkup", "HarmonyParser"]


def _today() -> str:
    return date_at(time.time())


class HarmonyFormat(Format):
    """The format of gpt-oss.

    `today` returns the date for the system message. `image_tokens` is the number of placeholders
    for an image, or None for a model that only reads text. The vocabulary is loaded with the first
    prompt, so a server without Harmony models does not pay for it.
    """

    name = "harmony"
    stop_token_ids: Sequence[int] = h.STOPS
    skip_special_tokens = False
    reads_text = False
    efforts: Sequence[str] = tuple(EFFORTS)
    only_answers_end_turns = True

    def __init__(
        self, *, today: Callable[[], str] = _today, image_tokens: int | None = None
    ) -> None:
        self._today = today
        self._image_tokens = image_tokens
        self.reads_images = image_tokens is not None
        self._renderer: Renderer | None = None

    async def render(self, turn: Turn) -> Prompt:
        prompt = await (await self._load()).render(turn)
        if not turn.begins_answer:
            return prompt
        final = [h.CHANNEL, *h.load_encoding().encode_fixed("final"), h.MESSAGE]
        return replace(prompt, token_ids=[*prompt.token_ids, *final])

    def make_parser(self, turn: Turn, prompt: Prompt) -> HarmonyParser:  # noqa: ARG002
        return HarmonyParser(h.load_encoding(), turn)

    def remember(
        self,
        turn: Turn,
        prompt: Prompt,
        *,
        token_ids: Sequence[int],
        parser: Parser,
        items: Sequence[Item],
    ) -> None:
        if self._renderer is not None:
            self._renderer.remember(turn, prompt, token_ids=token_ids, parser=parser, items=items)

    def constraint(self, turn: Turn, prompt: Prompt) -> Constraint | None:  # noqa: ARG002
        return constraint(turn)

    def first_tokens(self, prompt: Prompt, texts: Sequence[str]) -> Sequence[int | None]:  # noqa: ARG002
        encoded = map(h.load_encoding().encode_fixed, texts)
        return [ids[0] if len(ids) == 1 else None for ids in encoded]

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:
        return await (await self._load()).encode(text, turn)

    def text(self, token_ids: Sequence[int]) -> str:
        return h.load_encoding().text(token_ids)

    def messages(self, token_ids: Sequence[int]) -> list[Json]:
        return [
            messages.to_json(message)
            for message in messages.split_messages(h.load_encoding(), token_ids)
        ]

    async def _load(self) -> Renderer:
        if self._renderer is None:
            encoding = await asyncio.to_thread(h.load_encoding)
            self._renderer = Renderer(encoding, today=self._today, image_tokens=self._image_tokens)
        return self._renderer
