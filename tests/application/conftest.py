"""The services of a server over a memory store, with a model that plays deltas."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.adapters.url_policy import NoFetcher
from antiphon.application.input.history import LoadHistory
from antiphon.application.input.items import ReadItems
from antiphon.application.input.media import LoadMedia
from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.input.show_items import ShowItems
from antiphon.application.input.submission import Submission
from antiphon.application.model.models import Models
from antiphon.application.ports import (
    AdmitPrompt,
    Json,
    KeyUsage,
    Model,
    ModelTurn,
    StoredItem,
    ToolResult,
    ToolServers,
    ToolSession,
    Turn,
    WebhookDelivery,
)
from antiphon.application.resources.conversation_claim import ClaimConversation
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.resources.quotas import CheckQuota, Quotas
from antiphon.application.responses.admission import Admission, AdmissionLimits
from antiphon.application.responses.cancel import CancelResponse
from antiphon.application.responses.count_tokens import CountTokens
from antiphon.application.responses.create import CallerBounds, CreateResponseService
from antiphon.application.responses.delete import DeleteResponse
from antiphon.application.responses.enter_session import EnterSession
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.responses.get import GetResponse
from antiphon.application.responses.list_input_items import ListInputItems
from antiphon.application.responses.prepare import PrepareResponse
from antiphon.application.responses.start import AcceptedResponse, StartLimits, StartResponse
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.background import StartBackgroundRuns
from antiphon.application.runs.diagnose_cache import DiagnoseCache
from antiphon.application.runs.jobs import Jobs
from antiphon.application.runs.ownership import WatchLeases
from antiphon.application.runs.plan_turns import PlanTurns, RunFeatures
from antiphon.application.runs.prepare_turn import PrepareTurn
from antiphon.application.runs.restore import RestoreRun, ResumeLimits
from antiphon.application.runs.run_response import MakeSequencer, RunResponse
from antiphon.application.runs.stop import StopRun
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.application.tools.budgets import DEFAULT_BUDGETS, Budgets
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.mcp import OpenMcpSessions
from antiphon.domain import deltas as d
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import StoreError
from antiphon.domain.events import Event
from antiphon.domain.requests.decoding import decode_request
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.tools import McpTool

TENANT = "t"
CALLER = Caller(tenant=TENANT)
STOP = d.TurnEnd("stop", TurnUsage(input=3, output=2))
Played = Sequence[Sequence[d.Delta] | Exception | asyncio.Event]


class FakeTurn(ModelTurn):
    """Plays batches of deltas; raises an exception among them, and waits for an event."""

    def __init__(self, played: Played) -> None:
        self._played = played
        self.closed = False

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        try:
            for batch in self._played:
                await asyncio.sleep(0)
                if isinstance(batch, Exception):
                    raise batch
                if isinstance(batch, asyncio.Event):
                    await batch.wait()
                else:
                    yield list(batch)
        finally:
            self.closed = True

    async def aclose(self) -> None:
        self.closed = True

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [{"message": "in"}], [{"message": "out"}]

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [TurnUsage(input=3, output=2)]


class FakeModel(Model):
    """A model whose turns the test sets: `played` for the first, `later` for the next ones."""

    names: Sequence[str] = ("m",)
    format_name = "played"
    efforts: Sequence[str] = ("low", "high")
    context_length = 1000
    reads_images = False
    sampling_defaults: Mapping[str, Any] = {"temperature": 0.6}

    def __init__(self) -> None:
        self.played: Played = [[d.TextDelta("Hello")], [STOP]]
        self.later: list[Played | Exception] = []
        self.refusal: Exception | None = None
        self.dead: Exception | None = None
        self.turns: list[Turn] = []
        self.begun: list[FakeTurn] = []

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def check(self) -> None:
        if self.dead is not None:
            raise self.dead

    async def count(self, turn: Turn) -> int:
        return len(turn.items)

    async def start_turn(
        self, turn: Turn, *, request_id: str, admit: AdmitPrompt | None = None
    ) -> ModelTurn:
        if admit is not None:
            await admit(len(turn.items))
        if self.refusal is not None:
            raise self.refusal
        played: Played | Exception = self.played
        if self.begun and self.later:
            played = self.later.pop(0)
        if isinstance(played, Exception):
            raise played
        self.turns.append(turn)
        self.begun.append(FakeTurn(played))
        return self.begun[-1]


class FakeTools(ToolServers, ToolSession):
    """MCP servers that all have the same tools; the test sets the results of calls in `gives`."""

    def __init__(self) -> None:
        self.listed: Sequence[Json] = ({"name": "add"}, {"name": "wait"})
        self.error: Exception | None = None
        self.called: list[tuple[str, Json]] = []
        self.waits = asyncio.Event()
        self.stopped: list[str] = []
        self.gives: list[ToolResult | BaseException] = []
        self.open = 0

    @property
    def labels(self) -> Sequence[str]:
        return ()

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        return server if server.server_url else None

    def session(self, server: McpTool) -> ToolSession:
        self.open += 1
        return self

    async def tools(self) -> tuple[Json, ...]:
        if self.error is not None:
            raise self.error
        return tuple(self.listed)

    async def call(self, name: str, arguments: Json) -> ToolResult:
        self.called.append((name, arguments))
        if name == "wait":
            self.waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.append(name)
        result = self.gives.pop(0) if self.gives else None
        if isinstance(result, BaseException):
            raise result
        if result is not None:
            return result
        return ToolResult(output=f"{name} {len(self.called)}")

    async def aclose(self) -> None:  # closes a session, not the servers
        self.open -= 1


class FailingStore(MemoryStore):
    """A memory store whose methods named in `failing` raise `error`.

    If `claimed` is an event, `claim_conversation` sets it after its work and never returns;
    `created` does the same for `create_response`, and `settling` once for `settle_usage`, before
    its work.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()
        self.settling: asyncio.Event | None = None
        self.claimed: asyncio.Event | None = None
        self.created: asyncio.Event | None = None
        self.error: Exception = StoreError("the disk is full")

    @property
    def outlives_server(self) -> bool:
        return True  # the servers of a test share it

    async def create_response(self, *args: Any, **kwargs: Any) -> None:
        self._maybe_fail("create")
        await super().create_response(*args, **kwargs)
        if self.created is not None:
            self.created.set()
            await asyncio.Event().wait()

    async def finish_response(self, *args: Any, **kwargs: Any) -> bool:
        self._maybe_fail("finish")
        return await super().finish_response(*args, **kwargs)

    async def append_events(self, *args: Any, **kwargs: Any) -> bool:
        self._maybe_fail("append")
        return await super().append_events(*args, **kwargs)

    async def claim_conversation(self, *args: Any, **kwargs: Any) -> None:
        await super().claim_conversation(*args, **kwargs)
        if self.claimed is not None:
            self.claimed.set()
            await asyncio.Event().wait()

    async def release_conversation(self, *args: Any, **kwargs: Any) -> None:
        self._maybe_fail("release")
        await super().release_conversation(*args, **kwargs)
        self._maybe_fail("release heard")

    async def get_context(self, *args: Any) -> list[StoredItem]:
        self._maybe_fail("context")
        return await super().get_context(*args)

    async def reserve_usage(self, *args: Any) -> KeyUsage:
        self._maybe_fail("reserve_usage")
        return await super().reserve_usage(*args)

    async def settle_usage(self, *args: Any) -> bool:
        settling, self.settling = self.settling, None
        if settling is not None:
            settling.set()
            await asyncio.Event().wait()
        return await super().settle_usage(*args)

    def _maybe_fail(self, name: str) -> None:
        once = f"{name} once"
        if name in self.failing or once in self.failing:
            self.failing.discard(once)
            raise self.error


