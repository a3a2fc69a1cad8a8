"""Prompt templates: default fields for requests, with placeholders for a request's variables.

A placeholder is `{{name}}`. A text variable replaces it; an image or a file becomes a separate part
between the texts. Variables are not searched for placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain.content import InputFile, InputImage, InputText
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.history.conversation import raw_items
from antiphon.domain.items import Message
from antiphon.domain.requests.decoding import decode_item, decode_request, decode_tool, read
from antiphon.domain.requests.request import CreateResponse, PromptParam

PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z0-9_-]+)\s*\}\}")

SETTABLE = frozenset(
    {
        "instructions",
        "input",
        "model",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_tool_calls",
        "text",
        "reasoning",
        "include",
        "truncation",
        "max_output_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "top_logprobs",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "chat_template_kwargs",
    }
)
"""The fields that a template may set."""

_decode_variable = msgspec.json.Decoder(str | InputText | InputImage | InputFile).decode


class PromptTemplate(Struct, frozen=True, kw_only=True):
    """One version of a prompt; `defaults` apply to fields that a request does not set."""

    version: str
    defaults: CreateResponse

    @property
    def variables(self) -> frozenset[str]:
        texts = [self.defaults.instructions or "", *_texts(self.defaults)]
        return frozenset(name for text in texts for name in PLACEHOLDER.findall(text))


class Variable(Struct, frozen=True, kw_only=True):
    """The value of a placeholder: a text, or a part such as an image."""

    name: str
    text: str = ""
    part: Raw | None = None

    @property
    def path(self) -> str:
        return f"prompt.variables.{self.name}"


def template_of(fields: Mapping[str, Any], version: str) -> PromptTemplate:
    """Return the template that sets these fields. Raises: RequestError."""
    for name in fields:
        if name not in SETTABLE:
            raise RequestError(f"A template cannot set {name!r}.", param=name)
    template = PromptTemplate(
        version=version, defaults=decode_request(msgspec.json.encode(fields)).request
    )
    for position, raw in enumerate(raw_items(template.defaults.input)):
        if not isinstance(decode_item(raw, f"input[{position}]"), Message):
            raise RequestError(
                "The input of a template must be messages.", param=f"input[{position}]"
            )
    for position, raw in enumerate(template.defaults.tools or ()):
        decode_tool(raw, f"tools[{position}]")
    return template


def expand(
    request: CreateResponse, prompt: PromptParam, template: PromptTemplate
) -> CreateResponse:
    """Return the request with the template's defaults for the fields that it does not set.

    The template's messages come before the request's own input. Raises: RequestError.
    """
    variables = _parse_variables(prompt, template)
    defaults = template.defaults
    changes = {
        name: value
        for name in SETTABLE - {"input"}
        if getattr(request, name) is None and (value := getattr(defaults, name)) is not None
    }
    if "instructions" in changes:
        changes["instructions"] = _fill_text(changes["instructions"], variables, "instructions")
    if defaults.input is not None:
        messages = [_fill_message(raw, variables) for raw in raw_items(defaults.input)]
        changes["input"] = (*messages, *raw_items(request.input))
    return replace(request, prompt=replace(prompt, version=template.version), **changes)


def _texts(defaults: CreateResponse) -> Iterator[str]:
    for raw in raw_items(defaults.input):
        content = msgspec.json.decode(raw).get("content")
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content or () if "text" in part)


def _parse_variables(prompt: PromptParam, template: PromptTemplate) -> dict[str, Variable]:
    values = prompt.variables or {}
    names = template.variables
    for name in values:
        if name not in names:
            raise RequestError(
                f"Unknown parameter: {f'prompt.variables.{name}'[:100]!r}. "
                f"The prompt {prompt.id!r} has {', '.join(sorted(names)) or 'no variables'}.",
                param=f"prompt.variables.{name}"[:100],
                code="unknown_parameter",
            )
    return {name: _parse_variable(name, raw) for name, raw in values.items()}


def _parse_variable(name: str, raw: Raw) -> Variable:
    value = read(_decode_variable, raw, f"prompt.variables.{name}")
    if isinstance(value, str):
        return Variable(name=name, text=value)
    if isinstance(value, InputText):
        return Variable(name=name, text=value.text)
    return Variable(name=name, part=raw)


def _split_at_placeholders(
    text: str, variables: Mapping[str, Variable]
) -> Iterator[str | Variable]:
    """Yield texts and variables in turn. Raises: RequestError for a missing variable."""
    end = 0
    for placeholder in PLACEHOLDER.finditer(text):
        yield text[end : placeholder.start()]
        if placeholder[1] not in variables:
            raise missing_parameter(f"prompt.variables.{placeholder[1]}")
        yield variables[placeholder[1]]
        end = placeholder.end()
    yield text[end:]


def _fill_text(text: str, variables: Mapping[str, Variable], where: str) -> str:
    texts = []
    for segment in _split_at_placeholders(text, variables):
        if isinstance(segment, Variable) and segment.part is not None:
            raise RequestError(
                f"Invalid {segment.path!r}: it is used in {where}, so it must be text.",
                param=segment.path,
                code="invalid_type",
            )
        texts.append(segment.text if isinstance(segment, Variable) else segment)
    return "".join(texts)


def _fill_message(raw: Raw, variables: Mapping[str, Variable]) -> Raw:
    message = msgspec.json.decode(raw)
    content, is_assistant = message.get("content"), message["role"] == "assistant"
    if isinstance(content, str):
        text_part = {"type": "input_text", "text": content}
        parts = list(_fill_part(text_part, variables, is_assistant))
        is_only_text = len(parts) == 1 and isinstance(parts[0], dict)
        message["content"] = parts[0]["text"] if is_only_text else parts
    else:
        message["content"] = [
            new_part
            for part in content or ()
            for new_part in _fill_part(part, variables, is_assistant)
        ]
    return Raw(msgspec.json.encode(message))


def _fill_part(part: Any, variables: Mapping[str, Variable], is_assistant: bool) -> Iterator[Any]:
    """Yield the part with its placeholders filled; a variable that is not text splits it."""
    if "text" not in part:
        yield part
    elif is_assistant or part["type"] != "input_text":
        yield part | {"text": _fill_text(part["text"], variables, "an assistant message")}
    else:
        yield from _join(part, _split_at_placeholders(part["text"], variables))


def _join(part: Any, segments: Iterable[str | Variable]) -> Iterator[Any]:
    text, is_split = "", False
    for segment in segments:
        if isinstance(segment, str):
            text += segment
        elif segment.part is None:
            text += segment.text
        else:
            if text:
                yield part | {"text": text}
            yield segment.part
            text, is_split = "", True
    if text or not is_split:
        yield part | {"text": text}
