"""Whose turn a request would take: known from its bytes, before it is parsed or checked.

It is the credential as sent, so it may be false. Somebody who makes up many gets as many turns, and
is refused in each of them; with one turn for all requests, the others would wait just as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HEALTH = frozenset({"/livez", "/readyz", "/health", "/health/live", "/health/ready"})
"""For orchestrators, which have no keys. They reveal nothing about the models."""

HEADERS = (b"authorization", b"x-api-key", b"cookie")

_HEALTH_CHECK = re.compile(b"(?:GET|HEAD) (?:%s)[ ?]" % "|".join(sorted(HEALTH)).encode())
_CREDENTIAL = re.compile(rb"\r\n(?:%s):[ \t]*([^\r\n]*)" % b"|".join(HEADERS), re.IGNORECASE)


def is_health_check(head: bytes) -> bool:
    """Return whether a request that starts like this is a health check.

    >>> is_health_check(b"GET /livez HTTP/1.1\\r\\n"), is_health_check(b"GET /livezz HTTP/1.1")
    (True, False)
    """
    return _HEALTH_CHECK.match(head) is not None


def credential_in(head: bytes) -> bytes:
    """Return the first credential in the bytes of a request's head, or b"".

    >>> credential_in(b"POST / HTTP/1.1\\r\\nhost: x\\r\\nAuthorization: Bearer k\\r\\n\\r\\n")
    b'Bearer k'
    """
    match = _CREDENTIAL.search(head)
    return match[1] if match else b""


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the first credential among the headers of a request, or b""."""
    return next((value for name, value in headers if name in HEADERS), b"")
