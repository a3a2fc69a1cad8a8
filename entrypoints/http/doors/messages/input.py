"""Messages as items. One message may become several: thoughts, texts, calls and their outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, to_builtins

from antiphon.domain.content import OutputText, Part, ReasoningText
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.items import FunctionCall, FunctionCallOutput, Message
from antiphon.domain.kinds.additional_tools import AdditionalTools
from antiphon.domain.kinds.configuration_update import ConfigurationUpdate, ReasoningUpdate
from antiphon.domain.kinds.reasoning import Reasoning
from antiphon.domain.requests.decoding import check_values, read
from antiphon.entrypoints.http.doors.messages.content import is_media, parts_of
from antiphon.entrypoints.http.doors.messages.request import (
    DefinedTool,
    DocumentBlock,
    ImageBlock,
    MessageBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    SentMessage,
    TextBlock,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from antiphon.entrypoints.http.doors.messages.thinking import EFFORTS, nearest
from antiphon.entrypoints.http.doors.messages.tools import PlacedTool, read_definition
from antiphon.entrypoints.http.doors.places import SentPlace
from antiphon.entrypoints.http.doors.sent_items import SentItems

ERROR = "Error: "
"""What the output of a call begins with if the client says that the call failed."""

BILLING = "x-anthropic-billing-header:"
"""How a text of `system` begins that Claude Code means for the server. It changes from session to
session, and no prefix of a prompt could be used again behind it."""

_CALL = {".call_id": ".id", ".arguments": ".input"}
_OUTPUT = {".call_id": ".tool_use_id", ".output": ".content"}

_THOUGHTS = (ThinkingBlock, RedactedThinkingBlock)
_BLOCKS_OF: Mapping[str, tuple[type[MessageBlock], ...]] = {
    "assistant": (TextBlock, ToolUseBlock, *_THOUGHTS),
    "system": (TextBlock, ToolAdditionBlock),
    "user": (TextBlock, ImageBlock, DocumentBlock, SearchResultBlock, ToolResultBlock),
}

_decode_message = msgspec.json.Decoder(SentMessage).decode


def instructions_of(system: str | Sequence[TextBlock] | None) -> str | None:
    """Return the text of `system`, None if there is none."""
    if system is None or isinstance(system, str):
        return system or None
    texts = (block.text for block in system if not block.text.startswith(BILLING))
    return "\n\n".join(filter(None, texts)) or None


class ReadBlocks:
    """The items of a conversation.

    `deferred` are the tools that the model has from the message on that names them. `efforts` are
    those that it knows; without any, messages cannot change it. `kept_turns` is how many messages
    keep their thoughts, the last ones; with None, all do.
    """

    def __init__(
        self,
        messages: Sequence[Raw],
        *,
        deferred: Mapping[str, PlacedTool] = {},
        efforts: Sequence[str] = EFFORTS,
        kept_turns: int | None = None,
    ) -> None:
        """Raises: RequestError."""
        self.items = SentItems()
        self._calls: set[str] = set()
        self._deferred = dict(deferred)
        self._efforts = efforts
        decoded = [_read_message(raw, f"messages[{index}]") for index, raw in enumerate(messages)]
        _check_end(decoded)
        with_thoughts = [index for index, each in enumerate(decoded) if _has_thoughts(each)]
        keeping = with_thoughts if kept_turns is None else with_thoughts[-kept_turns:]
        for index, message in enumerate(decoded):
            path = f"messages[{index}].content"
            _check_blocks(message, path)
            self._add_config(message, f"messages[{index}]")
            if message.role == "assistant":
                following = decoded[index + 1].role if index + 1 < len(decoded) else None
                self._add_answer(
                    message, path, is_final=following != "assistant", thinks=index in keeping
                )
            else:
                self._add_input(message, path)
        self.items.check_length()

    def _add_input(self, message: SentMessage, path: str) -> None:
        if isinstance(message.content, str):
            text = Message(role=message.role, content=message.content)
            self.items.add(text, SentPlace(path.removesuffix(".content")))
            return
        parts: list[Any] = []
        places: list[str] = []
        added: list[PlacedTool] = []
        for index, block in enumerate(message.content or ()):
            place = f"{path}[{index}]"
            if isinstance(block, ToolResultBlock):
                self._add_parts(message.role, parts, places)
                parts, places = [], []
                self._add_output(block, place)
                added += self._found_by(block)
            elif isinstance(block, ToolAdditionBlock):
                added += self._added_by(block, place)
            else:
                _extend(parts, places, block, place)
        for tool, sent in added:  # behind all outputs, which follow their calls
            item = AdditionalTools(role="developer", tools=(to_builtins(tool),))
            self.items.add(item, SentPlace(sent.path, is_one=True))
        self._add_parts(message.role, parts, places)

    def _add_config(self, message: SentMessage, path: str) -> None:
        config = message.output_config
        if config is None or config.effort is None:
            return
        effort: Any = nearest(config.effort, self._efforts)
        if effort is not None:
            update = ConfigurationUpdate(reasoning=ReasoningUpdate(effort=effort))
            self.items.add(update, SentPlace(f"{path}.output_config.effort", is_one=True))

    def _found_by(self, block: ToolResultBlock) -> Iterator[PlacedTool]:
        for each in block.content or ():
            if isinstance(each, ToolReferenceBlock) and each.tool_name in self._deferred:
                yield self._deferred.pop(each.tool_name)

    def _added_by(self, block: ToolAdditionBlock, path: str) -> Iterator[PlacedTool]:
        if isinstance(block.tool, DefinedTool):
            yield read_definition(block.tool.definition, f"{path}.tool.definition")
        elif block.tool.name in self._deferred:  # any other is there already
            yield self._deferred.pop(block.tool.name)

    def _add_parts(self, role: Any, parts: Sequence[Any], places: Sequence[str]) -> None:
        if parts:
            place = SentPlace(places[0], parts=tuple(places))
            self.items.add(Message(role=role, content=tuple(parts)), place)

    def _add_output(self, block: ToolResultBlock, path: str) -> None:
        if block.tool_use_id not in self._calls:
            raise RequestError(
                f"Invalid '{path}.tool_use_id': no message before it has a 'tool_use' with the id "
                f"{block.tool_use_id!r}.",
                param=f"{path}.tool_use_id",
                code="invalid_value",
            )
        places: list[str] = []
        output: Any = block.content or ""
        if isinstance(output, str):
            output = f"{ERROR}{output}" if block.is_error else output
        else:
            parts: list[Part] = []
            if block.is_error:
                _extend(parts, places, TextBlock(text=ERROR), path)
            for index, each in enumerate(output):
                _extend(parts, places, each, f"{path}.content[{index}]")
            output = tuple(parts)
        self.items.add(
            FunctionCallOutput(call_id=block.tool_use_id, output=output),
            SentPlace(path, _OUTPUT, parts=tuple(places)),
        )

    def _add_answer(self, message: SentMessage, path: str, *, is_final: bool, thinks: bool) -> None:
        content = message.content or ()
        blocks = (TextBlock(text=content),) if isinstance(content, str) else content
        calls = any(isinstance(block, ToolUseBlock) for block in blocks)
        # Where it is known, a model is not shown what it thought before an earlier answer.
        phase: Any = "commentary" if calls else "final_answer" if is_final else UNSET
        texts: list[OutputText] = []
        first = path
        for index, block in enumerate(blocks):
            place = f"{path}[{index}]"
            if isinstance(block, TextBlock):
                if block.text:
                    first = first if texts else place
                    texts.append(OutputText(text=block.text))
                continue
            self._add_texts(texts, phase, first)
            texts = []
            if isinstance(block, ToolUseBlock):
                self._calls.add(block.id)
                call = FunctionCall(
                    call_id=block.id, name=block.name, arguments=arguments_of(block.input)
                )
                self.items.add(call, SentPlace(place, _CALL))
            elif thinks and (thought := _thought_of(block)) is not None:
                self.items.add(thought, SentPlace(place, is_one=True))
        self._add_texts(texts, phase, first)

    def _add_texts(self, texts: Sequence[OutputText], phase: Any, path: str) -> None:
        if texts:
            content: Any = texts[0].text if len(texts) == 1 else tuple(texts)
            message = Message(role="assistant", content=content, phase=phase)
            self.items.add(message, SentPlace(path, is_one=True))


def arguments_of(value: Mapping[str, Any]) -> str:
    """Return the arguments of a call as JSON in the form in which models most often write it.

    >>> arguments_of({"a": [1, 2], "b": "x"})
    '{"a": [1, 2], "b": "x"}'
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _thought_of(block: Any) -> Reasoning | None:
    if isinstance(block, RedactedThinkingBlock):
        return Reasoning(encrypted_content=block.data)
    if block.thinking:
        return Reasoning(
            content=(ReasoningText(text=block.thinking),),
            encrypted_content=block.signature or UNSET,
        )
    return Reasoning(encrypted_content=block.signature) if block.signature else None


