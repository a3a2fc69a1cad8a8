"""The markup of the scripted chat model: its prompts and its turns, written and read back.

    <|im_start|>ROLE⏎TEXT<|im_end|>⏎          roles: tools, system, developer, user, assistant
    <|im_start|>tool⏎<tool_response>⏎TEXT⏎</tool_response><|im_end|>⏎
    an assistant's turn:  <think>⏎TEXT⏎</think>⏎⏎TEXT⏎<tool_call>⏎{JSON}⏎</tool_call>

Markers are tokens that no text is encoded as, so a user's text cannot imitate one. The same code
writes the history and the model's turns, so the next prompt starts with this prompt and its output.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.format import ChatTemplateFormat
from antiphon.adapters.formats.chat_template.renderer import ChatRenderer
from antiphon.adapters.formats.chat_template.scripted.script_calls import call_of
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.adapters.formats.fitting import Fittings
from antiphon.adapters.formats.portions import check_length, has_large_tools, is_large
from antiphon.adapters.formats.token_cache import TOKEN_BYTES, TokenCache, share_tokens
from antiphon.adapters.formats.tools import offers_tool_of, prompt_tools
from antiphon.adapters.formats.transcript import (
    CallEntry,
    Entry,
    EntryPart,
    MessageEntry,
    OutputEntry,
    ReasoningEntry,
    chat_turn_cache,
    function_of,
    transcript,
)
from antiphon.adapters.formats.turn_cache import MAX_CACHED_BYTES, CachedTurn
from antiphon.application.ports import Json, Prompt, Turn
from antiphon.application.support.loop_steps import LoopSteps
from antiphon.application.support.lru_cache import LruCache, digest_of
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.tools import ToolSpec
from antiphon.domain.vocabulary.shown import to_json_text

TOKENS_PER_IMAGE = 85
MAX_CACHED_TURN_TOKENS = 512
MAX_CACHED_TURNS = 64
"""Scripts repeat turns. With their texts, these take some 6 MB at the most."""

MAX_CACHED_TOOLS_BYTES = 2 * 1024 * 1024

MAX_TEXT_AT_ONCE = 4096
"""Characters. A longer text of a user or a tool is encoded in steps, between which others work: in
a thread, it would compete with them for the interpreter's lock."""

LongText = tuple[int, str]
"""The number of tokens before it, and the text."""

MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<|image|>",
    "<|refusal|>",
    "<|/refusal|>",
)
TOKENIZER = WordTokenizer(MARKERS)
(
    START,
    END,
    THINK,
    END_THINK,
    CALL,
    END_CALL,
    RESPONSE,
    END_RESPONSE,
    IMAGE,
    REFUSAL,
    END_REFUSAL,
) = range(1, len(MARKERS) + 1)
CLOSING_TOKENS: Mapping[int, int] = {THINK: END_THINK, CALL: END_CALL, REFUSAL: END_REFUSAL}
NEWLINE, BLANK_LINE = (
    TOKENIZER.encode("\n", special=False)[0],
    TOKENIZER.encode("\n\n", special=False)[0],
)
CALL_START = '{"name": '
TEXT_KEYS = frozenset({"say", "repeat"})
"""The keys of most parts: they make no call."""


def _encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, special=False)


def _message_start(role: str) -> list[int]:
    return [START, *_encode(role), NEWLINE]


MESSAGE_STARTS: Mapping[str, list[int]] = {
    role: _message_start(role)
    for role in ("tools", "system", "developer", "user", "assistant", "tool")
}
MESSAGE_END = [END, NEWLINE]


