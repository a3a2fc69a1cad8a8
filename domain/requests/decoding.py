"""Decode requests, items and tools from JSON, with errors that name the field
(docs/reference/api.md#items, docs/reference/errors.md#codes-of-wrong-requests).

A tagged union cannot decode `input`, because an easy message and an item_reference may lack their
type. Each item is therefore decoded in two steps: its head (type, role, id) selects the Struct that
decodes the whole item.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain.bounds import Text
from antiphon.domain.content import OutputText
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.items import ITEM_TYPES, AnyItem, ItemReference
from antiphon.domain.requests.json_structure import has_more_values
from antiphon.domain.requests.request import CHAT_COMPLETIONS_FIELDS, CreateResponse
from antiphon.domain.tools import TOOL_TYPES, RequestTool, UnknownTool

T = TypeVar("T")

CODES: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), code)
    for pattern, code in [
        (r"^Object missing required field", "missing_required_parameter"),
        (r"^Expected `int` >", "integer_below_min_value"),
        (r"^Expected `int` <", "integer_above_max_value"),
        (r"^Integer value out of range", "integer_above_max_value"),
        (r"^Expected `float` >", "decimal_below_min_value"),
        (r"^Expected `float` <", "decimal_above_max_value"),
        (r"^Expected `str` of length <", "string_above_max_length"),
        (r"^Expected `str` of length >", "string_below_min_length"),
        (r"^Expected `array` of length <", "array_above_max_length"),
        (r"^Expected `array` of length >", "empty_array"),
        (r"^Expected `object` of length <", "object_above_max_properties"),
        (r"^Expected `.*`, got", "invalid_type"),
    ]
]
"""Patterns of msgspec's messages, with their error codes; any other message is `invalid_value`."""

MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")
PLACE = re.compile(r" - at `(?P<where>key|[$][^`]*)`(?: in `(?P<outer>[$][^`]*)`)?$")
SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
MAX_FIELDS = 500
"""At the top level of a body. Unknown fields are ignored, but each is named in the response."""
MAX_PART_VALUES = 50_000
"""Of what one call decodes, such as a schema: decoding and freeing it take some 10 ms each."""

MAX_DETAIL_CHARS = 300  # an error does not repeat long input


class Head(Struct, frozen=True):
    """The fields that tell items and tools apart."""

    type: Text | None = None
    role: Text | None = None
    id: Text | None = None


B = TypeVar("B", bound=Struct)


class DecodedRequest(Struct, Generic[B], frozen=True, kw_only=True):
    """A decoded body; `unknown` are its top-level fields that the API does not have."""

    request: B
    unknown: tuple[str, ...] = ()


_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_head = msgspec.json.Decoder(Head).decode
_decode_item: Mapping[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in ITEM_TYPES.items()
}
_decode_tool: Mapping[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in TOOL_TYPES.items()
}


_LISTS = frozenset({"input", "items", "tools"})
"""Fields whose entries are decoded one by one."""

_PARTS_OF: Mapping[type[Struct], str] = {
    kind: name
    for kind in ITEM_TYPES.values()
    for name in ("content", "output")
    if name in kind.__struct_fields__
}
"""The field of an item that has content parts, perhaps beside other types."""

decode_any = msgspec.json.Decoder(float_hook=float).decode
"""Decode any valid JSON; a number such as 1e999, which is valid, becomes infinity."""


def decode_request(body: bytes) -> DecodedRequest[CreateResponse]:
    """Decode the body of `POST /v1/responses`. Raises: RequestError."""
    return decode_request_body(body, CreateResponse, replacements=CHAT_COMPLETIONS_FIELDS)


def decode_request_body(
    body: bytes, kind: type[B], *, replacements: Mapping[str, str] = {}
) -> DecodedRequest[B]:
    """Decode a request's body. Raises: RequestError.

    `replacements` maps fields of another API to the fields that replace them in this one.
    """
    fields = read(_decode_fields, body, "", what="The request body")
    if len(fields) > MAX_FIELDS:
        raise RequestError(
            f"The request body has {len(fields)} fields; {MAX_FIELDS} are allowed.",
            code="object_above_max_properties",
        )
    _check_text(body)
    if len(body) > MAX_PART_VALUES:
        for name in fields:
            if name not in _LISTS:
                check_values(fields[name], name)
    unknown = tuple(sorted(set(fields).difference(kind.__struct_fields__)))
    for name in unknown:
        if name in replacements:
            raise RequestError(
                f"Unsupported parameter: {name!r}. Use {replacements[name]!r}.",
                param=name,
                code="unsupported_parameter",
            )
    request: B = read(_decoder(kind), body, "")
    return DecodedRequest(request=request, unknown=unknown)


_building = Lock()


def _decoder(kind: type[Struct]) -> Any:
    # msgspec crashes if two threads build decoders of one type; long bodies are read in threads.
    with _building:
        return _build_decoder(kind)


