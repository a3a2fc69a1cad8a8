"""What holds of every history, whatever failed meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from tests.faults.support.simulation import Answer, Clients, Frames, SimulatedServer

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import StoredItem
from antiphon.application.runs.stored_events import log_of
from antiphon.domain.access.callers import ANYBODY
from antiphon.domain.errors import NotFound
from antiphon.domain.events import TERMINAL as TERMINAL_EVENTS
from antiphon.domain.events import Event
from antiphon.domain.responses.response import TERMINAL, Response

TENANT = ANYBODY.tenant

SETTLED_S = 60.0
UNDONE_S = 2.0
"""How long after a store is back what came to nothing may still be there."""

LOST_S = 1.0
"""How long a run may go on that was taken from its server."""

ENDS = ("response.completed", "response.incomplete", "response.failed")
BODY = {"model": "scripted-chat", "input": "hi"}


def to_json(known: Response | Event) -> dict[str, Any]:
    """Return what a client sees that does not ask for metrics, which shows previews too."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(known))
    for name in ("metrics", "preview"):
        found.pop(name, None)
        found.get("response", {}).pop(name, None)
    return found


class Invariants:
    """Of servers on one store and their clients: what was shown, told and kept is one history."""

    def __init__(self, kept: MemoryStore, servers: Sequence[SimulatedServer]) -> None:
        self._kept = kept
        self._servers = servers
        self.frames: dict[str, Frames] = {}

    async def shown(self, response_id: str, number: int, frame: bytes) -> None:
        """Whoever is shown an event is shown what all are, and what is in the store already."""
        known = self.frames.setdefault(response_id, {}).setdefault(number, frame)
        assert known == frame, f"event {number} has two contents: {known!r} and {frame!r}"
        try:
            logged = await self._kept.read_events(TENANT, response_id, after=number - 1)
        except NotFound:
            return  # a log that is kept in the server's memory, or a response that was deleted
        assert logged.chunks, f"event {number} was shown before it was kept"

    async def check(self, clients: Clients) -> None:
        """Check all that was seen against what is kept, once all is over."""
        answers = list(clients.answers)
        await self._settle()
        await asyncio.sleep(UNDONE_S)
        for answer in answers:
            self._check_answer(answer)
        kept = [one for each in self._ids() if (one := await self._get(each)) is not None]
        for response in kept:
            await self._check_log(response)
            self._check_told(response, answers)
        self._check_gone({response.id for response in kept}, answers)
        await self._check_conversations(kept, answers)
        await self._check_keys(kept, clients, answers)
        await self._check_served(clients)
        await self._settle()
        await asyncio.sleep(LOST_S)
        self._check_at_rest()

    # --- what is kept -----------------------------------------------------------------------------

    async def _settle(self) -> None:
        async with asyncio.timeout(SETTLED_S):
            while not await self._is_settled():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.1)

    async def _is_settled(self) -> bool:
        held = [await self._kept.list_leases(server.owner) for server in self._servers]
        found = [await self._get(response_id) for response_id in self._ids()]
        return not any(held) and all(one is None or one.status in TERMINAL for one in found)

    def _ids(self) -> list[str]:
        return [each for server in self._servers for each in server.store.created]

    async def _get(self, response_id: str) -> Response | None:
        try:
            return await self._kept.get_response(TENANT, response_id)
        except NotFound:
            return None

    async def _check_log(self, response: Response) -> None:
        shown = self.frames.get(response.id, {})
        try:
            logged = await log_of(self._kept, TENANT, response.id)
        except NotFound:
            assert not response.background, "no log is kept of it"
            events = {n: json.loads(f.partition(b"data: ")[2]) for n, f in shown.items()}
            assert sorted(events) == list(range(len(events)))
        else:
            events = {event.sequence_number: to_json(event) for event in logged}
            assert list(events) == list(range(len(logged))), "a gap in the log"
            ends = [event for event in logged if isinstance(event, TERMINAL_EVENTS)]
            assert ends == logged[-1:], f"one end, and it is the last: {[type(e) for e in ends]}"
            assert to_json(ends[0])["response"] == to_json(response)
        for number, frame in shown.items():
            told = json.loads(frame.partition(b"data: ")[2])
            assert told == events[number], f"event {number} was shown, and is not kept"
            if told["type"] in ENDS:
                self._check_end(told["response"], response)

    def _check_end(self, told: dict[str, Any], kept: Response) -> None:
        if kept.background or kept.status != "failed":
            assert told == to_json(kept), "the stream and the store differ"
        else:  # whoever ends it where this server could not, gives another reason
            assert told["status"] == "failed"

    def _check_told(self, response: Response, answers: Sequence[Answer]) -> None:
        told = [one for one in answers if one.response_id == response.id]
        key = response.metadata.get("key")
        maker = next(each for each in self._servers if response.id in each.store.created)
        assert told or key or response.status == "failed" or not maker.lives, (
            f"nobody was told of {response.id}, which is {response.status}"
        )
        for one in told:
            if one.is_stream or one.json["status"] not in TERMINAL:
                continue
            assert one.json == to_json(response), "what was told is not what is kept"

    def _check_gone(self, kept: set[str], answers: Sequence[Answer]) -> None:
        asked = {each.target for each in answers if each.method == "DELETE"}
        for one in answers:
            gone = one.response_id is not None and one.response_id not in kept
            is_unstored = (one.asked or {}).get("store") is False
            assert not gone or is_unstored or one.response_id in asked, (
                "it was told of, and is gone"
            )

    # --- what clients were told -------------------------------------------------------------------

    def _check_answer(self, one: Answer) -> None:
        if not one.server.lives or one.left:
            return
        assert one.status in (200, 400, 404, 500, 503), f"{one.status} {one.body!r}"
        if one.is_stream:
            assert one.is_whole
            assert one.is_broken or one.last["type"] in ENDS, f"no end: {one.last}"

    async def _check_conversations(
        self, kept: Sequence[Response], answers: Sequence[Answer]
    ) -> None:
        talks = {
            one.json["id"]
            for one in answers
            if one.path == "/conversations" and one.status == 200 and one.method == "POST"
        }
        for talk in talks:
            items = [item.id for item in await self._kept.list_conversation_items(TENANT, talk)]
            assert max(Counter(items).values(), default=1) == 1, "an item twice in a conversation"
            left = set()
            for response in kept:
                if response.conversation is None or response.conversation.id != talk:
                    continue
                output = {item.id for item in response.output}
                if response.keeps_items:
                    assert output <= set(items), "a conversation has lost what was said in it"
                    left |= output
                else:
                    assert not output & set(items)
            raw = msgspec.Raw(b'{"type":"message","id":"msg_later","role":"user","content":[]}')
            await self._kept.create_conversation_items(
                TENANT, talk, [StoredItem(id="msg_later", raw=raw)]
            )

    async def _check_keys(
        self, kept: Sequence[Response], clients: Clients, answers: Sequence[Answer]
    ) -> None:
        """Whoever asks again gets what the first was told of; nothing was run for nobody."""
        for key in {one.key for one in answers if one.key}:
            asked = [one for one in answers if one.key == key]
            told = {one.response_id for one in asked} - {None}
            assert len(told) <= 1, f"one key, several responses: {told}"
            again = await clients.ask(
                self._living()[0], "POST", "/responses", asked[0].asked, key=key
            )
            assert again.response_id or again.status == 500, f"{again.status}: {again.body!r}"
            mine = [one for one in kept if one.metadata.get("key") == key]
            assert len(mine) <= 1
            if mine:
                assert again.headers.get("idempotent-replayed") == "true"
                assert again.response_id in (mine[0].id, None)

    async def _check_served(self, clients: Clients) -> None:
        for server in self._living():
            for fields in ({}, {"background": True, "stream": True}, {"stream": True}):
                answer = await clients.ask(server, "POST", "/responses", {**BODY, **fields})
                assert answer.status == 200, f"all is well again: {answer.body!r}"
                assert not answer.is_stream or answer.last["type"] == "response.completed"

    def _check_at_rest(self) -> None:
        for server in self._living():
            assert len(server.app.runs.active) == 0, "a run goes on for nobody"
            assert not any(engine.running for engine in server.engines)

    def _living(self) -> list[SimulatedServer]:
        return [server for server in self._servers if server.lives]