class TurnWriter:
    """Writes an assistant's turn: blocks, and the separators between them."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._last_block = ""

    def think(self, text: str) -> None:
        self._add_block("think", [THINK, NEWLINE, *_encode(text), NEWLINE, END_THINK])

    def say(self, text: str) -> None:
        self._add_block("text", _encode(text))

    def refuse(self, text: str) -> None:
        self._add_block("text", [REFUSAL, *_encode(text), END_REFUSAL])

    def call(self, name: str, arguments: str) -> None:
        call = f'{CALL_START}{to_json_text(name)}, "arguments": {arguments}}}'
        self._add_block("call", [CALL, NEWLINE, *_encode(call), NEWLINE, END_CALL])

    def add_raw(self, text: str) -> None:
        self.ids += TOKENIZER.encode(text, special=True)
        self._last_block = ""

    def _add_block(self, kind: str, ids: list[int]) -> None:
        if ids:
            self.ids += _separator(self._last_block, kind)
            self.ids += ids
            self._last_block = kind


def _separator(last: str, kind: str) -> list[int]:
    """Return the separator of two blocks of a turn; it belongs to neither."""
    if not last:
        return []
    return [BLANK_LINE if last == "think" or last == kind == "text" else NEWLINE]


class ScriptedRenderer(ChatRenderer):
    """Writes prompts for the scripted chat model."""

    reads_images = True

    def __init__(self) -> None:
        self._steps = LoopSteps()
        self.turn_cache = chat_turn_cache()
        self.fittings = Fittings()
        self._tools: LruCache[Sequence[int]] = LruCache(MAX_CACHED_TOOLS_BYTES)
        self._tokens: LruCache[Sequence[int]] = LruCache(MAX_CACHED_BYTES)

    async def render(self, turn: Turn) -> Prompt:
        cache = TokenCache(turn.cache_salt, self._tokens)
        if is_large(turn) or (turn.tools and has_large_tools(turn)):
            prompt, texts = await compute_in_thread(self._write, turn, cache)
        else:
            prompt, texts = self._write(turn, cache)
        if not texts:
            return prompt
        ids: list[int] = []
        steps = _encode_texts(prompt.token_ids, texts, ids, turn, cache)
        await self._steps.run(turn.tenant, steps)
        return replace(prompt, token_ids=ids)

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:
        ids: list[int] = []
        cache = TokenCache(turn.cache_salt, self._tokens)
        await self._steps.run(turn.tenant, _encode_texts((), [(0, text)], ids, turn, cache))
        return ids

    def _write(self, turn: Turn, cache: TokenCache) -> tuple[Prompt, list[LongText]]:
        """Return the prompt, and the texts that it does not have yet."""
        prompt = _PromptWriter(cache)
        tools = prompt_tools(turn) if turn.tools else ()
        if tools:
            prompt.ids += MESSAGE_STARTS["tools"]
            prompt.ids += self._encode_tools(tools, turn.max_prompt_tokens)
            prompt.ids += MESSAGE_END
        if turn.instructions:
            prompt.add(MessageEntry("system", [("text", turn.instructions)]))
        for message in turn.previous_messages:
            prompt.add(_previous_message(message))
        entries = list(transcript(turn.items, turn.tools))
        fingerprints = self.turn_cache.fingerprint(turn.cache_salt, entries)
        for entry in self.turn_cache.group_turns(entries, fingerprints):
            if isinstance(entry, CachedTurn):
                prompt.add_cached_turn(entry)
            else:
                prompt.add(entry)
        prompt.close()
        prompt.ids += MESSAGE_STARTS["assistant"]
        written = Prompt(
            token_ids=prompt.ids, image_urls=prompt.image_urls, prefix_digest=fingerprints.of_all
        )
        return written, prompt.long_texts

    def _encode_tools(self, tools: Sequence[ToolSpec], max_tokens: int | None) -> Sequence[int]:
        text = msgspec.json.encode([function_of(tool) for tool in tools])
        key = digest_of(text)
        cached = self._tools.get(key)
        if cached is not None:
            return cached
        ids: list[int] = []
        for portion in TOKENIZER.encode_in_portions(text.decode()):
            ids += portion
            check_length(len(ids), max_tokens)
        cached = share_tokens(ids)
        self._tools.put(key, cached, TOKEN_BYTES * len(cached))
        return cached


def _previous_message(message: Json) -> MessageEntry:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in MESSAGE_STARTS or not isinstance(content, str):
        raise RequestError(
            "A previous message needs a role and a text as content.",
            param="previous_input_messages",
        )
    return MessageEntry(role, [("text", content)])


def _encode_texts(
    written: Sequence[int],
    texts: Sequence[LongText],
    ids: list[int],
    turn: Turn,
    cache: TokenCache,
) -> Iterator[None]:
    """Add what is written, with the long texts in their places, to `ids`."""
    start = 0
    for place, text in texts:
        ids += written[start:place]
        start = place
        if (cached := cache.get(text)) is not None:
            ids += cached
            check_length(len(ids), turn.max_prompt_tokens)
            continue
        before = len(ids)
        for portion in TOKENIZER.encode_in_portions(text):
            ids += portion
            check_length(len(ids), turn.max_prompt_tokens)
            yield
        cache.put(text, share_tokens(ids[before:]))
    ids += written[start:]


class _PromptWriter:
    """Writes a prompt; `_turn` is the assistant's while it goes on."""

    def __init__(self, cache: TokenCache) -> None:
        self._cache = cache
        self.ids: list[int] = []
        self.long_texts: list[LongText] = []
        self.image_urls: list[str] = []
        self._turn: TurnWriter | None = None
        self._has_text = False

    def add(self, entry: Entry) -> None:
        match entry:
            case ReasoningEntry(text):
                self._open_turn().think(text)
            case CallEntry(name, arguments, _):
                self._open_turn().call(name, arguments)
            case MessageEntry("assistant", parts):
                if self._has_text:  # two messages in a row: another turn of the model
                    self.close()
                self._add_message(self._open_turn(), parts)
                self._has_text = True
                return
            case MessageEntry(role, parts):
                self.close()
                self.ids += MESSAGE_STARTS[role]
                self._add_parts(parts)
                self.ids += MESSAGE_END
            case OutputEntry(_, _, parts):
                self.close()
                self.ids += [*MESSAGE_STARTS["tool"], RESPONSE, NEWLINE]
                self._add_parts(parts)
                self.ids += [NEWLINE, END_RESPONSE, *MESSAGE_END]
        self._has_text = False

    def add_cached_turn(self, turn: CachedTurn[Entry]) -> None:
        """Add a turn as it was written or, if its tokens are unknown, as one rendered turn."""
        self.close()
        if turn.token_ids is None:
            for entry in turn.entries:
                self.add(entry)
            self.close()
        else:
            self.ids += [*MESSAGE_STARTS["assistant"], *turn.token_ids, NEWLINE]
        self._has_text = False

    def close(self) -> None:
        """End the assistant's turn, if one is open."""
        if self._turn is not None:
            self.ids += MESSAGE_STARTS["assistant"]
            self.ids += self._turn.ids
            self.ids += MESSAGE_END
        self._turn = None

    def _open_turn(self) -> TurnWriter:
        self._turn = self._turn or TurnWriter()
        return self._turn

    def _add_message(self, turn: TurnWriter, parts: Sequence[EntryPart]) -> None:
        text = "".join(text for kind, text in parts if kind == "text")
        refusal = "".join(text for kind, text in parts if kind == "refusal")
        turn.say(text)
        if refusal:
            turn.refuse(refusal)

    def _add_parts(self, parts: Sequence[EntryPart]) -> None:
        for kind, text in parts:
            if kind == "image":
                self.image_urls.append(text)
                self.ids += [IMAGE] * TOKENS_PER_IMAGE
            elif len(text) > MAX_TEXT_AT_ONCE:
                self.long_texts.append((len(self.ids), text))
            else:
                self.ids += self._encode(text)

    def _encode(self, text: str) -> Sequence[int]:
        ids = self._cache.get(text)
        if ids is None:
            ids = _encode(text)
            self._cache.put(text, share_tokens(ids))
        return ids


