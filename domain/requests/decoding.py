"""Decode requests, items and tools from JSON, with errors that name the field
(docs/reference/api.md#items, docs/reference/errors.md#codes-of-wrong-requests).

A tagged union cannot decode `input`, because an easy message and an item_reference may lack their
type. Each item is therefore decoded in two steps: its head (type, role, id) selects the Struct that
decodes the whole item.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, inspect
from msgspec.structs import replace

from antiphon.domain.bounds import Text
from antiphon.domain.content import OutputText
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.items import ITEM_TYPES, AnyItem, ItemReference
from antiphon.domain.requests.json_structure import has_more_values
from antiphon.domain.requests.request import CHAT_COMPLETIONS_FIELDS, CreateResponse
from antiphon.domain.requests.unknown_keys import find_unused_keys
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

WRONG_CHOICE = re.compile(r"^Invalid (enum )?value ")
STEPS = re.compile(r"[.][^.\[]+|\[[^\]]*\]")
MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]+)`")
PLACE = re.compile(r" - at `(?P<where>key|[$][^`]*)`(?: in `(?P<outer>[$][^`]*)`)?$")
BYTE = re.compile(r"\(byte (\d+)\)$")
LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*"  # escaped backslashes
    rb"(?P<escape>\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB].{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2}))"
)
"""The escape of half of a surrogate pair, whose other half is not beside it."""
ESCAPE_BYTES = len(r"\ud83d")
SEARCHED_BYTES = 1000
"""Before the place of an error: a run of backslashes that is longer hides what an escape is."""
MAX_FIELDS = 500
"""At the top level of a body."""
MAX_PART_VALUES = 50_000
"""Of what one call decodes, such as a schema: decoding and freeing it take some 10 ms each."""

MAX_SEARCHED_KEYS = 64  # of a map with a wrong entry

MAX_DETAIL_CHARS = 300  # an error does not repeat long input


class Head(Struct, frozen=True):
    """The fields that tell items and tools apart."""

    type: Text | None = None
    role: Text | None = None
    id: Text | None = None


B = TypeVar("B", bound=Struct)


class DecodedRequest(Struct, Generic[B], frozen=True, kw_only=True):
    """A decoded body, with the paths of its keys that the API does not have (`unknown`), and of
    those that it has and that do nothing here."""

    request: B
    unknown: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()

    @property
    def ignored(self) -> tuple[str, ...]:
        return (*self.without_effect, *self.unknown)


_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_head = msgspec.json.Decoder(Head).decode
_decode_item: Mapping[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in ITEM_TYPES.items()
}
_decode_tool: Mapping[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(kind) for name, kind in TOOL_TYPES.items()
}


_LISTS = frozenset({"input", "items", "messages", "tools"})
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


def decode_request(
    body: bytes, *, envelope: frozenset[str] = frozenset()
) -> DecodedRequest[CreateResponse]:
    """Decode the body of `POST /v1/responses`. `envelope` names fields that the transport adds.

    Raises: RequestError.
    """
    return decode_request_body(
        body, CreateResponse, replacements=CHAT_COMPLETIONS_FIELDS, envelope=envelope
    )


def decode_request_body(
    body: bytes,
    kind: type[B],
    *,
    replacements: Mapping[str, str] = {},
    envelope: frozenset[str] = frozenset(),
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
    for name in sorted(replacements.keys() & fields.keys()):
        raise RequestError(
            f"Unsupported parameter: {name!r}. Use {replacements[name]!r}.",
            param=name,
            code="unsupported_parameter",
        )
    request: B = read(_decoder(kind), body, "")
    found = read(partial(find_unused_keys, kind=kind, envelope=envelope), fields, "")
    return DecodedRequest(
        request=request,
        unknown=found.unknown.names(),
        without_effect=found.without_effect.names(),
    )


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
            f"Invalid value: {_shorten(kind)}. It is not a known type of input item; "
            f"these are: {', '.join(sorted(_decode_item))}.",
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
        raise _request_error(str(exc), path, decode, raw) from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as exc:
        detail = _describe_lone_surrogate(bytes(raw), str(exc)) or _shorten(str(exc))
        raise RequestError(
            f"{what} is not valid JSON ({detail}).", param=path or None, code="invalid_json"
        ) from None
    except RecursionError:
        raise RequestError(
            f"{what} is nested too deeply.", param=path or None, code="invalid_json"
        ) from None


def _describe_lone_surrogate(text: bytes, error: str) -> str:
    r"""Say which half of a surrogate pair caused msgspec's error, "" if none did: it says that the
    text is cut off if little follows.

    >>> _describe_lone_surrogate(rb'"\ud83d\ude00 \ud83d"', "Input data was truncated")
    "'\\ud83d' is half of a surrogate pair, not a character (byte 14)"
    """
    place = BYTE.search(error)
    end = int(place[1]) if place else len(text)
    found = LONE_SURROGATE.search(text, max(0, end - SEARCHED_BYTES), end + ESCAPE_BYTES)
    if found is None or (place is None and b'"' not in text[found.end() :]):
        return ""
    escape = found["escape"].decode()
    return f"'{escape}' is half of a surrogate pair, not a character (byte {found.start('escape')})"


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


def check_values(raw: Raw | bytes, path: str) -> None:
    """Raises: RequestError if a part of a request has too many values to be decoded in one call."""
    if memoryview(raw).nbytes > MAX_PART_VALUES and has_more_values(bytes(raw), MAX_PART_VALUES):
        raise RequestError(
            f"{path!r} has more than {MAX_PART_VALUES} values.", param=path, code="invalid_value"
        )


def _request_error(message: str, path: str, decode: Any, raw: Raw | bytes) -> RequestError:
    place = PLACE.search(message)
    detail = message[: place.start()] if place else message
    where = (place["outer"] or place["where"]) if place else "$"
    place_in_body = _with_wrong_key(message, where, decode, raw)
    param = (path + place_in_body.removeprefix("$")).removeprefix(".").replace("[...]", "")
    missing = MISSING.match(detail)
    if missing:
        return missing_parameter(f"{param}.{missing['name']}".removeprefix("."))
    code = next((code for pattern, code in CODES if pattern.match(detail)), "invalid_value")
    what = f"Invalid {param!r}" if param else "Invalid request body"
    text = f"{what}: {_shorten(detail)}."
    if WRONG_CHOICE.match(detail) and (values := _choices_at(decode, where)):
        text += f" Supported values are: {', '.join(map(repr, values))}."
    return RequestError(text, param=param or None, code=code)


def _with_wrong_key(message: str, where: str, decode: Any, raw: Raw | bytes) -> str:
    """Return the place of an error with the key of a map that msgspec does not name.

    Only maps are searched that are in no list; each entry is decoded as if it were the only one.
    """
    head, _, rest = where.partition("[...]")
    names = head.split(".")[1:]
    if not names or "[" in head or not ("[...]" in where or " - at `key` in " in message):
        return where
    values: dict[str, Raw] = {"": Raw(raw)}
    for name in ("", *names):
        values = _decode_fields(values[name])
    for key in islice(values, MAX_SEARCHED_KEYS):
        body: Any = {key: values[key]}
        for name in reversed(names):
            body = {name: body}
        try:
            decode(msgspec.json.encode(body))
        except msgspec.ValidationError as exc:
            if str(exc) == message:
                return f"{head}.{_shorten(key)}{rest}"
    return where


def _choices_at(decode: Any, where: str) -> Sequence[Any]:
    """Return the values that the decoder's type allows at a place."""
    kinds: Sequence[inspect.Type] = [_type_info(getattr(decode, "__self__", None))]
    tags: Sequence[Any] = ()
    for step in STEPS.findall(where):
        structs = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
        tags = [kind.tag for kind in structs if step == f".{kind.tag_field}"]
        kinds = [inner for each in kinds for inner in _inner_types(each, step)]
    literals = [kind for kind in kinds if isinstance(kind, inspect.LiteralType)]
    values = [value for kind in literals for value in kind.values]
    return list(dict.fromkeys([*tags, *values]))


@cache
def _type_info(decoder: Any) -> inspect.Type:
    return inspect.type_info(getattr(decoder, "type", None))


def _inner_types(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """Yield the types of a field, or of the entries of a list or a map."""
    match kind:
        case inspect.StructType(fields=fields):
            inner = [field.type for field in fields if step == f".{field.encode_name}"]
        case inspect.DictType(value_type=item_type):
            inner = [item_type]
        case inspect.VarTupleType(item_type=item_type) | inspect.ListType(item_type=item_type):
            inner = [item_type]
        case _:
            inner = []
    for each in inner:
        yield from _alternatives(each)


def _alternatives(kind: inspect.Type) -> Sequence[inspect.Type]:
    """Return the types of a union, or the type itself."""
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [inner for each in kind.types for inner in _alternatives(each)]
    return (kind,)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_DETAIL_CHARS else text[:MAX_DETAIL_CHARS] + "…"
