"""Conversation → tokens, by the rules of Harmony.

    system      who the model is, the date, the effort, the channels
    developer   # Instructions, # Tools, # Response Formats
    …           the conversation; `<|start|>assistant` last

The token list is put together here, special tokens as numbers and texts encoded one by one, not by
the library's own renderer. That one takes a conversation as JSON (ten times slower), keeps the
reasoning of turns that are long over, and writes one spelling only; a prompt must instead continue
the last prompt and its output token by token (formats/recall.py), or the engine computes it all
again.

Reasoning is written only if it follows the last user message and the last final message: the
model was trained to see its thoughts for as long as it works on the answer, and not after.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import Encoding
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
    HOSTED,
    ToolSections,
    is_hosted,
    recipient_of,
)
from antiphon.adapters.formats.lru_cache import LruCache, TokenCache
from antiphon.adapters.formats.tools import prompt_tools, wrap_text
from antiphon.adapters.formats.turn_cache import (
    MAX_CACHED_TOKENS,
    Author,
    CachedTurn,
    TurnCache,
    approvals_as_calls,
)
from antiphon.application.ports import Json, Parser, Prompt, Turn
from antiphon.domain import content as c
from antiphon.domain.conversation import INSTRUCTORS, leading_instructions
from antiphon.domain.errors import RequestError
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
"""What the prompt says; that `none` reasons not at all is the constraint's doing."""

CHARACTERS_WITHOUT_PAUSE = 16_384
"""Some 3 ms of encoding, which holds the interpreter's lock; before twice as many are encoded,
others have their turn."""

Piece = int | str | Sequence[int]


class Entry(Struct, frozen=True):
    """A rendered message: special tokens, tokens, and texts still to be encoded.

    One that is a whole turn of the model's with reasoning has its messages as `parts`.
    """

    role: str
    channel: str | None
    pieces: Sequence[Piece]
    parts: Sequence[Entry] = ()


