"""Whose an item is, in a conversation that several agents have (docs/decisions/0154).

A response with sub-agents shows the items of all of them. Each item names its agent; an output of
the client's is the agent's whose call it answers, and an item without an agent is the root's. So
what an agent knows follows from the items alone, whoever repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antiphon.domain import items as i
from antiphon.domain.history.conversation import Entry, pair_outputs_with_calls
from antiphon.domain.kinds.multi_agent import ROOT
from antiphon.domain.vocabulary.item import Agent


def agent_of(item: i.Item) -> str | None:
    """Return the name of the agent that an item names, None if it names none."""
    return item.agent.agent_name if isinstance(item.agent, Agent) else None


def parent_of(agent: str) -> str:
    """Return the name of the agent that started this one.

    >>> parent_of("/root/reader/tester")
    '/root/reader'
    """
    return agent.rpartition("/")[0]


def depth_of(agent: str) -> int:
    """Return how many agents are above this one.

    >>> depth_of("/root"), depth_of("/root/reader")
    (0, 1)
    """
    return agent.count("/") - 1


def is_under(agent: str, ancestor: str) -> bool:
    """Return whether the agent is `ancestor` or was started by it or by one under it."""
    return agent == ancestor or agent.startswith(f"{ancestor}/")


def child_above(agent: str, ancestor: str) -> str | None:
    """Return the child of `ancestor` that the agent is or is under, None if there is none.

    >>> child_above("/root/a/b", "/root"), child_above("/root", "/root")
    ('/root/a', None)
    """
    if agent == ancestor or not is_under(agent, ancestor):
        return None
    return f"{ancestor}/{agent[len(ancestor) + 1 :].split('/', 1)[0]}"


def has_agents(items: Sequence[i.Item]) -> bool:
    return any(isinstance(item.agent, Agent) for item in items)


def owners_of(items: Sequence[i.Item]) -> list[str]:
    """Return the agent of each item; a message between agents is its recipient's."""
    owners = [_owner(item) for item in items]
    for output, call in pair_outputs_with_calls(items).items():
        if agent_of(items[output]) is None:
            owners[output] = owners[call]
    requests = {
        item.id: owner
        for item, owner in zip(items, owners, strict=True)
        if isinstance(item, i.McpApprovalRequest)
    }
    for place, item in enumerate(items):
        if isinstance(item, i.McpApprovalResponse) and agent_of(item) is None:
            owners[place] = requests.get(item.approval_request_id, ROOT)
    return owners


def _owner(item: i.Item) -> str:
    agent = agent_of(item)
    if agent is not None and isinstance(item, i.AgentMessage):
        return str(item.recipient)
    return ROOT if agent is None else agent


def open_calls(items: Sequence[i.Item]) -> list[i.Item]:
    """Return the calls, and requests for approval, that the client has not answered."""
    answered = set(pair_outputs_with_calls(items).values())
    return [
        item
        for place, item in enumerate(items)
        if i.waits_for_client(item) and place not in answered
    ]


def own_items(items: Sequence[i.AnyItem], agent: str) -> list[i.AnyItem]:
    """Return the items that the agent knows. A message that came while a call ran follows its
    output, since many models take nothing between the two."""
    if not has_agents(items):
        return list(items) if agent == ROOT else []
    owners = owners_of(items)
    own = [item for item, owner in zip(items, owners, strict=True) if owner == agent]
    outputs = {call: output for output, call in pair_outputs_with_calls(own).items()}
    settled: list[i.AnyItem] = []
    messages: list[i.AnyItem] = []
    last_output = -1
    for place, item in enumerate(own):
        last_output = max(last_output, outputs.get(place, -1))
        is_between = isinstance(item, i.AgentMessage) and place < last_output
        (messages if is_between else settled).append(item)
        if place >= last_output:
            settled += messages
            messages = []
    return settled


def entries_under(entries: Sequence[Entry], agent: str) -> Iterator[Entry]:
    """Yield what the agent and all under it know."""
    owners = owners_of([entry.item for entry in entries])
    for entry, owner in zip(entries, owners, strict=True):
        if is_under(owner, agent):
            yield entry


def _is_answer(item: i.Item) -> bool:
    return i.answered_call_id(item) is not None or isinstance(item, i.McpApprovalResponse)


def answered_children(items: Sequence[i.Item], agent: str) -> list[str]:
    """Return the children of the agent that go on now: the client has answered their calls, or
    those of agents under them, and nothing of theirs follows the answers."""
    owners = owners_of(items)
    goes_on: dict[str, bool] = {}
    for item, owner in zip(items, owners, strict=True):
        child = child_above(owner, agent)
        if child is not None:
            goes_on[child] = agent_of(item) is None and _is_answer(item)
    return [child for child, is_answered in goes_on.items() if is_answered]


def is_starting(items: Sequence[i.Item], agent: str) -> bool:
    """Return whether the one that has started `agent` may start others in the same turn, by the
    items that its response has so far."""
    parent = parent_of(agent)
    for item in reversed(items):
        if agent_of(item) == parent and not isinstance(item, i.AgentMessage):
            actions = (i.MultiAgentCall, i.MultiAgentCallOutput)
            return isinstance(item, actions) and item.action == "spawn_agent"
    return True
