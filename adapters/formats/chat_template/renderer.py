"""Turns as chat messages, and as the prompts that a model's own template makes of them."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from sys import getsizeof
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.formats.call_ids import CallIds
from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.effort import EffortOptions
from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.marker_cutter import (
    MarkerCutter,
    PartEncoder,
    markers_of,
    remove_cuts,
)
from antiphon.adapters.formats.chat_template.splice_points import (
    SplicedTurn,
    SplicePoints,
    TurnShape,
    find_splice_points,
    placeholder_message,
    splice_turns,
)
from antiphon.adapters.formats.chat_template.template import ChatTemplate, strftime_at
from antiphon.adapters.formats.chat_template.template_capabilities import (
    IMAGE_PART,
    REASONING_KEYS,
    TemplateCapabilities,
    detect_capabilities,
    text_part,
    with_content_parts,
    with_fitting_call,
)
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.fitting import ALL_CALLS, Fittings, write_as_json
from antiphon.adapters.formats.portions import check_length, has_large_tools, is_large
from antiphon.adapters.formats.role_rules import find_fittings
from antiphon.adapters.formats.token_cache import TokenCache, join_tokens, share_tokens
from antiphon.adapters.formats.tools import prompt_tools
from antiphon.adapters.formats.transcript import (
    CallEntry,
    Entry,
    EntryPart,
    MessageEntry,
    OutputEntry,
    ReasoningEntry,
    chat_turn_cache,
    function_of,
    joined_text,
    to_object,
    to_object_text,
    to_parts,
    transcript,
)
from antiphon.adapters.formats.turn_cache import MAX_CACHED_BYTES, CachedTurn, TurnCache
from antiphon.application.ports import Prompt, Turn
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.lengths import length_of
from antiphon.application.support.lru_cache import LruCache, digest_of
from antiphon.application.support.threads import MAX_THREADS, compute_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import INSTRUCTORS, leading_instructions
from antiphon.domain.json import Json

MIN_THREADED_CHARACTERS = 20_000
"""A longer text is encoded in a thread, so that other requests are not held up."""

MAX_CACHED_OPTIONS_BYTES = 256 * 1024
"""Options come from requests, so the caches of what depends on them are bounded."""

MAX_SPLICED_OPTIONS_CHARS = 10_000
"""With longer options, every turn is rendered anew: to find splice points takes twelve renderings.
"""

SPLICE_POINTS_BYTES = 1000
"""What the splice points of four shapes take, without their texts."""

PLACEHOLDER_PREFIX = f"mark-{secrets.token_hex(8)}-"

MAX_CACHED_TOOLS_BYTES = 32 << 20
BYTES_PER_TOOL_BYTE = 8
"""What a tool takes in memory, for each byte of its JSON."""

_encode_json = msgspec.json.Encoder().encode

T = TypeVar("T")


class ChatRenderer(Protocol):
    """Makes prompts: conversation → tokens. It repeats the turns that `turn_cache` holds."""

    turn_cache: TurnCache[Entry]
    fittings: Fittings
    """What is changed in conversations that break rules of the template."""

    @property
    def reads_images(self) -> bool:
        """Whether prompts can hold images."""

    async def render(self, turn: Turn) -> Prompt:
        """Return the prompt. Raises: RequestError for content that this model cannot read."""

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:
        """Return the tokens of a text that is the whole prompt; see `Format.encode`."""


class TemplateRenderer(ChatRenderer):
    """Renders with the template that came with the model."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, family: Family) -> None:
        self._template = template
        self._encoder = PartEncoder(tokenizer)
        self._begin_text = tokenizer.begin_text
        self._family = family
        self._capabilities = detect_capabilities(template)
        self._effort_options = EffortOptions(template)
        self._cutter = MarkerCutter(markers_of(tokenizer, family, template.source))
        self._tokens: LruCache[Sequence[int]] = LruCache(MAX_CACHED_BYTES)
        self._tools: LruCache[Sequence[Json]] = LruCache(MAX_CACHED_TOOLS_BYTES)
        self.turn_cache = chat_turn_cache()
        self._splice_points: LruCache[SplicePoints] = LruCache(MAX_CACHED_OPTIONS_BYTES)
        self.fittings = find_fittings(self._render_sample, write_call=self._write_call)
        self._writers = FairQueue(MAX_THREADS)
        self._encoders = FairQueue(MAX_THREADS)

    @property
    def reads_images(self) -> bool:
        return self._capabilities.images

    async def render(self, turn: Turn) -> Prompt:
        if is_large(turn) or has_large_tools(turn):
            async with self._writers.slot(turn.tenant):
                written, digest = await compute_in_thread(self._write, turn)
        else:
            written, digest = self._write(turn)
        return Prompt(
            token_ids=await self._encode(written.pieces, turn),
            image_urls=written.image_urls,
            fittings=written.fittings,
            prefix_digest=digest,
        )

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:
        return self._begin_text(await self._encode([text], turn))

    def _write(self, turn: Turn) -> tuple[_Written, bytes]:
        """Return the prompt and the conversation's digest."""
        entries = _entries(turn)
        fingerprints = self.turn_cache.fingerprint(turn.cache_salt, entries)
        grouped = list(self.turn_cache.group_turns(entries, fingerprints))
        splice_points = self._splice_points_for(self._options_of(turn))
        written = self._render_pieces(turn, grouped, splice_points)
        if written is None:
            written = self._render_pieces(turn, grouped, {})
        assert written is not None, "there is nothing to splice"
        return written, fingerprints.of_all

    def _render_pieces(
        self,
        turn: Turn,
        entries: Sequence[Entry | CachedTurn[Entry]],
        splice_points: SplicePoints,
    ) -> _Written | None:
        """Return the prompt, or None if it cannot be cut."""
        conversation = _ChatMessages(
            turn.previous_messages,
            CallIds(self._family.call_id_length, self._family.call_id_form),
            self._capabilities,
        )
        conversation.add_turn(
            turn, [_without_tokens_unless_spliceable(entry, splice_points) for entry in entries]
        )
        messages, fittings = self.fittings.apply(conversation.messages)
        options = self._options_of(turn)
        if turn.rendered_at is not None:
            options["strftime_now"] = partial(strftime_at, turn.rendered_at)
        text = self._render(self._fit_content(messages), self._cut_tools(turn), options)
        pieces = splice_turns(
            text, conversation.spliced_turns, splice_points, self._family.end_markers
        )
        return None if pieces is None else _Written(pieces, conversation.image_urls, fittings)

    def _cut_tools(self, turn: Turn) -> Sequence[Json]:
        """Return the tools for the template, with a cut in each marker that they spell.

        A client sends the same tools with every request, and they have many texts.
        """
        tools = prompt_tools(turn)
        if not tools:
            return []
        with _refuse_deep_nesting():
            tools_json = _encode_json(tools)
            key = digest_of((turn.cache_salt or "").encode("utf-8", "surrogatepass"), tools_json)
            cut = self._tools.get(key)
            if cut is None:
                cut = self._cutter.cut([function_of(tool) for tool in tools])
                self._tools.put(key, cut, BYTES_PER_TOOL_BYTE * len(tools_json))
            return cut

    def _render(
        self, messages: Sequence[Json], cut_tools: Sequence[Json], options: Mapping[str, Any]
    ) -> str:
        """Return the prompt's text, with a cut in each marker that the conversation spells."""
        try:
            with _refuse_deep_nesting():
                cut_messages, cut_options = self._cutter.cut([messages, options])
                return self._template.render(cut_messages, cut_tools, cut_options)
        except RequestError as error:
            raise RequestError(remove_cuts(error.message), param=error.param) from error

    def _options_of(self, turn: Turn) -> dict[str, Any]:
        """Return the variables that the template gets besides the conversation."""
        return self._effort_options.find(turn.effort) | dict(turn.template_kwargs)

    def _splice_points_for(self, options: Mapping[str, Any]) -> SplicePoints:
        key = _key_of(options)
        if key is None:
            return {}
        points = self._splice_points.get(key)
        if points is None:
            points = self._find_splice_points(options)
            texts = [text for each in points.values() for text in (each.surplus, each.missing)]
            self._splice_points.put(key, points, SPLICE_POINTS_BYTES + sum(map(getsizeof, texts)))
        return points

    def _find_splice_points(self, options: Mapping[str, Any]) -> SplicePoints:
        def render(messages: Sequence[Json]) -> str:
            # In some samples, a result has the id of another call.
            fitted, _ = self.fittings.of_roles.apply(messages)
            return self._render(self._fit_content(fitted), [], options)

        def make_message(placeholder: str, call_id: str | None) -> Json:
            arguments = {} if self._capabilities.object_arguments else "{}"
            return placeholder_message(
                placeholder,
                no_content=self._capabilities.no_content,
                arguments=arguments,
                call_id=call_id,
            )

        return find_splice_points(render, make_message, self._family.end_markers)

    def _render_sample(self, messages: Sequence[Json], tools: Sequence[Json]) -> str:
        fitted = [with_fitting_call(message, self._capabilities) for message in messages]
        return self._render(self._fit_content(fitted), tools, {})

    def _write_call(self, name: str, arguments: Any) -> str:
        if isinstance(arguments, str):
            arguments = to_object(arguments)
        form = self._family.call_form
        return write_calls(form, [(name, arguments)]) if form else write_as_json(name, arguments)

    def _fit_content(self, messages: Sequence[Json]) -> Sequence[Json]:
        if self._capabilities.text_content:
            return messages
        return [with_content_parts(message) for message in messages]

    async def _encode(self, pieces: Sequence[str | Sequence[int]], turn: Turn) -> list[int]:
        cache = TokenCache(turn.cache_salt, self._tokens)
        tokens: dict[str, Sequence[int] | None] = {
            piece: cache.get(piece) for piece in pieces if isinstance(piece, str)
        }
        new_texts = [text for text, ids in tokens.items() if ids is None]
        is_long = sum(map(len, new_texts)) > MIN_THREADED_CHARACTERS
        count = 0
        for text in new_texts:
            if is_long:
                ids = await self._encode_in_threads(text, turn, count)
            else:
                ids = self._encoder.encode(text)
            count += len(ids)
            tokens[text] = kept = share_tokens(ids)
            cache.put(text, kept)
        return join_tokens(
            [(tokens[piece] or ()) if isinstance(piece, str) else piece for piece in pieces]
        )

    async def _encode_in_threads(self, text: str, turn: Turn, tokens_before: int) -> list[int]:
        ids: list[int] = []
        for batch in self._encoder.batches(text):
            async with self._encoders.slot(turn.tenant):
                ids += await compute_in_thread(self._encoder.encode_batch, batch)
            check_length(tokens_before + len(ids), turn.max_prompt_tokens)
        return ids


