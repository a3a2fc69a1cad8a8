"""Tools that this server runs, listed and called for one response (api_surface 7.18, 7.19).

Caller        runs the calls of one kind of tool
Calls         the callers of a response, and how many calls there may be
OpeningTurn   before the model's first turn: servers are asked for their tools, and calls that
              the client approved of are run
CallingTurn   a turn of the model with the calls that it makes: they run side by side when the
              model has ended its turn, and their items come one after another, in its order
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from antiphon.application.budgets import MOST_AT_ONCE, MOST_FAILURES, USUAL, Budgets
from antiphon.application.citing import Cite, Cites
from antiphon.application.ports import Json, ModelTurn, ToolResult, ToolServers, ToolSession
from antiphon.application.runs import to_the_end
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain import mcp
from antiphon.domain.errors import ToolServerError
from antiphon.domain.tools import McpTool
from antiphon.domain.usage import TurnUsage

logger = logging.getLogger("antiphon.tools")

NO_MORE = "This call was not run: the response has made the max_tool_calls that it may make."
GONE = (
    f"This call was not run: {MOST_FAILURES} calls in a row found nobody who answers. It is of no "
    "use to try again in this response."
)
BROKEN = "This call failed: what runs it has a defect."


Given = AsyncGenerator[Sequence[d.Delta]]
"""What a call gives while it runs, a batch at a time: the first batches end the item of the call,
items of its own may follow."""


class Caller(Protocol):
    """Runs the calls of one kind of tool."""

    step: str
    """What the item of a call is doing while it runs (ToolProgress)."""

    def opening(self, start: d.CallStart) -> d.Delta:
        """Return the delta that opens the item of a call."""

    def call(self, start: d.CallStart, arguments: str) -> Given:
        """Return what runs the call; nothing runs before it is read."""

    def refused(self, start: d.CallStart, arguments: str, why: str) -> Sequence[d.Delta]:
        """Return what a call gives that is not run, or that broke before it gave anything."""

    def found_nobody(self, end: d.ToolEnd) -> bool:  # noqa: ARG002
        """Whether a call ended like this because what runs it is not there, or does not answer;
        not because of what it was asked."""
        return False


class ItemCaller(Caller):
    """A caller whose calls are one item each, which has the result too."""

    async def call(self, start: d.CallStart, arguments: str) -> Given:
        yield [await self.end(start, arguments)]

    def refused(self, start: d.CallStart, arguments: str, why: str) -> Sequence[d.Delta]:  # noqa: ARG002
        return [self.refusal(why)]

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        """Run the call and return the end of its item."""
        raise NotImplementedError

    def refusal(self, why: str) -> d.ToolEnd:
        """Return the end of the item of a call that is not run."""
        raise NotImplementedError


class Work(Struct, frozen=True):
    """A call or a listing that may be run: what it gives, and what is given for it when it breaks.
    It waits for its `place` first.
    """

    given: Given
    refused: Callable[[str], Sequence[d.Delta]]
    place: AbstractAsyncContextManager[object] = nullcontext()


class Calls:
    """The calls of one response, of every kind, of which there may be `most`.

    Whatever runs a call: it ends in time, gives no more than it may, and fails alone. Who does not
    answer is not asked for ever.
    """

    def __init__(
        self,
        callers: Mapping[str, Caller],
        most: int | None,
        budgets: Budgets = USUAL,
        *,
        at_once: int = MOST_AT_ONCE,
    ) -> None:
        self._callers = callers
        self._left = most
        each_once = {id(caller): caller for caller in callers.values()}.values()
        self.cites: Sequence[Cite] = [
            caller.cite for caller in each_once if isinstance(caller, Cites)
        ]
        self._budgets = budgets
        self._places = asyncio.Semaphore(at_once)
        self._found_nobody: Counter[tuple[str, str | None]] = Counter()

    def opening(self, delta: d.Delta) -> tuple[d.CallStart, d.Delta] | None:
        """Return the start of a call that is run here, and what opens its item."""
        if not isinstance(delta, d.CallStart) or delta.kind not in self._callers:
            return None
        return delta, self._callers[delta.kind].opening(delta)

    def step(self, start: d.CallStart) -> d.ToolProgress:
        return d.ToolProgress(self._callers[start.kind].step)

    def run(self, start: d.CallStart, arguments: str) -> Work:
        """Count the call, now, and return what runs it."""
        caller = self._callers[start.kind]
        refused = partial(caller.refused, start, arguments)
        if self._left is not None:
            self._left -= 1
        if self._left is not None and self._left < 0:
            return Work(_one(refused(NO_MORE)), refused)
        return Work(self._tried(caller, start, arguments), refused, self._places)

    @asynccontextmanager
    async def begun(self, work: Sequence[Work]) -> AsyncGenerator[Sequence[_Running]]:
        """Run all of it side by side; whoever leaves early stops it."""
        running = [_Running(each, self._budgets) for each in work]
        try:
            yield running
        finally:
            await asyncio.gather(*(each.stop() for each in running))

    async def _tried(self, caller: Caller, start: d.CallStart, arguments: str) -> Given:
        of = start.kind, start.namespace
        if self._found_nobody[of] >= MOST_FAILURES:
            yield caller.refused(start, arguments, GONE)
            return
        found_nobody = True  # where it raises, or its time is up
        try:
            ends: list[d.ToolEnd] = []
            async with aclosing(caller.call(start, arguments)) as given:
                async for batch in given:
                    ends += (each for each in batch if isinstance(each, d.ToolEnd))
                    yield batch
            found_nobody = any(map(caller.found_nobody, ends))
        finally:
            self._found_nobody[of] = self._found_nobody[of] + 1 if found_nobody else 0


class Sessions(ItemCaller):
    """The sessions with MCP servers of one response, by the server's label."""

    step = "calling"

    def __init__(self, servers: ToolServers | None, named: Sequence[McpTool]) -> None:
        self._servers = servers
        self._named = {server.server_label: server for server in named}
        self._open: dict[str, ToolSession] = {}

    async def aclose(self) -> None:
        """Close all of them, also where the response is cancelled meanwhile."""
        await to_the_end(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(session.aclose() for session in self._open.values()))

    def listing(self, label: str) -> Work:
        """Return what gives the end of the item that lists the server's tools."""
        return Work(self._listed(label), _not_listed)

    async def _listed(self, label: str) -> Given:
        try:
            yield [d.ToolEnd("completed", {"tools": await self._session(label).tools()})]
        except ToolServerError as error:
            yield _not_listed(str(error))

    def opening(self, start: d.CallStart) -> d.Delta:
        return start

    def found_nobody(self, end: d.ToolEnd) -> bool:
        return mcp.found_nobody(end.fields["error"])

    def refusal(self, why: str) -> d.ToolEnd:
        return _end(ToolResult(error={"type": "mcp_tool_execution_error", "content": why}))

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        label = start.namespace or ""
        if label not in self._named:
            return self.refusal(
                f"There is no MCP server labelled {label!r} among this request's tools."
            )
        try:
            given: Any = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return self.refusal("The arguments are not a JSON object.")
        return _end(await self._session(label).call(start.name, given))

    def _session(self, label: str) -> ToolSession:
        assert self._servers is not None, "no server is named where none can be called"
        if label not in self._open:
            self._open[label] = self._servers.session(self._named[label])
        return self._open[label]


