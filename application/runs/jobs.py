"""A run's job: the sealed request, from which any server can start the run.

Requests contain secrets, such as the authorization of MCP servers, and more people can read a store
than a server's memory.
"""

from __future__ import annotations

from antiphon.application.ports import Seal, Unseal
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.decoding import decode_request
from antiphon.domain.errors import RequestError
from antiphon.domain.request import CreateResponse


class Jobs:
    """Converts requests to jobs and back; a job is bound to its tenant."""

    def __init__(self, seal: Seal, unseal: Unseal) -> None:
        self._seal = seal
        self._unseal = unseal

    async def job_of(self, tenant: str, body: bytes) -> bytes:
        """Return the job of a request; `body` has been decoded before."""
        return await run_in_thread(len(body), self._seal_body, tenant, body)

    async def request_of(self, tenant: str, job: bytes) -> CreateResponse:
        """Return the request of a job. Raises: RequestError if it was sealed with another key."""
        return await run_in_thread(len(job), self._unseal_request, tenant, job)

    def _seal_body(self, tenant: str, body: bytes) -> bytes:
        return self._seal(tenant, body.decode()).encode()

    def _unseal_request(self, tenant: str, job: bytes) -> CreateResponse:
        body = self._unseal(tenant, job.decode())
        if body is None:
            raise RequestError(
                "The server that should start the response cannot read its request: servers that "
                "share a store must share their 'seal_key_file'."
            )
        return decode_request(body.encode()).request