class _Written(Struct, frozen=True):
    """A prompt as texts and tokens, its images, and the names of what changed its conversation."""

    pieces: list[str | Sequence[int]]
    image_urls: Sequence[str]
    fittings: Sequence[str]


@contextmanager
def _refuse_deep_nesting() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise RequestError("The conversation is nested too deeply.", param="input") from None


def _key_of(options: Mapping[str, Any]) -> bytes | None:
    """Return a cache key, None if the options are too long for one."""
    if length_of(options, MAX_SPLICED_OPTIONS_CHARS) > MAX_SPLICED_OPTIONS_CHARS:
        return None
    return digest_of(repr(sorted(options.items())).encode("utf-8", "surrogatepass"))


def chat_messages(
    turn: Turn,
    *,
    call_id_length: int | None = None,
    call_id_form: str | None = None,
    capabilities: TemplateCapabilities = TemplateCapabilities(),  # noqa: B008 - frozen
) -> list[Json]:
    """Return the turn as chat messages."""
    call_ids = CallIds(call_id_length, call_id_form)
    conversation = _ChatMessages(turn.previous_messages, call_ids, capabilities)
    conversation.add_turn(turn, _entries(turn))
    return conversation.messages


def _entries(turn: Turn) -> list[Entry]:
    _, items = leading_instructions(turn.items)
    return list(transcript(items, turn.tools))


