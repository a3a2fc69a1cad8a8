"""The stored form of a response: its JSON without the output, and each output item separately.

And that of an API key, with its policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from antiphon.application.ports import ApiKey, StoredItem
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import StoreError
from antiphon.domain.items import AnyItem
from antiphon.domain.responses.response import Response

_encode = msgspec.json.Encoder().encode
_decode_response = msgspec.json.Decoder(Response).decode
_decode_policy = msgspec.json.Decoder(KeyPolicy).decode
_decode_output = msgspec.json.Decoder(tuple[AnyItem, ...]).decode


def body_of(response: Response) -> bytes:
    return _encode(msgspec.structs.replace(response, output=()))


def output_of(response: Response) -> list[StoredItem]:
    return [StoredItem(id=item.id or "", raw=Raw(_encode(item))) for item in response.output]


def response_from(body: bytes, output: Iterable[bytes]) -> Response:
    """Return the response with this `body_of` and these output items.

    >>> response = Response(id="resp_1", created_at=1, model="m")
    >>> response_from(body_of(response), []) == response
    True
    """
    response = _decode_response(body)
    items = b",".join(output)
    if not items:
        return response
    return msgspec.structs.replace(response, output=_decode_output(b"[%b]" % items))


def policy_body(policy: KeyPolicy) -> bytes | None:
    """Return a key's policy for a column; None for the default."""
    return None if policy == FULL_ACCESS else _encode(policy)


def _policy_from(body: bytes | None) -> KeyPolicy:
    """Return the policy of a column. Raises: StoreError: a key must not get more than it may."""
    if body is None:
        return FULL_ACCESS
    try:
        return _decode_policy(body)
    except msgspec.DecodeError as error:
        raise StoreError(f"The policy of an API key cannot be read: {error}.") from error


def api_key_from(row: Sequence[Any]) -> ApiKey:
    """Return the key of a row: id, name, tenant, hash, created_at, policy. Raises: StoreError."""
    key_id, name, tenant, key_hash, created_at, policy = row
    return ApiKey(
        id=key_id,
        name=name,
        tenant=tenant,
        hash=key_hash,
        created_at=created_at,
        policy=_policy_from(policy),
    )