class Renderer:
    """Raises: RequestError for what the model cannot be given."""

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
        self._texts: LruCache[array[int]] = LruCache(MAX_CACHED_TOKENS)
        self._turn_cache: TurnCache[HarmonyMessage] = TurnCache(_author, key=_told)
        self._tool_sections = ToolSections(encoding)

    async def render(self, turn: Turn) -> Prompt:
        image_urls: list[str] = []
        written = _written(turn)
        digests = self._turn_cache.prefix_digests(turn.cache_salt, written)
        told = self._turn_cache.group_turns(written, digests)
        entries = _without_old_reasoning(list(self._entries(turn, told, image_urls)))
        pieces = [piece for entry in entries for piece in entry.pieces]
        ids = await self._encode(
            [*pieces, h.START, self._encoding.encode_fixed(ASSISTANT)],
            TokenCache(turn.cache_salt, self._texts),
        )
        return Prompt(token_ids=ids, image_urls=image_urls, prefix_digest=digests[-1])

    def remember(
        self,
        turn: Turn,
        prompt: Prompt,
        *,
        token_ids: Sequence[int],
        parser: Parser,
        items: Sequence[Item],
    ) -> None:
        """Remember that this output has become `items` (ports.Format)."""
        repeats = parser.is_well_formed and token_ids[-1:] and token_ids[-1] in h.STOPS
        self._turn_cache.remember(
            prompt.prefix_digest,
            list(write_items(approvals_as_calls(items), turn.tools)),
            [*token_ids[:-1], _ENDS[token_ids[-1]]] if repeats else None,
            has_reasoning=parser.reasoning_tokens > 0,
        )

    async def _encode(self, pieces: Sequence[Piece], known: TokenCache) -> list[int]:
        ids: list[int] = []
        without_pause = 0
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                continue
            if not isinstance(piece, str):
                ids += piece
                continue
            if (found := known.get(piece)) is not None:
                ids += found
                continue
            start = len(ids)
            for text in _portions(piece):
                ids += self._encoding.encode(text)
                without_pause += len(text)
                if without_pause >= CHARACTERS_WITHOUT_PAUSE:
                    without_pause = 0
                    await asyncio.sleep(0)
            known.put(piece, ids[start:])
        return ids

    def _entries(
        self,
        turn: Turn,
        told: Iterable[HarmonyMessage | CachedTurn[HarmonyMessage]],
        image_urls: list[str],
    ) -> Iterator[Entry]:
        leading, _ = leading_instructions(turn.items)
        yield self._plain("system", [self._fixed(self._system_text(turn))])
        texts = (_only_text(message.content or "") for message in leading)
        instructions = [text for text in (turn.instructions, *texts) if text]
        if developer := self._developer(turn, instructions):
            yield self._plain("developer", developer)
        for message in turn.previous_messages:
            yield from self._previous(message)
        for written in told:
            if isinstance(written, CachedTurn):
                yield from self._own(written, image_urls)
            else:
                yield self._entry(written, image_urls)

    # --- what comes first -----------------------------------------------------------------------

    def _system_text(self, turn: Turn) -> str:
        effort = EFFORTS.get(turn.effort or "medium", "medium")
        hosted = self._tool_sections.hosted(prompt_tools(turn))
        lines = [
            IDENTITY,
            f"Knowledge cutoff: {KNOWLEDGE_CUTOFF}",
            f"Current date: {self._today()}",
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

    def _developer(self, turn: Turn, instructions: Sequence[str]) -> list[Piece]:
        # Each section is encoded by itself, which gives the tokens of the whole: newlines before
        # a "#" are a token of their own.
        sections: list[Piece] = []
        if instructions:
            sections.append("# Instructions\n\n" + "\n\n".join(instructions))
        if tools := _functions(turn):
            sections.append(self._tool_sections.tokens(tools))
        if turn.text.format.get("type") in ("json_schema", "json_object"):
            sections.append(_response_format(turn.text.format))
        pieces: list[Piece] = []
        for position, section in enumerate(sections):
            last = position == len(sections) - 1
            pieces += [section] if last else _followed_by_blank_line(section)
        return pieces

    # --- the conversation -----------------------------------------------------------------------

    def _own(self, own: CachedTurn[HarmonyMessage], image_urls: list[str]) -> Iterator[Entry]:
        parts = [self._entry(each, image_urls) for each in own.entries]
        if own.token_ids is None:
            yield from parts
            return
        channels = [part.channel for part in parts]
        pieces: list[Piece] = [h.START, self._fixed(ASSISTANT), own.token_ids]
        yield Entry(
            ASSISTANT,
            "final" if "final" in channels else None,
            pieces,
            parts if own.has_reasoning else (),
        )

    def _entry(self, written: HarmonyMessage, image_urls: list[str]) -> Entry:
        match written:
            case TextMessage(role="assistant"):
                return self._assistant(written)
            case TextMessage(role="user"):
                return self._plain("user", self._body(written.body, image_urls))
            case TextMessage():
                body = self._body(written.body, image_urls)
                return self._plain("developer", ["# Instructions\n\n", *body])
            case CallMessage():
                return self._call(written)
            case ToolMessage():
                return self._answer(written, image_urls)

    def _assistant(self, said: TextMessage) -> Entry:
        text, kind = _only_text(said.body), said.kind or "final"
        channel = "final" if kind == "refusal" else kind
        own: Sequence[Piece] = [h.CHANNEL, *self._fixed(channel), h.MESSAGE, text]
        if kind == "refusal":
            refusal = [*self._fixed("final "), h.CONSTRAIN, *self._fixed("refusal")]
            own = [h.CHANNEL, *refusal, h.MESSAGE, text]
        return self._by_assistant(channel, own, h.END)

    def _call(self, call: CallMessage) -> Entry:
        to = f"{_channel_of(call.name)} to={recipient_of(call.name)} "
        text = wrap_text(call.text) if call.kind == "custom" else call.text
        header: list[Piece] = [*self._fixed(to), h.CONSTRAIN, *self._fixed("json")]
        if call.kind == "code":
            header = [*self._fixed(to + "code")]
        return self._by_assistant("commentary", [h.CHANNEL, *header, h.MESSAGE, text], h.CALL)

    def _answer(self, answered: ToolMessage, image_urls: list[str]) -> Entry:
        author = f"{recipient_of(answered.name)} to={ASSISTANT}"
        header = [h.CHANNEL, *self._fixed(_channel_of(answered.name)), h.MESSAGE]
        body = self._body(answered.body, image_urls)
        pieces = [h.START, *self._fixed(author), *header, *body, h.END]
        return Entry("tool", "commentary", pieces)

    def _previous(self, message: Json) -> Iterator[Entry]:
        """Render one of the format's own messages, as `messages()` gave it or the client wrote it.

        System and developer messages are left out: those of this request hold.
        """
        try:
            role, header, text = _read_previous(message)
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
        pieces += self._fixed(f"{author} to={recipient}" if recipient and not is_call else author)
        if channel:
            pieces += [h.CHANNEL, *self._fixed(f"{channel} to={recipient}" if is_call else channel)]
        kind = content_type.removeprefix("<|constrain|>").strip()
        if kind and content_type != kind:
            pieces += [*self._fixed(" "), h.CONSTRAIN, *self._fixed(kind)]
        elif kind:
            pieces += self._fixed(f" {kind}")
        end = h.CALL if is_call else h.END
        yield Entry(role, None if is_call else channel, [*pieces, h.MESSAGE, text, end])

    # --- pieces ---------------------------------------------------------------------------------

    def _fixed(self, text: str) -> Sequence[int]:
        return self._encoding.encode_fixed(text)

    def _plain(self, role: str, body: Sequence[Piece]) -> Entry:
        return Entry(role, None, [h.START, *self._fixed(role), h.MESSAGE, *body, h.END])

    def _by_assistant(self, channel: str, written: Sequence[Piece], end: int) -> Entry:
        return Entry(ASSISTANT, channel, [h.START, *self._fixed(ASSISTANT), *written, end])

    def _body(self, body: Body, image_urls: list[str]) -> list[Piece]:
        if isinstance(body, str):
            return [body]
        pieces: list[Piece] = []
        for part in body:
            if isinstance(part, c.InputImage):
                pieces.append(self._image(part, image_urls))
            elif isinstance(part, c.InputText | c.OutputText | c.PlainText | c.Refusal):
                pieces.append(c.text_of((part,)))
            else:
                kind = type(part).__struct_config__.tag
                raise RequestError(f"This model cannot read {kind!r} parts.", param="input")
        return pieces

    def _image(self, image: c.InputImage, image_urls: list[str]) -> Sequence[int]:
        if self._image_tokens is None:
            raise RequestError("This model reads text only, no images.", param="input")
        if not image.image_url:
            raise RequestError("An image needs its `image_url` here.", param="input")
        image_urls.append(image.image_url)
        return (h.PLACEHOLDER,) * self._image_tokens


def _functions(turn: Turn) -> list[ToolSpec]:
    """Return the tools that the developer message tells of."""
    return [tool for tool in prompt_tools(turn) if not is_hosted(tool)]


def _without_old_reasoning(entries: Sequence[Entry]) -> list[Entry]:
    last_answer = max(
        (n for n, entry in enumerate(entries) if entry.role == "user" or entry.channel == "final"),
        default=0,
    )
    kept: list[Entry] = []
    for n, entry in enumerate(entries):
        messages = entry.parts if entry.parts and n <= last_answer else (entry,)
        kept += [each for each in messages if n > last_answer or each.channel != "analysis"]
    return kept


def _written(turn: Turn) -> list[HarmonyMessage]:
    """Return the conversation's messages, without the instructions that it begins with."""
    _, rest = leading_instructions(turn.items)
    return list(write_items(rest, turn.tools))


def _author(written: HarmonyMessage) -> Author:
    match written:
        case ToolMessage():
            return "tool"
        case TextMessage(kind="analysis"):
            return "reasoning"
        case CallMessage() | TextMessage(role="assistant"):
            return "model"
    return "other"


def _told(written: HarmonyMessage) -> object:
    """Return what is told, however its text came: as it is, or as a part of content."""
    if isinstance(written, CallMessage) or isinstance(written.body, str):
        return written
    # Images are large: their hash is computed once, by Python itself.
    body = [
        hash(part.image_url) if isinstance(part, c.InputImage) else getattr(part, "text", part)
        for part in written.body
    ]
    return replace(written, body=body[0] if len(body) == 1 else body)


_ENDS = dict.fromkeys(h.STOPS, h.END) | {h.CALL: h.CALL}
"""What ends in a conversation a turn that was sampled up to these."""


def _only_text(body: Body) -> str:
    if isinstance(body, str):
        return body
    if strange := [part for part in body if not hasattr(part, "text")]:
        kind = type(strange[0]).__struct_config__.tag
        raise RequestError(f"Instructions can hold no {kind!r} parts.", param="input")
    return c.text_of(tuple(body))


def _response_format(wanted: Json) -> str:
    lines = ["# Response Formats", ""]
    if wanted["type"] == "json_object":
        lines += ["## json_object", "", "// Any JSON object", json.dumps({"type": "object"})]
    else:
        lines += [f"## {wanted.get('name') or 'response'}", ""]
        if description := wanted.get("description"):
            lines += [f"// {line}" for line in str(description).splitlines()]
        schema = wanted.get("schema") or {}
        lines.append(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    return "\n".join(lines)


def _followed_by_blank_line(section: Piece) -> list[Piece]:
    return [section + "\n\n"] if isinstance(section, str) else [section, "\n\n"]


def _channel_of(name: str) -> str:
    """Harmony's own tools are called while thinking, functions in the open."""
    return "analysis" if name.partition(".")[0] in HOSTED else "commentary"


def _read_previous(message: Json) -> tuple[str, Json, str]:
    message = message.get("message", message)  # the wrapping of `messages()`
    header = {**message, **message.get("author", {})}
    content: Any = message["content"]
    if not isinstance(content, str):
        content = "".join(part if isinstance(part, str) else part["text"] for part in content)
    return str(header["role"]), header, content


def _portions(text: str) -> Iterator[str]:
    """Cut a long text at the ends of lines, where its tokens end too."""
    start = 0
    while len(text) - start > CHARACTERS_WITHOUT_PAUSE:
        limit = start + CHARACTERS_WITHOUT_PAUSE
        cut = text.rfind("\n", start, limit)
        # Blanks after a newline are one token with it; so are slashes, after a symbol before it.
        while cut > start and (text[cut + 1].isspace() or text[cut + 1] == "/"):
            cut = text.rfind("\n", start, cut)
        end = cut + 1 if cut > start else limit
        yield text[start:end]
        start = end
    yield text[start:]
