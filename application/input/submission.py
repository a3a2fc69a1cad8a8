"""A request to create a response, and all that is known of it; the door builds it once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from antiphon.application.input.injections import Injections
from antiphon.application.ports import StoredItem
from antiphon.application.telemetry.request_context import NO_CONTEXT, RequestContext
from antiphon.domain.access.callers import Caller
from antiphon.domain.history.conversation import Entry
from antiphon.domain.history.sessions import NamedSession
from antiphon.domain.kinds.multi_agent import ROOT
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.guards import Refuse, Stop
from antiphon.domain.responses.steering import Steers

ClientLeft = Callable[[], Awaitable[object]]
"""Returns when the client has left."""

Remembered = Mapping[str, Sequence[StoredItem]]
"""Response id -> the items that a continuation of that response starts with."""


class AgentPlace(Struct, frozen=True, kw_only=True):
    """The place of a sub-agent's response in its tree (docs/decisions/0154).

    `name` is the agent's, `parent_id` the response whose agent started it, and `root_id` the one
    that the client created.
    """

    name: str
    parent_id: str
    root_id: str


class IdempotencyKey(Struct, frozen=True, kw_only=True):
    """The client's key for a request, and a digest of the request's body."""

    key: str
    fingerprint: bytes


class Submission(Struct, frozen=True, kw_only=True):
    """A request with its sender, and the way it came.

    `response_id` is the new response's; a request that creates nothing has none. `body` is the
    request as it arrived: without it, only this server can start the run. `remembered` holds the
    unstored responses that the caller keeps. `idempotency_key` belongs to a stored response: other
    requests with that key return it, so it continues when its client leaves, like a background
    response. `strict` refuses fields that would have no effect. `ignored` are the paths of
    keys that have none, as decoding found them. `client_left` returns when the client has left,
    which ends the wait for admission. `steers` is what the client may add while the response runs.
    `is_expanded`: the prompt template is applied already, as in the request that this one follows.
    `agent` is set for the response of a sub-agent. `may_have_agents`: the client knows responses
    with sub-agents. `injections` are the outputs that it may add while the response runs.
    `is_moderated`: its `moderation` has an effect. `refused` is the verdict of a guard that does
    not let it pass, None if all do. `session` is the one that the request names; once it has been
    entered, the request has its conversation, and `history` are the items of that.
    """

    caller: Caller
    request: CreateResponse
    response_id: str = ""
    body: bytes | None = None
    context: RequestContext = NO_CONTEXT
    remembered: Remembered | None = None
    idempotency_key: IdempotencyKey | None = None
    strict: bool = False
    ignored: Sequence[str] = ()
    client_left: ClientLeft | None = None
    steers: Steers | None = None
    is_expanded: bool = False
    agent: AgentPlace | None = None
    may_have_agents: bool = False
    injections: Injections | None = None
    is_moderated: bool = False
    refused: Refuse | Stop | None = None
    session: NamedSession | None = None
    history: Sequence[Entry] | None = None

    @property
    def agent_name(self) -> str | None:
        """The name of the agent that the response is of, None if it has no sub-agents."""
        if self.agent is None and self.request.multi_agent is None:
            return None  # as nearly always, and asked several times
        return agent_name_of(self.request, self.agent)


def agent_name_of(request: CreateResponse, place: AgentPlace | None) -> str | None:
    """Return the name of the agent that a response is of, None if it has no sub-agents."""
    if place is not None:
        return place.name
    return ROOT if request.has_agents else None
