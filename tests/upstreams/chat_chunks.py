"""Write what a model did as the chunks of a Chat Completions answer, in the style of a server."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from tests.upstreams.chat_styles import CallStyle, Repeats, Style

from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob
from antiphon.domain.responses.usage import TurnUsage

Json = dict[str, Any]

NULLS: Mapping[str, None] = dict.fromkeys(("role", "content", "reasoning_content", "tool_calls"))
"""The fields of a delta that some servers always write."""


def new_id(form: str) -> str:
    """Return an id of a form: `call_{hex:8}` has eight hexadecimal digits."""
    digits = {"hex": "0123456789abcdef", "digits": "0123456789"}
    return re.sub(
        r"\{(\w+):(\d+)\}",
        lambda found: "".join(secrets.choice(digits[found[1]]) for _ in range(int(found[2]))),
        form,
    )


class Call:
    """A call that the model makes: what of it was written."""

    def __init__(self, style: Style, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.id = new_id(style.calls.id_form)
        self.arguments = ""
        self.is_open = False


class ChunkWriter:
    """Writes the deltas of a turn as chunks. `names` are the names of tools as requests have them,
    by what deltas call them."""

    def __init__(
        self,
        style: Style,
        model: str,
        names: Mapping[tuple[str | None, str], str],
        *,
        shows_usage: bool,
        usage_now: Callable[[], TurnUsage],
    ) -> None:
        self._style = style
        self._names = names
        self._usage_now = usage_now
        self._shows_usage = shows_usage or style.usage_always
        self._envelope = {
            "id": new_id("chatcmpl-{hex:24}"),
            "object": "chat.completion.chunk",
            "created": 1790000000,
            "model": model,
            **style.more_in_chunk,
        }
        self._calls: list[Call] = []
        self._is_thinking = False
        self._output = 0

    def start(self) -> Iterator[Json]:
        style = self._style
        if style.prompt_filter:
            yield {**self._envelope, "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
        if style.has_role == "first":
            yield self._chunk({"role": "assistant", "content": style.first_content})

    def write(self, delta: d.Delta) -> Iterator[Json]:
        """Return the chunks of a delta; that of the end is written by `end`."""
        if self._is_thinking and not isinstance(delta, d.ReasoningDelta):
            self._is_thinking = False
            if self._style.reasoning == "think_tags":
                yield self._chunk({"content": "\n</think>\n\n"})
        match delta:
            case d.ReasoningDelta(text):
                yield self._chunk(self._reasoning(text))
                self._is_thinking = True
            case d.TextDelta(text, logprobs):
                yield self._chunk({"content": self._content(text)}, logprobs=logprobs)
            case d.RefusalDelta(text) if self._style.has_refusals:
                yield self._chunk({"refusal": text})
            case d.RefusalDelta(text):
                yield self._chunk({"content": text})
            case d.CallStart(name, _, namespace):
                yield from self._start_call(self._names[namespace, name])
            case d.ArgumentsDelta(text):
                yield from self._add_arguments(text)
            case d.ItemEnd():
                yield from self._end_call()

    def end(self, reason: str, usage: TurnUsage) -> Iterator[Json]:
        calls = self._style.calls
        yield from self._end_call()
        pieces = list(self._last_pieces())
        if reason == "stop" and self._calls:
            finish = calls.finish
        else:
            finish = self._style.finish_reasons.get(reason, reason)
        delta = {"tool_calls": pieces} if pieces else {}
        is_beside = self._shows_usage and self._style.usage in ("finish", "each")
        counts = {"usage": usage_of(self._style, usage)} if is_beside else {}
        yield {**self._chunk(delta, finish=finish), **counts}
        if self._shows_usage and self._style.usage == "last":
            yield {**self._envelope, "choices": [], "usage": usage_of(self._style, usage)}

    # --- text -------------------------------------------------------------------------------------

    def _reasoning(self, text: str) -> Json:
        match self._style.reasoning:
            case "both":
                return {"reasoning": text, "reasoning_content": text}
            case "think_tags":
                return {"content": text if self._is_thinking else f"<think>\n{text}"}
            case "parts":
                parts = [{"type": "text", "text": text}]
                return {"content": [{"type": "thinking", "thinking": parts}]}
            case field:
                return {"content": self._style.first_content, field: text}

    def _content(self, text: str) -> Any:
        is_part = self._style.reasoning == "parts" and self._output % 2
        return [{"type": "text", "text": text}] if is_part else text

    # --- calls ------------------------------------------------------------------------------------

    def _start_call(self, name: str) -> Iterator[Json]:
        yield from self._end_call()
        call = Call(self._style, name, len(self._calls))
        self._calls.append(call)
        style = self._style.calls
        if style.arguments == "pieces" and not style.opens_with_arguments:
            yield self._call_chunk(self._piece(call, ""))

    def _add_arguments(self, text: str) -> Iterator[Json]:
        call = self._calls[-1]
        call.arguments += text
        if self._style.calls.arguments == "pieces":
            yield self._call_chunk(self._piece(call, text))

    def _end_call(self) -> Iterator[Json]:
        if not self._style.calls.finishes_in_same_chunk:
            yield from map(self._call_chunk, self._last_pieces())

    def _last_pieces(self) -> Iterator[Json]:
        """Yield the pieces of calls that have not been written: each is whole."""
        for call in self._calls:
            if not call.is_open:
                yield self._piece(call, call.arguments)

    def _piece(self, call: Call, arguments: str) -> Json:
        style = self._style.calls
        is_first, call.is_open = not call.is_open, True
        index = {
            "counted": {"index": call.number},
            "zero": {"index": 0},
            "from_one": {"index": call.number + 1},
            "absent": {},
        }[style.index]
        written = self._arguments(arguments)
        if is_first:
            ids = {"id": call.id} if style.id_form else {}
            return {
                **index,
                **ids,
                "type": "function",
                "function": {"name": call.name, "arguments": written},
            }
        ids = _repeated("id", call.id, style.later_ids, style=self._style)
        name = _repeated("name", call.name, style.later_names, style=self._style)
        return {**index, **ids, "function": {**name, "arguments": written}}

    def _arguments(self, arguments: str) -> Any:
        if self._style.calls.arguments != "object":
            return arguments
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments

    def _call_chunk(self, piece: Json) -> Json:
        return self._chunk({"tool_calls": [piece] if self._style.calls.is_list else piece})

    # --- chunks -----------------------------------------------------------------------------------

    def _chunk(
        self, delta: Json, *, finish: str | None = None, logprobs: Sequence[Logprob] = ()
    ) -> Json:
        style = self._style
        self._output += 1
        role = {"role": "assistant"} if style.has_role == "each" else {}
        content = {"content": ""} if role and "content" not in delta else {}
        nulls = NULLS if style.fills_nulls else {}
        more = {**style.more_in_choice}
        if logprobs and style.has_logprobs:
            more["logprobs"] = {"content": [_logprob(each) for each in logprobs]}
        choice = {
            "index": 0,
            "delta": {**nulls, **role, **content, **delta},
            "finish_reason": finish,
            **more,
        }
        usage = {"usage": None} if self._shows_usage and style.usage == "last" else {}
        if self._shows_usage and style.usage == "each":
            usage = {"usage": usage_of(style, self._usage_now())}
        return {**self._envelope, "choices": [choice], **usage}


def _repeated(key: str, value: str, how: Repeats, *, style: Style) -> Json:
    match how:
        case "absent":
            return {}
        case "null":
            return {key: None}
        case "empty":
            return {key: ""}
        case "new":
            return {key: new_id(style.calls.id_form)}
    return {key: value}


def _logprob(logprob: Logprob) -> Json:
    tokens = [
        {"token": each.token, "logprob": each.logprob, "bytes": list(each.bytes)}
        for each in logprob.top_logprobs
    ]
    return {
        "token": logprob.token,
        "logprob": logprob.logprob,
        "bytes": list(logprob.bytes),
        "top_logprobs": tokens,
    }


def usage_of(style: Style, usage: TurnUsage) -> Json:
    counts: Json = {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
    }
    match style.cached:
        case "details":
            counts["prompt_tokens_details"] = {"cached_tokens": usage.cached}
            counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
        case "deepseek":
            counts["prompt_cache_hit_tokens"] = usage.cached
            counts["prompt_cache_miss_tokens"] = usage.input - usage.cached
            counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
        case "plain":
            counts["cached_tokens"] = usage.cached
        case "absent":
            counts["prompt_tokens_details"] = None
    return counts


def plain_calls(style: Style) -> Style:
    """Return the style with calls whose pieces can be joined."""
    calls = CallStyle(id_form=style.calls.id_form or "0", finish=style.calls.finish)
    return replace(style, calls=calls)


def whole_answer(style: Style, chunks: Sequence[Json]) -> Json:
    """Return the chunks, with calls that are plain, as an answer without a stream."""
    message: Json = {"role": "assistant", "content": None}
    calls: list[Json] = []
    usage, finish = None, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            _add_text(message, choice["delta"])
            for piece in choice["delta"].get("tool_calls") or ():
                _add_piece(calls, piece)
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": finish, **style.more_in_choice}
    return {**chunks[0], "object": "chat.completion", "choices": [choice], "usage": usage}


def _add_text(message: Json, delta: Json) -> None:
    for field in ("content", "reasoning_content", "reasoning", "refusal"):
        value, before = delta.get(field), message.get(field)
        if isinstance(value, list):
            message[field] = [*(before or []), *value]
        elif value and isinstance(before, list):
            before.append({"type": "text", "text": value})
        elif value:
            message[field] = (before or "") + value


def _add_piece(calls: list[Json], piece: Json) -> None:
    if piece["index"] == len(calls):
        calls.append({"id": piece["id"], "type": "function", "function": {**piece["function"]}})
    else:
        calls[-1]["function"]["arguments"] += piece["function"]["arguments"]


def event_of(style: Style, data: bytes) -> bytes:
    """Return an event with this data, with the line ends of the style."""
    space = b" " if style.has_space else b""
    ends = 2 if style.separates_events else 1
    return b"data:" + space + data + style.line_end * ends
