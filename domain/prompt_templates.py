"""Prompt templates: what a request leaves open, with placeholders for what only it knows.

A placeholder is `{{name}}`. What stands for it is never looked at for placeholders again. A text
takes the placeholder's place; an image or a file becomes a part of its own between the texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain.content import InputFile, InputImage, InputText
from antiphon.domain.conversation import raw_items
from antiphon.domain.decoding import decode_item, decode_request, decode_tool, read
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.items import Message
from antiphon.domain.request import CreateResponse, PromptParam

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
"""What a template may set; the rest is for the request alone."""

_decode_variable = msgspec.json.Decoder(str | InputText | InputImage | InputFile).decode


class PromptTemplate(Struct, frozen=True, kw_only=True):
    """One version of a prompt; `defaults` hold where a request says nothing."""

    version: str
    defaults: CreateResponse

    @property
    def variables(self) -> frozenset[str]:
        texts = [self.defaults.instructions or "", *_texts(self.defaults)]
        return frozenset(name for text in texts for name in PLACEHOLDER.findall(text))


class Variable(Struct, frozen=True, kw_only=True):
    """What stands for a placeholder: a text, or a part that is none."""

    name: str
    text: str = ""
    part: Raw | None = None

    @property
    def path(self) -> str:
        return f"prompt.variables.{self.name}"


def template_of(fields: Mapping[str, Any], version: str) -> PromptTemplate:
    """Return the template that sets these fields of a request. Raises: RequestError."""
    for name in fields:
        if name not in SETTABLE:
            raise RequestError(f"{name!r} is nothing that a template can set.", param=name)
    template = PromptTemplate(
        version=version, defaults=decode_request(msgspec.json.encode(fields)).request
    )
    for position, raw in enumerate(raw_items(template.defaults.input)):
        if not isinstance(decode_item(raw, f"input[{position}]"), Message):
            raise RequestError("The input of a template is messages.", param=f"input[{position}]")
    for position, raw in enumerate(template.defaults.tools or ()):
        decode_tool(raw, f"tools[{position}]")
    return template


def expand(request: CreateResponse, asked: PromptParam, template: PromptTemplate) -> CreateResponse:
    """Return the request with what the template says where it says nothing itself.

    Messages of the template come before the request's own input. Raises: RequestError.
    """
    variables = _variables(asked, template)
    own = template.defaults
    changes = {
        name: value
        for name in SETTABLE - {"input"}
        if getattr(request, name) is None and (value := getattr(own, name)) is not None
    }
    if "instructions" in changes:
        changes["instructions"] = _filled_text(changes["instructions"], variables, "instructions")
    if own.input is not None:
        messages = [_filled_message(raw, variables) for raw in raw_items(own.input)]
        changes["input"] = (*messages, *raw_items(request.input))
    return replace(request, prompt=replace(asked, version=template.version), **changes)


def _texts(defaults: CreateResponse) -> Iterator[str]:
    for raw in raw_items(defaults.input):
        content = msgspec.json.decode(raw).get("content")
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content or () if "text" in part)


def _variables(asked: PromptParam, template: PromptTemplate) -> dict[str, Variable]:
    given = asked.variables or {}
    known = template.variables
    for name in given:
        if name not in known:
            raise RequestError(
                f"Unknown parameter: {f'prompt.variables.{name}'[:100]!r}. "
                f"The prompt {asked.id!r} has {', '.join(sorted(known)) or 'no variables'}.",
                param=f"prompt.variables.{name}"[:100],
                code="unknown_parameter",
            )
    return {name: _variable(name, raw) for name, raw in given.items()}


def _variable(name: str, raw: Raw) -> Variable:
    value = read(_decode_variable, raw, f"prompt.variables.{name}")
    if isinstance(value, str):
        return Variable(name=name, text=value)
    if isinstance(value, InputText):
        return Variable(name=name, text=value.text)
    return Variable(name=name, part=raw)


def _pieces(text: str, variables: Mapping[str, Variable]) -> Iterator[str | Variable]:
    """Yield texts and variables in turn. Raises: RequestError for a variable that is missing."""
    end = 0
    for found in PLACEHOLDER.finditer(text):
        yield text[end : found.start()]
        if found[1] not in variables:
            raise missing_parameter(f"prompt.variables.{found[1]}")
        yield variables[found[1]]
        end = found.end()
    yield text[end:]


def _filled_text(text: str, variables: Mapping[str, Variable], where: str) -> str:
    filled = []
    for piece in _pieces(text, variables):
        if isinstance(piece, Variable) and piece.part is not None:
            raise RequestError(
                f"Invalid {piece.path!r}: it stands in {where}, so it must be text.",
                param=piece.path,
                code="invalid_type",
            )
        filled.append(piece.text if isinstance(piece, Variable) else piece)
    return "".join(filled)


def _filled_message(raw: Raw, variables: Mapping[str, Variable]) -> Raw:
    message = msgspec.json.decode(raw)
    content, is_said = message.get("content"), message["role"] == "assistant"
    if isinstance(content, str):
        parts = list(_filled_part({"type": "input_text", "text": content}, variables, is_said))
        only_text = len(parts) == 1 and isinstance(parts[0], dict)
        message["content"] = parts[0]["text"] if only_text else parts
    else:
        message["content"] = [
            filled for part in content or () for filled in _filled_part(part, variables, is_said)
        ]
    return Raw(msgspec.json.encode(message))


def _filled_part(part: Any, variables: Mapping[str, Variable], is_said: bool) -> Iterator[Any]:
    """Yield the part with its placeholders filled: several parts if one of them is no text."""
    if "text" not in part:
        yield part
    elif is_said or part["type"] != "input_text":
        yield part | {"text": _filled_text(part["text"], variables, "what the assistant said")}
    else:
        yield from _joined(part, _pieces(part["text"], variables))


def _joined(part: Any, pieces: Iterable[str | Variable]) -> Iterator[Any]:
    text, is_split = "", False
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
        elif piece.part is None:
            text += piece.text
        else:
            if text:
                yield part | {"text": text}
            yield piece.part
            text, is_split = "", True
    if text or not is_split:
        yield part | {"text": text}