def _has_thoughts(message: SentMessage) -> bool:
    return message.role == "assistant" and any(
        isinstance(block, _THOUGHTS) for block in message.content or ()
    )


def _extend(parts: list[Part], places: list[str], block: Any, path: str) -> None:
    found = list(parts_of(block))
    parts += found
    places += [f"{path}.source" if is_media(block) else path] * len(found)


def _read_message(raw: Raw, path: str) -> SentMessage:
    check_values(raw, path)
    message: SentMessage = read(_decode_message, raw, path)
    return message


def _check_end(messages: Sequence[SentMessage]) -> None:
    spoken = [message for message in messages if message.role != "system"]
    if not spoken or spoken[-1].role == "assistant":
        raise RequestError(
            "'messages' must end with a message of the role 'user': this server does not go on "
            "with an answer that the client has begun.",
            param="messages",
            code="invalid_value",
        )


def _check_blocks(message: SentMessage, path: str) -> None:
    if message.content is None and (message.role != "system" or message.output_config is None):
        raise missing_parameter(path)
    for index, block in enumerate(_blocks(message)):
        if not isinstance(block, _BLOCKS_OF[message.role]):
            raise RequestError(
                f"Invalid '{path}[{index}].type': a message of the role {message.role!r} cannot "
                f"have a block of the type {str(type(block).__struct_config__.tag)!r}.",
                param=f"{path}[{index}].type",
                code="invalid_value",
            )


def _blocks(message: SentMessage) -> Iterator[Any]:
    if not isinstance(message.content, str):
        yield from message.content or ()
