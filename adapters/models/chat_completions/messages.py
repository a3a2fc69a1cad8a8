"""A conversation as the messages of Chat Completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.adapters.formats.call_ids import CallIds
from antiphon.adapters.formats.fitting import ALTERNATING
from antiphon.adapters.formats.transcript import (
    CallEntry,
    Entry,
    EntryPart,
    MessageEntry,
    OutputEntry,
    ReasoningEntry,
    joined_text,
    to_object_text,
    to_parts,
    transcript,
)
from antiphon.application.ports import Turn
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import INSTRUCTORS, leading_instructions
from antiphon.domain.json import Json

MESSAGE_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


class MessageStyle(Struct, frozen=True, kw_only=True):
    """The shapes of a conversation that a server's templates take.

    `reasoning_key` is the field of the assistant's reasoning, None to leave it out. If
    `alternating`, users and assistants speak in turns, and instructions come first.
    `call_id_length` is the only length of ids that the server takes, None for any.
    """

    reasoning_key: str | None = "reasoning_content"
    alternating: bool = False
    call_id_length: int | None = None


def write_messages(turn: Turn, style: MessageStyle) -> list[Json]:
    """Return the turn's messages. Raises: RequestError for content that no chat model can read.

    Instructions and the system texts that lead the conversation are one message. What the assistant
    wrote in one turn (reasoning, a message, calls) is one message, too.
    """
    if turn.raw_prompt is not None:
        raise RequestError(
            "This model is behind a server of Chat Completions, which takes no raw prompts.",
            param="raw_prompt",
            code="unsupported_parameter",
        )
    conversation = _Conversation(style)
    conversation.messages += _previous_messages(turn)
    leading, items = leading_instructions(turn.items)
    texts = [joined_text(to_parts(message.content)) for message in leading]
    conversation.add_instructions([turn.instructions, *texts] if turn.instructions else texts)
    for entry in transcript(items, turn.tools):
        conversation.add(entry)
    conversation.flush_images()
    messages: Sequence[Json] = conversation.messages
    if style.alternating:
        messages, _ = ALTERNATING.apply(messages)
    return list(messages)


def _previous_messages(turn: Turn) -> Sequence[Json]:
    for position, message in enumerate(turn.previous_messages):
        if message.get("role") not in MESSAGE_ROLES:
            raise RequestError(
                "The messages of this model are those of Chat Completions, each with a 'role'.",
                param=f"previous_input_messages[{position}]",
                code="invalid_value",
            )
    return turn.previous_messages


class _Conversation:
    """Messages under construction; `_answer` is the assistant's while its turn goes on."""

    def __init__(self, style: MessageStyle) -> None:
        self.messages: list[Json] = []
        self._style = style
        self._call_ids = CallIds(style.call_id_length)
        self._answer: Json | None = None
        self._tool_images: list[EntryPart] = []

    def add_instructions(self, texts: Sequence[str]) -> None:
        if text := "\n\n".join(texts):
            self.messages.insert(0, {"role": "system", "content": text})

    def add(self, entry: Entry) -> None:
        if not isinstance(entry, OutputEntry):
            self.flush_images()
        match entry:
            case ReasoningEntry(text):
                self._add_reasoning(text)
            case MessageEntry("assistant", parts):
                self._add_text(joined_text(parts))
            case CallEntry():
                self._add_call(entry)
            case MessageEntry(role, parts):
                self._answer = None
                role = "system" if role in INSTRUCTORS else role
                self.messages.append({"role": role, "content": _content(parts)})
            case OutputEntry(_, call_id, parts):
                self._answer = None
                # Few servers take images from tools: a user's message shows them.
                self._tool_images += [part for part in parts if part[0] == "image"]
                text = joined_text([part for part in parts if part[0] != "image"])
                tool_call_id = self._call_ids.find(call_id)
                self.messages.append(
                    {"role": "tool", "tool_call_id": tool_call_id, "content": text}
                )

    def flush_images(self) -> None:
        images, self._tool_images = self._tool_images, []
        if images:
            self.messages.append({"role": "user", "content": _content(images)})

    def _add_reasoning(self, text: str) -> None:
        key = self._style.reasoning_key
        if not text or key is None:
            return
        message = self._assistant_message(unless=("content", "tool_calls"))
        message[key] = f"{message[key]}\n{text}" if message.get(key) else text

    def _add_text(self, text: str) -> None:
        message = self._assistant_message(unless=("content", "tool_calls"))
        message["content"] = text

    def _add_call(self, call: CallEntry) -> None:
        message = self._assistant_message(unless=())
        [call_id] = self._call_ids.add([call])
        function = {"name": call.name, "arguments": to_object_text(call.arguments)}
        message.setdefault("tool_calls", []).append(
            {"id": call_id, "type": "function", "function": function}
        )

    def _assistant_message(self, *, unless: tuple[str, ...]) -> Json:
        """Return the assistant's open message, or open a new one if it has any of `unless`."""
        if self._answer is None or any(self._answer.get(key) for key in unless):
            self._answer = {"role": "assistant", "content": ""}
            self.messages.append(self._answer)
        return self._answer


def _content(parts: Sequence[EntryPart]) -> str | list[Json]:
    if not any(kind == "image" for kind, _ in parts):
        return joined_text(parts)
    return [
        {"type": "image_url", "image_url": {"url": text}}
        if kind == "image"
        else {"type": "text", "text": text}
        for kind, text in parts
    ]
