"""A turn as chat messages, and as the prompt that a model's own template makes of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.marker_cutter import (
    MarkerCutter,
    PartEncoder,
    markers_of,
    remove_cuts,
)
from antiphon.adapters.formats.chat_template.splice_points import (
    Place,
    SplicedTurn,
    SplicePoints,
    cut,
    placeholder_message,
    splice_points,
)
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.template_capabilities import (
    IMAGE,
    TemplateCapabilities,
    template_capabilities,
    with_content_parts,
)
from antiphon.adapters.formats.chat_template.template_capabilities import text as text_part
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.chat_template.transcript import (
    CallEntry,
    Entry,
    MessageEntry,
    OutputEntry,
    Piece,
    ReasoningEntry,
    chat_turn_cache,
    function_of,
    pieces,
    text_of,
    transcript,
)
from antiphon.adapters.formats.lru_cache import LruCache, TokenCache
from antiphon.adapters.formats.tools import prompt_tools
from antiphon.adapters.formats.turn_cache import MAX_CACHED_TOKENS, CachedTurn, TurnCache
from antiphon.application.ports import Prompt, Turn
from antiphon.domain.conversation import INSTRUCTORS, leading_instructions
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

LONG_PROMPT = 20_000
"""Characters from which on encoding is given a thread, so that other requests go on."""

MOST_OPTIONS = 100
"""Options come from requests; so many are known at once."""

MARK = f"mark-{secrets.token_hex(8)}-"

T = TypeVar("T")


class Renderer(Protocol):
    """Makes prompts: from the conversation to tokens. Turns that `turn_cache` knows it repeats."""

    turn_cache: TurnCache[Entry]

    @property
    def reads_images(self) -> bool:
        """Whether prompts can hold images."""

    async def render(self, turn: Turn) -> Prompt:
        """Raises: RequestError for what this model cannot be given."""

    def opens_reasoning(self, turn: Turn) -> bool:
        """Whether the prompt of such a turn ends inside reasoning."""


class TemplateRenderer(Renderer):
    """Renders with the template that came with the model."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, family: Family) -> None:
        self._template = template
        self._parts = PartEncoder(tokenizer)
        self._family = family
        self._opens: dict[str, bool] = {}
        # Some templates tell a call from a message by its content being null; most want a string.
        self._no_content = None if re.search(r"content\W* is none", template.source) else ""
        self._takes = template_capabilities(template)
        self._plain = MarkerCutter(markers_of(tokenizer, family, template.source))
        self._texts: LruCache[array[int]] = LruCache(MAX_CACHED_TOKENS)
        self.turn_cache = chat_turn_cache()
        self._known_seams: dict[str, SplicePoints] = {}

    @property
    def reads_images(self) -> bool:
        return self._takes.images

    async def render(self, turn: Turn) -> Prompt:
        told = _entries(turn)
        digests = self.turn_cache.prefix_digests(turn.cache_salt, told)
        entries = list(self.turn_cache.group_turns(told, digests))
        known = self._seams(options(turn))
        pieces, image_urls = self._pieces(turn, [_cuttable(each, known) for each in entries], known)
        if pieces is None:
            pieces, image_urls = self._pieces(turn, [_cuttable(each, {}) for each in entries], {})
        assert pieces is not None, "there is nothing to cut"
        ids = await self._encode(pieces, TokenCache(turn.cache_salt, self._texts))
        return Prompt(token_ids=ids, image_urls=image_urls, prefix_digest=digests[-1])

    def _pieces(
        self, turn: Turn, entries: Sequence[Entry | CachedTurn[Entry]], known: SplicePoints
    ) -> tuple[list[str | Sequence[int]] | None, list[str]]:
        """Return the prompt as texts and tokens, with its images; None if it cannot be cut."""
        messages = _Messages(
            turn.previous_messages,
            self._family.call_id_length,
            self._no_content,
            self._takes,
        )
        messages.take(turn, entries)
        tools = [function_of(tool) for tool in prompt_tools(turn)]
        text = self._render(self._told(messages.written), tools, options(turn))
        return cut(text, messages.repeated, known, self._family.ends), messages.image_urls

    def _render(
        self, messages: Sequence[Json], tools: Sequence[Json], asked: Mapping[str, Any]
    ) -> str:
        """Return the prompt's text, cut where the conversation spells markers."""
        try:
            return self._template.render(*self._plain.cut([messages, tools, asked]))
        except RequestError as error:
            raise RequestError(remove_cuts(error.message), param=error.param) from error
        except RecursionError:
            raise RequestError("The conversation is nested too deeply.", param="input") from None

    def _seams(self, asked: Mapping[str, Any]) -> SplicePoints:
        key = repr(sorted(asked.items()))
        if key not in self._known_seams:
            if len(self._known_seams) > MOST_OPTIONS:
                self._known_seams.clear()
            self._known_seams[key] = self._found_seams(asked)
        return self._known_seams[key]

    def _found_seams(self, asked: Mapping[str, Any]) -> SplicePoints:
        def render(messages: Sequence[Json]) -> str:
            return self._render(self._told(messages), [], asked)

        def turn(mark: str, call_id: str | None) -> Json:
            arguments = {} if self._takes.objects else "{}"
            return placeholder_message(
                mark, no_content=self._no_content, arguments=arguments, call_id=call_id
            )

        return splice_points(render, turn, self._family.ends)

    def _told(self, messages: Sequence[Json]) -> Sequence[Json]:
        return (
            messages if self._takes.texts else [with_content_parts(message) for message in messages]
        )

    def opens_reasoning(self, turn: Turn) -> bool:
        if self._family.think is None:
            return False
        asked = options(turn)
        key = repr(sorted(asked.items()))
        if key not in self._opens:
            if len(self._opens) > MOST_OPTIONS:
                self._opens.clear()
            self._opens[key] = self._probe(asked)
        return self._opens[key]

    def _probe(self, asked: Mapping[str, Any]) -> bool:
        assert self._family.think
        try:
            text = self._render([{"role": "user", "content": "?"}], [], asked)
        except RequestError:
            return False
        return text.rstrip().endswith(self._family.think[0])

    async def _encode(self, pieces: Sequence[str | Sequence[int]], known: TokenCache) -> list[int]:
        texts = {piece: known.get(piece) for piece in pieces if isinstance(piece, str)}
        new = [text for text, found in texts.items() if found is None]
        if sum(map(len, new)) > LONG_PROMPT:
            encoded = await asyncio.to_thread(self._encode_all, new)
        else:
            encoded = self._encode_all(new)
        for text, ids in zip(new, encoded, strict=True):
            known.put(text, ids)
            texts[text] = ids
        whole = [texts[piece] if isinstance(piece, str) else piece for piece in pieces]
        return [token for part in whole for token in part or ()]

    def _encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._parts.encode(text) for text in texts]


