"""A turn as chat messages, and as the prompt that a model's own template makes of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.takes import IMAGE, Takes, in_parts, takes
from antiphon.adapters.formats.chat_template.takes import text as text_part
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.chat_template.transcript import (
    Called,
    Entry,
    Json,
    Piece,
    Returned,
    Said,
    Thought,
    function_of,
    pieces,
    text_of,
    transcript,
)
from antiphon.adapters.formats.tools import offered
from antiphon.application.ports import Prompt, Turn
from antiphon.domain.conversation import INSTRUCTORS, leading_instructions
from antiphon.domain.errors import RequestError

LONG_PROMPT = 20_000
"""Characters from which on encoding is given a thread, so that other requests go on."""


class Renderer(Protocol):
    """Makes prompts: from the conversation to tokens."""

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
        self._tokenizer = tokenizer
        self._family = family
        self._opens: dict[str, bool] = {}
        # Some templates tell a call from a message by its content being null; most want a string.
        self._no_content = None if re.search(r"content\W* is none", template.source) else ""
        self._takes = takes(template)

    @property
    def reads_images(self) -> bool:
        return self._takes.images

    async def render(self, turn: Turn) -> Prompt:
        image_urls: list[str] = []
        messages = self._messages(turn, image_urls)
        if not self._takes.texts:
            messages = [in_parts(message) for message in messages]
        text = self._template.render(
            messages, [function_of(tool) for tool in offered(turn)], options(turn)
        )
        if len(text) > LONG_PROMPT:
            ids = await asyncio.to_thread(self._encode, text)
        else:
            ids = self._encode(text)
        return Prompt(token_ids=ids, image_urls=image_urls)

    def opens_reasoning(self, turn: Turn) -> bool:
        if self._family.think is None:
            return False
        asked = options(turn)
        key = repr(sorted(asked.items()))
        if key not in self._opens:
            if len(self._opens) > 100:  # options come from requests
                self._opens.clear()
            self._opens[key] = self._probe(asked)
        return self._opens[key]

    def _probe(self, asked: Mapping[str, Any]) -> bool:
        assert self._family.think
        try:
            text = self._template.render([{"role": "user", "content": "?"}], [], asked)
        except RequestError:
            return False
        return text.rstrip().endswith(self._family.think[0])

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=True)

    def _messages(self, turn: Turn, image_urls: list[str]) -> list[Json]:
        return chat_messages(
            turn,
            call_id_length=self._family.call_id_length,
            no_content=self._no_content,
            takes=self._takes,
            image_urls=image_urls,
        )


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
    takes: Takes = Takes(),  # noqa: B008 - frozen
    image_urls: list[str] | None = None,
) -> list[Json]:
    """Return the turn as chat messages; those of their images are added to `image_urls`.

    Instructions and the system texts that lead the conversation are one system message: many
    templates know only one, and only in front. What the assistant wrote in one go (reasoning, a
    message, calls) is one message.
    """
    leading, items = leading_instructions(turn.items)
    texts = [text_of(pieces(message.content)) for message in leading]
    messages = _Messages(turn.previous_messages, call_id_length, no_content, takes, image_urls)
    messages.lead("\n\n".join([turn.instructions, *texts] if turn.instructions else texts))
    for entry in transcript(items, turn.tools):
        messages.add(entry)
    messages.close()
    return messages.written


class _Messages:
    """Chat messages in the making; `_turn` is the assistant's, as long as it goes on."""

    def __init__(
        self,
        previous: Sequence[Json],
        call_id_length: int | None,
        no_content: str | None,
        takes: Takes,
        image_urls: list[str] | None,
    ) -> None:
        self.written = list(previous)
        self._takes = takes
        self._image_urls = [] if image_urls is None else image_urls
        self._returned_images: list[Piece] = []
        self._turn: Json | None = None
        self._call_id_length = call_id_length
        self._no_content = no_content

    def lead(self, text: str) -> None:
        if not text:
            return
        first = self.written[0] if self.written else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            self.written[0] = first | {"content": f"{text}\n\n{first['content']}"}
        else:
            self.written.insert(0, {"role": "system", "content": text})

    def add(self, entry: Entry) -> None:
        if not isinstance(entry, Returned):
            self.close()
        match entry:
            case Thought(text):
                self._think(text)
            case Said("assistant", pieces):
                self._say(text_of(pieces))
            case Called():
                self._call(entry)
            case Said(role, pieces):
                self._turn = None
                role = "system" if role in INSTRUCTORS else role
                self.written.append({"role": role, "content": self._content(pieces)})
            case Returned(name, call_id, pieces):
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
        self._image_urls += images
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

    def _call(self, call: Called) -> None:
        message = self._going(unless=())
        message.setdefault("tool_calls", []).append(
            {
                "id": self._id(call.call_id),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
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


def _arguments(text: str) -> Any:
    """Return arguments as the object that most templates write out by themselves."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