def _not_listed(why: str) -> Sequence[d.Delta]:
    return [d.ToolEnd("failed", {"error": why})]


async def _one(batch: Sequence[d.Delta]) -> Given:
    yield batch


def _end(result: ToolResult) -> d.ToolEnd:
    status = "completed" if result.error is None else "failed"
    return d.ToolEnd(status, {"output": result.output, "error": result.error})


class OpeningTurn(ModelTurn):
    """`unlisted` are labels of servers, `approved` the requests of calls to run."""

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        unlisted: Sequence[str],
        approved: Sequence[i.McpApprovalRequest],
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._unlisted = unlisted
        self._approved = approved

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        first, *later = self._starts()
        # Written before anything is called: a run that has shown nothing may be begun again.
        yield first
        listings = [self._sessions.listing(label) for label in self._unlisted]
        calls = [
            self._calls.run(
                d.CallStart(each.name, namespace=each.server_label, kind="mcp"), each.arguments
            )
            for each in self._approved
        ]
        async with self._calls.begun([*listings, *calls]) as running:
            for each, following in zip(running, [*later, None], strict=True):
                async for given in each:
                    yield [*given]
                if following is not None:
                    yield following
        yield [d.TurnEnd("stop", TurnUsage())]

    def _starts(self) -> Sequence[list[d.Delta]]:
        listed: list[list[d.Delta]] = [
            [d.ToolStart("mcp_list_tools", {"server_label": label, "tools": ()})]
            for label in self._unlisted
        ]
        return [*listed, *map(_approved_call, self._approved)]

    async def aclose(self) -> None:
        pass

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [], []


