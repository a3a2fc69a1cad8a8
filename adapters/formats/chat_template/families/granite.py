"""IBM's Granite 3 and 4, and Granite 20B for function calling."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.families.chatml import HERMES_CALL_FORM, HERMES_CALLS
from antiphon.adapters.formats.chat_template.families.family import (
    THINK,
    CallForm,
    Family,
    Region,
    Signs,
)

GRANITE = Family(
    models="Granite 3.0, 3.1, 3.3",
    signs=Signs(
        templates=(
            ("<|start_of_role|>", "<|tool_call|>"),
            ("<|start_of_role|>", "available_tools", "You are Granite"),
        ),
        tokens=("<|start_of_role|>", "<|tool_call|>"),
        model_types=("granite", "granitemoe"),
    ),
    think=THINK,
    # Granite 3.1 often spells the marker as text.
    calls={
        "<|tool_call|>": Region(reader="json"),
        "<tool_call>": Region(reader="json", end="</tool_call>"),
    },
    hidden_markers=("<response>", "</response>", "</tool_call>"),
    answer_ends=("</response>",),
    end_markers=("<|end_of_text|>",),
    call_form=CallForm(
        open="<|tool_call|>[",
        begin='{"name": "{name}", "arguments": ',
        end="}",
        separator=", ",
        close="]",
        trigger="<|tool_call|>",
    ),
)

GRANITE_FAMILIES: Mapping[str, Family] = {
    "granite": GRANITE,
    "granite32": replace(
        GRANITE,
        models="Granite 3.2",
        signs=Signs(
            templates=(
                (
                    "<|start_of_role|>",
                    "You are Granite",
                    "Here is my thought process:",
                    "Here is my response:",
                ),
            )
        ),
        think=("Here is my thought process:", "Here is my response:"),
        more_thinks=(("Here's my thought process:", "Here's my response:"),),
    ),
    "granite4": Family(
        models="Granite 4.0, 4.1",
        signs=Signs(
            templates=(("<|start_of_role|>", "<tool_call>", "<tool_response>"),),
            model_types=("granitemoehybrid",),
        ),
        think=THINK,
        calls=HERMES_CALLS,
        hidden_markers=("</tool_call>",),
        end_markers=("<|end_of_text|>",),
        call_form=HERMES_CALL_FORM,
    ),
    "granite_20b_fc": Family(
        models="Granite 20B function calling",
        signs=Signs(templates=(("<function_call>", "<|function_call_library|>"),)),
        calls={"<function_call>": Region(reader="json")},
        end_markers=("<|endoftext|>",),
        call_form=CallForm(
            begin='<function_call> {"name": "{name}", "arguments": ',
            end="}",
            trigger="<function_call>",
        ),
    ),
}
