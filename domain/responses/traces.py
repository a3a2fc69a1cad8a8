"""The trace of a response, and the bundle that explains it: what its models read and wrote.

A trace is what the server keeps while a response runs. A bundle is one JSON document for people and
for `antiphon replay`: the trace with everything that the store has of the response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.domain import deltas as d
from antiphon.domain.content import AnyAnnotation
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolChoice, ToolSpec

BUNDLE_VERSION = 1
"""The version of the bundle's schema: a bundle of another version is not read."""

PORTION_TOKENS = 4096

TracedDelta = tuple[str, Json]
"""The name of a delta's class (domain/deltas.py), and its fields that are not the default."""


class TracedStep(Struct, frozen=True, array_like=True):
    """A step of the engine: its tokens, the characters of its text, and its time.

    `at` is in seconds since the start of the trace.
    """

    tokens: int
    characters: int
    at: float


class TracedBatch(Struct, frozen=True, array_like=True):
    """Deltas that were written together, `at` seconds after the start of the trace.

    `last_event` is the number of the last event that they caused, -1 if they caused none.
    """

    at: float
    last_event: int
    deltas: tuple[TracedDelta, ...]


class TracedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a tool that the server ran: what opened its item, and its output in batches.

    `written_kind` and `written_name` are what the model wrote, `kind` and `name` what the server
    ran it as (domain/tools.py).
    """

    written_kind: str
    written_name: str
    kind: str
    name: str
    namespace: str | None = None
    arguments: str = ""
    step: str = ""
    opening: TracedDelta | None = None
    output: tuple[tuple[TracedDelta, ...], ...] = ()


class TurnTrace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn: what the model read and wrote, and what that became.

    `prompt` and `output` are text in which special tokens are visible. A turn on a Chat Completions
    server has `upstream_request` and, in `output`, the stream's data, a line for each event. A turn
    that no model wrote has only `batches`. `cut` names the fields that were shortened or left out,
    to keep the trace within its bytes.
    """

    kind: str = "answer"
    model: str = ""
    format: str = ""
    reason: str = ""
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    output: str | None = None
    output_token_ids: tuple[int, ...] = ()
    output_tokens: int = 0
    sampling: Json = {}
    text_format: Json = {}
    tools: tuple[ToolSpec, ...] = ()
    choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    unmarked_calls: int = 0
    upstream_request: Json | None = None
    steps: tuple[TracedStep, ...] = ()
    batches: tuple[TracedBatch, ...] = ()
    calls: tuple[TracedCall, ...] = ()
    cut: tuple[str, ...] = ()


class Trace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The trace of a run: what the store does not keep anyway. `request` has no `input`.

    `started_at` is in seconds since the epoch. `server` holds versions and settings.
    """

    version: int = BUNDLE_VERSION
    started_at: float
    request: Json = {}
    server: Json = {}
    turns: tuple[TurnTrace, ...] = ()
    cut: tuple[str, ...] = ()


class PrefixComparison(Struct, frozen=True, kw_only=True):
    """How the first prompt continues the prompt and output of the previous response.

    `shared_tokens` counts the tokens at the start that both have. `differs_at` is the index of the
    first token that differs, or None if the prompt contains all of the `parent_tokens`.
    """

    previous_response_id: str
    parent_tokens: int
    prompt_tokens: int
    shared_tokens: int
    differs_at: int | None


class TimedEvent(Struct, frozen=True, kw_only=True):
    """An event as clients saw it; `at` is in seconds since the epoch, None if it is not known."""

    at: float | None = None
    event: Raw


class Bundle(Struct, frozen=True, kw_only=True):
    """Everything that the server knows of a response.

    `missing` says in sentences what is not here, and why. `request` is without its `input`, which
    is in `input_items` together with what came before it.
    """

    object: str = "response.bundle"
    version: int = BUNDLE_VERSION
    response_id: str
    exported_at: float
    server: Json
    request: Json | None = None
    response: Raw
    input_items: tuple[Raw, ...] = ()
    events: tuple[TimedEvent, ...] = ()
    turns: tuple[TurnTrace, ...] = ()
    prefix: PrefixComparison | None = None
    missing: tuple[str, ...] = ()


_DELTAS: Mapping[str, type[d.Delta]] = {
    kind.__name__: kind
    for kind in vars(d).values()
    if isinstance(kind, type) and issubclass(kind, d.Delta)
}


def to_traced(delta: d.Delta) -> TracedDelta:
    """Return a delta as a trace holds it.

    >>> to_traced(d.TextDelta("Hello."))
    ('TextDelta', {'text': 'Hello.'})
    """
    defaults = dict(
        zip(delta.__struct_fields__[::-1], delta.__struct_defaults__[::-1], strict=False)
    )
    fields = {name: getattr(delta, name) for name in delta.__struct_fields__}
    changed = {
        name: value if isinstance(value, str) else msgspec.json.decode(msgspec.json.encode(value))
        for name, value in fields.items()
        if name not in defaults or value != defaults[name]
    }
    return type(delta).__name__, changed


def from_traced(traced: TracedDelta) -> d.Delta:
    """Return the delta. Raises: RequestError if there is none of this name, or with these fields.

    >>> from_traced(("TextDelta", {"text": "Hello."}))
    TextDelta(text='Hello.', logprobs=(), phase=None)
    """
    name, fields = traced
    try:
        if name == "AnnotationDelta":  # its field has the type of the base class
            return d.AnnotationDelta(msgspec.convert(fields["annotation"], AnyAnnotation))
        return msgspec.convert(fields, _DELTAS[name])
    except (KeyError, msgspec.ValidationError) as error:
        raise RequestError(f"The bundle has a delta that cannot be read: {name}: {error}") from None


def compare_prefix(
    previous_response_id: str, parent: Sequence[int], prompt: Sequence[int]
) -> PrefixComparison:
    """Compare a prompt with the prompt and output that it should continue.

    >>> compare_prefix("resp_1", [1, 2, 3], [1, 2, 4, 5]).differs_at
    2
    """
    shared = _count_shared(parent, prompt)
    return PrefixComparison(
        previous_response_id=previous_response_id,
        parent_tokens=len(parent),
        prompt_tokens=len(prompt),
        shared_tokens=shared,
        differs_at=None if shared == len(parent) else shared,
    )


def _count_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens at the start are the same."""
    shorter, start = min(len(one), len(other)), 0
    # A prompt may have a million tokens: portions are compared at once.
    while start < shorter:
        end = min(start + PORTION_TOKENS, shorter)
        if list(one[start:end]) != list(other[start:end]):
            pairs = enumerate(zip(one[start:end], other[start:end], strict=True), start)
            return next(index for index, (a, b) in pairs if a != b)
        start = end
    return shorter


def read_bundle(data: bytes) -> Bundle:
    """Return the bundle of a file. Raises: RequestError, which says what is wrong with it."""
    try:
        version: Any = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if version != BUNDLE_VERSION:
            raise RequestError(f"The bundle has version {version!r}, not {BUNDLE_VERSION}.")
        return msgspec.json.decode(data, type=Bundle)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RequestError(f"This is no bundle of a response: {error}") from None
