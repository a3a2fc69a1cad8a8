"""Tools of MCP servers, listed and called for one response (api_surface 7.18, 7.19).

OpeningTurn   before the model's first turn: servers are asked for their tools, and calls that
              the client approved of are run
CallingTurn   a turn of the model with the calls that it makes: they run side by side when the
              model has ended its turn, and their items come one after another, in its order
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from antiphon.application.ports import Json, ModelTurn, ToolResult, ToolServers, ToolSession
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import ToolServerError
from antiphon.domain.tools import McpTool
from antiphon.domain.usage import TurnUsage

NO_MORE = "This call was not run: the response has made the max_tool_calls that it may make."


class Sessions:
    """The sessions of one response, by the server's label, and how many calls are left."""

    def __init__(
        self, servers: ToolServers | None, named: Sequence[McpTool], most: int | None
    ) -> None:
        self._servers = servers
        self._named = {server.server_label: server for server in named}
        self._open: dict[str, ToolSession] = {}
        self._left = most

    async def aclose(self) -> None:
        await asyncio.gather(*(session.aclose() for session in self._open.values()))

    async def listing(self, label: str) -> d.ToolEnd:
        """Return the end of the item that lists the server's tools."""
        try:
            return d.ToolEnd("completed", {"tools": await self._session(label).tools()})
        except ToolServerError as error:
            return d.ToolEnd("failed", {"error": str(error)})

    def call(self, label: str, name: str, arguments: str) -> Awaitable[d.ToolEnd]:
        """Count the call, now, and return what runs it and gives the end of its item."""
        if self._left is not None:
            self._left -= 1
        if self._left is not None and self._left < 0:
            return _refused(NO_MORE)
        if label not in self._named:
            return _refused(
                f"There is no MCP server labelled {label!r} among this request's tools."
            )
        try:
            given: Any = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return _refused("The arguments are not a JSON object.")
        return _run(self._session(label), name, given)

    def _session(self, label: str) -> ToolSession:
        assert self._servers is not None, "no server is named where none can be called"
        if label not in self._open:
            self._open[label] = self._servers.session(self._named[label])
        return self._open[label]


async def _run(session: ToolSession, name: str, arguments: Json) -> d.ToolEnd:
    return _end(await session.call(name, arguments))


async def _refused(why: str) -> d.ToolEnd:
    return _end(ToolResult(error={"type": "mcp_tool_execution_error", "content": why}))


def _end(result: ToolResult) -> d.ToolEnd:
    status = "completed" if result.error is None else "failed"
    return d.ToolEnd(status, {"output": result.output, "error": result.error})


class OpeningTurn(ModelTurn):
    """`unlisted` are labels of servers, `approved` the requests of calls to run."""

    def __init__(
        self,
        sessions: Sessions,
        unlisted: Sequence[str],
        approved: Sequence[i.McpApprovalRequest],
    ) -> None:
        self._sessions = sessions
        self._unlisted = unlisted
        self._approved = approved

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        listings = [self._sessions.listing(label) for label in self._unlisted]
        calls = [
            self._sessions.call(each.server_label, each.name, each.arguments)
            for each in self._approved
        ]
        async with _begun([*listings, *calls]) as ends:
            for start, end in zip(self._starts(), ends, strict=True):
                yield start
                yield [await end]
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

    def __init__(self, inner: ModelTurn, sessions: Sessions) -> None:
        self._inner = inner
        self._sessions = sessions

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        held: list[d.Delta] = []
        calls: list[_Call] = []
        open_call: _Call | None = None
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                passed: list[d.Delta] = []
                for delta in deltas:
                    if isinstance(delta, d.ArgumentsDelta) and open_call is not None:
                        open_call.arguments += delta.text
                    elif open_call is not None:
                        open_call.ends_at = len(held)
                        open_call = None
                    if isinstance(delta, d.CallStart) and delta.kind == "mcp":
                        open_call = _Call(delta)
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
        running = [self._sessions.call(*call.what) for call in calls]
        async with _begun(running) as ends:
            position = 0
            for call, result in zip(calls, ends, strict=True):
                assert call.ends_at is not None
                yield [*held[position : call.ends_at], d.ToolProgress("calling")]
                yield [await result]
                position = call.ends_at
        yield held[position:]

    async def aclose(self) -> None:
        await self._inner.aclose()

    def messages(self) -> tuple[list[Json], list[Json]]:
        return self._inner.messages()


class _Call:
    """A call as it is read; `ends_at` is where its result belongs among what was held back."""

    def __init__(self, start: d.CallStart) -> None:
        self._start = start
        self.arguments = ""
        self.ends_at: int | None = None

    @property
    def what(self) -> tuple[str, str, str]:
        return self._start.namespace or "", self._start.name, self.arguments


@asynccontextmanager
async def _begun(
    work: Sequence[Awaitable[d.ToolEnd]],
) -> AsyncGenerator[Sequence[asyncio.Future[d.ToolEnd]]]:
    """Run all of it side by side; whoever leaves early stops it."""
    running = [asyncio.ensure_future(each) for each in work]
    try:
        yield running
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
