"""Six conversations, each as the items of a request and as the chat messages of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.format_check import TOOL as WEATHER
from antiphon.application.ports import Turn
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.tools import ToolSpec

TIME = ToolSpec(
    name="get_time",
    description="Tells the time in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The city's name."}},
        "required": ["city"],
    },
)
CALL_IDS = ("abcdefgh1", "abcdefgh2")
"""Some templates accept only ids of nine letters and digits."""


class Call(Struct, frozen=True, kw_only=True):
    tool: ToolSpec
    arguments: dict[str, Any]
    result: str


class User(Struct, frozen=True):
    text: str


class Assistant(Struct, frozen=True, kw_only=True):
    """A turn of the model, with the results of its calls."""

    reasoning: str = ""
    text: str = ""
    calls: Sequence[Call] = ()


class Conversation(Struct, frozen=True, kw_only=True):
    name: str
    steps: Sequence[User | Assistant]
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()


class Style(Struct, frozen=True, kw_only=True):
    """What a template may want to be different.

    Arguments as JSON text, null instead of "" as the content of a call, a message for each call,
    contents as lists of parts.
    """

    arguments_as_text: bool = False
    null_content: bool = False
    single_calls: bool = False
    content_parts: bool = False


STYLES = [
    Style(content_parts=parts, single_calls=single, arguments_as_text=text, null_content=null)
    for parts, single, text, null in product((False, True), repeat=4)
]
"""All styles, the most usual ones first."""

BONN = Call(tool=WEATHER, arguments={"city": "Bonn", "days": 3}, result="21 degrees, dry")
CLOCK = Call(tool=TIME, arguments={"city": "Bad Ems"}, result="14:05")

CONVERSATIONS = (
    Conversation(name="a question", steps=[User("How warm is it in Bonn?")]),
    Conversation(
        name="instructions and several turns",
        instructions="Answer in one sentence.",
        steps=[User("Hello!"), Assistant(text="How can I help?"), User("Tell me of Bonn.")],
    ),
    Conversation(
        name="tools that may be called",
        instructions="Answer in one sentence.",
        steps=[User("How warm is it in Bonn?")],
        tools=[WEATHER, TIME],
    ),
    Conversation(
        name="a call and its result",
        steps=[User("How warm is it in Bonn?"), Assistant(calls=[BONN])],
        tools=[WEATHER, TIME],
    ),
    Conversation(
        name="two calls at a time, and an answer",
        steps=[
            User("How warm is it in Bonn, and how late in Bad Ems?"),
            Assistant(calls=[BONN, CLOCK]),
            Assistant(text="21 degrees, and it is 14:05."),
            User("Thank you."),
        ],
        tools=[WEATHER, TIME],
    ),
    Conversation(
        name="reasoning before a call",
        steps=[
            User("How warm is it in Bonn?"),
            Assistant(reasoning="The tool knows.", calls=[BONN]),
        ],
        tools=[WEATHER, TIME],
    ),
)


def turn_of(conversation: Conversation) -> Turn:
    """Return the turn that a request with this conversation starts."""
    return Turn(
        model="m",
        items=list(_items(conversation)),
        instructions=conversation.instructions,
        tools=conversation.tools,
    )


def _items(conversation: Conversation) -> Iterator[i.Item]:
    for step in conversation.steps:
        if isinstance(step, User):
            yield i.Message(role="user", content=step.text)
            continue
        if step.reasoning:
            yield i.Reasoning(content=(c.ReasoningText(text=step.reasoning),))
        if step.text:
            yield i.Message(role="assistant", content=step.text)
        for call_id, call in zip(CALL_IDS, step.calls, strict=False):
            arguments = json.dumps(call.arguments)
            yield i.FunctionCall(call_id=call_id, name=call.tool.name, arguments=arguments)
        for call_id, call in zip(CALL_IDS, step.calls, strict=False):
            yield i.FunctionCallOutput(call_id=call_id, output=call.result)


def messages_of(conversation: Conversation, style: Style) -> list[dict[str, Any]]:
    """Return the chat messages, as the documentation of transformers writes them."""
    messages: list[dict[str, Any]] = []
    if conversation.instructions:
        messages.append({"role": "system", "content": conversation.instructions})
    for step in conversation.steps:
        if isinstance(step, User):
            messages.append({"role": "user", "content": step.text})
        else:
            messages += _assistant_messages(step, style)
    return [_with_parts(message) for message in messages] if style.content_parts else messages


def _assistant_messages(step: Assistant, style: Style) -> Iterator[dict[str, Any]]:
    content = step.text or (None if style.null_content else "")
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if step.reasoning:
        message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), step.reasoning)
    numbered = list(zip(CALL_IDS, step.calls, strict=False))
    groups = [[each] for each in numbered] if style.single_calls else [numbered]
    for group in groups or [[]]:
        calls = [_tool_call(call_id, call, style) for call_id, call in group]
        yield message | ({"tool_calls": calls} if calls else {})
        for call_id, call in group:
            yield {
                "role": "tool",
                "tool_call_id": call_id,
                "name": call.tool.name,
                "content": call.result,
            }


def _tool_call(call_id: str, call: Call, style: Style) -> dict[str, Any]:
    arguments = json.dumps(call.arguments) if style.arguments_as_text else call.arguments
    function = {"name": call.tool.name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _with_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if not isinstance(content, str):
        return message
    return message | {"content": [{"type": "text", "text": content}]}


def tools_of(conversation: Conversation) -> list[dict[str, Any]] | None:
    """Return the tools as transformers expects them."""
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in conversation.tools
    ]
    return [{"type": "function", "function": function} for function in functions] or None


def shows_calls(conversation: Conversation, prompt: str) -> bool:
    """Whether the prompt shows every call and result, and no arguments as Python prints them."""
    prompt = prompt.rpartition(conversation.steps[0].text)[2]
    return all(
        text in prompt and repr(call.arguments) not in prompt
        for step in conversation.steps
        if isinstance(step, Assistant)
        for call in step.calls
        for text in (call.tool.name, str(call.arguments["city"]), call.result)
    )


def shows_all(conversation: Conversation, prompt: str | None) -> bool:
    """Whether the prompt shows the instructions, and every text, call and result."""
    texts = [conversation.instructions]
    for step in conversation.steps:
        texts.append(step.text)
        if isinstance(step, Assistant):
            texts += [str(call.arguments["city"]) for call in step.calls]
            texts += [call.result for call in step.calls]
    is_shown = prompt is not None and all(text in prompt for text in texts)
    return is_shown and shows_calls(conversation, str(prompt))
