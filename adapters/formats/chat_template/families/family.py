"""The fields of a row in the table of families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Tags(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How calls are written as tags, each part by what begins or ends it.

    A call is `call` name (one of `name_ends`), arguments, `call_end`. An argument is `key` name
    `key_end`, `value` text `value_end`. If `name_ends` is `>` alone, the name is an attribute of a
    tag, with or without quotes; so is a key if `key_end` is `>`. `{key}` in `value_end` stands for
    the key. `prelude` may come before a call.

    `value_type` is a pair of markers around the value's type, which may stand before the value.

    A text may start and end with a newline of its own (`has_padding`); if it always does
    (`needs_padding`), one of them may be missing. It may have XML's escapes (`is_xml`). A list or
    an object may be tags in tags (`nests`).
    """

    call: str
    name_ends: tuple[str, ...] = (">",)
    key: str
    key_end: str = ">"
    value: str = ""
    value_end: str
    call_end: str
    prelude: tuple[str, ...] = ()
    value_type: tuple[str, str] | None = None
    has_padding: bool = False
    needs_padding: bool = False
    is_xml: bool = False
    nests: bool = False


class Region(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Text with calls.

    `reader` reads it: a name in `payloads.READERS`, or a `Reader`. `end` is the marker that closes
    it. `tags` describes the calls for the reader of tags. `may_follow_name` says that models also
    write a call's name before the region's marker, and its arguments after it.
    """

    reader: Any
    end: str = ""
    tags: Tags | None = None
    may_follow_name: bool = False


class CallForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a well-behaved model writes calls: open, begin arguments end, separator, …, close.

    `{name}` in `begin` stands for the tool's name, `{index}` for the call's number in its turn,
    from 0, and `{number}` for its number from 1. `arguments` is a name in `argument_styles.STYLES`,
    or an `ArgumentStyle`. `trigger` is the marker that always starts a call. Without one (a call
    starts like any text), calls are only constrained where they are required.
    """

    begin: str
    end: str
    separator: str = ""
    open: str = ""
    close: str = ""
    arguments: Any = "json"
    trigger: str = ""


class Signs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what a family is recognized where its template writes no call that can be read back.

    `templates`: alternatives, each a group of texts that are all in the template. `tokens`: markers
    that are all tokens of the tokenizer. `model_types`: values of `model_type` in config.json.
    """

    templates: tuple[tuple[str, ...], ...] = ()
    tokens: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()


class Family(Struct, frozen=True, eq=False, kw_only=True, forbid_unknown_fields=True):
    """The properties that templates of one kind share.

    `think` and `refusal` are pairs of markers; `more_thinks` are other pairs around reasoning, of
    some of the models or levels of effort. `think_label` is a line after the marker that opens
    reasoning, and part of the markup. `message_start` is what the model may write after reasoning,
    before it goes on. `header` is what begins the header of a message, a name and then the marker
    that says what the message is; if it is "", the name stands at the start of the turn, or after
    `message_start`. `text` is a pair of markers around visible text; text outside
    of them is visible, too. `calls` maps markers to the regions that they open;
    `bare_calls` maps characters, each of which may start a region as the first one of a text.
    `citations` are markers around cited text: it stays, and they are left out with the numbers of
    the sources, which follow the second one up to `>`.
    `end_markers` end a turn and `hidden_markers` surround calls and answers: neither is ever
    visible text. Of the hidden markers, `answer_ends` come after an answer, and `answer_starts`
    before one: models that forgot to close their reasoning end it so.
    `call_id_length` is set if the templates refuse ids of any other length, `call_id_form` if they
    want the id to say `{name}` and `{index}` of the call in the conversation. `models` names the
    models that write so, and `signs` are what they show. A family equals itself alone, so that
    caches can have it as their key.
    """

    models: str = ""
    signs: Signs = Signs()
    think: tuple[str, str] | None = None
    more_thinks: tuple[tuple[str, str], ...] = ()
    think_label: str = ""
    message_start: str = ""
    header: str | None = None
    text: tuple[str, str] | None = None
    refusal: tuple[str, str] | None = None
    citations: tuple[str, str] | None = None
    calls: Mapping[str, Region] = {}
    bare_calls: Mapping[str, Region] = {}
    hidden_markers: tuple[str, ...] = ()
    answer_starts: tuple[str, ...] = ()
    answer_ends: tuple[str, ...] = ()
    end_markers: tuple[str, ...] = ()
    call_form: CallForm | None = None
    call_id_length: int | None = None
    call_id_form: str | None = None

    @property
    def thinks(self) -> tuple[tuple[str, str], ...]:
        """All pairs of markers around reasoning, the usual one first."""
        return () if self.think is None else (self.think, *self.more_thinks)

    @property
    def think_markers(self) -> tuple[str, ...]:
        """The markers before and after reasoning."""
        return tuple(marker for pair in self.thinks for marker in pair)

    @property
    def header_space(self) -> str:
        """The space before a header, which is no part of its marker."""
        header = self.header or ""
        return header[: len(header) - len(header.lstrip())]

    @property
    def text_starts(self) -> tuple[str, ...]:
        """The markers before visible text, which end reasoning that the model forgot to close."""
        return (*(self.text or ())[:1], *self.answer_starts)

    @property
    def text_ends(self) -> tuple[str, ...]:
        """The markers after visible text, which end a message."""
        return (*(self.text or ())[1:], *self.answer_ends)

    @property
    def reasoning_openings(self) -> tuple[str, ...]:
        """The ends of a prompt that opens reasoning."""
        return tuple(each for begin, _ in self.thinks for each in self.openings_of(begin))

    def openings_of(self, marker: str) -> tuple[str, str]:
        """The ends of a prompt that opens reasoning with this marker."""
        return marker, f"{marker}{self.think_label}".rstrip()

    def opens_reasoning(self, prompt: str) -> bool:
        """Whether the prompt ends with a marker that opens reasoning."""
        return prompt.rstrip().endswith(self.reasoning_openings)


THINK = ("<think>", "</think>")
CHATML_END_MARKERS = ("<|im_end|>", "<|endoftext|>")
