"""Whole servers in one event loop whose time is made up: they share a store that each reaches
through connections of its own, which fail as a test says. Minutes pass in milliseconds, and the
same test is the same each time.
"""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from dependency_injector import providers
from tests.conftest import settings_for

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.model.supervision import SuperviseModels
from antiphon.application.runs.background import StartBackgroundRuns
from antiphon.application.runs.heartbeat import BEATS_PER_LEASE, RETRY_S
from antiphon.application.runs.ownership import WatchLeases
from antiphon.application.runs.stored_events import DELETED, UNAVAILABLE
from antiphon.domain.errors import StoreError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.http.access.auth import Authentication
from antiphon.entrypoints.http.api.conversations import ConversationServices
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.app import create_app
from antiphon.entrypoints.services import App
from antiphon.entrypoints.wiring.file_search import index_files

LEASE_S = 15.0
PATIENCE_S = 60.0
"""No client waits for longer, whatever the store does."""
BREAKS = (DELETED[0], UNAVAILABLE[0])
"""Errors that are no events of a run: its stream goes on elsewhere, or nowhere."""

Frames = dict[int, bytes]


# --- time -----------------------------------------------------------------------------------------


class _Skipping(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for nobody: the time for which it would have waited has passed at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        if not ready:
            assert timeout is not None, "all wait for each other"
            self.now += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def now() -> float:
    return asyncio.get_running_loop().time()


# --- the store, and how it is reached -------------------------------------------------------------


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to the `at`-th call of a connection, and to those after it.

    Calls fail while fewer than `calls` did, and for `lasts_s`. So many of them have an effect
    first: the store does as it was told, and its answer is lost. Each takes `takes_s`; `fails`
    False is a store that is slow, and no worse.
    """

    at: int
    calls: int = 1
    lasts_s: float = 0.0
    effects: int = 0
    takes_s: float = 0.0
    fails: bool = True


class Connection:
    """One server's way to the store that all share."""

    def __init__(self, kept: MemoryStore) -> None:
        self._kept = kept
        self.fault: Fault | None = None
        self.calls: list[str] = []
        self.created: list[str] = []
        """The responses that are in the store because of this server."""
        self._failed = 0
        self._until: float | None = None
        self.is_cut = False
        self._dies_at: int | None = None
        self._last_takes_effect = False
        self.has_died = asyncio.Event()
        """Set at the call at which its server is to die."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    def record_heartbeat(self, owner: str, ttl_s: float) -> None:
        if self.is_cut or (self._until is not None and now() < self._until):
            raise StoreError("nobody answers")
        self._kept.record_heartbeat(owner, ttl_s)

    def die(self, at: int, *, takes_effect: bool) -> None:
        """Cut the connection for good at call number `at`, before it or after it took effect."""
        self._dies_at, self._last_takes_effect = at, takes_effect

    def heal(self) -> None:
        self.fault, self._until = None, None

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name, getattr(self._kept, name))

    async def _call(
        self, name: str, operation: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        await asyncio.sleep(0)  # as over a network: others have their turn, and may cancel us
        if self.is_cut:
            raise StoreError("nobody answers")
        self.calls.append(name)
        if len(self.calls) == self._dies_at:
            self.is_cut = True
            self.has_died.set()
            if self._last_takes_effect:
                await self._done(name, operation, args, kwargs)
            raise StoreError("nobody answers")
        fault = self._meets()
        if fault is None:
            return await self._done(name, operation, args, kwargs)
        if self._failed <= fault.effects:
            await self._done(name, operation, args, kwargs)
        await asyncio.sleep(fault.takes_s)
        if fault.fails:
            raise StoreError(f"the store failed at {name}")
        return await self._done(name, operation, args, kwargs)

    async def _done(self, name: str, operation: Any, args: Any, kwargs: Any) -> Any:
        done = await operation(*args, **kwargs)
        if name == "create_response":
            self.created.append(args[1].response.id)
        return done

    def _meets(self) -> Fault | None:
        fault = self.fault
        if fault is None or len(self.calls) < fault.at:
            return None
        if self._until is None:
            self._until = now() + fault.lasts_s
        if self._failed >= fault.calls and now() >= self._until:
            return None
        self._failed += 1
        return fault


# --- servers --------------------------------------------------------------------------------------

_ASKED: ContextVar[App] = ContextVar("the server that is asked")


class _OfAsked:
    """A service of the server that is asked: one app, which takes long to make, serves for all."""

    def __init__(self, services: str, name: str) -> None:
        self._services = services
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._given()(*args, **kwargs)

    def _given(self) -> Any:
        return getattr(getattr(_ASKED.get(), self._services), self._name)


def _app_of(ports: Container) -> App:
    index = index_files(
        ports.settings(), ports.vector_stores(), ports.files(), ports.read_pdf(), ports.embeddings()
    )
    return App(ports, index, SuperviseModels(ports.supervised_models()))


class _ConversationsOfAsked(ConversationServices):
    def __init__(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return _OfAsked("conversations", name)


class SimulatedServer:
    """A server, as the composition root makes it; `kill` and `stop` are its two ends."""

    def __init__(self, folder: Path, kept: MemoryStore, **settings: Any) -> None:
        self.store = Connection(kept)
        loop = asyncio.get_running_loop()
        given = {"background_runs": 2, "keepalive_s": 0, "lease_s": LEASE_S, **settings}
        self.ports = ports = Container(settings=settings_for(folder, **given))
        ports.store.override(providers.Object(self.store))
        ports.clock.override(providers.Object(loop.time))
        self.owner = ports.owner()
        self.app = _app_of(ports)
        self.lives = True
        self._beside: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for model in self.app.models.all:
            await model.start()
        self.ports.sealer().start()
        runs = self.app.runs
        watch_leases = WatchLeases(self.store, runs.active, owner=self.owner)
        start_runs = StartBackgroundRuns(
            self.store,
            self.ports.log(),
            runs.active,
            self.app.models,
            runs.restore,
            runs.run_response,
            owner=self.owner,
        )
        for work in (
            self._beat,
            watch_leases.run_forever,
            start_runs.run_forever,
        ):
            self._beside.append(asyncio.create_task(work()))

    async def kill(self) -> None:
        """What it does from now on has no effect on others."""
        self.lives = False
        self.store.is_cut = True
        await self._end_beside()

    async def stop(self, *, limit_s: float) -> None:
        """As on SIGTERM."""
        await self.app.runs.active.drain(limit_s)
        self.app.services.drained.trigger()
        with suppress(StoreError):
            await self.store.end_heartbeat(self.owner)
        await self.kill()

    @property
    def engines(self) -> list[Any]:
        return [model._model._engine for model in self.app.models.all]

    async def _beat(self) -> None:
        while True:
            pause_s = RETRY_S
            with suppress(StoreError):
                self.store.record_heartbeat(self.owner, LEASE_S)
                pause_s = LEASE_S / BEATS_PER_LEASE
            await asyncio.sleep(pause_s)

    async def _end_beside(self) -> None:
        for task in self._beside:
            task.cancel()
        if self._beside:
            await asyncio.wait(self._beside)
        self._beside = []


# --- clients --------------------------------------------------------------------------------------


class Answer(msgspec.Struct, kw_only=True):
    """What a client got. `frames` are the events of a stream by number, as they came."""

    method: str
    path: str
    asked: dict[str, Any] | None
    key: str | None
    server: Any
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    frames: Frames = {}
    is_whole: bool = False
    is_broken: bool = False
    left: bool = False

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found

    @property
    def target(self) -> str:
        """The id that the path ends with."""
        return self.path.partition("?")[0].rpartition("/")[-1]

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def event(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.frames[number].partition(b"data: ")[2])
        return found

    @property
    def last(self) -> dict[str, Any]:
        return self.event(max(self.frames)) if self.frames else {"type": "none"}

    @property
    def response_id(self) -> str | None:
        """Of the response that the client was told of, if it was told of any."""
        if self.frames:
            first = self.event(min(self.frames))
            told: str | None = first.get("response", {}).get("id")
            return told or (self.target if self.method == "GET" else None)
        if self.status == 200 and not self.is_stream and self.json.get("object") == "response":
            return str(self.json.get("id"))
        return None


class FrameObserver(Protocol):
    """Is told of each event that a client gets, before anybody else has a turn."""

    async def __call__(self, response_id: str, number: int, frame: bytes) -> None: ...


class Clients:
    """Asks servers, and remembers every answer."""

    def __init__(
        self, app: Any, shown: FrameObserver, *, headers: Mapping[str, str] | None = None
    ) -> None:
        self._app = app
        self._shown = shown
        self._headers = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        self.answers: list[Answer] = []

    async def ask(
        self,
        server: SimulatedServer,
        method: str,
        path: str,
        asked: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        leaves_after: int | None = None,
    ) -> Answer:
        """Return the answer. `leaves_after` so many events, the client closes the connection."""
        answer = Answer(method=method, path=path, asked=asked, key=key, server=server)
        self.answers.append(answer)
        left, sent_body = asyncio.Event(), False

        async def receive() -> dict[str, Any]:
            nonlocal sent_body
            if not sent_body:
                sent_body = True
                body = b"" if asked is None else json.dumps(asked).encode()
                return {"type": "http.request", "body": body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        rest = b""

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal rest
            if not server.lives:
                left.set()
                return
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
                return
            answer.body += message["body"]
            if answer.is_stream:
                *whole, rest = (rest + message["body"]).split(b"\n\n")
                for frame in filter(None, whole):
                    await self._take(answer, frame)
                if leaves_after is not None and len(answer.frames) >= leaves_after:
                    answer.left = True
                    left.set()
            answer.is_whole = not message.get("more_body", False)

        headers = [(b"content-type", b"application/json"), *self._headers]
        headers += [(b"idempotency-key", key.encode())] if key else []
        target, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": f"/v1{target}",
            "raw_path": f"/v1{target}".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "state": {},
        }
        _ASKED.set(server.app)
        work = asyncio.ensure_future(self._app(scope, receive, send))
        gone = asyncio.ensure_future(left.wait())
        done, _ = await asyncio.wait(
            (work, gone), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
        )
        assert done or not server.lives, f"{method} {path} has no answer"
        gone.cancel()
        if work.done():
            await work
        return answer

    async def _take(self, answer: Answer, frame: bytes) -> None:
        if not frame.startswith(b"event: "):
            return
        event = json.loads(frame.partition(b"data: ")[2])
        number = event["sequence_number"]
        if event["type"] == "error" and event["code"] in BREAKS:
            answer.is_broken = True
            return
        assert number not in answer.frames, "an event twice in one stream"
        answer.frames[number] = frame
        if answer.response_id:
            await self._shown(answer.response_id, number, frame)


def make_app(folder: Path) -> Any:
    """Return an app that passes what it is asked on to the services of the server that is meant."""
    # Its models are never started, so nothing may follow from what they can read.
    any_server = _app_of(Container(settings=settings_for(folder, max_body_bytes=1024 * 1024)))

    def passing_on(kind: type[msgspec.Struct], services: str) -> Any:
        return kind(**{name: _OfAsked(services, name) for name in kind.__struct_fields__})

    services = passing_on(Services, "services")
    app: Any = create_app(
        msgspec.structs.replace(services, options=any_server.services.options),
        _ConversationsOfAsked(),
        any_server.models,
        any_server.files,
        any_server.containers,
        any_server.skills,
        any_server.vector_stores,
        any_server.batches,
        any_server.check_ready,
        any_server.access.console,
        any_server.server_state,
        started_at=0,
        max_file_bytes=1024,
    )
    return Authentication(app, None)