def _without_tokens_unless_spliceable(
    entry: Entry | CachedTurn[Entry], splice_points: SplicePoints
) -> Entry | CachedTurn[Entry]:
    """Drop the tokens of a turn where the template cannot be cut, so that it is rendered anew."""
    if not isinstance(entry, CachedTurn):
        return entry
    shape = TurnShape(bool(_calls_of(entry)), after_tool=False)
    return entry if shape in splice_points else replace(entry, token_ids=None)


def _calls_of(turn: CachedTurn[Entry]) -> list[CallEntry]:
    return [entry for entry in turn.entries if isinstance(entry, CallEntry)]


def _expand(entry: Entry | CachedTurn[Entry]) -> Sequence[Entry | CachedTurn[Entry] | None]:
    """Return the entries of a turn without tokens, between None and None; others as they are."""
    if isinstance(entry, CachedTurn) and entry.token_ids is None:
        return [None, *entry.entries, None]
    return [entry]


def _pair_calls_with_results(entries: Sequence[T]) -> Iterator[T]:
    """Yield the entries with each result right after its call."""
    results: dict[str, deque[int]] = {}
    for position, entry in enumerate(entries):
        if isinstance(entry, OutputEntry):
            results.setdefault(entry.call_id, deque()).append(position)
    moved: set[int] = set()
    for position, entry in enumerate(entries):
        if position in moved:
            continue
        yield entry
        later = results.get(entry.call_id) if isinstance(entry, CallEntry) else None
        while later and later[0] < position:
            later.popleft()
        if later:
            moved.add(later[0])
            yield entries[later.popleft()]


