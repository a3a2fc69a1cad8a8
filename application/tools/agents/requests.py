"""The request of a sub-agent, made of the one of the agent that starts it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from antiphon.application.input.submission import AgentPlace, Submission
from antiphon.domain import items as i
from antiphon.domain.history.conversation import Entry, entry
from antiphon.domain.kinds.agent_message import message_fields
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.vocabulary.item import Agent

_encode = msgspec.json.Encoder().encode


def submission_of_child(
    parent: Submission,
    place: AgentPlace,
    response_id: str,
    items: Sequence[Raw],
    *,
    max_output_tokens: int | None,
) -> Submission:
    """Return the request of a sub-agent with this input: a background response of the same caller,
    with the model, the tools and the settings of its parent."""
    request = child_request(parent.request, items, max_output_tokens=max_output_tokens)
    return Submission(
        caller=parent.caller,
        request=request,
        response_id=response_id,
        body=_encode(request),
        context=replace(parent.context, received_at=None),
        is_expanded=True,
        agent=place,
    )


def child_request(
    parent: CreateResponse, items: Sequence[Raw], *, max_output_tokens: int | None
) -> CreateResponse:
    """Return the request: what is about the parent's answer alone is left out."""
    return replace(
        parent,
        input=tuple(items),
        background=True,
        store=True,
        stream=None,
        stream_options=None,
        previous_response_id=None,
        conversation=None,
        previous_input_messages=None,
        prompt=None,
        prompt_cache_options=None,
        tool_choice=None,
        text=None if parent.text is None else replace(parent.text, format=None),
        structured_outputs=None,
        max_output_tokens=max_output_tokens,
        request_id=None,
        metadata=None,
    )


def task_message(author: str, recipient: str, text: str, *, id: str) -> Entry:
    """Return the message with which an agent gives a sub-agent its task."""
    fields = {"type": "agent_message", **message_fields(author, recipient, text, sender=author)}
    return entry(msgspec.convert({**fields, "id": id}, i.AgentMessage))


def forked(items: Sequence[i.Item], turns: str, agent: str) -> list[Raw]:
    """Return the messages of the latest turns, which a sub-agent starts with; a turn begins with a
    message of the user. Calls stay with the agent that made them.

    >>> messages = [i.Message(role="user", content=text) for text in ("one", "two")]
    >>> [len(forked(messages, turns, "/root/a")) for turns in ("none", "1", "all")]
    [0, 1, 2]
    """
    if turns == "none":
        return []
    messages = [item for item in items if isinstance(item, i.Message)]
    starts = [place for place, item in enumerate(messages) if item.role == "user"]
    first = 0 if turns == "all" or int(turns) >= len(starts) else starts[-int(turns)]
    owner = Agent(agent_name=agent)
    return [Raw(_encode(replace(item, id=UNSET, agent=owner))) for item in messages[first:]]
