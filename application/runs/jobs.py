"""What any server needs to begin a run: the request as it came, sealed.

Requests bring secrets (what MCP servers are authorised with), and a store is read by more people
than a server's memory.
"""

from __future__ import annotations

from antiphon.application.ports import Seal, Unseal
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.decoding import decode_request
from antiphon.domain.errors import RequestError
from antiphon.domain.request import CreateResponse


class Jobs:
    """Writes requests down as jobs, and reads them again; each is bound to its tenant."""

    def __init__(self, seal: Seal, unseal: Unseal) -> None:
        self._seal = seal
        self._unseal = unseal

    async def job_of(self, tenant: str, body: bytes) -> bytes:
        """Return the job of a request; `body` has been read as one."""
        return await run_in_thread(len(body), self._sealed, tenant, body)

    async def request_of(self, tenant: str, job: bytes) -> CreateResponse:
        """Raises: RequestError for the job of a server that has another key."""
        return await run_in_thread(len(job), self._request, tenant, job)

    def _sealed(self, tenant: str, body: bytes) -> bytes:
        return self._seal(tenant, body.decode()).encode()

    def _request(self, tenant: str, job: bytes) -> CreateResponse:
        body = self._unseal(tenant, job.decode())
        if body is None:
            raise RequestError(
                "The server that was to begin the response cannot read its request: servers that "
                "share a store must share their 'seal_key_file'."
            )
        return decode_request(body.encode()).request
