"""Messages as items. One message may become several: reasoning, a text, and each call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from antiphon.domain.content import (
    InputFile,
    InputImage,
    InputText,
    InputVideo,
    OutputText,
    Part,
    PlainText,
    ReasoningText,
    Refusal,
)
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.items import FunctionCall, FunctionCallOutput, Message
from antiphon.domain.kinds.custom import CustomToolCall, CustomToolCallOutput
from antiphon.domain.kinds.reasoning import Reasoning
from antiphon.domain.requests.decoding import check_values, read
from antiphon.domain.requests.unknown_keys import UnusedKeys
from antiphon.entrypoints.http.doors.chat.request import (
    CalledFunction,
    ChatCall,
    ChatFile,
    ChatImage,
    ChatMessage,
    ChatVideo,
    Linked,
)
from antiphon.entrypoints.http.doors.places import SentPlace
from antiphon.entrypoints.http.doors.sent_items import SentItems

_OUTPUT = {".output": ".content", ".call_id": ".tool_call_id"}
_FUNCTION = {".call_id": ".id", ".name": ".function.name", ".arguments": ".function.arguments"}
_CUSTOM = {".call_id": ".id", ".name": ".custom.name", ".input": ".custom.input"}

_FIELDS: Mapping[str, frozenset[str]] = {
    "assistant": frozenset(
        {"refusal", "reasoning_content", "reasoning", "tool_calls", "function_call"}
    ),
    "tool": frozenset({"tool_call_id", "name"}),
    "function": frozenset({"name"}),
}
"""What a message of a role has beside its content; of others, it would have no effect."""

_OPTIONAL = (
    "name",
    "refusal",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "function_call",
    "tool_call_id",
    "audio",
)

_WITHOUT_EFFECT: Mapping[str, tuple[str, ...]] = {
    role: tuple(name for name in _OPTIONAL if name not in _FIELDS.get(role, ()))
    for role in ("system", "developer", "user", "assistant", "tool", "function")
}

_decode_message = msgspec.json.Decoder(ChatMessage).decode


class ReadMessages:
    """The items of a conversation, and what has no effect."""

    def __init__(self, messages: Sequence[Raw]) -> None:
        """Raises: RequestError."""
        self.items = SentItems()
        self._ignored = UnusedKeys()
        self._calls: set[str] = set()
        self._custom_calls: set[str] = set()
        self._unanswered: dict[str, list[str]] = {}
        """The ids of calls without one: a legacy call is answered by its name."""
        decoded = [_read_message(raw, f"messages[{index}]") for index, raw in enumerate(messages)]
        for index, message in enumerate(decoded):
            following = decoded[index + 1].role if index + 1 < len(decoded) else None
            self._add_message(message, index, following)
        self.items.check_length()

    @property
    def ignored(self) -> tuple[str, ...]:
        return self._ignored.names()

    def _add_message(self, message: ChatMessage, index: int, following: str | None) -> None:
        path = f"messages[{index}]"
        for name in _WITHOUT_EFFECT[message.role]:
            if getattr(message, name) is not None:
                self._ignored.add((((None, "messages"), index), name))
        if message.role == "assistant":
            self._add_answer(message, path, is_final=following != "assistant")
        elif message.role == "tool":
            self._add_output(message, path)
        elif message.role == "function":
            self._add_legacy_output(message, path)
        elif message.content is None:
            raise missing_parameter(f"{path}.content")
        else:
            content = _content(message.content, InputText)
            self.items.add(Message(role=message.role, content=content), SentPlace(path))

    def _add_answer(self, message: ChatMessage, path: str, *, is_final: bool) -> None:
        name = "reasoning_content" if message.reasoning_content else "reasoning"
        if thought := getattr(message, name):
            reasoning = Reasoning(content=(ReasoningText(text=thought),))
            self.items.add(reasoning, SentPlace(f"{path}.{name}", is_one=True))
        content: Any = _content(message.content or "", OutputText)
        if message.refusal:
            parts = (OutputText(text=content),) if content and isinstance(content, str) else content
            content = (*parts, Refusal(refusal=message.refusal))
        if content:
            # Where it is known, a model is not shown what it thought before an earlier answer.
            calls = message.tool_calls or message.function_call
            phase: Any = "commentary" if calls else "final_answer" if is_final else UNSET
            self.items.add(Message(role="assistant", content=content, phase=phase), SentPlace(path))
        for index, call in enumerate(message.tool_calls or ()):
            self._add_call(call, f"{path}.tool_calls[{index}]")
        if message.function_call is not None:
            self._add_legacy_call(message.function_call, f"{path}.function_call")

    def _add_call(self, call: ChatCall, path: str) -> None:
        self._calls.add(call.id)
        if call.type == "custom":
            if call.custom is None:
                raise missing_parameter(f"{path}.custom")
            self._custom_calls.add(call.id)
            self.items.add(
                CustomToolCall(call_id=call.id, name=call.custom.name, input=call.custom.input),
                SentPlace(path, _CUSTOM),
            )
            return
        if call.function is None:
            raise missing_parameter(f"{path}.function")
        name, arguments = call.function.name, call.function.arguments
        self.items.add(
            FunctionCall(call_id=call.id, name=name, arguments=arguments),
            SentPlace(path, _FUNCTION),
        )

    def _add_legacy_call(self, call: CalledFunction, path: str) -> None:
        call_id = f"call_function_{len(self.items)}"
        self._unanswered.setdefault(call.name, []).append(call_id)
        self.items.add(
            FunctionCall(call_id=call_id, name=call.name, arguments=call.arguments), SentPlace(path)
        )

    def _add_output(self, message: ChatMessage, path: str) -> None:
        if message.tool_call_id is None:
            raise missing_parameter(f"{path}.tool_call_id")
        if message.tool_call_id not in self._calls:
            raise RequestError(
                f"Invalid '{path}.tool_call_id': no message before it has a tool call with the id "
                f"{message.tool_call_id!r}.",
                param=f"{path}.tool_call_id",
                code="invalid_value",
            )
        kind: Any = FunctionCallOutput
        if message.tool_call_id in self._custom_calls:
            kind = CustomToolCallOutput
        output = _content(message.content or "", InputText)
        self.items.add(kind(call_id=message.tool_call_id, output=output), SentPlace(path, _OUTPUT))

    def _add_legacy_output(self, message: ChatMessage, path: str) -> None:
        if not message.name:
            raise missing_parameter(f"{path}.name")
        call_ids = self._unanswered.get(message.name)
        if not call_ids:
            raise RequestError(
                f"Invalid '{path}.name': no function {message.name[:100]!r} was called that has no "
                "output yet.",
                param=f"{path}.name",
                code="invalid_value",
            )
        output: Any = _content(message.content or "", InputText)
        self.items.add(
            FunctionCallOutput(call_id=call_ids.pop(), output=output), SentPlace(path, _OUTPUT)
        )


def _read_message(raw: Raw, path: str) -> ChatMessage:
    check_values(raw, path)
    message: ChatMessage = read(_decode_message, raw, path)
    return message


def _content(content: str | tuple[Any, ...], text: type[InputText] | type[OutputText]) -> Any:
    """Return the content of an item; `text` is its kind of text."""
    return content if isinstance(content, str) else tuple(_parts(content, text))


def _parts(parts: Sequence[Any], text: type[InputText] | type[OutputText]) -> Iterator[Part]:
    for part in parts:
        match part:
            case PlainText():
                yield text(text=part.text)
            case ChatImage(image_url=Linked(url=url, detail=detail)):
                yield InputImage(image_url=url, detail=detail or "auto")
            case ChatImage(image_url=str(url)):
                yield InputImage(image_url=url)
            case ChatVideo(video_url=link):
                yield InputVideo(video_url=link.url if isinstance(link, Linked) else link)
            case ChatFile(file=file):
                yield InputFile(
                    file_id=file.file_id or UNSET,
                    file_data=file.file_data or UNSET,
                    file_url=file.file_url or UNSET,
                    filename=file.filename or UNSET,
                )
            case _:
                yield part
