"""Clear old tool uses from a turn, if its request asks for it and its prompt is long enough."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.application.ports import Model, Turn
from antiphon.application.support.long_prompts import count_or_none, default_limit
from antiphon.domain.history.tool_uses import (
    TRIGGER_TOKENS,
    ClearedToolUses,
    ClearToolUses,
    ClearTrigger,
    clear_tool_uses,
    count_tool_uses,
)


async def clear_turn(
    edit: ClearToolUses, turn: Turn, model: Model
) -> tuple[Turn, ClearedToolUses | None]:
    """Return the turn that the model is shown, and what was cleared, None for nothing.

    Raises: RequestError.
    """
    items, count = clear_tool_uses(turn.items, edit)
    if not count:
        return turn, None
    default = min(TRIGGER_TOKENS, default_limit(model))
    trigger = edit.trigger or ClearTrigger(type="input_tokens", value=default)
    if trigger.type == "tool_uses" and count_tool_uses(turn.items) <= trigger.value:
        return turn, None
    before = await _count(turn, model)
    if trigger.type == "input_tokens" and before <= trigger.value:
        return turn, None
    cleared = replace(turn, items=items)
    saved = max(0, before - await _count(cleared, model))
    if edit.clear_at_least is not None and saved < edit.clear_at_least.value:
        return turn, None
    return cleared, ClearedToolUses(tool_uses=count, input_tokens=saved)


async def _count(turn: Turn, model: Model) -> int:
    """Return the tokens of the prompt; of one that is too long to be counted, the context's."""
    tokens = await count_or_none(model, turn)
    return model.context_length + 1 if tokens is None else tokens