class _ChatMessages:
    """Chat messages under construction; `_open_message` is the assistant's while its turn goes on.

    Instructions and the system texts that lead the conversation become one system message: many
    templates allow only one, and only at the beginning. What the assistant wrote in one turn
    (reasoning, a message, calls) is one message. Turns that are repeated token by token are
    placeholders, listed in `spliced_turns`.
    """

    def __init__(
        self,
        previous_messages: Sequence[Json],
        call_ids: CallIds,
        capabilities: TemplateCapabilities,
    ) -> None:
        self.messages = list(previous_messages)
        self.image_urls: list[str] = []
        self.spliced_turns: list[SplicedTurn] = []
        self._capabilities = capabilities
        self._tool_images: list[EntryPart] = []
        self._open_message: Json | None = None
        self._call_ids = call_ids

    def add_turn(self, turn: Turn, entries: Sequence[Entry | CachedTurn[Entry]]) -> None:
        """Add the whole turn; `entries` are its conversation."""
        leading, _ = leading_instructions(turn.items)
        texts = [joined_text(to_parts(message.content)) for message in leading]
        self._add_instructions(
            "\n\n".join([turn.instructions, *texts] if turn.instructions else texts)
        )
        expanded = [each for entry in entries for each in _expand(entry)]
        parallel = self._capabilities.parallel_calls
        for entry in expanded if parallel else _pair_calls_with_results(expanded):
            if entry is None:
                self._open_message = None
            elif isinstance(entry, CachedTurn):
                self._add_placeholder(entry)
            else:
                self._add(entry)
        self._flush_tool_images()

    def _add_placeholder(self, turn: CachedTurn[Entry]) -> None:
        assert turn.token_ids is not None
        self._flush_tool_images()
        self._open_message = None
        calls = _calls_of(turn)
        call_ids = self._call_ids.add(calls)
        after_tool = bool(self.messages) and self.messages[-1].get("role") == "tool"
        # It cannot be guessed, so no text of a conversation can pass for a placeholder.
        placeholder = f"{PLACEHOLDER_PREFIX}{len(self.spliced_turns)}x"
        message = placeholder_message(
            placeholder,
            no_content=self._capabilities.no_content,
            arguments=self._fit_arguments("{}"),
            call_id=call_ids[0] if call_ids else None,
        )
        names = [call.name for call in calls]
        self.messages.append(message | {ALL_CALLS: dict(zip(call_ids, names, strict=True))})
        shape = TurnShape(bool(call_ids), after_tool)
        self.spliced_turns.append(SplicedTurn(placeholder, shape, turn.token_ids))

    def _add_instructions(self, text: str) -> None:
        if not text:
            return
        first = self.messages[0] if self.messages else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            self.messages[0] = first | {"content": f"{text}\n\n{first['content']}"}
        else:
            self.messages.insert(0, {"role": "system", "content": text})

    def _add(self, entry: Entry) -> None:
        if not isinstance(entry, OutputEntry):
            self._flush_tool_images()
        match entry:
            case ReasoningEntry(text):
                self._add_reasoning(text)
            case MessageEntry("assistant", parts):
                self._add_text(joined_text(parts))
            case CallEntry():
                self._add_call(entry)
            case MessageEntry(role, parts):
                self._open_message = None
                role = "system" if role in INSTRUCTORS else role
                self.messages.append({"role": role, "content": self._to_content(parts)})
            case OutputEntry(name, call_id, parts):
                self._open_message = None
                self.messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": self._call_ids.find(call_id),
                        "name": name,
                        "content": self._to_tool_content(parts),
                    }
                )

    def _flush_tool_images(self) -> None:
        """Add the tools' images as a user's message, where only users may show images."""
        images, self._tool_images = self._tool_images, []
        if images:
            self.messages.append({"role": "user", "content": self._to_content(images)})

    def _to_tool_content(self, parts: Sequence[EntryPart]) -> str | list[Json]:
        if self._capabilities.tool_images or not self._capabilities.images:
            return self._to_content(parts)
        self._tool_images += [part for part in parts if part[0] == "image"]
        return joined_text([part for part in parts if part[0] != "image"])

    def _to_content(self, parts: Sequence[EntryPart]) -> str | list[Json]:
        images = [url for kind, url in parts if kind == "image"]
        if not images or not self._capabilities.images:
            return joined_text(parts)
        self.image_urls += images
        return [IMAGE_PART if kind == "image" else text_part(text) for kind, text in parts]

    def _add_reasoning(self, text: str) -> None:
        if not text:
            return
        message = self._assistant_message(unless=("content", "tool_calls"))
        before = message.get(REASONING_KEYS[0])
        message |= dict.fromkeys(REASONING_KEYS, f"{before}\n{text}" if before else text)

    def _add_text(self, text: str) -> None:
        if not self._capabilities.calls_after_text:
            message = self._assistant_message(unless=("content", "tool_calls"))
        else:
            message = self._assistant_message(unless=() if self._has_calls() else ("content",))
        before = message.get("content")
        message["content"] = f"{before}\n\n{text}" if before else text

    def _add_call(self, call: CallEntry) -> None:
        unless: tuple[str, ...] = () if self._capabilities.calls_after_text else ("content",)
        if not self._capabilities.parallel_calls:
            unless += ("tool_calls",)
        message = self._assistant_message(unless=unless)
        [call_id] = self._call_ids.add([call])
        arguments = self._fit_arguments(call.arguments)
        message.setdefault("tool_calls", []).append(
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments},
            }
        )

    def _has_calls(self) -> bool:
        return self._open_message is not None and "tool_calls" in self._open_message

    def _assistant_message(self, *, unless: tuple[str, ...]) -> Json:
        """Return the assistant's open message, or open a new one if it has any of `unless`."""
        if self._open_message is None or any(self._open_message.get(key) for key in unless):
            self._open_message = {"role": "assistant", "content": self._capabilities.no_content}
            self.messages.append(self._open_message)
        return self._open_message

    def _fit_arguments(self, text: str) -> Any:
        return to_object(text) if self._capabilities.object_arguments else to_object_text(text)
