"""Invariants that hold when servers, clients and the store pause, fail or leave at any moment."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from itertools import count
from random import Random
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.application.conftest import CALLER, STOP, TENANT, FailingStore, House

from antiphon.application.input.submission import IdempotencyKey
from antiphon.application.ports import Store
from antiphon.application.responses.idempotency import CreateOnce, ExistingResponse, IdempotencyKeys
from antiphon.application.responses.start import AcceptedResponse
from antiphon.application.runs.stored_events import log_of
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.errors import AntiphonError, NotFound, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.items import McpApprovalRequest
from antiphon.domain.responses.response import TERMINAL

SEEDS = int(os.environ.get("ANTIPHON_TEST_SEEDS", "20"))
STEPS = 50
CONVERSATIONS = ("conv_a", "conv_b")
ASKS = {
    "type": "mcp",
    "server_label": "calc",
    "server_url": "https://example.org/mcp",
    "require_approval": "always",
}
OPERATIONS = frozenset(
    name
    for name in dir(Store)
    if not name.startswith("_") and name not in ("record_heartbeat", "start")
)


class HesitantStore(FailingStore):
    """Yields to other tasks before and after each operation, and may fail before or after it."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.failures = 0.0

    def __getattribute__(self, name: str) -> Any:
        operation = super().__getattribute__(name)
        if name not in OPERATIONS:
            return operation

        @wraps(operation)
        async def hesitant(*args: Any, **kwargs: Any) -> Any:
            await self._hesitate()
            result = await operation(*args, **kwargs)
            await self._hesitate()
            return result

        return hesitant

    async def _hesitate(self) -> None:
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        if self.random.random() < self.failures:
            raise StoreError("now and then")


class Server:
    """A server with Idempotency-Keys."""

    def __init__(self, store: HesitantStore, owner: str) -> None:
        self.house = House(store, owner=owner)
        keys = IdempotencyKeys(
            store, owner=owner, now=time.time, clock=asyncio.get_running_loop().time, wait_s=0.1
        )
        self.create_once = CreateOnce(self.house.create_response, keys)


