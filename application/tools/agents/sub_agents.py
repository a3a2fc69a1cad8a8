"""The sub-agents of one response: the calls with which its model directs them, and its messages.

Each sub-agent is a response of its own (docs/decisions/0154). What this response shows of it comes
with the output of a call, or with the turn that waits at the end for those that still work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec
from msgspec import Raw, Struct

from antiphon.application.input.submission import AgentPlace, Submission
from antiphon.application.ports import NewId
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.tools.agents.children import (
    AGENT_MESSAGE,
    POLL_S,
    Children,
    SubAgent,
)
from antiphon.application.tools.agents.client_outputs import ClientOutputs
from antiphon.application.tools.agents.registry import AgentLimits, AgentRegistry, TreeIsFull
from antiphon.application.tools.agents.requests import forked, submission_of_child, task_message
from antiphon.application.tools.agents.runs import AgentRuns
from antiphon.application.tools.agents.token_shares import TokenShares
from antiphon.application.tools.calls import Recall, ToolCaller
from antiphon.application.tools.work import INTERNAL_ERROR, WorkOutput
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.errors import NotFound, RequestError, ServerShuttingDown, StoreError
from antiphon.domain.history import agents as h
from antiphon.domain.history.conversation import Entry, entry
from antiphon.domain.json import Json
from antiphon.domain.kinds.agent_message import message_fields
from antiphon.domain.kinds.multi_agent import (
    FollowupTask,
    InterruptAgent,
    SendMessage,
    SpawnAgent,
    WaitAgent,
    output_fields,
    parse_action,
)
from antiphon.domain.responses.response import TERMINAL
from antiphon.domain.responses.traces import TracedDelta, from_traced, to_traced

logger = logging.getLogger("antiphon.agents")

LOOKS_ABOVE = 5
"""How often an unknown agent is looked for in the log of the response above."""

STARTING_S = 30.0
"""How long one is looked for that the response above may be about to start."""

PARENT_POLL_S = 1.0
"""The longest time that a sub-agent works on after the response that started it has ended."""

CALL_MARGIN_S = 5.0
"""A wait ends so long before the time limit of a call."""

RETRY_S = 1.0

DEFAULT_CONCURRENT = 3
"""`max_concurrent_subagents` of a request that does not set it."""


class CannotAct(Exception):
    """A call that does nothing; the message tells the model why."""


class AgentTools(Struct, frozen=True, kw_only=True):
    """The parts of the server that sub-agents need; `call_s` limits the time of a call."""

    runs: AgentRuns
    registry: AgentRegistry
    limits: AgentLimits
    new_id: NewId
    call_s: float


class SubAgents(ToolCaller):
    """The sub-agents of one response, whose agent is `name`. It runs all calls of its turns that
    direct them, one after another, in the order in which the model wrote them."""

    step = "running"

    def __init__(
        self,
        tools: AgentTools,
        submission: Submission,
        conversation: Sequence[Entry],
        recorder: RunRecorder,
    ) -> None:
        assert submission.agent_name is not None
        self.name = submission.agent_name
        self._tools = tools
        self._submission = submission
        self._tenant = submission.caller.tenant
        self._place = submission.agent
        self._conversation = conversation
        self._recorder = recorder
        self._children = Children(
            tools.runs,
            tenant=self._tenant,
            parent=self.name,
            parent_id=submission.response_id,
        )
        self.shares = TokenShares(
            tools.runs, self._tenant, self._children, submission.request.max_output_tokens
        )
        self._output: Sequence[i.AnyItem] = ()
        self.client_outputs = ClientOutputs(
            submission.injections,
            self._children,
            tools.new_id,
            conversation,
            lambda: self._output,
            self._continue,
        )
        self._order: dict[str, asyncio.Event] = {}
        self._waiting_call: d.CallStart | None = None
        self._mail_number = -1
        items = [each.item for each in conversation]
        self._known_messages = {item.id for item in items if isinstance(item, i.AgentMessage)}
        self._count_tokens: Callable[[], int] = lambda: 0
        for owner in h.owners_of(items) if h.has_agents(items) else ():
            if (child := h.child_above(owner, self.name)) is not None:
                self._children.add_known(child)
        recorder.note_place(self.name, self._place.parent_id if self._place else "")

    @property
    def are_active(self) -> bool:
        return bool(self._children.active)

    # --- the life of the response -----------------------------------------------------------------

    @asynccontextmanager
    async def running(
        self, output: Sequence[i.AnyItem], count_tokens: Callable[[], int]
    ) -> AsyncGenerator[None]:
        """Run the response in this block; `output` grows with it, and `count_tokens` returns the
        output tokens of its own that it has so far.

        The sub-agents go on whose calls the client has answered. The response of a sub-agent is
        cancelled if the one that started it has ended. Raises: RequestError, StoreError.
        """
        self._output, self._count_tokens = output, count_tokens
        watch = None if self._place is None else asyncio.create_task(self._watch(self._place))
        try:
            await self._go_on()
            yield
        finally:
            if watch is not None:
                watch.cancel()

    async def _go_on(self) -> None:
        names = self._answered_children()
        for number, name in enumerate(names):
            response_id = self._children.id_of(f"goes on: {name}")
            items = h.entries_under(self._conversation, name)
            await self._continue(name, response_id, items, among=len(names) - number + 1)
            self._note_start(name, response_id)

    def _answered_children(self) -> list[str]:
        """Return the sub-agents that go on at once, beside the first turn of this agent."""
        items = [each.item for each in self._conversation]
        return [*h.answered_children(items, self.name)] if h.has_agents(items) else []

    def first_share(self, max_tokens: int) -> int:
        """Return the tokens that the first turn may have of these."""
        return max(1, max_tokens // (1 + len(self._answered_children())))

    async def _watch(self, place: AgentPlace) -> None:
        """Cancel this run when the response that started it has ended: nobody needs it then."""
        while True:
            try:
                parent = await self._tools.runs.get(self._tenant, place.parent_id)
                has_ended = parent.status in TERMINAL
            except NotFound:
                has_ended = True
            except StoreError:
                has_ended = False
            if has_ended:
                self._tools.runs.cancel_here(self._submission.response_id)
                return
            await asyncio.sleep(PARENT_POLL_S)

    async def read_messages(self, recall: Recall) -> list[i.AnyItem]:
        """Return the messages to this agent from above that it has not seen."""
        if self._place is None:
            return []
        found: list[Json] = await recall(self._read_mail)
        messages = [msgspec.convert(each, i.AgentMessage) for each in found]
        self._known_messages |= {message.id for message in messages}
        return [*messages]

    async def _read_mail(self) -> list[Json]:
        """Return what the log of the response above has for this agent."""
        assert self._place is not None
        try:
            events = await self._tools.runs.read(
                self._tenant, self._place.parent_id, self._mail_number
            )
        except NotFound:
            return []  # it was deleted, and this run will be cancelled
        found: list[Json] = []
        for event in events:
            self._mail_number = event.sequence_number
            if not isinstance(event, e.ItemDone) or not isinstance(event.item, i.AgentMessage):
                continue
            if event.item.recipient == self.name and event.item.id not in self._known_messages:
                self._known_messages.add(event.item.id)
                found.append(msgspec.to_builtins(event.item))
        return found

    async def join(self, recall: Recall) -> AsyncGenerator[list[d.Delta]]:
        """Yield what sub-agents still write, until none of them works."""
        while self.are_active:
            traced: Sequence[TracedDelta] = await recall(self._read_next)
            yield self._note_read([*map(from_traced, traced)])

    async def await_client(self, recall: Recall) -> AsyncGenerator[list[d.Delta]]:
        """Yield the outputs that the client injects, and what sub-agents do meanwhile."""
        async with aclosing(self.client_outputs.read(recall)) as batches:
            async for deltas in batches:
                yield self._note_read(deltas)

    def _note_read(self, deltas: list[d.Delta]) -> list[d.Delta]:
        self._children.note(deltas)
        self._record()
        return deltas

    async def _read_next(self) -> list[TracedDelta]:
        while not (deltas := await self._children.read()):
            await self._children.wait(POLL_S)
        return [*map(to_traced, deltas)]

    # --- calls ------------------------------------------------------------------------------------

    def open_item(self, start: d.CallStart) -> d.Delta:
        call_id = start.call_id
        if not call_id or call_id in self._order:  # the ids of what it starts follow from it
            call_id = self._tools.new_id("call")
        self._order[call_id] = asyncio.Event()
        return d.HostedCallStart(start.name, call_id, start.namespace, start.kind)

    def reopen_item(self, start: d.CallStart, opening: d.Delta) -> d.Delta:  # noqa: ARG002
        assert isinstance(opening, d.HostedCallStart)
        self._order[str(opening.call_id)] = asyncio.Event()
        return opening

    async def may_repeat(self, start: d.CallStart, arguments: str) -> bool:  # noqa: ARG002
        return True  # it finds the sub-agent that it has started

    @property
    def goes_on(self) -> bool:
        return True

    def restore(self, start: d.CallStart, arguments: str, output: Sequence[d.Delta]) -> None:  # noqa: ARG002
        self._note(start, output)

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:  # noqa: ARG002
        self._order[str(start.call_id)].set()
        return _output(start, reason)

    def abort(self, reason: str) -> Sequence[d.Delta]:
        start, self._waiting_call = self._waiting_call, None
        return [d.ItemEnd()] if start is None else _output(start, reason)

    async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
        call_id = str(start.call_id)
        if self._order[call_id].is_set():
            return  # another server has had all of its output, and not recorded its end
        for earlier, has_ended in self._order.items():
            if earlier == call_id:
                break
            await has_ended.wait()
        self._waiting_call = start
        try:
            async for batch in self._run(start, arguments):
                self._note(start, batch)
                yield batch
            self._waiting_call = None
        finally:
            self._order[call_id].set()

    async def _run(self, start: d.CallStart, arguments: str) -> WorkOutput:
        try:
            match parse_action(start.kind, arguments):
                case SpawnAgent() as spawn:
                    yield await self._spawn(start, spawn)
                case SendMessage(target=target, message=message):
                    yield self._send(start, await self._find(target), message)
                case FollowupTask() as task:
                    yield await self._follow_up(start, task)
                case WaitAgent(timeout_ms=timeout_ms):
                    async for batch in self._wait(start, timeout_ms / 1000):
                        yield batch
                case InterruptAgent(target=target):
                    yield await self._interrupt(start, self._find_child(target))
                case _:
                    if batch := await self._children.read():
                        yield batch
                    yield _output(start, _to_text({"agents": self._list()}))
        except (CannotAct, TreeIsFull, ValueError) as error:
            yield _output(start, str(error))
        except RequestError as error:
            yield _output(start, f"The agent could not be started: {error.message}")
        except StoreError:
            logger.exception("response %s: a call of a sub-agent", self._submission.response_id)
            yield _output(start, INTERNAL_ERROR)

    async def _spawn(self, start: d.CallStart, spawn: SpawnAgent) -> Sequence[d.Delta]:
        name = f"{self.name}/{spawn.task_name}"
        limits = self._tools.limits
        if name in self._children.by_name:
            raise CannotAct(
                f"There is an agent {name} already: use followup_task, or another name."
            )
        if h.depth_of(name) > limits.depth:
            raise CannotAct(f"Agents may be at most {limits.depth} deep; do the work yourself.")
        context = forked(self._own_items(), spawn.fork_turns, name)
        result = _to_text({"task_name": name})
        return await self._give_task(start, name, spawn.message, context, result)

    async def _follow_up(self, start: d.CallStart, task: FollowupTask) -> Sequence[d.Delta]:
        child = self._find_child(task.target)
        if child.status == "running":
            return self._send(start, child.name, task.message)
        entries = [*self._conversation, *map(entry, self._output)]
        context = [each.raw for each in h.entries_under(entries, child.name)]
        result = _to_text({"task_name": child.name})
        return await self._give_task(start, child.name, task.message, context, result)

    async def _give_task(
        self,
        start: d.CallStart,
        name: str,
        task: str,
        context: Sequence[Raw],
        result: str,
    ) -> Sequence[d.Delta]:
        response_id = self._children.id_of(str(start.call_id))
        task_id = self._children.task_id(response_id)
        message = task_message(self.name, name, task, id=task_id)
        await self._start(name, response_id, [*context, message.raw])
        fields = message_fields(self.name, name, task, sender=self.name, id=task_id)
        return [*_output(start, result), d.ToolStart(AGENT_MESSAGE, fields), d.ToolEnd()]

    def _send(self, start: d.CallStart, target: str, text: str) -> Sequence[d.Delta]:
        # The log that the message comes into is what the other one reads.
        fields = message_fields(self.name, target, text, sender=self.name)
        result = _to_text({"message": f"Sent to {target}."})
        return [*_output(start, result), d.ToolStart(AGENT_MESSAGE, fields), d.ToolEnd()]

    async def _wait(self, start: d.CallStart, limit_s: float) -> WorkOutput:
        now = asyncio.get_running_loop().time
        end_at = now() + min(limit_s, max(self._tools.call_s - CALL_MARGIN_S, 0))
        while True:
            if batch := await self._children.read():
                yield batch
            remaining_s = end_at - now()
            if self._children.has_news or not self.are_active or remaining_s <= 0:
                break
            await self._children.wait(min(POLL_S, remaining_s))
        timed_out = self.are_active and not self._children.has_news
        message = "The time is up." if timed_out else "Nothing else will come."
        if self._children.has_news:
            message = "There is news."
        result = {"message": message, "timed_out": timed_out, "agents": self._list()}
        yield _output(start, _to_text(result))

    async def _interrupt(self, start: d.CallStart, child: SubAgent) -> Sequence[d.Delta]:
        status = child.status
        batch: list[d.Delta] = []
        if status == "running":
            await self._children.interrupt(child)
            batch = await self._children.read()
        return [*batch, *_output(start, _to_text({"previous_status": status}))]

    # --- which agent is meant ---------------------------------------------------------------------

    def _find_child(self, target: str) -> SubAgent:
        """Raises: CannotAct if this agent has started no agent of that name."""
        name = target if target.startswith("/") else f"{self.name}/{target}"
        child = self._children.by_name.get(name)
        if child is None:
            raise CannotAct(f"You have started no agent {name[:200]!r}. {self._known_agents()}")
        return child

    async def _find(self, target: str) -> str:
        """Return the name of any other agent of the tree. Raises: CannotAct, StoreError."""
        below = (*self._children.by_name, *self._children.names_below)
        name = target if target.startswith("/") else f"{self.name}/{target}"
        if name in below or (name != self.name and h.is_under(self.name, name)):
            return name
        if self._place is not None and not target.startswith("/"):
            name = f"{h.parent_of(self.name)}/{target}"
        if self._place is not None and name != self.name and await self._is_above(name):
            return name
        raise CannotAct(f"There is no agent {target[:200]!r}. {self._known_agents()}")

    async def _is_above(self, name: str) -> bool:
        """Return whether the response above has given this agent a task.

        Agents that start together may run before the log above says so; long before, if the server
        of that response was killed meanwhile.
        """
        assert self._place is not None
        now = asyncio.get_running_loop().time
        end_at = now() + min(STARTING_S, self._tools.call_s - CALL_MARGIN_S)
        items: list[i.AnyItem] = []
        number, looks = -1, 0
        while looks < LOOKS_ABOVE or (h.is_starting(items, self.name) and now() < end_at):
            try:
                events = await self._tools.runs.read(self._tenant, self._place.parent_id, number)
            except NotFound:
                return False
            number = events[-1].sequence_number if events else number
            items += (event.item for event in events if isinstance(event, e.ItemDone))
            if any(isinstance(each, i.AgentMessage) and each.recipient == name for each in items):
                return True
            looks += 1
            await asyncio.sleep(POLL_S)
        return False

    def _known_agents(self) -> str:
        names = ", ".join(self._children.by_name) or "none"
        return f"You have started: {names}."

    def _list(self) -> list[Json]:
        children = self._children
        listed: list[Json] = [
            {"agent_name": child.name, "agent_status": child.status, "last_task_message": task}
            for child in children.by_name.values()
            for task in (child.task or children.names_below.get(child.name, ""),)
        ]
        listed += [
            {"agent_name": name, "last_task_message": task}
            for name, task in children.names_below.items()
            if name not in children.by_name
        ]
        return listed

    # --- what is kept -----------------------------------------------------------------------------

    async def _continue(
        self, name: str, response_id: str, entries: Iterable[Entry], *, among: int | None = None
    ) -> None:
        """Let a sub-agent go on with what it knows. Raises: RequestError, StoreError."""
        items = [each.raw for each in entries]
        try:
            await self._start(name, response_id, items, goes_on=True, among=among)
        except (TreeIsFull, CannotAct) as error:
            raise RequestError(str(error), param="multi_agent") from None

    async def _start(
        self,
        name: str,
        response_id: str,
        items: Sequence[Raw],
        *,
        goes_on: bool = False,
        among: int | None = None,
    ) -> None:
        """Start a sub-agent's response, which shares what is left of the output tokens with this
        one and all that may start beside it: `among` counts them.

        Raises: CannotAct, TreeIsFull, RequestError, StoreError.
        """
        if among is None:
            among = 1 + max(1, self._max_concurrent - len(self._children.active))
        share = await self.shares.next(self._count_tokens(), among=among)
        if share is not None and share < 1:
            raise CannotAct("The response has no output tokens left for another agent.")
        place = AgentPlace(
            name=name,
            parent_id=self._submission.response_id,
            root_id=self._place.root_id if self._place else self._submission.response_id,
        )
        child = submission_of_child(
            self._submission, place, response_id, items, max_output_tokens=share
        )
        await self._tools.registry.add(
            self._tenant,
            place.root_id,
            response_id,
            self._is_active,
            total=self._tools.limits.total,
            concurrent=None if goes_on else self._max_concurrent,
        )
        while True:
            try:
                await self._tools.runs.start(child)
                return await self.shares.note(response_id)
            except ServerShuttingDown:  # this run is given back, and starts it on another server
                await asyncio.sleep(RETRY_S)

    @property
    def _max_concurrent(self) -> int:
        params = self._submission.request.multi_agent
        wanted = None if params is None else params.max_concurrent_subagents
        return min(wanted or DEFAULT_CONCURRENT, self._tools.limits.concurrent)

    async def _is_active(self, response_id: str) -> bool:
        try:
            response = await self._tools.runs.get(self._tenant, response_id)
        except NotFound:
            return False
        return response.status not in TERMINAL

    def _own_items(self) -> list[i.AnyItem]:
        items = [*(each.item for each in self._conversation), *self._output]
        return h.own_items(items, self.name)

    def _note(self, start: d.CallStart, batch: Sequence[d.Delta]) -> None:
        """Note the output of a call, also of one that another server has run."""
        response_id = self._children.id_of(str(start.call_id))
        task_id = self._children.task_id(response_id)
        for delta in batch:
            if isinstance(delta, d.ToolStart) and delta.fields.get("id") == task_id:
                self._note_start(str(delta.fields["recipient"]), response_id)
            if isinstance(delta, d.ToolStart) and delta.kind == "multi_agent_call_output":
                self._order[str(start.call_id)].set()
                if start.kind == "wait_agent":
                    self._children.has_news = False
        self._children.note(batch)
        self._record()

    def _note_start(self, name: str, response_id: str) -> None:
        if self._children.by_name.get(name, _NOBODY).response_id != response_id:
            self._children.start(name, response_id)
        self._record()

    def _record(self) -> None:
        self._recorder.note_agents(self._children.metrics)


_NOBODY = SubAgent(name="", response_id="", status="deleted")


def _output(start: d.CallStart, text: str) -> list[d.Delta]:
    fields = output_fields(str(start.call_id), start.kind, text)
    return [d.ToolStart("multi_agent_call_output", fields), d.ToolEnd()]


def _to_text(result: Json) -> str:
    return msgspec.json.encode(result).decode()
