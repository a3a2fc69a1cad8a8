"""The MCP servers of one response: list their tools and call them
(docs/reference/api.md#mcp-servers).

OpenMcpSessions  makes the McpSessions of each response
McpSessions  a session with each server, and the caller of their tools
McpTurn      what comes before the model's first turn: servers list their tools, and the calls that
             the client approved run, unless their tools have changed since the client was asked
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial

import msgspec
from msgspec.structs import replace

from antiphon.application.ports import (
    Json,
    ModelTurn,
    ToolResult,
    ToolServers,
    ToolSession,
    TurnFacts,
)
from antiphon.application.support.tasks import run_to_completion
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.application.tools.calls import SingleItemCaller, ToolCalls
from antiphon.application.tools.work import Work, WorkOutput, to_finished_work
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import ToolServerError
from antiphon.domain.offers import mcp
from antiphon.domain.responses.guards import Refuse
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.tools import McpTool, parse_arguments

logger = logging.getLogger("antiphon.tools")

Listed = mcp.Listing | ToolServerError
"""What a server offers, or the error that its listing ended with."""

ListedByLabel = Mapping[str, Listed]
"""What servers offer, by the server's label."""


class OpenMcpSessions:
    """Makes the sessions of each response, with the servers that operators and requests name."""

    def __init__(self, servers: ToolServers | None, answers: ApprovalAnswers) -> None:
        self._servers = servers
        self._answers = answers

    def __call__(
        self, tenant: str, response_id: str, request_tools: Sequence[McpTool]
    ) -> McpSessions:
        use_approvals = partial(self._answers.use, tenant, response_id)
        return McpSessions(self._servers, request_tools, use_approvals)


class McpSessions(SingleItemCaller):
    """The sessions with the MCP servers of one response, by the server's label.

    `use_approvals` returns which of some approvals are used up.
    """

    step = "calling"

    def __init__(
        self,
        servers: ToolServers | None,
        request_tools: Sequence[McpTool],
        use_approvals: Callable[[Sequence[str]], Awaitable[Sequence[str]]],
    ) -> None:
        self._servers = servers
        self.use_approvals = use_approvals
        self._tools_by_label = {tool.server_label: tool for tool in request_tools}
        self._sessions: dict[str, ToolSession] = {}

    async def aclose(self) -> None:
        """Close all sessions, even if the response is cancelled meanwhile."""
        if self._sessions:
            await run_to_completion(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(session.aclose() for session in self._sessions.values()))

    def server(self, label: str) -> McpTool:
        return self._tools_by_label[label]

    def list_tools(self, label: str) -> Work:
        """Return the work that ends the item with the server's list of tools."""
        return Work(self._list(label), _refuse_listing)

    async def _list(self, label: str) -> WorkOutput:
        yield [_to_listing_end(await _listing_of(self._session(label)))]

    async def listings(self, labels: Iterable[str]) -> ListedByLabel:
        """Ask the servers with these labels, if the request names them, for their tools."""
        known = [label for label in dict.fromkeys(labels) if label in self._tools_by_label]
        listed = await asyncio.gather(*(_listing_of(self._session(label)) for label in known))
        return dict(zip(known, listed, strict=True))

    def open_item(self, start: d.CallStart) -> d.Delta:
        return start

    def is_unreachable(self, end: d.ToolEnd) -> bool:
        return mcp.is_unreachable(end.fields["error"])

    async def may_repeat(self, start: d.CallStart, arguments: str) -> bool:  # noqa: ARG002
        label = start.namespace or ""
        if label not in self._tools_by_label:
            return False
        tool = _tool_named(start.name, await _listing_of(self._session(label)))
        return tool is not None and mcp.is_repeatable(tool)

    def refusal_of(self, reason: str) -> d.ToolEnd:
        return _to_call_end(
            ToolResult(error={"type": "mcp_tool_execution_error", "content": reason})
        )

    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        label = start.namespace or ""
        if label not in self._tools_by_label:
            return self.refusal_of(f"This request's tools include no MCP server labeled {label!r}.")
        if (parsed := parse_arguments(arguments)) is None:
            return self.refusal_of("The arguments are not a JSON object.")
        result = await self._session(label).call(start.name, parsed)
        if (cause := mcp.failure_cause(result.error)) is not None:
            logger.warning(f"a call at the MCP server %r failed: {cause}", label)
        return _to_call_end(result)

    def _session(self, label: str) -> ToolSession:
        assert self._servers is not None, "a request without tool servers cannot name one"
        if label not in self._sessions:
            self._sessions[label] = self._servers.session(self._tools_by_label[label])
        return self._sessions[label]


