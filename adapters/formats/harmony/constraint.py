"""Builds the constraint on the output: an xgrammar structural tag over Harmony's messages.

The prompt ends with `<|start|>assistant`, so the output is

    (reasoning or preamble)*  then  a final message or a call

The last message is constrained, the others are free. With effort `none`, only the last is allowed.
Markup is matched as tokens, not as text: as text, `<|channel|>` could also be spelled with seven
ordinary tokens, which no parser would recognize. The tag does not include the end of the last
message: once the tag is matched, the engine only allows its stop tokens (xgrammar forbids them
anywhere else). So only one call can be constrained: `<|call|>` is a stop token, with which gpt-oss
ends its turn.
"""

from __future__ import annotations

from typing import Any

from antiphon.adapters.formats.ebnf import (
    constrains_arguments,
    enforced_format,
    enforced_parameters,
    input_grammar,
)
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

Tag = dict[str, Any]

MAX_WHITESPACE = 32
"""Without a limit, a confused model would write blanks until it runs out of tokens."""

# Not allowed in free text. Reserved tokens are allowed: no model writes them.
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
    """Return the turn's constraint, or None if the model may write anything.

    Raises: RequestError if a call is required but no tool may be called.
    """
    tools = list(callable_tools(turn).values())
    is_required = turn.choice.mode == "required"
    if is_required and not tools:
        raise RequestError(
            "`tool_choice` requires a call, but no tool may be called.", param="tool_choice"
        )
    answer = _answer_schema(turn)
    is_restricted = len(tools) < len(prompt_tools(turn))
    needs_constraint = is_restricted or any(map(constrains_arguments, tools))
    if not (is_required or needs_constraint or answer is not None or turn.effort == "none"):
        return None
    last_messages = [tag for tool in tools for tag in _call_tags(tool, is_required=is_required)]
    if not is_required:
        last_messages += _final_tags(answer)
    # A preamble would be read as part of constrained text: clients join all visible text.
    preamble = ["commentary"] if tools and (is_required or answer is None) else []
    free_channels = [] if turn.effort == "none" else ["analysis", *preamble]
    free_messages = [_message_tag(channel) for channel in free_channels]
    output = one_of(last_messages)
    if free_messages:
        output = sequence({"type": "star", "content": one_of(free_messages)}, output)
    return structural_tag_constraint(one_of([_token_order_tag(), output]))


def _answer_schema(turn: Turn) -> Tag | None:
    text_format = turn.text.format
    match text_format.get("type"):
        case "json_schema":
            return _json_tag(enforced_format(text_format))
        case "json_object":
            return _json_tag({"type": "object"})
    return None


def _message_tag(channel: str) -> Tag:
    """Return the tag of a whole message and the start of the next."""
    return sequence(
        _token_tag(h.CHANNEL),
        _text_tag(channel),
        _token_tag(h.MESSAGE),
        _free_text_tag(),
        _token_tag(h.END),
        _token_tag(h.START),
        _text_tag(ASSISTANT),
    )


def _final_tags(answer: Tag | None) -> list[Tag]:
    head = [_token_tag(h.CHANNEL), _text_tag("final")]
    if answer is None:
        return [sequence(*head, _token_tag(h.MESSAGE), _free_text_tag())]
    plain = sequence(_token_tag(h.MESSAGE))
    return [sequence(*head, one_of([plain, *_json_type_tags()]), answer)]


def _call_tags(tool: ToolSpec, *, is_required: bool) -> list[Tag]:
    """Return the tags of a call, one for each place that the model may put the recipient."""
    if is_hosted(tool):
        body = (
            _free_text_tag()
            if text_property(tool)
            else _arguments_tag(with_model_parameters(tool), is_required=is_required)
        )
        channels = ("analysis", "commentary")
        return [_hosted_call_tag(name_of(tool), channel, body) for channel in channels]
    to = f" to={recipient_of(tool.name)}"
    body = sequence(one_of(_json_type_tags()), _arguments_tag(tool, is_required=is_required))
    return [
        sequence(_token_tag(h.CHANNEL), _text_tag("commentary" + to), body),
        sequence(_text_tag(to), _token_tag(h.CHANNEL), _text_tag("commentary"), body),
    ]


def _hosted_call_tag(name: str, channel: str, body: Tag) -> Tag:
    head = _text_tag(f"{channel} to={recipient_of(name)} code")
    return sequence(_token_tag(h.CHANNEL), head, _token_tag(h.MESSAGE), body)


def _arguments_tag(tool: ToolSpec, *, is_required: bool) -> Tag:
    ebnf = input_grammar(tool)
    if ebnf is not None:
        return grammar_tag(ebnf)
    if tool.kind == "custom":
        return _json_tag(input_parameters())
    # A tool that is not strict may have a schema that no grammar can express. As long as calling it
    # is optional, this must not fail the request.
    if tool.parameters is None or not (tool.strict or is_required):
        return _json_tag({"type": "object"})
    return _json_tag(enforced_parameters(tool))


def _json_type_tags() -> list[Tag]:
    json_type = [_text_tag("json"), _token_tag(h.MESSAGE)]
    return [
        sequence(_text_tag(" "), _token_tag(h.CONSTRAIN), *json_type),
        sequence(_token_tag(h.CONSTRAIN), *json_type),
        sequence(_text_tag(" json"), _token_tag(h.MESSAGE)),
    ]


def _token_order_tag() -> Tag:
    """Return a tag that matches nothing and names all tokens of all tags, always in this order.

    xgrammar (0.2.8) caches masks across grammars under a key in which a token is only the number of
    its first appearance. A tag with other tokens, or the same ones in another order, would get the
    masks of the previous tag. This tag comes first in every grammar and makes the numbers equal.
    """
    nothing = {"type": "regex", "pattern": r"[^\s\S]"}
    tokens = (h.CHANNEL, h.CONSTRAIN, h.MESSAGE, h.END, h.START)
    return sequence(nothing, *(_token_tag(token) for token in tokens), _free_text_tag())


def _token_tag(token: int) -> Tag:
    return {"type": "token", "token": token}


def _text_tag(text: str) -> Tag:
    return {"type": "const_string", "value": text}


def _json_tag(schema: Any) -> Tag:
    return {
        "type": "json_schema",
        "json_schema": schema,
        "max_whitespace_cnt": MAX_WHITESPACE,
    }


def _free_text_tag() -> Tag:
    return {"type": "any_tokens", "exclude_tokens": _MARKUP}
