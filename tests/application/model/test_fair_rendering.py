"""Tenants take turns to have their prompts rendered, whatever cache salts their clients choose."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from msgspec.structs import replace
from tests.application.model.scripted_models import FlakyEngine, play

from antiphon.adapters.formats.chat_template import scripted_chat
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Format, Prompt, Turn
from antiphon.application.support.loop_portions import PORTION_S


class SlowFormat:
    """A format that computes as long as a portion of the event loop, and notes for whom."""

    def __init__(self, inner: Format) -> None:
        self._inner = inner
        self.tenants: list[str] = []

    async def render(self, turn: Turn) -> Prompt:
        self.tenants.append(turn.tenant)
        until = time.perf_counter() + PORTION_S
        while time.perf_counter() < until:
            pass
        return await self._inner.render(turn)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_many_cache_salts_give_a_tenant_no_more_turns() -> None:
    slow = SlowFormat(scripted_chat())
    model = TokenModel(lambda: slow, FlakyEngine("a"))  # type: ignore[arg-type, return-value]
    await model.start()
    turn = play({"say": "Hi"})
    loud = [replace(turn, tenant="loud", cache_salt=f"salt {number}") for number in range(6)]
    quiet = replace(turn, tenant="quiet", cache_salt="salt")
    await asyncio.gather(*map(model.count, [*loud, quiet]))
    assert slow.tenants.index("quiet") <= 2