def _refuse_listing(reason: str) -> Sequence[d.ToolEnd]:
    return [d.ToolEnd("failed", {"error": reason})]


async def _listing_of(session: ToolSession) -> Listed:
    # `tools` is called here: a coroutine that a cancelled `gather` never starts warns about itself.
    try:
        tools = tuple(map(mcp.without_null_fields, await session.tools()))
        instructions = await session.instructions()
    except ToolServerError as error:
        return error
    return mcp.Listing(tools, instructions[: mcp.MAX_INSTRUCTIONS_CHARS])


def _tool_named(name: str, listed: Listed) -> Json | None:
    return None if isinstance(listed, ToolServerError) else mcp.tool_named(name, listed.tools)


def _to_listing_end(listed: Listed) -> d.ToolEnd:
    if isinstance(listed, ToolServerError):
        return _refuse_listing(str(listed))[0]
    told = {"instructions": listed.instructions} if listed.instructions else {}
    return d.ToolEnd("completed", {"tools": listed.tools, **told})


def _to_call_end(result: ToolResult) -> d.ToolEnd:
    status = "completed" if result.error is None else "failed"
    return d.ToolEnd(status, {"output": result.output, "error": result.error})


class McpTurn(ModelTurn):
    """Lists the tools of the servers with the labels `unlisted`, and runs the approved calls.

    A call is not run if its tool has changed since the client was asked: the tools are listed
    anew, and the client is asked again.
    """

    def __init__(
        self,
        sessions: McpSessions,
        calls: ToolCalls,
        unlisted: Sequence[str],
        approved_calls: Sequence[mcp.AnsweredCall],
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._unlisted = unlisted
        self._approved_calls = approved_calls
        self._refusals: Mapping[str, str] = {}

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        current = _from_json(await self._calls.recall(self._list_current))
        # A run that goes on elsewhere asks again, and gets the same answer.
        used = await self._use_approvals(current)
        self._approved_calls, self._refusals = await self._check_calls()
        openings, work_list = zip(*self._items(current, used), strict=True)
        # Yielded before anything is called: a run that has shown nothing may start over.
        yield openings[0]
        async with self._calls.run_in_parallel(work_list) as running:
            for work, next_opening in zip(running, [*openings[1:], None], strict=True):
                async for output in work:
                    yield [*output]
                if next_opening is not None:
                    yield next_opening
        yield [d.TurnEnd("stop", TurnUsage())]

    async def _check_calls(self) -> tuple[Sequence[mcp.AnsweredCall], Mapping[str, str]]:
        """Return the approved calls as guards let them pass, and why some are refused."""
        calls: list[mcp.AnsweredCall] = []
        refusals: dict[str, str] = {}
        for approved in self._approved_calls:
            request = approved.request
            answer = await self._calls.check(_start_of(request), request.arguments)
            if isinstance(answer, Refuse):
                refusals[str(request.id)] = answer.message
                answer = "{}"
            if answer != request.arguments:
                request = replace(request, arguments=answer)
            calls.append(replace(approved, request=request))
        return calls, refusals

    async def _list_current(self) -> Json:
        listed = await self._sessions.listings(
            approved.request.server_label
            for approved in self._approved_calls
            if approved.names_its_tool
        )
        return {
            label: str(each) if isinstance(each, ToolServerError) else msgspec.to_builtins(each)
            for label, each in listed.items()
        }

    async def _use_approvals(self, current: ListedByLabel) -> Sequence[str]:
        """Return the ids of the approvals that other responses have used.

        Older approvals, and those that a client made up, have ids that may not be unique.
        """
        ids = [
            str(approved.request.id)
            for approved in self._approved_calls
            if approved.key is not None and not self._has_changed(approved, current)
        ]
        return await self._sessions.use_approvals(ids) if ids else ()

    def _has_changed(self, approved: mcp.AnsweredCall, current: ListedByLabel) -> bool:
        listed = current.get(approved.request.server_label)
        if not isinstance(listed, mcp.Listing):
            return False
        server = self._sessions.server(approved.request.server_label)
        return approved.is_of_another_tool(server, listed.tools)

    def _items(
        self, current: ListedByLabel, used: Collection[str]
    ) -> Iterator[tuple[list[d.Delta], Work]]:
        """Yield the deltas that open each item, and the work that ends it."""
        for label in self._unlisted:
            work = self._sessions.list_tools(label)
            yield _open_listing(label), self._calls.record_listing(label, work)
        changed: dict[str, list[i.McpApprovalRequest]] = {}
        for approved in self._approved_calls:
            label = approved.request.server_label
            if self._has_changed(approved, current):
                changed.setdefault(label, []).append(approved.request)
            else:
                work = self._call(
                    approved.request,
                    current.get(label),
                    is_used=approved.request.id in used,
                )
                yield _open_approved_call(approved.request), work
        for label, requests in changed.items():
            if label not in self._unlisted:
                listing_end = _to_listing_end(current[label])
                yield _open_listing(label), to_finished_work([listing_end])
            for request in requests:
                key = self._approval_key(label, request.name, current[label])
                start = d.CallStart(
                    request.name, namespace=label, kind="mcp_approval", approval_key=key
                )
                self._calls.note_approval_request(start, request.arguments)
                end = [d.ArgumentsDelta(request.arguments), d.ItemEnd()]
                yield [start], to_finished_work(end)

    def _approval_key(self, label: str, name: str, listed: Listed) -> str | None:
        tool = _tool_named(name, listed)
        return mcp.approval_key(self._sessions.server(label), tool) if tool is not None else None

    def _call(self, request: i.McpApprovalRequest, listed: Listed | None, *, is_used: bool) -> Work:
        start = _start_of(request)
        reason = self._refusals.get(str(request.id))
        if is_used:
            reason = (
                "This approval was used in another response already: the call is not run again."
            )
        elif isinstance(listed, ToolServerError):
            reason = str(listed)
        elif listed is not None and _tool_named(request.name, listed) is None:
            reason = f"The server has no tool {request.name!r} any more."
        if reason is not None:
            refusal = [self._sessions.refusal_of(reason)]
            return self._calls.refuse(start, request.arguments, refusal)
        return self._calls.run(start, request.arguments)

    async def aclose(self) -> None:
        pass

    def facts(self) -> TurnFacts:
        return TurnFacts(kind="tools")

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [], []


def _from_json(listed: Json) -> ListedByLabel:
    return {
        label: ToolServerError(each)
        if isinstance(each, str)
        else msgspec.convert(each, mcp.Listing)
        for label, each in listed.items()
    }


def _start_of(request: i.McpApprovalRequest) -> d.CallStart:
    return d.CallStart(request.name, namespace=request.server_label, kind="mcp")


def _open_listing(label: str) -> list[d.Delta]:
    return [d.ToolStart("mcp_list_tools", {"server_label": label, "tools": ()})]


def _open_approved_call(request: i.McpApprovalRequest) -> list[d.Delta]:
    fields = {
        "server_label": request.server_label,
        "name": request.name,
        "approval_request_id": request.id,
        **({"caller": request.caller} if request.caller else {}),
    }
    return [
        d.ToolStart("mcp_call", fields),
        d.ArgumentsDelta(request.arguments),
        d.ToolProgress("calling"),
    ]
