"""Items as Harmony messages: the calls and results that the kinds show, in channels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.harmony.container_exec import EXEC, to_exec_arguments
from antiphon.adapters.formats.tools import RECIPIENTS, TEXT_PROPERTIES, wrap_text
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.content import Part
from antiphon.domain.history.conversation import view_of
from antiphon.domain.items import Item
from antiphon.domain.kinds import ITEM_KINDS
from antiphon.domain.kinds.mcp import called_mcp_name
from antiphon.domain.tools import CONTAINER, WEB_KINDS, ToolSpec
from antiphon.domain.vocabulary.shown import Call, JsonBody, Result, json_arguments

Body = str | Sequence[Part]


class TextMessage(Struct, frozen=True, kw_only=True):
    """A message without a call. `kind` is a channel, `refusal`, or None for authors without one."""

    role: str
    body: Body
    kind: str | None = None


class CallMessage(Struct, frozen=True, kw_only=True):
    """A call of the tool `name` with the input `text`; `kind` is function, custom or code."""

    name: str
    text: str
    kind: str = "function"


class ToolMessage(Struct, frozen=True, kw_only=True):
    """The output of a tool."""

    name: str
    body: Body


HarmonyMessage = TextMessage | CallMessage | ToolMessage


def write_items(items: Sequence[Item], tools: Sequence[ToolSpec]) -> Iterator[HarmonyMessage]:
    """Yield the conversation's messages in order; some items have none."""
    conversation = _Conversation(items, tools)
    for item in items:
        yield from conversation.write(item)


class _Conversation:
    """Writes items, with what a single item lacks: an output's call, a denial, what follows."""

    def __init__(self, items: Sequence[Item], tools: Sequence[ToolSpec]) -> None:
        self._view = view_of(items, tools)
        self._denial_reasons = {
            item.approval_request_id: item.reason or ""
            for item in items
            if isinstance(item, i.McpApprovalResponse) and not item.approve
        }
        self._preamble_ids = _preamble_ids(items)

    def write(self, item: Item) -> Iterator[HarmonyMessage]:
        match item:
            case i.Message():
                yield from self.message(item)
            case i.Reasoning():
                yield from self.reasoning(item)
            case i.McpApprovalRequest():
                yield from self.approval_request(item)
            case _:
                yield from self.tool_messages(item)

    def tool_messages(self, item: Item) -> Iterator[HarmonyMessage]:
        """Yield an item's call and result, as its kind shows them."""
        shown = i.kind_of(item).shown
        caller = item if shown.call is not None else self._view.calls.get(id(item))
        call = None if caller is None else self._call(caller)
        if call is not None and caller is item:
            yield call
        if shown.result is not None:
            result = shown.result(item, self._view)
            name = result.name if call is None else call.name
            if (body := _body_of(result)) is not None:
                yield ToolMessage(name=name, body=body)

    def _call(self, item: Item) -> CallMessage | None:
        call = i.kind_of(item).shown.call
        return None if call is None else _call_message(call(item, self._view))

    def message(self, item: i.Message) -> Iterator[HarmonyMessage]:
        if item.role != "assistant":
            yield TextMessage(role=item.role, body=item.content or "")
            return
        # A client may have lost the phase. A message before a call was not the answer.
        phase = item.phase or ("commentary" if id(item) in self._preamble_ids else "final_answer")
        parts = item.content or ()
        if isinstance(parts, str):
            parts = (c.OutputText(text=parts),)
        text = c.text_of(tuple(part for part in parts if not isinstance(part, c.Refusal)))
        refusals = tuple(part for part in parts if isinstance(part, c.Refusal))
        if text:
            kind = "commentary" if phase == "commentary" else "final"
            yield TextMessage(role="assistant", body=text, kind=kind)
        if refusals:
            yield TextMessage(role="assistant", body=c.text_of(refusals), kind="refusal")

    def reasoning(self, item: i.Reasoning) -> Iterator[HarmonyMessage]:
        # Never both: a summary repeats the content.
        if text := "".join(part.text for part in item.content or item.summary or ()):
            yield TextMessage(role="assistant", body=text, kind="analysis")

    def approval_request(self, item: i.McpApprovalRequest) -> Iterator[HarmonyMessage]:
        # An approved request is followed by its call; a pending one is not in the prompt yet.
        if (reason := self._denial_reasons.get(str(item.id))) is None:
            return
        name = called_mcp_name(item, self._view.tools)
        yield CallMessage(name=name, text=json_arguments(item.arguments))
        denial = "The user did not allow this call."
        yield ToolMessage(name=name, body=f"{denial} Reason: {reason}" if reason else denial)


def _call_message(call: Call) -> CallMessage:
    """Return the call as gpt-oss would have written it: a tool that it knows has its own name."""
    if call.kind == CONTAINER:
        return CallMessage(name=EXEC, text=to_exec_arguments(call.text), kind="code")
    if call.kind in WEB_KINDS:
        return CallMessage(name=RECIPIENTS[call.kind], text=call.text, kind="code")
    if call.kind == "custom":
        return CallMessage(name=call.name, text=call.text, kind="custom")
    if (text_key := TEXT_PROPERTIES.get(call.kind)) is None:
        return CallMessage(name=call.name, text=call.text)
    if call.name == call.kind:
        return CallMessage(name=call.name, text=call.text, kind="code")
    return CallMessage(name=call.name, text=wrap_text(call.text, text_key))


def _body_of(result: Result) -> Body | None:
    if result.fields is not None:
        return _json(result.fields)
    if not isinstance(result.body, JsonBody):
        return result.body
    value = result.body.value
    return value if isinstance(value, str) else _json(value)


def _preamble_ids(items: Sequence[Item]) -> set[int]:
    """Return the `id()`s of the assistant messages that a call follows in the same turn."""
    ids: set[int] = set()
    calls_next = False
    for item in reversed(items):
        if isinstance(item, i.Message) and item.role == "assistant":
            if calls_next:
                ids.add(id(item))
        elif not isinstance(item, i.Reasoning):
            calls_next = isinstance(item, _CALL_TYPES)
    return ids


_CALL_TYPES: tuple[type[Item], ...] = tuple(
    kind.item
    for kind in ITEM_KINDS.values()
    if kind.shown.call is not None and (kind.answered_by is not None or kind.next == "model")
)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
