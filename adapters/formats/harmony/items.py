"""Items as Harmony messages: a table of functions by item type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, UnsetType

from antiphon.adapters.formats.harmony.container_exec import EXEC, to_exec_arguments
from antiphon.adapters.formats.tools import (
    CODE,
    RECIPIENTS,
    browser_call_of,
    called_mcp_name,
    logs_of,
    model_tool_name,
    name_of_kind,
    tool_names_of,
    typed_call_of,
    typed_tool_of,
    wrap_text,
)
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.content import Part
from antiphon.domain.conversation import calls_by_output
from antiphon.domain.file_search import arguments_of, render_results
from antiphon.domain.items import Item
from antiphon.domain.tools import FILE_SEARCH, PYTHON, ToolSpec

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
        if write := _WRITERS.get(type(item)):
            yield from write(conversation, item)


class _Conversation:
    """Writes items, with what a single item lacks: an output's call, a denial, what follows."""

    def __init__(self, items: Sequence[Item], tools: Sequence[ToolSpec]) -> None:
        self._tools = tools
        self._calls = calls_by_output(items)
        self._denial_reasons = {
            item.approval_request_id: item.reason or ""
            for item in items
            if isinstance(item, i.McpApprovalResponse) and not item.approve
        }
        self._file_search_results = render_results(items)
        self._preamble_ids = _preamble_ids(items)

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

    def function_call(self, item: i.FunctionCall) -> Iterator[HarmonyMessage]:
        yield CallMessage(name=self._called_name(item), text=item.arguments)

    def custom_call(self, item: i.CustomToolCall) -> Iterator[HarmonyMessage]:
        yield CallMessage(name=self._called_name(item), text=item.input, kind="custom")

    def typed_call(self, item: Item) -> Iterator[HarmonyMessage]:
        name, arguments = typed_call_of(item, self._tools)
        if i.is_server_run_call(item):
            yield CallMessage(name=EXEC, text=to_exec_arguments(arguments), kind="code")
        else:
            yield CallMessage(name=name, text=arguments)

    def output(
        self, item: i.FunctionCallOutput | i.CustomToolCallOutput
    ) -> Iterator[HarmonyMessage]:
        yield ToolMessage(name=self._output_author(item), body=item.output)

    def json_output(
        self, item: i.ShellCallOutput | i.LocalShellCallOutput
    ) -> Iterator[HarmonyMessage]:
        output = item.output
        body = output if isinstance(output, str) else _json(output)
        yield ToolMessage(name=self._output_author(item), body=body)

    def screenshot(self, item: i.ComputerCallOutput) -> Iterator[HarmonyMessage]:
        image = c.InputImage(image_url=item.output.image_url, file_id=item.output.file_id)
        yield ToolMessage(name=self._output_author(item), body=(image,))

    def patch_output(self, item: i.ApplyPatchCallOutput) -> Iterator[HarmonyMessage]:
        body = _json({"status": item.status or "completed", "output": item.output or ""})
        yield ToolMessage(name=self._output_author(item), body=body)

    def mcp_call(self, item: i.McpCall) -> Iterator[HarmonyMessage]:
        name = called_mcp_name(item, self._tools)
        yield CallMessage(name=name, text=item.arguments)
        if item.output is not None:
            yield ToolMessage(name=name, body=item.output)
        elif item.error is not None:
            error = item.error if isinstance(item.error, str) else _json(item.error)
            yield ToolMessage(name=name, body=error)

    def approval_request(self, item: i.McpApprovalRequest) -> Iterator[HarmonyMessage]:
        # An approved request is followed by its call; a pending one is not in the prompt yet.
        if (reason := self._denial_reasons.get(str(item.id))) is None:
            return
        name = called_mcp_name(item, self._tools)
        yield CallMessage(name=name, text=item.arguments)
        denial = "The user did not allow this call."
        yield ToolMessage(name=name, body=f"{denial} Reason: {reason}" if reason else denial)

    def web_search(self, item: i.WebSearchCall) -> Iterator[HarmonyMessage]:
        kind, arguments, output = browser_call_of(item)
        yield CallMessage(name=RECIPIENTS[kind], text=arguments, kind="code")
        if output is not None:
            yield ToolMessage(name=RECIPIENTS[kind], body=output)

    def file_search(self, item: i.FileSearchCall) -> Iterator[HarmonyMessage]:
        name = name_of_kind(FILE_SEARCH, self._tools)
        yield CallMessage(name=name, text=arguments_of(item.queries or ()))
        yield ToolMessage(name=name, body=self._file_search_results[id(item)])

    def code(self, item: i.CodeInterpreterCall) -> Iterator[HarmonyMessage]:
        name, code = name_of_kind(PYTHON, self._tools), item.code or ""
        if name == PYTHON:
            yield CallMessage(name=name, text=code, kind="code")
        else:
            yield CallMessage(name=name, text=wrap_text(code, CODE))
        if item.outputs is not None:
            yield ToolMessage(name=name, body=logs_of(item.outputs))

    def image(self, item: i.ImageGenerationCall) -> Iterator[HarmonyMessage]:
        yield CallMessage(
            name="image_generation", text=_json({"prompt": item.revised_prompt or ""})
        )
        if item.result:
            yield ToolMessage(name="image_generation", body="[image]")

    def found_tools(self, item: i.ToolSearchOutput) -> Iterator[HarmonyMessage]:
        yield ToolMessage(
            name=self._output_author(item), body=_json({"tools": tool_names_of(item)})
        )

    def program(self, item: i.Program) -> Iterator[HarmonyMessage]:
        yield CallMessage(name="program", text=item.code, kind="code")

    def program_output(self, item: i.ProgramOutput) -> Iterator[HarmonyMessage]:
        yield ToolMessage(name="program", body=item.result)

    def _called_name(self, item: Item) -> str:
        if isinstance(item, i.FunctionCall | i.CustomToolCall):
            return self._model_name(item.name, item.namespace)
        return EXEC if i.is_server_run_call(item) else typed_tool_of(item, self._tools)[0]

    def _output_author(self, item: Item) -> str:
        if (call := self._calls.get(id(item))) is not None:
            return self._called_name(call)
        if isinstance(item, i.FunctionCallOutput) and item.name:
            return self._model_name(item.name, item.namespace)
        return "tool_search" if isinstance(item, i.ToolSearchOutput) else "tool"

    def _model_name(self, name: str, namespace: str | None | UnsetType) -> str:
        return model_tool_name(self._tools, name, namespace or None)


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


