"""The header by which servers of one store vouch for requests that they relay to each other.

It names the caller, since the client's credential stays at the server that has checked it. A
signature with a key derived from the seal key binds it to one request, one receiver and one minute.
RELAYED says which requests there are.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from hashlib import sha256

import msgspec
from litestar.types import HTTPScope
from msgspec import Struct

from antiphon.application.resources.server_addresses import TAG_DIGITS
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import RequestError, Unauthenticated

HEADER = "x-antiphon-relayed"
STOPPING_HEADER = "x-antiphon-stopping"
"""In answers to other servers: this one is shutting down."""
VALID_S = 60.0
"""How long a signature is valid, and how far the clocks of two servers may be apart."""

MAX_SEEN = 100_000
"""Requests of the last minute that are remembered; beyond it, relayed requests are refused."""


CONTAINERS = "/v1/containers"
RESPONSES = "/v1/responses"
CHAT_COMPLETIONS = "/v1/chat/completions"
MESSAGES = "/v1/messages"

_CONTAINER_ID = re.compile(rf"cntr_(?P<tag>[0-9a-f]{{{TAG_DIGITS}}})[0-9a-f]{{32}}")
_OF_CONTAINER = re.compile(rf"{CONTAINERS}/{_CONTAINER_ID.pattern}(/.*)?", re.DOTALL)

RELAYED: Mapping[str, frozenset[str]] = {
    CONTAINERS: frozenset({"GET"}),
    RESPONSES: frozenset({"POST"}),
    f"{RESPONSES}/input_tokens": frozenset({"POST"}),
    f"{RESPONSES}/compact": frozenset({"POST"}),
    CHAT_COMPLETIONS: frozenset({"POST"}),
    MESSAGES: frozenset({"POST"}),
    f"{MESSAGES}/count_tokens": frozenset({"POST"}),
}
"""The methods of each path that servers relay, beside all requests for one container."""


def tag_in(path: str) -> str | None:
    """Return the tag of the server of the container that a request is for, if it is for one."""
    found = _OF_CONTAINER.fullmatch(path)
    return None if found is None else found["tag"]


def is_container_id(text: str) -> bool:
    return _CONTAINER_ID.fullmatch(text) is not None


def can_be_relayed(method: str, path: str) -> bool:
    """Whether servers relay such requests.

    >>> [can_be_relayed("POST", path) for path in ("/v1/responses", "/v1/files")]
    [True, False]
    """
    return method in RELAYED.get(path, ()) or tag_in(path) is not None


class Voucher(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """The claims that a server vouches for. `digest` is that of the body."""

    method: str
    target: str
    digest: str
    caller: Caller
    receiver: str
    signed_at: float
    nonce: str


_decode = msgspec.json.Decoder(Voucher).decode


class Vouchers:
    """Signs and checks vouchers; `tag` is that of this server.

    `workers` returns the tags of this server's other workers: they share its port.
    """

    def __init__(
        self,
        sign: Callable[[bytes], bytes],
        tag: str,
        *,
        workers: Callable[[], Container[str]] = tuple,
    ) -> None:
        self._sign = sign
        self._tag = tag
        self._workers = workers
        self._seen: OrderedDict[str, float] = OrderedDict()

    def encode(self, voucher: Voucher) -> str:
        """Return the value of the header."""
        content = msgspec.json.encode(voucher)
        parts = (content, self._sign(content))
        return ".".join(base64.urlsafe_b64encode(part).decode() for part in parts)

    def check(self, value: str, scope: HTTPScope) -> Voucher:
        """Return a valid voucher for the request, once. The body is still to be compared.

        Raises: Unauthenticated.
        """
        voucher = self._read(value)
        now = time.time()
        if (
            voucher is None
            or (voucher.method, voucher.target) != (scope["method"], target_of(scope))
            or not (voucher.receiver == self._tag or voucher.receiver in self._workers())
            or abs(now - voucher.signed_at) > VALID_S
            or not self._is_new(voucher, now)
        ):
            raise Unauthenticated(f"The header {HEADER!r} is not valid for this request.")
        return voucher

    def _read(self, value: str) -> Voucher | None:
        try:
            content, signature = map(base64.urlsafe_b64decode, value.split("."))
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(signature, self._sign(content)):
            return None
        try:
            return _decode(content)
        except msgspec.MsgspecError:
            return None  # of another version

    def _is_new(self, voucher: Voucher, now: float) -> bool:
        while self._seen and next(iter(self._seen.values())) < now:
            self._seen.popitem(last=False)
        if voucher.nonce in self._seen or len(self._seen) >= MAX_SEEN:
            return False
        # A voucher may be of the future, by as much as the clocks differ.
        self._seen[voucher.nonce] = now + 2 * VALID_S
        return True


def target_of(scope: HTTPScope) -> str:
    """Return the path and the query, as they were sent."""
    query = scope["query_string"]
    path = scope["raw_path"].partition(b"?")[0]
    return (path + b"?" + query if query else path).decode("latin-1")


def digest_of(body: bytes) -> str:
    return sha256(body).hexdigest()


def check_digest(voucher: Voucher, body: bytes) -> None:
    """Raises: RequestError."""
    if not hmac.compare_digest(voucher.digest, digest_of(body)):
        raise RequestError("The body is not the one that was relayed.", code="invalid_value")