@cache
def _build_decoder(kind: type[Struct]) -> Any:
    return msgspec.json.Decoder(kind).decode


def decode_item(raw: Raw | bytes, path: str) -> AnyItem:
    """Decode one input item. Raises: RequestError."""
    head = read(_decode_head, raw, path)
    kind = head.type
    if kind is None and head.role is not None:
        return _normalize(_decode_untagged(raw, "message", path), path)
    if kind is None and head.id is not None:
        return ItemReference(id=head.id)
    if kind is None:
        raise missing_parameter(f"{path}.type")
    if kind not in _decode_item:
        raise RequestError(
            f"Invalid value: {_shorten(kind)}. It is not a known type of input item.",
            param=f"{path}.type",
            code="invalid_value",
        )
    return _normalize(read(_decode_item[kind].decode, raw, path), path)


def _normalize(item: AnyItem, path: str) -> AnyItem:
    """Check the JSON that an item keeps as it is, and take the spaces out. Raises: RequestError."""
    name = _PARTS_OF.get(type(item))
    parts = getattr(item, name) if name else None
    if type(parts) is tuple:
        for part in parts:
            if type(part) is OutputText and part.logprobs:
                changed = tuple(_normalize_part(part, path) for part in parts)
                return replace(item, **{str(name): changed})
    return item


def _normalize_part(part: Any, path: str) -> Any:
    if type(part) is not OutputText or not part.logprobs:
        return part
    values = [read(msgspec.json.decode, raw, path) for raw in part.logprobs]
    return replace(part, logprobs=tuple(Raw(msgspec.json.encode(value)) for value in values))


def decode_tool(raw: Raw | bytes, path: str) -> RequestTool:
    """Decode one tool; a tool of an unknown type stays raw JSON. Raises: RequestError."""
    check_values(raw, path)
    kind = read(_decode_head, raw, path).type
    if kind is None:
        raise missing_parameter(f"{path}.type")
    if kind not in _decode_tool:
        return UnknownTool(raw=read(msgspec.json.decode, raw, path))
    tool: RequestTool = read(_decode_tool[kind].decode, raw, path)
    return tool


def read(decode: Any, raw: Raw | bytes, path: str, *, what: str = "The value") -> Any:
    """Call a msgspec decoder and turn its errors into a RequestError at `path`."""
    try:
        return decode(raw)
    except msgspec.ValidationError as exc:
        raise _request_error(str(exc), path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as exc:
        detail = _shorten(str(exc))
        raise RequestError(
            f"{what} is not valid JSON ({detail}).", param=path or None, code="invalid_json"
        ) from None
    except RecursionError:
        raise RequestError(
            f"{what} is nested too deeply.", param=path or None, code="invalid_json"
        ) from None


def _decode_untagged(raw: Raw | bytes, kind: str, path: str) -> AnyItem:
    # The one exception to decoding in two steps: an easy message has no type.
    fields = read(_decode_fields, raw, path)
    tagged = msgspec.json.encode(fields | {"type": kind})
    item: AnyItem = read(_decode_item[kind].decode, tagged, path)
    return item


def _check_text(body: bytes) -> None:
    # The whole body is stored, shown again and sealed, including fields that nothing reads.
    if not body.isascii():
        read(bytes.decode, body, "", what="The request body")
    # A JSON escape can be half of a surrogate pair, which UTF-8 cannot encode. Without this check,
    # every later read of the stored text would fail. Only bodies with a suspicious escape need it.
    if not SURROGATE_ESCAPE.search(body):
        return
    try:
        msgspec.json.encode(decode_any(body))
    except UnicodeEncodeError:
        raise RequestError(
            "The request body contains half of a surrogate pair, which is not a character.",
            code="invalid_value",
        ) from None


def check_values(raw: Raw | bytes, path: str) -> None:
    """Raises: RequestError if a part of a request has too many values to be decoded in one call."""
    if memoryview(raw).nbytes > MAX_PART_VALUES and has_more_values(bytes(raw), MAX_PART_VALUES):
        raise RequestError(
            f"{path!r} has more than {MAX_PART_VALUES} values.", param=path, code="invalid_value"
        )


def _request_error(message: str, path: str) -> RequestError:
    place = PLACE.search(message)
    detail = message[: place.start()] if place else message
    where = (place["outer"] or place["where"]) if place else "$"
    param = (path + where.removeprefix("$")).removeprefix(".").replace("[...]", "")
    missing = MISSING.match(detail)
    if missing:
        return missing_parameter(f"{param}.{missing['name']}".removeprefix("."))
    code = next((code for pattern, code in CODES if pattern.match(detail)), "invalid_value")
    what = f"Invalid {param!r}" if param else "Invalid request body"
    return RequestError(f"{what}: {_shorten(detail)}.", param=param or None, code=code)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_DETAIL_CHARS else text[:MAX_DETAIL_CHARS] + "…"