class ScriptedMarkup:
    """Reads prompts and writes turns in this markup, for the scripted engine."""

    def read(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return the prompt's messages as (role, text)."""
        return [message for block in _split_messages(token_ids) for message in _read_message(block)]

    def write(
        self, parts: Sequence[Mapping[str, Any]], *, tools: Sequence[ToolSpec], thinking: bool
    ) -> list[list[tuple[int, str]]]:
        """Return the tokens of a model's turn: a list for each part, then one for its end."""
        turn = TurnWriter()
        tokens: list[list[tuple[int, str]]] = []
        for part in parts:
            start = len(turn.ids)
            _write_part(part, turn, tools=tools, thinking=thinking)
            tokens.append(_with_texts(turn.ids[start:]))
        has_end = bool(turn.ids) and turn.ids[-1] == END
        return [*tokens, [] if has_end else _with_texts([END])]

    def offers(self, part: Mapping[str, Any], *, tools: Sequence[ToolSpec]) -> bool:
        return offers_tool_of(part, tools)

    def text(self, token_ids: Sequence[int]) -> str:
        return TOKENIZER.decode(token_ids)


def scripted_chat() -> ChatTemplateFormat:
    """Return the format of the scripted chat model."""
    return ChatTemplateFormat(
        "scripted",
        FAMILIES["scripted"],
        TOKENIZER,
        renderer=ScriptedRenderer(),
        stop_token_ids=[END],
    )


# --- writing --------------------------------------------------------------------------------------


def _write_part(
    part: Mapping[str, Any], turn: TurnWriter, *, tools: Sequence[ToolSpec], thinking: bool
) -> None:
    call = None if part.keys() <= TEXT_KEYS else call_of(part, tools)
    if call is not None:
        name, arguments = call
        turn.call(name, arguments if isinstance(arguments, str) else to_json_text(arguments))
    match part:
        case {"say": text}:
            turn.say(text * part.get("repeat", 1))
        case {"think": text} if thinking:
            turn.think(text)
        case {"refuse": text}:
            turn.refuse(text)
        case {"raw": text}:
            turn.add_raw(text)


def _with_texts(ids: Sequence[int]) -> list[tuple[int, str]]:
    # Scripts repeat turns, so their tokens are cached.
    return (
        list(_pair_cached(tuple(ids)))
        if len(ids) <= MAX_CACHED_TURN_TOKENS
        else _pair_with_texts(ids)
    )


def _pair_with_texts(ids: Sequence[int]) -> list[tuple[int, str]]:
    texts = TOKENIZER.token_texts(ids)
    pairs: dict[int, tuple[int, str]] = {END: (END, "")}
    for token, text in zip(ids, texts, strict=True):
        if token not in pairs:
            pairs[token] = (token, text)
    return [pairs[token] for token in ids]  # a repeated text takes no more memory than its tokens


_pair_cached = lru_cache(MAX_CACHED_TURNS)(_pair_with_texts)


# --- reading --------------------------------------------------------------------------------------


def _split_messages(token_ids: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield the role and content of each complete message."""
    ids = list(token_ids)
    start = 0
    while START in ids[start : start + 1]:
        try:
            head = ids.index(NEWLINE, start)
            end = ids.index(END, head)
        except ValueError:
            return
        yield TOKENIZER.decode(ids[start + 1 : head]), ids[head + 1 : end]
        start = end + len(MESSAGE_END)


def _read_message(block: tuple[str, list[int]]) -> Iterator[tuple[str, str]]:
    role, ids = block
    if role == "assistant":
        yield from _read_assistant(ids)
    elif role == "tool":
        yield "tool", _decode_text(ids[2:-2])
    elif role != "tools":
        yield role, _decode_text(ids)


def _decode_text(ids: Sequence[int]) -> str:
    return TOKENIZER.decode([token for token in ids if token != IMAGE])


def _read_assistant(ids: list[int]) -> Iterator[tuple[str, str]]:
    """Read a turn: its reasoning, then all its text as one message, then its calls."""
    texts: list[str] = []
    calls: list[str] = []
    start = 0
    while start < len(ids):
        opening = next((n for n in range(start, len(ids)) if ids[n] in CLOSING_TOKENS), len(ids))
        if opening > start:
            is_last = opening == len(ids)
            texts.append(_strip_separators(ids[start:opening], before=start > 0, after=not is_last))
        if opening == len(ids):
            break
        closing = _find_end(ids, CLOSING_TOKENS[ids[opening]], opening)
        inside = ids[opening + 1 : closing]
        if ids[opening] == THINK:
            yield "reasoning", _decode_text(inside[1:-1])
        elif ids[opening] == CALL:
            calls.append(_called_name(_decode_text(inside[1:-1])))
        else:
            texts.append(_decode_text(inside))
        start = closing + 1
    text = "".join(texts)
    if text:
        yield ("preamble" if calls else "assistant"), text
    yield from (("call", name) for name in calls)


def _strip_separators(ids: list[int], *, before: bool, after: bool) -> str:
    """Return the text without the separators from the blocks before and after it."""
    separators = (NEWLINE, BLANK_LINE)
    if before and ids[0] in separators:
        ids = ids[1:]
    if after and ids and ids[-1] in separators:
        ids = ids[:-1]
    return _decode_text(ids)


def _find_end(ids: list[int], token: int, start: int) -> int:
    try:
        return ids.index(token, start)
    except ValueError:
        return len(ids)


def _called_name(call: str) -> str:
    try:
        name, _ = json.JSONDecoder().raw_decode(call, len(CALL_START))
    except ValueError:
        return call
    return str(name)