def options(turn: Turn) -> dict[str, Any]:
    """Return what the template is told besides the conversation.

    There is no common name for the effort: models look at different ones and pass over the others.
    """
    asked: dict[str, Any] = {}
    if turn.effort is not None:
        thinks = turn.effort != "none"
        asked = {"reasoning_effort": turn.effort, "enable_thinking": thinks, "thinking": thinks}
    return asked | dict(turn.template_kwargs)


def chat_messages(
    turn: Turn,
    *,
    call_id_length: int | None = None,
    no_content: str | None = "",
    template_capabilities: TemplateCapabilities = TemplateCapabilities(),  # noqa: B008 - frozen
) -> list[Json]:
    """Return the turn as chat messages."""
    messages = _Messages(turn.previous_messages, call_id_length, no_content, template_capabilities)
    messages.take(turn, _entries(turn))
    return messages.written


def _entries(turn: Turn) -> list[Entry]:
    _, rest = leading_instructions(turn.items)
    return list(transcript(rest, turn.tools))


def _cuttable(entry: Entry | CachedTurn[Entry], known: SplicePoints) -> Entry | CachedTurn[Entry]:
    """Return the entry; as one that is written anew, where the template cannot be cut for it."""
    if not isinstance(entry, CachedTurn) or Place(bool(_calls(entry)), after_tool=False) in known:
        return entry
    return replace(entry, token_ids=None)


def _calls(own: CachedTurn[Entry]) -> list[CallEntry]:
    return [entry for entry in own.entries if isinstance(entry, CallEntry)]


def _opened(entry: Entry | CachedTurn[Entry]) -> Sequence[Entry | CachedTurn[Entry] | None]:
    """Return the entry; a turn that is written anew as its entries, None before and after it."""
    anew = isinstance(entry, CachedTurn) and entry.token_ids is None
    return [None, *entry.entries, None] if isinstance(entry, CachedTurn) and anew else [entry]


def _one_by_one(entries: Sequence[T]) -> Iterator[T]:
    """Yield the entries with each result right after its call."""
    results: dict[str, deque[int]] = {}
    for place, entry in enumerate(entries):
        if isinstance(entry, OutputEntry):
            results.setdefault(entry.call_id, deque()).append(place)
    moved: set[int] = set()
    for place, entry in enumerate(entries):
        if place in moved:
            continue
        yield entry
        later = results.get(entry.call_id) if isinstance(entry, CallEntry) else None
        while later and later[0] < place:
            later.popleft()
        if later:
            moved.add(later[0])
            yield entries[later.popleft()]


