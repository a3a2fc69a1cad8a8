"""Who sends a request."""

from __future__ import annotations

from msgspec import Struct


class Caller(Struct, frozen=True, kw_only=True):
    """Who sent a request: `tenant` owns all objects that it creates.

    Several keys may belong to one tenant. `key_id` identifies the key that the request was sent
    with, and what is counted by key; it is "" if no keys are needed.
    """

    tenant: str
    key_id: str = ""
    key_name: str = ""


ANYBODY = Caller(tenant="default")
"""The caller of all requests if no keys are needed."""