class House:
    """The services of one server, wired as the container does. Houses may share a `store`.

    `model` is a FakeModel by default; `hosted` provides the server's own tools.
    """

    def __init__(
        self,
        store: FailingStore | None = None,
        *,
        owner: str = "srv_1",
        model: Model | None = None,
        hosted: Sequence[ToolProvider] = (),
        budgets: Budgets = DEFAULT_BUDGETS,
        max_run_s: float = 60,
        default_limits: Mapping[str, int] | None = None,
        admission: AdmissionLimits | None = None,
    ) -> None:
        numbers = count(1)
        self.owner = owner
        self.model = FakeModel()
        self.store = FailingStore() if store is None else store
        self.log = MemoryEventLog()
        self.runs = ActiveRuns(slots=2)
        self.admission = Admission(AdmissionLimits() if admission is None else admission)
        self.tools = FakeTools()
        load_media = LoadMedia(MemoryFileStore(), NoFetcher(), PdfReader())
        show_items = ShowItems(load_media, unseal=unseal)
        models = Models([model or self.model])
        prepare_turn = PrepareTurn(
            models,
            ReadItems(self.store),
            LoadHistory(self.store),
            show_items,
            self.tools,
            salt=lambda tenant, text: f"salt of {tenant} {text}",
            hosted=hosted,
        )
        self.now = time.time()  # the memory store deletes counters by the time of day
        self.caller = CALLER
        self.limits = limits = EnforceLimits(
            self.store, owner=owner, now=lambda: self.now, defaults=default_limits
        )
        claim = ClaimConversation(self.store, owner=owner)
        enter_session = EnterSession(self.store, claim, now=lambda: 100.0)
        self.count_tokens = CountTokens(ExpandPrompt(None), enter_session, prepare_turn, limits)
        self.deliveries: list[tuple[str, str]] = []
        run_response = RunResponse(
            self.log,
            self.store,
            limits,
            deliveries=self._record_delivery,
            max_run_s=max_run_s,
            retry_s=0.2,
        )
        open_sessions = OpenMcpSessions(self.tools, ApprovalAnswers(self.store))
        plan_turns = PlanTurns(
            show_items,
            seal,
            open_sessions,
            budgets=budgets,
            features=RunFeatures(diagnose=DiagnoseCache(prepare_turn, self.store)),
        )
        self.jobs = jobs = Jobs(seal, unseal)

        def new_id(prefix: str) -> str:
            return f"{prefix}_{owner}_{next(numbers)}"

        self.new_id = new_id

        check_quota = CheckQuota(self.store, Quotas(), clock=lambda: 0.0)
        make_sequencer = MakeSequencer(new_id=new_id, now=lambda: 100.0, seal=seal)
        self.create_response = CreateResponseService(
            ExpandPrompt(None),
            CallerBounds(limits=limits, check_quota=check_quota),
            claim,
            enter_session,
            PrepareResponse(
                prepare_turn,
                plan_turns,
                jobs,
                ApprovalAnswers(self.store),
                can_resume=self.store.outlives_server,
                owner=owner,
                new_id=new_id,
                now=lambda: 100.0,
            ),
            StartResponse(
                self.store,
                self.log,
                self.runs,
                run_response,
                make_sequencer,
                owner=owner,
                now=lambda: 100.0,
                limits=StartLimits(max_waiting=3, retry_s=0.05),
            ),
            self.runs,
            self.admission,
        )
        restore = RestoreRun(
            ExpandPrompt(None),
            prepare_turn,
            plan_turns,
            jobs,
            self.store,
            self.log,
            make_sequencer,
            limits=ResumeLimits(retry_s=0.2, max_attempts=4),
        )
        stop_run = StopRun(self.store, self.runs, restore, run_response, owner=owner)
        self.get = GetResponse(self.store, self.runs, ApprovalAnswers(self.store))
        self.follow = FollowResponse(self.log, self.store)
        self.delete = DeleteResponse(self.store, self.log, stop_run, check_quota)
        self.cancel = CancelResponse(self.store, stop_run)
        self.input_items = ListInputItems(self.store)
        self.start_background_runs = StartBackgroundRuns(
            self.store, self.log, self.runs, models, restore, run_response, owner=owner
        )
        self.watch_leases = WatchLeases(self.store, self.runs, owner=owner)
        self.store.record_heartbeat(owner, 60)

    def _record_delivery(self, tenant: str, response: Response) -> list[WebhookDelivery]:
        self.deliveries.append((tenant, response.status))
        return []

    async def create(self, **fields: Any) -> AcceptedResponse:
        return await self.create_response(self.submission(**fields))

    def submission(
        self, caller: Caller | None = None, *, options: Mapping[str, Any] = {}, **fields: Any
    ) -> Submission:
        """Return a request with these fields; `options` are further facts of the submission."""
        body = json.dumps({"model": "m", "input": "hi", **fields}).encode()
        submission = Submission(
            caller=caller or self.caller,
            request=decode_request(body).request,
            response_id=self.new_id("resp"),
            body=body,
        )
        return replace(submission, **options)

    async def whole(self, **fields: Any) -> Response:
        """Create a response, read it to its end and return it."""
        events = await read(await self.create(**fields))
        final: Response = events[-1].response  # type: ignore[attr-defined]
        return final


def seal(tenant: str, text: str) -> str:
    return f"sealed:{tenant}:{text}"


def unseal(tenant: str, sealed: str) -> str | None:
    prefix = f"sealed:{tenant}:"
    return sealed.removeprefix(prefix) if sealed.startswith(prefix) else None


async def read(created: AcceptedResponse) -> list[Event]:
    return [event async for batch in created.events for event in batch]


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture(name="new_house")
def new_house_fixture() -> type[House]:
    """Return the class, for tests that choose its options."""
    return House