class Cluster:
    """Servers on one store, some of them gone, and their clients."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.numbers = count(1)
        self.store = HesitantStore(self.random)
        self.store.failures = self.random.choice([0, 0, 0.01, 0.05])
        self.servers: list[Server] = []
        self.gone: list[Server] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.response_ids: list[str] = []
        self.readers: list[tuple[str, bool, asyncio.Task[list[e.Event]]]] = []
        self.keys: dict[str, set[str]] = {}
        self.approvals: list[tuple[str, str]] = []

    async def open(self) -> None:
        failures, self.store.failures = self.store.failures, 0.0
        for conversation_id in CONVERSATIONS:
            await self.store.create_conversation(
                TENANT, Conversation(id=conversation_id, created_at=0)
            )
        self.servers = [self.server() for _ in range(3)]
        for number in range(6):
            arguments = f'{{"n":{number}}}'
            self.set_turns(self.servers[0].house, [[*self.call(arguments), STOP]])
            response = await self.servers[0].house.whole(tools=[ASKS])
            [request] = [each for each in response.output if isinstance(each, McpApprovalRequest)]
            self.approvals.append((response.id, request.id))
        self.store.failures = failures

    async def _retry(self, work: Callable[[], Awaitable[Any]]) -> None:
        while True:
            with suppress(StoreError):
                await work()
                return

    @staticmethod
    def call(arguments: str = "{}") -> list[d.Delta]:
        return [
            d.CallStart("add", namespace="calc", kind="mcp_approval"),
            d.ArgumentsDelta(arguments),
        ]

    def server(self) -> Server:
        return Server(self.store, f"srv_{next(self.numbers)}")

    def set_turns(self, house: House, played: Any = None) -> None:
        waits: list[Any] = [[] for _ in range(self.random.randrange(15))]
        words = [[d.TextDelta("word ")] for _ in range(self.random.randrange(8))]
        house.model.played = played or [*waits, *words, *waits, [STOP]]

    def actions(self) -> list[Callable[[Server], Awaitable[Any]]]:
        return [
            *[self.post] * 6,
            *[self.poll] * 6,
            self.cancel,
            self.delete,
            self.follow,
            self.follow,
            self.get,
            self.interrupt,
            self.die,
            self.drain,
        ]

    async def step(self) -> None:
        action, server = self.random.choice(self.actions()), self.random.choice(self.servers)
        task = asyncio.ensure_future(self._quietly(action, server))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        for _ in range(self.random.randrange(8)):
            await asyncio.sleep(0)

    async def _quietly(self, action: Callable[[Server], Awaitable[Any]], server: Server) -> None:
        with suppress(AntiphonError):
            await action(server)

    async def post(self, server: Server) -> None:
        self.set_turns(server.house)
        fields, key = self.request()
        submission = server.house.submission(CALLER, stream=True, **fields)
        created = await (
            server.house.create_response(submission)
            if key is None
            else server.create_once(submission, key)
        )
        response_id = created.response_id if isinstance(created, ExistingResponse) else created.id
        if key is not None:
            self.keys.setdefault(key.key, set()).add(response_id)
        if isinstance(created, ExistingResponse):
            return
        self.response_ids.append(response_id)
        reading = asyncio.ensure_future(self.read(created))
        self.readers.append((response_id, created.outlives_client, reading))

    def request(self) -> tuple[dict[str, Any], IdempotencyKey | None]:
        """Return the fields of a request, and its Idempotency-Key."""
        luck = self.random.random
        kind: dict[str, Any] = self.random.choice(
            [{"background": True}, {"background": True}, {"store": False}, {}]
        )
        if luck() < 0.4:
            return {**kind, "conversation": self.random.choice(CONVERSATIONS)}, None
        if kind == {"store": False}:
            return kind, None
        if luck() < 0.2 and self.approvals:
            previous_id, request_id = self.approvals.pop()
            approval = {
                "type": "mcp_approval_response",
                "approval_request_id": request_id,
                "approve": True,
            }
            return {
                **kind,
                "tools": [ASKS],
                "previous_response_id": previous_id,
                "input": [approval],
            }, None
        if luck() < 0.5:
            return {}, IdempotencyKey(key=f"key {self.random.randrange(6)}", fingerprint=b"same")
        return kind, None

    async def read(self, created: AcceptedResponse) -> list[e.Event]:
        stays = self.random.random() < 0.8
        events: list[e.Event] = []
        try:
            async for batch in created.events:
                events += batch
                if not stays and len(events) > self.random.randrange(8):
                    break
        finally:
            await created.leave()
        return events

    async def follow(self, server: Server) -> None:
        if not self.response_ids:
            return
        response_id = self.random.choice(self.response_ids)
        after = self.random.randrange(-1, 6)
        batches = await server.house.follow(TENANT, response_id, after=after)

        async def rest() -> list[e.Event]:
            return [event async for batch in batches for event in batch]

        self.readers.append((response_id, True, asyncio.ensure_future(rest())))

    async def get(self, server: Server) -> None:
        if self.response_ids:
            await server.house.get(TENANT, self.random.choice(self.response_ids))

    async def poll(self, server: Server) -> None:
        self.set_turns(server.house)
        await server.house.watch_leases.run_once()
        await server.house.start_background_runs.run_once()

    async def cancel(self, server: Server) -> None:
        if self.response_ids:
            response_id = self.random.choice(self.response_ids)
            cancelled = await server.house.cancel(TENANT, response_id)
            assert cancelled.status == "cancelled"

    async def delete(self, server: Server) -> None:
        if self.response_ids and self.random.random() < 0.5:
            response_id = self.random.choice(self.response_ids)
            await server.house.delete(TENANT, response_id)

    async def interrupt(self, _: Server) -> None:
        """Cancel a random request."""
        others = [task for task in self.tasks if task is not asyncio.current_task()]
        if others:
            self.random.choice(others).cancel()

    async def die(self, server: Server) -> None:
        """Let the server seem dead; it continues, like one that was only paused."""
        if server in self.servers:
            self.replace(server)
            await self._retry(lambda: self.store.end_heartbeat(server.house.owner))

    async def drain(self, server: Server) -> None:
        if server in self.servers:
            self.replace(server)
            await server.house.runs.drain(self.random.choice([0, 0.001]))
            await self._retry(lambda: self.store.end_heartbeat(server.house.owner))

    def replace(self, server: Server) -> None:
        self.servers[self.servers.index(server)] = self.server()
        self.gone.append(server)

    async def settle(self) -> None:
        self.store.failures = 0.0
        for server in self.gone:  # the task that stops one may have been cancelled
            await self.store.end_heartbeat(server.house.owner)
        while self.tasks or await self.has_unfinished():
            for server in self.servers:
                await self.poll(server)
            await asyncio.sleep(0.001)
        for server in self.all:
            await server.house.watch_leases.run_once()
        for server in self.all:
            while len(server.house.runs):
                await server.house.watch_leases.run_once()
                await asyncio.sleep(0.001)

    async def has_unfinished(self) -> bool:
        leases = [await self.store.list_leases(server.house.owner) for server in self.all]
        return any(leases) or (await self.store.get_storage_usage(TENANT)).waiting > 0

    @property
    def all(self) -> list[Server]:
        return [*self.servers, *self.gone]

    async def final(self, response_id: str) -> Any:
        try:
            return await self.store.get_response(TENANT, response_id)
        except NotFound:
            return None

    # --- invariants -------------------------------------------------------------------------------

    async def check(self) -> None:
        await self.check_logs()
        await self.check_conversations()
        for server in self.all:
            assert await self.store.list_leases(server.house.owner) == []
            assert all(turn.closed for turn in server.house.model.begun), "a turn is still open"
            assert len(server.house.runs) == 0
            assert server.house.runs.free_slots == 2
            assert server.house.tools.open == 0
        called = Counter(
            str(arguments) for server in self.all for _, arguments in server.house.tools.called
        )
        assert all(times == 1 for times in called.values()), called
        for key, ids in self.keys.items():
            alive = [
                each
                for each in ids
                if await self.final(each) is not None
                and not any(f"_{server.house.owner}_" in each for server in self.gone)
            ]
            assert len(alive) <= 1, (key, ids)

    async def check_logs(self) -> None:
        for response_id, durable, reader in self.readers:
            try:
                events = await reader
            except (asyncio.CancelledError, StoreError):
                continue
            final = await self.final(response_id)
            if final is None or not events:
                continue
            assert final.status in TERMINAL
            if not durable:
                continue
            try:
                logged = await log_of(self.store, TENANT, response_id)
            except NotFound:
                continue
            assert [each.sequence_number for each in logged] == list(range(len(logged)))
            assert [type(each) for each in logged if isinstance(each, e.TERMINAL)] == [
                type(logged[-1])
            ]
            assert logged[-1].response == replace(final, metrics=UNSET, preview=UNSET)  # type: ignore[attr-defined]
            if isinstance(events[-1], e.Error):
                events.pop()
            first = events[0].sequence_number if events else 0
            assert events == logged[first : first + len(events)]

    async def check_conversations(self) -> None:
        for conversation_id in CONVERSATIONS:
            await self.store.claim_conversation(TENANT, conversation_id, "probe", owner="srv_probe")
            await self.store.release_conversation(TENANT, conversation_id, "probe")
            items = await self.store.list_conversation_items(TENANT, conversation_id)
            assert len({item.id for item in items}) == len(items)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_invariants_hold_in_random_interleavings(seed: int) -> None:
    cluster = Cluster(seed)
    await cluster.open()
    for _ in range(STEPS):
        await cluster.step()
    async with asyncio.timeout(30):
        await cluster.settle()
        await cluster.check()
