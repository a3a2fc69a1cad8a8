"""What the engine's output must match: an xgrammar structural tag over Harmony's messages.

The prompt ends with `<|start|>assistant`, so the output is

    (reasoning or preamble)*  then  a final message or a call

of which the last is bound and the rest free; effort `none` leaves only the last. Markup is matched
as tokens, not as text: as text, `<|channel|>` could also be spelled with seven ordinary tokens,
which no parser would see. The last message has no end here: once the tag is matched the engine
allows its stop tokens, and only those (xgrammar forbids stop tokens anywhere else). So there is no
binding beyond one call: `<|call|>` is a stop token, with which gpt-oss ends its turn.
"""

from __future__ import annotations

from typing import Any

from antiphon.adapters.formats.ebnf import constrains_arguments, input_grammar
from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.header import ASSISTANT
from antiphon.adapters.formats.harmony.tools import (
    is_hosted,
    name_of,
    recipient_of,
    with_model_parameters,
)
from antiphon.adapters.formats.structural_tag import (
    grammar_tag,
    one_of,
    sequence,
    structural_tag_constraint,
)
from antiphon.adapters.formats.tools import (
    callable_tools,
    input_parameters,
    prompt_tools,
    text_property,
)
from antiphon.application.ports import Constraint, Turn
from antiphon.domain.errors import RequestError
from antiphon.domain.tools import ToolSpec

Grammar = dict[str, Any]

MOST_WHITESPACE = 32
"""A grammar without bounds lets a model that lost its way write blanks up to its last token."""

# What may not stand in free text. Reserved tokens may: no model writes them.
_MARKUP = [
    h.START_OF_TEXT,
    h.END_OF_TEXT,
    h.RETURN,
    h.CONSTRAIN,
    h.CHANNEL,
    h.START,
    h.END,
    h.MESSAGE,
    h.CALL,
]


def constraint(turn: Turn) -> Constraint | None:
    """Return None where the model may write what it likes.

    Raises: RequestError if a call is required and there is no tool to call.
    """
    tools = list(callable_tools(turn).values())
    required = turn.choice.mode == "required"
    if required and not tools:
        raise RequestError(
            "`tool_choice` requires a call, but no tool may be called.", param="tool_choice"
        )
    answer = _schema_of_text(turn)
    restricted = len(tools) < len(prompt_tools(turn))
    binding = any(map(constrains_arguments, tools))
    if not (required or restricted or binding or answer is not None or turn.effort == "none"):
        return None
    endings = [ending for tool in tools for ending in _calls(tool, required=required)]
    if not required:
        endings += _finals(answer)
    # A preamble beside bound text would be read as part of it: clients join all visible text.
    preamble = ["commentary"] if tools and (required or answer is None) else []
    before = [] if turn.effort == "none" else ["analysis", *preamble]
    blocks = [_block(channel) for channel in before]
    written = one_of(endings)
    if blocks:
        written = sequence({"type": "star", "content": one_of(blocks)}, written)
    grammar = one_of([_never(), written])
    return structural_tag_constraint(grammar)


def _schema_of_text(turn: Turn) -> Grammar | None:
    wanted = turn.text.format
    match wanted.get("type"):
        case "json_schema":
            return _json(wanted.get("schema") or {"type": "object"})
        case "json_object":
            return _json({"type": "object"})
    return None


def _block(channel: str) -> Grammar:
    """A whole message, and the beginning of the next."""
    return sequence(
        _token(h.CHANNEL),
        _text(channel),
        _token(h.MESSAGE),
        _anything(),
        _token(h.END),
        _token(h.START),
        _text(ASSISTANT),
    )


def _finals(answer: Grammar | None) -> list[Grammar]:
    head = [_token(h.CHANNEL), _text("final")]
    if answer is None:
        return [sequence(*head, _token(h.MESSAGE), _anything())]
    plain = sequence(_token(h.MESSAGE))
    return [sequence(*head, one_of([plain, *_json_types()]), answer)]


def _calls(tool: ToolSpec, *, required: bool) -> list[Grammar]:
    """Both places of the recipient are allowed: the model was trained on both."""
    if is_hosted(tool):
        given = (
            _anything()
            if text_property(tool)
            else _arguments(with_model_parameters(tool), required=required)
        )
        return [_own(name_of(tool), channel, given) for channel in ("analysis", "commentary")]
    to = f" to={recipient_of(tool.name)}"
    body = sequence(one_of(_json_types()), _arguments(tool, required=required))
    return [
        sequence(_token(h.CHANNEL), _text("commentary" + to), body),
        sequence(_text(to), _token(h.CHANNEL), _text("commentary"), body),
    ]


def _own(name: str, channel: str, given: Grammar) -> Grammar:
    head = _text(f"{channel} to={recipient_of(name)} code")
    return sequence(_token(h.CHANNEL), head, _token(h.MESSAGE), given)


def _arguments(tool: ToolSpec, *, required: bool) -> Grammar:
    ebnf = input_grammar(tool)
    if ebnf is not None:
        return grammar_tag(ebnf)
    if tool.kind == "custom":
        return _json(input_parameters())
    # A tool that is not strict may have a schema that no grammar can express. Where it is only
    # one of many ways to go on, that must not fail the request.
    if tool.parameters is None or not (tool.strict or required):
        return _json({"type": "object"})
    return _json(tool.parameters)


def _json_types() -> list[Grammar]:
    json_type = [_text("json"), _token(h.MESSAGE)]
    return [
        sequence(_text(" "), _token(h.CONSTRAIN), *json_type),
        sequence(_token(h.CONSTRAIN), *json_type),
        sequence(_text(" json"), _token(h.MESSAGE)),
    ]


def _never() -> Grammar:
    """What nothing matches, with all tokens of all our tags, always in this order.

    xgrammar (0.2.8) keeps masks from one grammar to the next under a key in which a token is only
    the number of its first appearance, so a tag that names other tokens, or the same ones in
    another order, would get the masks of the tag before it. First in every tag, this makes the
    numbers the same everywhere.
    """
    nothing = {"type": "regex", "pattern": r"[^\s\S]"}
    tokens = (h.CHANNEL, h.CONSTRAIN, h.MESSAGE, h.END, h.START)
    return sequence(nothing, *(_token(token) for token in tokens), _anything())


def _token(token: int) -> Grammar:
    return {"type": "token", "token": token}


def _text(text: str) -> Grammar:
    return {"type": "const_string", "value": text}


def _json(schema: Any) -> Grammar:
    return {
        "type": "json_schema",
        "json_schema": schema,
        "max_whitespace_cnt": MOST_WHITESPACE,
    }


def _anything() -> Grammar:
    return {"type": "any_tokens", "exclude_tokens": _MARKUP}
