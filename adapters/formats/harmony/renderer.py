"""Renders conversations as tokens, by the rules of Harmony.

    system      who the model is, the date, the effort, the channels
    developer   # Instructions, # Tools, # Response Formats
    …           the conversation; `<|start|>assistant` last

This module builds the token list itself: special tokens as numbers, texts encoded one by one. The
library's own renderer takes a conversation as JSON (ten times slower), keeps the reasoning of old
turns, and writes only one spelling. But a prompt must continue the last prompt and its output token
by token (formats/turn_cache.py), or the engine computes all of it again.

Reasoning is written only if it follows the last final message: the model was trained to see its
reasoning while it works on an answer, and not after that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.adapters.formats.harmony.function_writer import comment
from antiphon.adapters.formats.harmony.header import ASSISTANT
from antiphon.adapters.formats.harmony.items import (
    Body,
    CallMessage,
    HarmonyMessage,
    TextMessage,
    ToolMessage,
    write_items,
)
from antiphon.adapters.formats.harmony.tools import (
    HOSTED_NAMESPACES,
    ToolSections,
    is_hosted,
    recipient_of,
)
from antiphon.adapters.formats.portions import check_length, is_large, split_into_portions
from antiphon.adapters.formats.token_cache import TokenCache, join_tokens, share_tokens
from antiphon.adapters.formats.tools import prompt_tools, wrap_text
from antiphon.adapters.formats.turn_cache import (
    MAX_CACHED_BYTES,
    Author,
    CachedTurn,
    TurnCache,
    approvals_as_calls,
    brief,
)
from antiphon.application.ports import Json, Parser, Prompt, Turn
from antiphon.application.support.loop_steps import LoopSteps
from antiphon.application.support.lru_cache import LruCache
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain import content as c
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import INSTRUCTORS, leading_instructions
from antiphon.domain.items import Item
from antiphon.domain.tools import ToolSpec

IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
KNOWLEDGE_CUTOFF = "2024-06"

EFFORTS = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""The effort that the prompt states. For `none`, the constraint prevents reasoning."""

PAUSE_S = 0.002
"""After so much encoding, which holds the interpreter's lock, other tasks may run."""

MAX_PORTION_CHARS = 8192
MAX_WIDE_PORTION_CHARS = 2048
"""Of a text that is not ASCII: the library takes up to 8 ms for it, usually 1 ms."""

MAX_CHARS_WITHOUT_TURN = 8192
"""A shorter prompt, some 2 ms, need not wait until other prompts have had their turn."""

Piece = int | str | Sequence[int]


def date_at(seconds: float) -> str:
    """Return the date that prompts tell at a time, in seconds since the epoch.

    >>> date_at(0)
    '1970-01-01'
    """
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


class RenderedMessage(Struct, frozen=True):
    """A rendered message: special tokens, tokens, and texts that must still be encoded.

    An entry may also be a whole cached turn. If that has reasoning, `messages` are its messages.
    """

    role: str
    channel: str | None
    pieces: Sequence[Piece]
    messages: Sequence[RenderedMessage] = ()


class _Written(Struct, frozen=True):
    """A prompt whose texts must still be encoded."""

    pieces: Sequence[Piece]
    image_urls: Sequence[str]
    prefix_digest: bytes


