"""Pools over token servers in the test's event loop, and requests to them."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.adapters.engines.conftest import WordMarkup
from tests.upstreams.token_server import TellingEngine, TokenServer, TurnRegistry, listening
from tokenizers import Tokenizer, decoders, models

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.engines.scripted.logprobs import _OTHERS
from antiphon.adapters.engines.vllm_http import VllmHttpEngine, VllmHttpOptions
from antiphon.application.ports import EngineRequest, Prompt, Sampling, Turn

TALE = " ".join(f"w{n}" for n in range(40))
_numbers = itertools.count()


class TestPool(Struct):
    """Servers, and the engine in front of them."""

    __test__ = False

    engine: VllmHttpEngine
    servers: Sequence[TokenServer]
    markup: WordMarkup

    def request(self, text: str = TALE, *, salt: str | None = None, **sampling: Any) -> Any:
        """Return a request that is answered with this text."""
        prompt = self.markup.render([("user", f"@@script {json.dumps([{'say': text}])}")])
        return request_of(prompt, salt=salt, **sampling)

    async def until_up(self, *expected: bool) -> None:
        """Return when the servers are up or down as expected."""
        while tuple(self.engine.health.values()) != expected:
            await self.engine._pool.probe()


def request_of(prompt: Sequence[int], *, salt: str | None = None, **sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id=f"run_{next(_numbers)}",
        model="pool",
        prompt=Prompt(token_ids=prompt),
        sampling=Sampling(**sampling),
        cache_salt=salt,
        turn=Turn(model="pool", items=()),
    )


def write_vocabulary(folder: Path, markup: WordMarkup) -> None:
    """Write a tokenizer.json with the words that the markup has met."""
    for text in (TALE, f"@@script {json.dumps([{'say': TALE}])}", *(word for word, _ in _OTHERS)):
        markup.render([("user", text)])
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate(markup._words)}, "<end>")
    )
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


@asynccontextmanager
async def pool(
    *,
    wires: Sequence[str] = ("generate",),
    folder: Path | None = None,
    make: Callable[..., VllmHttpEngine] = TellingEngine,
    **options: Any,
) -> AsyncIterator[TestPool]:
    """Yield a started pool with a server for each wire. It probes only when something fails.

    In `folder`, its tokenizer is written.
    """
    markup, turns = WordMarkup(), TurnRegistry()
    servers = [
        TokenServer(
            ScriptedEngine(markup, context_length=2000), wire=wire, turns=turns, id_of=markup._id
        )
        for wire in wires
    ]
    if folder is not None:
        write_vocabulary(folder, markup)
        options["model"] = str(folder)
    async with listening(*servers):
        settings = {"urls": [each.url for each in servers], "probe_s": 3600.0, **options}
        engine: Any = make(["pool"], VllmHttpOptions(**settings))
        engine.turns = turns
        try:
            await engine.start()
            yield TestPool(engine, servers, markup)
        finally:
            await engine.aclose()