class _Messages:
    """Chat messages in the making; `_turn` is the assistant's, as long as it goes on.

    Instructions and the system texts that lead the conversation are one system message: many
    templates know only one, and only in front. What the assistant wrote in one go (reasoning, a
    message, calls) is one message. Turns that are repeated token by token are marks, told of in
    `repeated`.
    """

    def __init__(
        self,
        previous: Sequence[Json],
        call_id_length: int | None,
        no_content: str | None,
        template_capabilities: TemplateCapabilities,
    ) -> None:
        self.written = list(previous)
        self.image_urls: list[str] = []
        self.repeated: list[SplicedTurn] = []
        self._takes = template_capabilities
        self._returned_images: list[Piece] = []
        self._turn: Json | None = None
        self._call_id_length = call_id_length
        self._no_content = no_content

    def take(self, turn: Turn, entries: Sequence[Entry | CachedTurn[Entry]]) -> None:
        """Write the whole turn, whose conversation are the entries."""
        leading, _ = leading_instructions(turn.items)
        texts = [text_of(pieces(message.content)) for message in leading]
        self.lead("\n\n".join([turn.instructions, *texts] if turn.instructions else texts))
        opened = [each for entry in entries for each in _opened(entry)]
        for entry in opened if self._takes.many_calls else _one_by_one(opened):
            if entry is None:
                self._turn = None
            elif isinstance(entry, CachedTurn):
                self._repeat(entry)
            else:
                self.add(entry)
        self.close()

    def _repeat(self, own: CachedTurn[Entry]) -> None:
        assert own.token_ids is not None
        self.close()
        self._turn = None
        calls = _calls(own)
        after_tool = bool(self.written) and self.written[-1].get("role") == "tool"
        # Nobody can guess it: no text of a conversation passes for a mark.
        mark = f"{MARK}{len(self.repeated)}x"
        self.written.append(
            placeholder_message(
                mark,
                no_content=self._no_content,
                arguments=self._arguments("{}"),
                call_id=self._id(calls[0].call_id) if calls else None,
            )
        )
        place = Place(bool(calls), after_tool)
        self.repeated.append(SplicedTurn(mark, place, own.token_ids))

    def lead(self, text: str) -> None:
        if not text:
            return
        first = self.written[0] if self.written else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            self.written[0] = first | {"content": f"{text}\n\n{first['content']}"}
        else:
            self.written.insert(0, {"role": "system", "content": text})

    def add(self, entry: Entry) -> None:
        if not isinstance(entry, OutputEntry):
            self.close()
        match entry:
            case ReasoningEntry(text):
                self._think(text)
            case MessageEntry("assistant", pieces):
                self._say(text_of(pieces))
            case CallEntry():
                self._call(entry)
            case MessageEntry(role, pieces):
                self._turn = None
                role = "system" if role in INSTRUCTORS else role
                self.written.append({"role": role, "content": self._content(pieces)})
            case OutputEntry(name, call_id, pieces):
                self._turn = None
                self.written.append(
                    {
                        "role": "tool",
                        "tool_call_id": self._id(call_id),
                        "name": name,
                        "content": self._returned(pieces),
                    }
                )

    def close(self) -> None:
        """Let the images that tools returned follow them, where only users may show images."""
        shown, self._returned_images = self._returned_images, []
        if shown:
            self.written.append({"role": "user", "content": self._content(shown)})

    def _returned(self, pieces: Sequence[Piece]) -> str | list[Json]:
        if self._takes.tool_images or not self._takes.images:
            return self._content(pieces)
        self._returned_images += [piece for piece in pieces if piece[0] == "image"]
        return text_of([piece for piece in pieces if piece[0] != "image"])

    def _content(self, pieces: Sequence[Piece]) -> str | list[Json]:
        images = [url for kind, url in pieces if kind == "image"]
        if not images or not self._takes.images:
            return text_of(pieces)
        self.image_urls += images
        return [IMAGE if kind == "image" else text_part(said) for kind, said in pieces]

    def _think(self, text: str) -> None:
        if not text:
            return
        message = self._going(unless=("content", "tool_calls"))
        before = message.get("reasoning_content")
        message["reasoning_content"] = f"{before}\n{text}" if before else text

    def _say(self, text: str) -> None:
        message = self._going(unless=() if self._calls() else ("content",))
        before = message.get("content")
        message["content"] = f"{before}\n\n{text}" if before else text

    def _call(self, call: CallEntry) -> None:
        message = self._going(unless=())
        message.setdefault("tool_calls", []).append(
            {
                "id": self._id(call.call_id),
                "type": "function",
                "function": {"name": call.name, "arguments": self._arguments(call.arguments)},
            }
        )

    def _calls(self) -> bool:
        return self._turn is not None and "tool_calls" in self._turn

    def _going(self, *, unless: tuple[str, ...]) -> Json:
        """Return the assistant's message that goes on, a new one if it has any of `unless`."""
        if self._turn is None or any(self._turn.get(key) for key in unless):
            self._turn = {"role": "assistant", "content": self._no_content}
            self.written.append(self._turn)
        return self._turn

    def _id(self, call_id: str) -> str:
        size = self._call_id_length
        if size is None or (len(call_id) == size and call_id.isalnum()):
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:size]

    def _arguments(self, text: str) -> Any:
        """Return arguments as most templates take them: as an object, which they write out."""
        if not self._takes.objects:
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return value if isinstance(value, dict) else text
