"""A run's job: the sealed request, from which any server can start the run, what the run has
reserved of its key's limits, and the rights of the key.

Requests contain secrets, such as the authorization of MCP servers, and more people can read a store
than a server's memory.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from antiphon.application.input.submission import AgentPlace, agent_name_of
from antiphon.application.ports import Seal, Unseal
from antiphon.application.resources.limits import RunCharge
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import decode_request
from antiphon.domain.requests.request import CreateResponse


class Job(Struct, frozen=True, kw_only=True):
    """A job that has been read: the run starts with it.

    `takes_outputs`: the client that asked for it may have injected some.
    """

    request: CreateResponse
    charge: RunCharge | None = None
    policy: KeyPolicy = FULL_ACCESS
    agent: AgentPlace | None = None
    takes_outputs: bool = False

    @property
    def agent_name(self) -> str | None:
        """The name of the agent that the response is of, None if it has no sub-agents."""
        return agent_name_of(self.request, self.agent)


class _Sealed(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A job whose run has a charge, is a sub-agent's or takes outputs, or whose key has limited
    rights; of others, the body is all."""

    charge: RunCharge | None
    body: Raw
    policy: KeyPolicy = FULL_ACCESS
    agent: AgentPlace | None = None
    takes_outputs: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Sealed).decode


class Jobs:
    """Converts requests to jobs and back; a job is bound to its tenant."""

    def __init__(self, seal: Seal, unseal: Unseal) -> None:
        self._seal = seal
        self._unseal = unseal

    async def write(
        self,
        caller: Caller,
        body: bytes,
        charge: RunCharge | None = None,
        agent: AgentPlace | None = None,
        *,
        takes_outputs: bool = False,
    ) -> bytes:
        """Return the sealed job of a request; `body` has been decoded before."""
        sealed = _Sealed(charge, Raw(body), caller.policy, agent, takes_outputs)
        if sealed != _Sealed(None, sealed.body):
            body = _encode(sealed)
        return await run_in_thread(len(body), self._seal_body, caller.tenant, body)

    async def read(self, tenant: str, job: bytes) -> Job:
        """Return the job.

        Raises: RequestError if it was sealed with another key.
        """
        return await run_in_thread(len(job), self._unseal_job, tenant, job)

    def _seal_body(self, tenant: str, body: bytes) -> bytes:
        return self._seal(tenant, body.decode()).encode()

    def _unseal_job(self, tenant: str, job: bytes) -> Job:
        body = self._unseal(tenant, job.decode())
        if body is None:
            raise RequestError(
                "The server that should start the response cannot read its request: servers that "
                "share a store must share their 'seal_key_file'."
            )
        if not body.startswith("["):  # the body of a request is an object
            return Job(request=decode_request(body.encode()).request)
        sealed = _decode(body)
        request = decode_request(bytes(sealed.body)).request
        return Job(
            request=request,
            charge=sealed.charge,
            policy=sealed.policy,
            agent=sealed.agent,
            takes_outputs=sealed.takes_outputs,
        )