class Renderer:
    """Renders prompts, and remembers how the model wrote its turns."""

    def __init__(
        self,
        encoding: Encoding,
        *,
        today: Callable[[], str],
        image_tokens: int | None,
    ) -> None:
        self._encoding = encoding
        self._today = today
        self._image_tokens = image_tokens
        self._tokens: LruCache[Sequence[int]] = LruCache(MAX_CACHED_BYTES)
        self._turn_cache: TurnCache[HarmonyMessage] = TurnCache(_author_of, key=_comparison_key)
        self._tool_sections = ToolSections(encoding)
        self._steps = LoopSteps()

    async def render(self, turn: Turn) -> Prompt:
        """Return the prompt. Raises: RequestError for content that the model cannot read."""
        tools = _functions(turn)
        section = await self._tool_sections.functions_section(tools) if tools else None
        if is_large(turn):
            written = await compute_in_thread(self._write, turn, section)
        else:
            written = self._write(turn, section)
        return Prompt(
            token_ids=await self._encode(written.pieces, turn),
            image_urls=written.image_urls,
            prefix_digest=written.prefix_digest,
        )

    async def encode(self, text: str, turn: Turn) -> list[int]:
        """Return the tokens of a text that is the whole prompt; see `Format.encode`."""
        if len(text) > MAX_CHARS_WITHOUT_TURN:
            pieces = await compute_in_thread(self._encoding.split_markup, text)
        else:
            pieces = self._encoding.split_markup(text)
        return await self._encode(pieces, turn)

    def _write(self, turn: Turn, functions_section: str | None) -> _Written:
        image_urls: list[str] = []
        conversation = _conversation(turn)
        fingerprints = self._turn_cache.fingerprint(turn.cache_salt, conversation)
        grouped = self._turn_cache.group_turns(conversation, fingerprints)
        written = self._entries(turn, grouped, image_urls, functions_section)
        entries = _drop_old_reasoning(list(written))
        pieces = [piece for entry in entries for piece in entry.pieces]
        pieces += [h.START, self._encoding.encode_fixed(ASSISTANT)]
        return _Written(pieces, image_urls, fingerprints.of_all)

    def remember(
        self,
        turn: Turn,
        prompt: Prompt,
        *,
        token_ids: Sequence[int],
        parser: Parser,
        items: Sequence[Item],
    ) -> None:
        """Remember that this output became `items`; see `Format.remember`."""
        can_repeat = parser.is_well_formed and token_ids[-1:] and token_ids[-1] in h.STOPS
        self._turn_cache.remember(
            prompt.prefix_digest,
            list(write_items(approvals_as_calls(items), turn.tools)),
            [*token_ids[:-1], _HISTORY_END[token_ids[-1]]] if can_repeat else None,
            has_reasoning=parser.reasoning_tokens > 0,
        )

    async def _encode(self, pieces: Sequence[Piece], turn: Turn) -> list[int]:
        parts: list[Sequence[int]] = []
        steps = self._encode_steps(pieces, parts, turn)
        if sum(len(piece) for piece in pieces if isinstance(piece, str)) > MAX_CHARS_WITHOUT_TURN:
            await self._steps.run(turn.tenant, steps)
        else:
            for _ in steps:
                pass
        return join_tokens(parts)

    def _encode_steps(
        self, pieces: Sequence[Piece], parts: list[Sequence[int]], turn: Turn
    ) -> Iterator[None]:
        """Add the tokens to `parts`; yield whenever other tasks should run."""
        cache = TokenCache(turn.cache_salt, self._tokens)
        end_of_step = perf_counter() + PAUSE_S
        for piece in pieces:
            if isinstance(piece, int):
                parts.append((piece,))
            elif not isinstance(piece, str):
                parts.append(piece)
            elif (cached := cache.get(piece)) is not None:
                parts.append(cached)
            else:
                start = len(parts)
                for text in _portions(piece) if len(piece) >= h.MAX_RUN else (piece,):
                    parts.append(share_tokens(self._encoding.encode_run(text)))
                    if perf_counter() >= end_of_step:
                        check_length(sum(map(len, parts)), turn.max_prompt_tokens)
                        yield
                        end_of_step = perf_counter() + PAUSE_S
                cache.put(piece, tuple(join_tokens(parts[start:])))

    def _entries(
        self,
        turn: Turn,
        conversation: Iterable[HarmonyMessage | CachedTurn[HarmonyMessage]],
        image_urls: list[str],
        functions_section: str | None,
    ) -> Iterator[RenderedMessage]:
        leading, _ = leading_instructions(turn.items)
        yield self._message_entry("system", self._encode_fixed(self._system_text(turn)))
        texts = (_text_of_body(message.content or "") for message in leading)
        # Not in the system message, which is the server's: clients write these.
        notes = (tool.note for tool in prompt_tools(turn) if is_hosted(tool))
        instructions = [text for text in (turn.instructions, *texts, *notes) if text]
        if developer := _developer_body(turn, instructions, functions_section):
            yield self._message_entry("developer", developer)
        for message in turn.previous_messages:
            yield from self._previous_entry(message)
        for message_or_turn in conversation:
            if isinstance(message_or_turn, CachedTurn):
                yield from self._cached_turn_entries(message_or_turn, image_urls)
            else:
                yield self._to_entry(message_or_turn, image_urls)

    # --- what comes first -----------------------------------------------------------------------

    def _system_text(self, turn: Turn) -> str:
        effort = EFFORTS.get(turn.effort or "medium", "medium")
        hosted = self._tool_sections.hosted_section(prompt_tools(turn))
        lines = [
            IDENTITY,
            f"Knowledge cutoff: {KNOWLEDGE_CUTOFF}",
            f"Current date: {self._date_of(turn)}",
            "",
            f"Reasoning: {effort}",
            "",
            *([hosted, ""] if hosted else []),
            f"# Valid channels: {', '.join(h.CHANNELS)}. "
            "Channel must be included for every message.",
        ]
        if _functions(turn):
            lines.append("Calls to these tools must go to the commentary channel: 'functions'.")
        return "\n".join(lines)

    def _date_of(self, turn: Turn) -> str:
        return self._today() if turn.rendered_at is None else date_at(turn.rendered_at)

    # --- the conversation -----------------------------------------------------------------------

    def _cached_turn_entries(
        self, turn: CachedTurn[HarmonyMessage], image_urls: list[str]
    ) -> Iterator[RenderedMessage]:
        messages = [self._to_entry(message, image_urls) for message in turn.entries]
        if turn.token_ids is None:
            yield from messages
            return
        channels = [message.channel for message in messages]
        pieces: list[Piece] = [h.START, *self._encode_fixed(ASSISTANT), turn.token_ids]
        yield RenderedMessage(
            ASSISTANT,
            "final" if "final" in channels else None,
            pieces,
            messages if turn.has_reasoning else (),
        )

    def _to_entry(self, message: HarmonyMessage, image_urls: list[str]) -> RenderedMessage:
        match message:
            case TextMessage(role="assistant"):
                return self._assistant_entry(message)
            case TextMessage(role="user"):
                return self._message_entry("user", self._render_body(message.body, image_urls))
            case TextMessage():
                body = self._render_body(message.body, image_urls)
                return self._message_entry("developer", ["# Instructions\n\n", *body])
            case CallMessage():
                return self._call_entry(message)
            case ToolMessage():
                return self._tool_entry(message, image_urls)

    def _assistant_entry(self, message: TextMessage) -> RenderedMessage:
        text, kind = _text_of_body(message.body), message.kind or "final"
        channel = "final" if kind == "refusal" else kind
        pieces: Sequence[Piece] = [h.CHANNEL, *self._encode_fixed(channel), h.MESSAGE, text]
        if kind == "refusal":
            refusal = [*self._encode_fixed("final "), h.CONSTRAIN, *self._encode_fixed("refusal")]
            pieces = [h.CHANNEL, *refusal, h.MESSAGE, text]
        return self._from_assistant(channel, pieces, h.END)

    def _call_entry(self, call: CallMessage) -> RenderedMessage:
        to = f"{_channel_of(call.name)} to={recipient_of(call.name)} "
        text = wrap_text(call.text) if call.kind == "custom" else call.text
        header: list[Piece] = [*self._encode_fixed(to), h.CONSTRAIN, *self._encode_fixed("json")]
        if call.kind == "code":
            header = [*self._encode_fixed(to + "code")]
        return self._from_assistant("commentary", [h.CHANNEL, *header, h.MESSAGE, text], h.CALL)

    def _tool_entry(self, message: ToolMessage, image_urls: list[str]) -> RenderedMessage:
        author = f"{recipient_of(message.name)} to={ASSISTANT}"
        header = [h.CHANNEL, *self._encode_fixed(_channel_of(message.name)), h.MESSAGE]
        body = self._render_body(message.body, image_urls)
        pieces = [h.START, *self._encode_fixed(author), *header, *body, h.END]
        return RenderedMessage("tool", "commentary", pieces)

    def _previous_entry(self, message: Json) -> Iterator[RenderedMessage]:
        """Render one of the format's own messages, from `messages()` or written by the client.

        System and developer messages are left out: this request has its own.
        """
        try:
            role, header, text = _parse_previous(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RequestError(
                "Not a Harmony message: it needs a role and content.",
                param="previous_input_messages",
            ) from None
        if role in INSTRUCTORS:
            return
        author = str(header.get("name") or role)
        recipient, channel = header.get("recipient"), header.get("channel")
        content_type = str(header.get("content_type") or "")
        is_call = role == ASSISTANT and recipient
        pieces: list[Piece] = [h.START]
        to = f" to={recipient}"
        pieces += self._encode_fixed(author + to if recipient and not is_call else author)
        if channel:
            pieces += [h.CHANNEL, *self._encode_fixed(f"{channel}{to}" if is_call else channel)]
        kind = content_type.removeprefix("<|constrain|>").strip()
        if kind and content_type != kind:
            pieces += [*self._encode_fixed(" "), h.CONSTRAIN, *self._encode_fixed(kind)]
        elif kind:
            pieces += self._encode_fixed(f" {kind}")
        end = h.CALL if is_call else h.END
        yield RenderedMessage(role, None if is_call else channel, [*pieces, h.MESSAGE, text, end])

    # --- pieces ---------------------------------------------------------------------------------

    def _encode_fixed(self, text: str) -> Sequence[Piece]:
        # A client may choose a name of any length: that is encoded like any other text.
        return [text] if len(text) > h.MAX_FIXED_CHARS else self._encoding.encode_fixed(text)

    def _message_entry(self, role: str, body: Sequence[Piece]) -> RenderedMessage:
        return RenderedMessage(
            role, None, [h.START, *self._encode_fixed(role), h.MESSAGE, *body, h.END]
        )

    def _from_assistant(self, channel: str, pieces: Sequence[Piece], end: int) -> RenderedMessage:
        return RenderedMessage(
            ASSISTANT, channel, [h.START, *self._encode_fixed(ASSISTANT), *pieces, end]
        )

    def _render_body(self, body: Body, image_urls: list[str]) -> list[Piece]:
        if isinstance(body, str):
            return [body]
        pieces: list[Piece] = []
        for part in body:
            if isinstance(part, c.InputImage):
                pieces.append(self._render_image(part, image_urls))
            elif isinstance(part, c.InputText | c.OutputText | c.PlainText | c.Refusal):
                pieces.append(c.text_of((part,)))
            else:
                kind = type(part).__struct_config__.tag
                raise RequestError(f"This model cannot read {kind!r} parts.", param="input")
        return pieces

    def _render_image(self, image: c.InputImage, image_urls: list[str]) -> Sequence[int]:
        if self._image_tokens is None:
            raise RequestError("This model only reads text, not images.", param="input")
        if not image.image_url:
            raise RequestError("An image needs its `image_url` here.", param="input")
        image_urls.append(image.image_url)
        return (h.PLACEHOLDER,) * self._image_tokens


def _functions(turn: Turn) -> list[ToolSpec]:
    """Return the tools that the developer message describes."""
    return [tool for tool in prompt_tools(turn) if not is_hosted(tool)]


def _drop_old_reasoning(entries: Sequence[RenderedMessage]) -> list[RenderedMessage]:
    """Leave out the reasoning that led to the last answer and to earlier ones.

    Only an answer ends a turn: a user who speaks before it interrupts the turn, and its reasoning
    still counts (docs/decisions/0086).
    """
    backwards = reversed(range(len(entries)))
    last = next((n for n in backwards if entries[n].channel == "final"), None)
    if last is None:
        return list(entries)
    messages = [each for entry in entries[: last + 1] for each in entry.messages or (entry,)]
    answer = max(n for n, message in enumerate(messages) if message.channel == "final")
    before = [message for message in messages[:answer] if message.channel != "analysis"]
    return [*before, *messages[answer:], *entries[last + 1 :]]


def _conversation(turn: Turn) -> list[HarmonyMessage]:
    """Return the conversation's messages without its leading instructions."""
    _, rest = leading_instructions(turn.items)
    return list(write_items(rest, turn.tools))


def _author_of(message: HarmonyMessage) -> Author:
    match message:
        case ToolMessage():
            return "tool"
        case TextMessage(kind="analysis"):
            return "reasoning"
        case CallMessage() | TextMessage(role="assistant"):
            return "model"
    return "other"


def _comparison_key(message: HarmonyMessage) -> object:
    """Return a key that is the same for a text and for a single part with this text."""
    if isinstance(message, CallMessage):
        return type(message).__name__, message.kind, message.name, brief(message.text)
    body = message.body
    texts = [brief(body)] if isinstance(body, str) else [*map(_brief_part, body)]
    author = (message.role, message.kind) if isinstance(message, TextMessage) else message.name
    return type(message).__name__, author, texts


def _brief_part(part: c.Part) -> object:
    if isinstance(part, c.InputImage):
        return "image", hash(part.image_url)
    text = getattr(part, "text", None)
    return part if text is None else brief(text)


_HISTORY_END = dict.fromkeys(h.STOPS, h.END) | {h.CALL: h.CALL}
"""By the stop token that the model wrote, the token that ends this turn in a conversation."""


def _text_of_body(body: Body) -> str:
    if isinstance(body, str):
        return body
    if others := [part for part in body if not hasattr(part, "text")]:
        kind = type(others[0]).__struct_config__.tag
        raise RequestError(f"Instructions cannot contain {kind!r} parts.", param="input")
    return c.text_of(tuple(body))


def _developer_body(
    turn: Turn, instructions: Sequence[str], functions_section: str | None
) -> list[Piece]:
    # Encoding each section separately gives the same tokens as the whole: newlines before a "#"
    # are a separate token.
    sections: list[str] = []
    if instructions:
        sections.append("# Instructions\n\n" + "\n\n".join(instructions))
    if functions_section is not None:
        sections.append(functions_section)
    if turn.text.format.get("type") in ("json_schema", "json_object"):
        sections.append(_response_format(turn.text.format))
    return [*(f"{section}\n\n" for section in sections[:-1]), *sections[-1:]]


def _response_format(text_format: Json) -> str:
    lines = ["# Response Formats", ""]
    if text_format["type"] == "json_object":
        lines += ["## json_object", "", "// Any JSON object", json.dumps({"type": "object"})]
    else:
        lines += [f"## {text_format.get('name') or 'response'}", ""]
        if description := text_format.get("description"):
            lines.append(comment(str(description)).removesuffix("\n"))
        schema = text_format.get("schema") or {}
        lines.append(msgspec.json.encode(schema).decode())
    return "\n".join(lines)


def _channel_of(name: str) -> str:
    """Return the channel of a tool's calls: analysis for Harmony's own tools, else commentary."""
    return "analysis" if name.partition(".")[0] in HOSTED_NAMESPACES else "commentary"


def _parse_previous(message: Json) -> tuple[str, Json, str]:
    message = message.get("message", message)  # unwrap what `messages()` returned
    header = {**message, **message.get("author", {})}
    content: Any = message["content"]
    if not isinstance(content, str):
        content = "".join(part if isinstance(part, str) else part["text"] for part in content)
    return str(header["role"]), header, content


def _portions(text: str) -> Iterator[str]:
    """Split a text into what the library encodes in a few milliseconds."""
    max_chars = MAX_PORTION_CHARS if text.isascii() else MAX_WIDE_PORTION_CHARS
    for portion in split_into_portions(text, max_chars):
        yield from h.split_long_runs(portion)
