"""A run's job: the sealed request, from which any server can start the run, and what the run has
reserved of its key's limits.

Requests contain secrets, such as the authorization of MCP servers, and more people can read a store
than a server's memory.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from antiphon.application.ports import Seal, Unseal
from antiphon.application.resources.limits import RunCharge
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import decode_request
from antiphon.domain.requests.request import CreateResponse

_encode = msgspec.json.Encoder().encode
_decode_charged = msgspec.json.Decoder(tuple[RunCharge, Raw]).decode


class Jobs:
    """Converts requests to jobs and back; a job is bound to its tenant."""

    def __init__(self, seal: Seal, unseal: Unseal) -> None:
        self._seal = seal
        self._unseal = unseal

    async def job_of(self, tenant: str, body: bytes, charge: RunCharge | None = None) -> bytes:
        """Return the job of a request; `body` has been decoded before."""
        if charge is not None:
            body = b"[%b,%b]" % (_encode(charge), body)
        return await run_in_thread(len(body), self._seal_body, tenant, body)

    async def request_of(self, tenant: str, job: bytes) -> tuple[CreateResponse, RunCharge | None]:
        """Return the request and the charge of a job.

        Raises: RequestError if it was sealed with another key.
        """
        return await run_in_thread(len(job), self._unseal_request, tenant, job)

    def _seal_body(self, tenant: str, body: bytes) -> bytes:
        return self._seal(tenant, body.decode()).encode()

    def _unseal_request(self, tenant: str, job: bytes) -> tuple[CreateResponse, RunCharge | None]:
        body = self._unseal(tenant, job.decode())
        if body is None:
            raise RequestError(
                "The server that should start the response cannot read its request: servers that "
                "share a store must share their 'seal_key_file'."
            )
        if not body.startswith("["):  # the body of a request is an object
            return decode_request(body.encode()).request, None
        charge, request = _decode_charged(body)
        return decode_request(bytes(request)).request, charge
