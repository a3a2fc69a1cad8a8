"""Read a Chat Completions request as a turn, so that the scripted model can play it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.tools import input_parameters
from antiphon.application.ports import Constraint, EngineRequest, Sampling, Steps, Turn
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.kinds.code_interpreter import PYTHON_SPEC
from antiphon.domain.kinds.file_search import FILE_SEARCH_SPEC
from antiphon.domain.kinds.web_search import SPECS as WEB_SPECS
from antiphon.domain.offers.client_tools import CLIENT_TOOLS
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import CONTAINER, NAMESPACE_MARK, ToolChoice, ToolSpec

Json = dict[str, Any]

KINDS: Mapping[str, str] = {
    **{spec.description: spec.kind for spec in WEB_SPECS.values()},
    PYTHON_SPEC.description: PYTHON_SPEC.kind,
    FILE_SEARCH_SPEC.description: FILE_SEARCH_SPEC.kind,
    CLIENT_TOOLS[CONTAINER].description: CONTAINER,
}
"""The kinds of the functions that our server runs, by their descriptions: names may be taken."""


class InvalidRequest(Exception):
    """What a strict server refuses with a 400; `param` is the field at fault."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class KnowingEngine(ScriptedEngine):
    """Plays scripts that name tools by their kind (`python`, `mcp`), though all are functions."""

    async def generate(self, request: EngineRequest) -> Steps:
        turn = replace(request.turn, tools=[_with_kind(tool) for tool in request.turn.tools])
        return await super().generate(replace(request, turn=turn))


def _with_kind(tool: ToolSpec) -> ToolSpec:
    if tool.parameters == input_parameters():
        return replace(tool, kind="custom")
    return replace(tool, kind=KINDS.get(tool.description, "mcp" if tool.namespace else tool.kind))


def to_turn(body: Json, *, step_tokens: int = 1) -> Turn:
    """Return the turn that a request asks for. Raises: InvalidRequest."""
    tools = [_to_tool(tool) for tool in body.get("tools") or ()]
    return Turn(
        model=body["model"],
        items=list(to_items(body["messages"])),
        tools=tools,
        choice=_to_choice(body.get("tool_choice")),
        parallel_tool_calls=body.get("parallel_tool_calls") is not False,
        text=_to_text(body.get("response_format")),
        effort=body.get("reasoning_effort"),
        sampling=_to_sampling(body, step_tokens),
        cache_salt=body.get("cache_salt"),
    )


def _to_tool(tool: Json) -> ToolSpec:
    function = tool["function"]
    namespace, mark, name = function["name"].partition(NAMESPACE_MARK)
    return ToolSpec(
        name=function["name"],
        namespace=namespace if mark and name else None,
        original_name=name if mark and name else None,
        description=function.get("description") or "",
        parameters=function.get("parameters"),
        strict=function.get("strict") is True,
    )


def _to_choice(choice: Any) -> ToolChoice:
    match choice:
        case None:
            return ToolChoice()
        case "none" | "auto" | "required":
            return ToolChoice(mode=choice)
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(mode="required", names=frozenset({name}))
    raise InvalidRequest("Invalid tool_choice.", param="tool_choice")


def _to_text(response_format: Json | None) -> TextConfig:
    match response_format:
        case None:
            return TextConfig()
        case {"type": "json_schema", "json_schema": {"schema": schema, "name": name, **rest}}:
            return TextConfig(
                format={**rest, "type": "json_schema", "name": name, "schema": schema}
            )
        case {"type": "json_object" | "text"}:
            return TextConfig(format=response_format)
    raise InvalidRequest("Invalid response_format.", param="response_format")


def _to_constraint(outputs: Json | None) -> Constraint | None:
    """Return the constraint that vLLM's field asks for."""
    for kind, value in (outputs or {}).items():
        return Constraint(kind=kind, value=value)
    return None


def _to_sampling(body: Json, step_tokens: int) -> Sampling:
    stop = body.get("stop") or ()
    return Sampling(
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        logprobs=(body.get("top_logprobs") or 0) if body.get("logprobs") else None,
        ignore_eos=body.get("ignore_eos") is True,
        constraint=_to_constraint(body.get("structured_outputs")),
        step_tokens=step_tokens,
    )


# --- messages -------------------------------------------------------------------------------------


def to_items(messages: Sequence[Json]) -> Iterator[i.Item]:
    for position, message in enumerate(messages):
        match message:
            case {"role": "assistant"}:
                yield from _assistant_items(message)
            case {"role": "tool", "tool_call_id": str(call_id)}:
                content = _input_parts(message.get("content"))
                yield i.FunctionCallOutput(call_id=call_id, output=content)
            case {"role": "system" | "developer" | "user" as role}:
                yield i.Message(role=role, content=_input_parts(message.get("content")))
            case _:
                raise InvalidRequest("Invalid message.", param=f"messages.[{position}]")


def _assistant_items(message: Json) -> Iterator[i.Item]:
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        yield i.Reasoning(content=(c.ReasoningText(text=reasoning),))
    texts = [c.OutputText(text=text) for text in _texts_of(message.get("content"))]
    refusal = message.get("refusal")
    if texts or refusal:
        refusals = [c.Refusal(refusal=refusal)] if refusal else []
        yield i.Message(role="assistant", content=(*texts, *refusals))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield i.FunctionCall(
            call_id=call["id"], name=function["name"], arguments=function["arguments"]
        )


def _texts_of(content: str | Sequence[Json] | None) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    return [part["text"] for part in content or () if part["type"] == "text"]


def _input_parts(content: str | Sequence[Json] | None) -> str | tuple[Any, ...]:
    if not isinstance(content, str):
        return tuple(_input_part(part) for part in content or ())
    return content


def _input_part(part: Json) -> c.InputText | c.InputImage:
    match part:
        case {"type": "text", "text": str(text)}:
            return c.InputText(text=text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return c.InputImage(image_url=url)
    raise InvalidRequest("Invalid content part.", param="messages")


def check_calls(messages: Sequence[Json]) -> None:
    """Raises: InvalidRequest for a result without its call, or a call without its result.

    Hosted APIs refuse both.
    """
    open_calls: set[str] = set()
    for position, message in enumerate(messages):
        param = f"messages.[{position}].role"
        if message["role"] != "tool" and open_calls:
            raise InvalidRequest(
                "An assistant message with 'tool_calls' must be followed by tool messages "
                f"responding to each 'tool_call_id': {sorted(open_calls)}",
                param=param,
            )
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                raise InvalidRequest(
                    "Messages with role 'tool' must be a response to a preceding message with "
                    "'tool_calls'.",
                    param=param,
                )
            open_calls.remove(message["tool_call_id"])
        open_calls |= {call["id"] for call in message.get("tool_calls") or ()}
    if open_calls:
        raise InvalidRequest("A tool call has no result.", param="messages")
