"""Tools that this server runs, listed and called for one response (api_surface 7.18, 7.19).

Caller        runs the calls of one kind of tool
Calls         the callers of a response, and how many calls there may be
OpeningTurn   before the model's first turn: servers are asked for their tools, and calls that
              the client approved of are run, if their tools are still what it was told of
CallingTurn   a turn of the model with the calls that it makes: they run side by side when the
              model has ended its turn, and their items come one after another, in its order
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
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


Tools = Sequence[Json] | ToolServerError
"""What a server offers, or why that is not known."""

Lists = Mapping[str, Tools]
"""By the servers' labels."""


class Caller(Protocol):
    """Runs the calls of one kind of tool."""

    step: str
    """What the item of a call is doing while it runs (ToolProgress)."""

    def opening(self, start: d.CallStart) -> d.Delta:
        """Return the delta that opens the item of a call; a CallStart is the start from then on."""

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
        opens = self._callers[delta.kind].opening(delta)
        return (opens if isinstance(opens, d.CallStart) else delta), opens

    def step(self, start: d.CallStart) -> d.ToolProgress:
        return d.ToolProgress(self._callers[start.kind].step)

    def run(self, start: d.CallStart, arguments: str) -> Work:
        """Count the call, now, and return what runs it."""
        caller = self._callers[start.kind]
        refused = partial(caller.refused, start, arguments)
        if self._left is not None:
            self._left -= 1
        if self._left is not None and self._left < 0:
            return _done(refused(NO_MORE))
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
        return Work(self._listing(label), _not_listed)

    async def _listing(self, label: str) -> Given:
        yield [_listed(await _or_failure(self._session(label).tools()))]

    async def lists(self, labels: Iterable[str]) -> Lists:
        """Return what the servers offer now, of those that this request names."""
        known = [label for label in dict.fromkeys(labels) if label in self._named]
        tools = [self._session(label).tools() for label in known]
        found = await asyncio.gather(*map(_or_failure, tools))
        return dict(zip(known, found, strict=True))

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


def _not_listed(why: str) -> Sequence[d.ToolEnd]:
    return [d.ToolEnd("failed", {"error": why})]


def _done(batch: Sequence[d.Delta]) -> Work:
    """Return work that is done already."""
    return Work(_one(batch), lambda _: batch)


async def _one(batch: Sequence[d.Delta]) -> Given:
    yield batch


async def _or_failure(tools: Awaitable[Sequence[Json]]) -> Tools:
    try:
        return await tools
    except ToolServerError as error:
        return error


def _listed(tools: Tools) -> d.ToolEnd:
    if isinstance(tools, ToolServerError):
        return _not_listed(str(tools))[0]
    return d.ToolEnd("completed", {"tools": tools})


def _end(result: ToolResult) -> d.ToolEnd:
    status = "completed" if result.error is None else "failed"
    return d.ToolEnd(status, {"output": result.output, "error": result.error})


class OpeningTurn(ModelTurn):
    """`unlisted` are labels of servers, `approved` the calls to run.

    A tool that was listed otherwise when the client was asked is another tool: it is listed anew,
    and the client is asked again.
    """

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        unlisted: Sequence[str],
        approved: Sequence[mcp.Approved],
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._unlisted = unlisted
        self._approved = approved

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        now = await self._sessions.lists(
            each.request.server_label for each in self._approved if each.definition is not None
        )
        starts, work = zip(*self._items(now), strict=True)
        # Written before anything is called: a run that has shown nothing may be begun again.
        yield starts[0]
        async with self._calls.begun(work) as running:
            for each, following in zip(running, [*starts[1:], None], strict=True):
                async for given in each:
                    yield [*given]
                if following is not None:
                    yield following
        yield [d.TurnEnd("stop", TurnUsage())]

    def _items(self, now: Lists) -> Iterator[tuple[list[d.Delta], Work]]:
        """Yield what opens each item, and what ends it."""
        for label in self._unlisted:
            yield _list_of(label), self._sessions.listing(label)
        changed: dict[str, list[i.McpApprovalRequest]] = {}
        for each in self._approved:
            label = each.request.server_label
            tools = now.get(label)
            if isinstance(tools, Sequence) and each.has_changed(tools):
                changed.setdefault(label, []).append(each.request)
            else:
                yield _approved_call(each.request), self._run(each.request, tools)
        for label, requests in changed.items():
            if label not in self._unlisted:
                yield _list_of(label), _done([_listed(now[label])])
            for request in requests:
                start = d.CallStart(request.name, namespace=label, kind="mcp_approval")
                yield [start], _done([d.ArgumentsDelta(request.arguments), d.ItemEnd()])

    def _run(self, request: i.McpApprovalRequest, tools: Tools | None) -> Work:
        if isinstance(tools, ToolServerError):
            return _done([self._sessions.refusal(str(tools))])
        if tools is not None and mcp.named(request.name, tools) is None:
            why = f"The server has no tool {request.name!r} any more."
            return _done([self._sessions.refusal(why)])
        start = d.CallStart(request.name, namespace=request.server_label, kind="mcp")
        return self._calls.run(start, request.arguments)

    async def aclose(self) -> None:
        pass

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [], []


def _list_of(label: str) -> list[d.Delta]:
    return [d.ToolStart("mcp_list_tools", {"server_label": label, "tools": ()})]


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