def _approved_call(request: i.McpApprovalRequest) -> list[d.Delta]:
    fields = {
        "server_label": request.server_label,
        "name": request.name,
        "approval_request_id": request.id,
    }
    return [
        d.ToolStart("mcp_call", fields),
        d.ArgumentsDelta(request.arguments),
        d.ToolProgress("calling"),
    ]


class CallingTurn(ModelTurn):
    """What the model writes is passed on while it comes, until its first call is whole: the item
    stays open for the result, so what follows it waits. A turn that was cut runs nothing.
    """

    def __init__(self, inner: ModelTurn, calls: Calls) -> None:
        self._inner = inner
        self._calls = calls

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        held: list[d.Delta] = []
        calls: list[_Call] = []
        open_call: _Call | None = None
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                passed: list[d.Delta] = []
                for written in deltas:
                    delta = written
                    if isinstance(delta, d.ArgumentsDelta) and open_call is not None:
                        open_call.arguments += delta.text
                    elif open_call is not None:
                        open_call.ends_at = len(held)
                        open_call = None
                    if (opening := self._calls.opening(delta)) is not None:
                        start, delta = opening
                        open_call = _Call(start)
                        calls.append(open_call)
                    waits = calls[:1] and calls[0].ends_at is not None
                    (held if waits else passed).append(delta)
                if passed:
                    yield passed
        if not calls:
            return
        end = held[-1] if held else None
        if not isinstance(end, d.TurnEnd) or end.reason != "stop":
            yield held
            return
        work = [self._calls.run(call.start, call.arguments) for call in calls]
        async with self._calls.begun(work) as running:
            position = 0
            for call, each in zip(calls, running, strict=True):
                assert call.ends_at is not None
                yield [*held[position : call.ends_at], self._calls.step(call.start)]
                async for given in each:
                    yield [*given]
                position = call.ends_at
        yield held[position:]

    async def aclose(self) -> None:
        await self._inner.aclose()

    def became(self, items: Sequence[i.Item]) -> None:
        self._inner.became(items)

    def messages(self) -> tuple[list[Json], list[Json]]:
        return self._inner.messages()

    def used(self) -> Sequence[TurnUsage]:
        return self._inner.used()


class _Call:
    """A call as it is read; `ends_at` is where its result belongs among what was held back."""

    def __init__(self, start: d.CallStart) -> None:
        self.start = start
        self.arguments = ""
        self.ends_at: int | None = None


class _Running:
    """Work that is done within its budgets; what it gives waits until it is read."""

    def __init__(self, work: Work, budgets: Budgets) -> None:
        self._work = work
        self._budgets = budgets
        self._given: asyncio.Queue[Sequence[d.Delta] | None] = asyncio.Queue()
        self._gave = False
        self._task = asyncio.create_task(self._run())

    async def __aiter__(self) -> Given:
        while (batch := await self._given.get()) is not None:
            yield batch

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async with self._work.place:
                why = await self._done()
            if why is not None:
                # What has begun to give something is cut; else its item says why.
                self._given.put_nowait([d.ItemEnd()] if self._gave else self._work.refused(why))
        finally:
            self._given.put_nowait(None)

    async def _done(self) -> str | None:
        """Do the work in a task of its own, which might not heed being stopped. Returns what broke
        it."""
        doing = asyncio.create_task(self._do())
        try:
            in_time, _ = await asyncio.wait({doing}, timeout=self._budgets.call_s)
        finally:
            doing.cancel()
            _, stuck = await asyncio.wait({doing}, timeout=self._budgets.stopping_s)
            if stuck:
                logger.error("a call of a tool could not be stopped: %r", doing)
        if not in_time:
            return f"This call was stopped: it took more than {self._budgets.call_s:g} seconds."
        if doing.cancelled():
            logger.error("a call of a tool broke: it cancelled itself")
            return BROKEN
        return doing.result()

    async def _do(self) -> str | None:
        left = self._budgets.call_bytes
        try:
            async with aclosing(self._work.given) as given:
                async for batch in given:
                    left -= sum(len(msgspec.json.encode(each)) for each in batch)
                    if left < 0:
                        return f"This call gave more than {self._budgets.call_bytes} bytes."
                    self._gave = True
                    self._given.put_nowait(batch)
        except (Exception, SystemExit):  # whatever a tool raises: no tool ends the server
            logger.exception("a call of a tool broke")
            return BROKEN
        return None
