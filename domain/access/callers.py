"""Who sends a request."""

from __future__ import annotations

from msgspec import Struct

from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy


class Caller(Struct, frozen=True, kw_only=True):
    """Who sent a request: `tenant` owns all objects that it creates.

    Several keys may belong to one tenant. `key_id` identifies the key that the request was sent
    with, and what is counted by key; it is "" if no keys are needed. `policy` says what it may do.
    `is_counted`: the server that has relayed the request has counted it.
    """

    tenant: str
    key_id: str = ""
    key_name: str = ""
    policy: KeyPolicy = FULL_ACCESS
    is_counted: bool = False


ANYBODY = Caller(tenant="default")
"""The caller of all requests if no keys are needed."""
