"""The sub-agents of one response, and what is new of them.

The log of a sub-agent's response is all that is read of it: its items, in which its own sub-agents'
are, and its end. What is read becomes deltas, which the run records. `note` is told of all of them,
also of those that another server has read, so the state here follows from the deltas alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.application.tools.agents.runs import AgentRuns, derived_id
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.builders.copied import join_deltas
from antiphon.domain.errors import NotFound
from antiphon.domain.history.agents import agent_of, open_calls
from antiphon.domain.json import Json
from antiphon.domain.kinds.agent_message import message_fields, to_text
from antiphon.domain.responses.metrics import AgentMetrics
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.usage import TurnUsage

AGENT_MESSAGE = "agent_message"

JOIN_EVERY = 256
"""Deltas of an item that is not complete are kept until they are so many, and then joined."""

POLL_S = 0.25
"""The longest time between two looks at what sub-agents have written."""

Status = Literal["running", "waiting", "completed", "incomplete", "failed", "cancelled", "deleted"]
"""`waiting`: the client must answer a call of the agent, or of one under it."""


class SubAgent(Struct, kw_only=True, eq=False):
    """A sub-agent. `response_id` is that of its latest response, "" if an earlier response of the
    client had it. `number` is that of its last event that is noted; `read_number` is that of the
    last one that was read, and `unfinished` has the events between them."""

    name: str
    response_id: str
    status: Status
    task: str = ""
    number: int = -1
    read_number: int = -1
    unfinished: list[e.Event] = []
    input_tokens: int = 0
    output_tokens: int = 0


class Children:
    """The sub-agents of the agent `parent`, whose response is `parent_id`."""

    def __init__(self, runs: AgentRuns, *, tenant: str, parent: str, parent_id: str) -> None:
        self._runs = runs
        self._tenant = tenant
        self._parent = parent
        self._parent_id = parent_id
        self.by_name: dict[str, SubAgent] = {}
        self._ended: list[AgentMetrics] = []
        self.names_below: dict[str, str] = {}
        """Agents that sub-agents have started, and their latest task."""
        self.has_news = False
        """Whether a message has come, or a sub-agent has ended, since the last wait."""

    @property
    def active(self) -> list[SubAgent]:
        return [child for child in self.by_name.values() if child.status == "running"]

    @property
    def waiting(self) -> list[SubAgent]:
        """Those that go on when the client has answered their calls, or calls of agents below."""
        return [child for child in self.by_name.values() if child.status == "waiting"]

    def id_going_on(self, child: SubAgent) -> str:
        """Return the id of the response with which one that waits goes on."""
        return self.id_of(f"after {child.response_id}")

    @property
    def output_tokens(self) -> int:
        """The tokens of all that have ended."""
        return sum(each.output_tokens for each in self._ended)

    @property
    def ended_ids(self) -> set[str]:
        """The responses of all that have ended."""
        return {each.response_id for each in self._ended}

    @property
    def metrics(self) -> tuple[AgentMetrics, ...]:
        """The record of all responses of sub-agents, in the order of their ends."""
        return (*self._ended, *map(_metrics_of, self.active))

    def add_known(self, name: str) -> None:
        """Note a sub-agent of an earlier response."""
        self.by_name[name] = SubAgent(name=name, response_id="", status="completed")

    def id_of(self, key: str) -> str:
        """Return the id of the sub-agent's response that `key` names in this response."""
        return derived_id("resp", self._parent_id, key)

    def task_id(self, response_id: str) -> str:
        """Return the id of the message with the task of a sub-agent's response."""
        return derived_id("amsg", response_id)

    def start(self, name: str, response_id: str, task: str = "") -> None:
        """Note that the sub-agent works, in this response."""
        self.by_name[name] = SubAgent(
            name=name, response_id=response_id, status="running", task=task, unfinished=[]
        )

    # --- what is new ------------------------------------------------------------------------------

    async def read(self) -> list[d.Delta]:
        """Return what is new of all that work, for `note`. Raises: StoreError."""
        deltas: list[d.Delta] = []
        for child in self.active:
            try:
                while events := await self._runs.read(
                    self._tenant, child.response_id, child.read_number
                ):
                    for event in events:
                        deltas += self._read_event(child, event)
                    if len(child.unfinished) >= JOIN_EVERY:
                        child.unfinished = join_deltas(child.unfinished)
            except NotFound:
                deltas += self._end(child, "deleted", "It was deleted.", child.number, None)
        return deltas

    async def wait(self, limit_s: float) -> None:
        """Return when there may be something new, or after `limit_s`."""
        after = {child.response_id: child.read_number for child in self.active}
        with self._runs.lend_slot(self._parent_id):
            await self._runs.wait(self._tenant, after, limit_s)

    async def interrupt(self, child: SubAgent) -> None:
        """Stop the sub-agent. Raises: StoreError."""
        try:
            await self._runs.stop(self._tenant, child.response_id)
        except NotFound:
            return  # it is found to be deleted when it is read

    def note(self, deltas: Sequence[d.Delta]) -> None:
        """Note what was read of sub-agents, here or on another server."""
        for delta in deltas:
            if isinstance(delta, d.AgentUpdate):
                self._note_update(delta)
            elif isinstance(delta, d.ToolStart) and delta.kind == AGENT_MESSAGE:
                self._note_message(delta.fields)

    def _read_event(self, child: SubAgent, event: e.Event) -> list[d.Delta]:
        if event.sequence_number <= child.read_number:
            return []
        child.read_number = event.sequence_number
        if isinstance(event, e.TERMINAL):
            return self._end_of(child, event)
        if isinstance(event, e.ItemAdded) or child.unfinished:
            child.unfinished.append(event)
        if not isinstance(event, e.ItemDone):
            return []
        events = tuple(msgspec.to_builtins(each) for each in join_deltas(child.unfinished))
        child.unfinished = []
        return [d.AgentUpdate(child.response_id, event.sequence_number, events), d.ItemEnd()]

    def _end_of(self, child: SubAgent, event: Any) -> list[d.Delta]:
        response: Response = event.response
        status = response.status
        if status == "completed" and open_calls(response.output):
            status = "waiting"
        answer = _answer_in(response, child.name)
        return self._end(
            child, status, _words_of(response, answer), event.sequence_number, response
        )

    def _end(
        self, child: SubAgent, status: str, words: str, number: int, response: Response | None
    ) -> list[d.Delta]:
        usage = None if response is None else response.usage
        used = None
        if usage is not None:
            used = TurnUsage(
                input=usage.input_tokens,
                cached=usage.input_tokens_details.cached_tokens,
                output=usage.output_tokens,
                reasoning=usage.output_tokens_details.reasoning_tokens,
            )
        end = d.AgentUpdate(child.response_id, number, status=status, used=used)
        if status == "waiting":  # its message comes when the client has answered
            return [end]
        fields = message_fields(child.name, self._parent, words, sender=child.name)
        return [end, d.ToolStart(AGENT_MESSAGE, fields), d.ToolEnd()]

    def _note_update(self, update: d.AgentUpdate) -> None:
        child = next(
            (each for each in self.by_name.values() if each.response_id == update.response_id), None
        )
        if child is None:
            for waiting in self.waiting:
                if self.id_going_on(waiting) == update.response_id:
                    self.start(waiting.name, update.response_id)
            return
        child.number = max(child.number, update.number)
        child.read_number = max(child.read_number, child.number)
        if update.events:
            self._note_item(update.events[-1]["item"])
        if update.status:
            child.status = update.status  # type: ignore[assignment] # one of them, as it was made
            if update.used is not None:
                child.input_tokens, child.output_tokens = update.used.input, update.used.output
            self._ended.append(_metrics_of(child))
            self.has_news = True

    def _note_item(self, item: Json) -> None:
        if item["type"] == AGENT_MESSAGE:
            self._note_message(item)

    def _note_message(self, message: Mapping[str, Any]) -> None:
        """Note a message that somebody below has sent, or that was sent to a sub-agent."""
        recipient, author = str(message["recipient"]), str(message["author"])
        if recipient == self._parent:
            self.has_news = True
        elif recipient.startswith(f"{author}/"):
            text = to_text(msgspec.convert({"type": AGENT_MESSAGE, **message}, i.AgentMessage))
            self.names_below[recipient] = text.partition("\n\n")[2]


def _metrics_of(child: SubAgent) -> AgentMetrics:
    return AgentMetrics(
        name=child.name,
        response_id=child.response_id,
        status=child.status,
        input_tokens=child.input_tokens,
        output_tokens=child.output_tokens,
    )


def _answer_in(response: Response, agent: str) -> str:
    """Return what the agent's last message says."""
    for item in reversed(response.output):
        if isinstance(item, i.Message) and agent_of(item) == agent:
            parts = item.content or ()
            return parts if isinstance(parts, str) else "".join(map(_text_of, parts))
    return ""


def _text_of(part: object) -> str:
    return str(getattr(part, "text", None) or getattr(part, "refusal", ""))


def _words_of(response: Response, answer: str) -> str:
    """Return what the agent that started it is told of a response that has ended."""
    match response.status:
        case "completed":
            return answer or "(It has ended without an answer.)"
        case "incomplete":
            reason = response.incomplete_details.reason if response.incomplete_details else ""
            return f"(It was cut off: {reason}.) {answer}".rstrip()
        case "failed":
            message = response.error.message if response.error else ""
            return f"(It has failed: {message})"
    return f"(It was stopped.) {answer}".rstrip()
