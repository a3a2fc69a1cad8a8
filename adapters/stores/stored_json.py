"""The stored form of a response: its JSON without the output, and each output item separately."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from antiphon.application.ports import StoredItem
from antiphon.domain.items import AnyItem
from antiphon.domain.response import Response

_encode = msgspec.json.Encoder().encode
_decode_response = msgspec.json.Decoder(Response).decode
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