_CALL_TYPES: tuple[type[Item], ...] = (
    *i.ANSWERED_BY,
    i.McpCall,
    i.WebSearchCall,
    i.FileSearchCall,
    i.CodeInterpreterCall,
)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


_WRITERS: Mapping[type[Item], Callable[[_Conversation, Any], Iterator[HarmonyMessage]]] = {
    i.Message: _Conversation.message,
    i.Reasoning: _Conversation.reasoning,
    i.FunctionCall: _Conversation.function_call,
    i.FunctionCallOutput: _Conversation.output,
    i.CustomToolCall: _Conversation.custom_call,
    i.CustomToolCallOutput: _Conversation.output,
    i.McpCall: _Conversation.mcp_call,
    i.McpApprovalRequest: _Conversation.approval_request,
    i.WebSearchCall: _Conversation.web_search,
    i.FileSearchCall: _Conversation.file_search,
    i.CodeInterpreterCall: _Conversation.code,
    i.ImageGenerationCall: _Conversation.image,
    i.ComputerCall: _Conversation.typed_call,
    i.ComputerCallOutput: _Conversation.screenshot,
    i.LocalShellCall: _Conversation.typed_call,
    i.LocalShellCallOutput: _Conversation.json_output,
    i.ShellCall: _Conversation.typed_call,
    i.ShellCallOutput: _Conversation.json_output,
    i.ApplyPatchCall: _Conversation.typed_call,
    i.ApplyPatchCallOutput: _Conversation.patch_output,
    i.ToolSearchCall: _Conversation.typed_call,
    i.ToolSearchOutput: _Conversation.found_tools,
    i.Program: _Conversation.program,
    i.ProgramOutput: _Conversation.program_output,
}
"""Items of other types do not reach the model: tool lists, references, what a summary replaced."""
