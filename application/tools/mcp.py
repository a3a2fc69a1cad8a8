"""MCP servers of one response: their tools are listed, and called
(docs/reference/api.md#mcp-servers).

Sessions      a session with each server, and the caller of their tools
McpTurn   before the model's first turn: servers are asked for their tools, and calls that
              the client approved of are run, if their tools are still what it was told of
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence

from antiphon.application.ports import Json, ModelTurn, ToolResult, ToolServers, ToolSession
from antiphon.application.support.tasks import run_to_completion
from antiphon.application.tools.calls import SingleItemCaller, ToolCalls
from antiphon.application.tools.work import Given, Work, has_ended
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain import mcp
from antiphon.domain.errors import ToolServerError
from antiphon.domain.tools import McpTool, parse_arguments
from antiphon.domain.usage import TurnUsage

Tools = Sequence[Json] | ToolServerError
"""What a server offers, or why that is not known."""

Lists = Mapping[str, Tools]
"""By the servers' labels."""


class McpSessions(SingleItemCaller):
    """The sessions with MCP servers of one response, by the server's label."""

    step = "calling"

    def __init__(self, servers: ToolServers | None, named: Sequence[McpTool]) -> None:
        self._servers = servers
        self._named = {server.server_label: server for server in named}
        self._open: dict[str, ToolSession] = {}

    async def aclose(self) -> None:
        """Close all of them, also where the response is cancelled meanwhile."""
        await run_to_completion(self._close())

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

    def open_item(self, start: d.CallStart) -> d.Delta:
        return start

    def is_unreachable(self, end: d.ToolEnd) -> bool:
        return mcp.is_unreachable(end.fields["error"])

    def refusal(self, why: str) -> d.ToolEnd:
        return _end(ToolResult(error={"type": "mcp_tool_execution_error", "content": why}))

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        label = start.namespace or ""
        if label not in self._named:
            return self.refusal(
                f"There is no MCP server labelled {label!r} among this request's tools."
            )
        if (asked := parse_arguments(arguments)) is None:
            return self.refusal("The arguments are not a JSON object.")
        return _end(await self._session(label).call(start.name, asked))

    def _session(self, label: str) -> ToolSession:
        assert self._servers is not None, "no server is named where none can be called"
        if label not in self._open:
            self._open[label] = self._servers.session(self._named[label])
        return self._open[label]


def _not_listed(why: str) -> Sequence[d.ToolEnd]:
    return [d.ToolEnd("failed", {"error": why})]


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


class McpTurn(ModelTurn):
    """`unlisted` are labels of servers, `approved_calls` the calls to run.

    A tool that was listed otherwise when the client was asked is another tool: it is listed anew,
    and the client is asked again.
    """

    def __init__(
        self,
        sessions: McpSessions,
        calls: ToolCalls,
        unlisted: Sequence[str],
        approved_calls: Sequence[mcp.ApprovedCall],
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._unlisted = unlisted
        self._approved = approved_calls

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
                yield _list_of(label), has_ended([_listed(now[label])])
            for request in requests:
                start = d.CallStart(request.name, namespace=label, kind="mcp_approval")
                yield [start], has_ended([d.ArgumentsDelta(request.arguments), d.ItemEnd()])

    def _run(self, request: i.McpApprovalRequest, tools: Tools | None) -> Work:
        if isinstance(tools, ToolServerError):
            return has_ended([self._sessions.refusal(str(tools))])
        if tools is not None and mcp.tool_named(request.name, tools) is None:
            why = f"The server has no tool {request.name!r} any more."
            return has_ended([self._sessions.refusal(why)])
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
