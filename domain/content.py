"""Content parts, annotations and logprobs (docs/reference/api.md#content-parts)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import force_setattr

from antiphon.domain.bounds import Long, Text
from antiphon.domain.json import Json

MIN_LOGPROB = -9999.0
"""Replaces minus infinity and what is no number, which JSON cannot represent."""


class TopLogprob(Struct, frozen=True, kw_only=True, gc=False):
    """A token with its log probability, which is clamped: engines of every kind fill it in."""

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not MIN_LOGPROB <= self.logprob <= 0:
            force_setattr(self, "logprob", _clamp_logprob(self.logprob))


class Logprob(Struct, frozen=True, kw_only=True, gc=False):
    """A sampled token with its alternatives, the most likely first; see TopLogprob.

    >>> Logprob(token="a", logprob=float("nan")).logprob
    -9999.0
    """

    token: str
    logprob: float
    bytes: tuple[int, ...] = ()
    top_logprobs: tuple[TopLogprob, ...] = ()

    def __post_init__(self) -> None:
        if not MIN_LOGPROB <= self.logprob <= 0:
            force_setattr(self, "logprob", _clamp_logprob(self.logprob))


def _clamp_logprob(value: float) -> float:
    # In this order, what is no number becomes the least one: it is not above it.
    return min(0.0, max(MIN_LOGPROB, value))


class Annotation(Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """A citation; indices are character offsets into its part's text."""


class UrlCitation(Annotation, frozen=True, kw_only=True, tag="url_citation"):
    start_index: int
    end_index: int
    url: str
    title: str


class FileCitation(Annotation, frozen=True, kw_only=True, tag="file_citation"):
    file_id: str
    filename: str | None = None
    index: int


class ContainerFileCitation(Annotation, frozen=True, kw_only=True, tag="container_file_citation"):
    container_id: str
    file_id: str
    filename: str
    start_index: int
    end_index: int


class FilePath(Annotation, frozen=True, kw_only=True, tag="file_path"):
    file_id: str
    index: int


AnyAnnotation = UrlCitation | FileCitation | ContainerFileCitation | FilePath


class Part(Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """Base class of all content parts."""


class InputText(Part, frozen=True, kw_only=True, tag="input_text"):
    text: Text
    prompt_cache_breakpoint: Any = UNSET


class InputImage(Part, frozen=True, kw_only=True, tag="input_image"):
    """One of `image_url` (http(s) or a data URL) and `file_id`."""

    image_url: Text | None | UnsetType = UNSET
    file_id: Text | None | UnsetType = UNSET
    detail: Literal["low", "high", "auto", "original"] | None = "auto"
    prompt_cache_breakpoint: Any = UNSET


class InputFile(Part, frozen=True, kw_only=True, tag="input_file"):
    """One of `file_id`, `file_data` (base64 or a data URL) and `file_url`."""

    file_id: Text | None | UnsetType = UNSET
    file_data: Text | None | UnsetType = UNSET
    file_url: Text | None | UnsetType = UNSET
    filename: Text | None | UnsetType = UNSET
    detail: Text | None | UnsetType = UNSET
    prompt_cache_breakpoint: Any = UNSET


class InputAudio(Part, frozen=True, kw_only=True, tag="input_audio"):
    input_audio: Json


class InputVideo(Part, frozen=True, kw_only=True, tag="input_video"):
    video_url: Text


class OutputText(Part, frozen=True, kw_only=True, tag="output_text"):
    """Text that a model wrote.

    The server writes AnyAnnotation and Logprob. Annotations that a client sends back may be of any
    kind, because no rule reads them and the API adds new kinds every few months. Log probabilities
    stay JSON, because no rule reads them and there may be 100,000 of them.
    """

    text: Text
    annotations: Long[Any] | None = ()
    logprobs: Long[Raw] | None = ()


class Refusal(Part, frozen=True, kw_only=True, tag="refusal"):
    refusal: Text


class PlainText(Part, frozen=True, kw_only=True, tag="text"):
    """Text in a legacy form that conversation items use."""

    text: Text


class ReasoningText(Part, frozen=True, kw_only=True, tag="reasoning_text"):
    text: Text


class SummaryText(Part, frozen=True, kw_only=True, tag="summary_text"):
    text: Text


class ComputerScreenshot(Part, frozen=True, kw_only=True, tag="computer_screenshot"):
    image_url: Text | None | UnsetType = UNSET
    file_id: Text | None | UnsetType = UNSET


MessagePart = (
    InputText | InputImage | InputFile | InputAudio | InputVideo | OutputText | Refusal | PlainText
)
OutputPart = InputText | InputImage | InputFile | OutputText | PlainText
"""The parts of a tool's output; some clients send `output_text`."""


def text_of(content: str | tuple[Any, ...]) -> str:
    """Return all text of an item's content, with the parts joined without a separator.

    >>> text_of((InputText(text="a"), Refusal(refusal="b")))
    'ab'
    """
    if isinstance(content, str):
        return content
    return "".join(
        part.refusal if isinstance(part, Refusal) else getattr(part, "text", "") for part in content
    )
