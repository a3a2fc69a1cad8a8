"""Gemma 4 and FunctionGemma, with a syntax of their own for arguments."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.adapters.formats.chat_template.families.family import CallForm, Family, Region, Signs

GEMMA_FAMILIES: Mapping[str, Family] = {
    "gemma4": Family(
        models="Gemma 4",
        signs=Signs(
            templates=(("<|tool_call>call:", "<|channel>"),),
            tokens=("<|tool_call>", "<tool_call|>"),
            model_types=("gemma4", "gemma4_text"),
        ),
        think=("<|channel>", "<channel|>"),
        think_label="thought\n",
        calls={"<|tool_call>": Region(reader="gemma", end="<tool_call|>")},
        hidden_markers=("<tool_call|>",),
        # The model asks for a tool's response with the marker that starts one.
        end_markers=("<turn|>", "<|tool_response>", "<eos>"),
        call_form=CallForm(
            begin="<|tool_call>call:{name}{",
            end="}<tool_call|>",
            arguments="gemma",
            trigger="<|tool_call>",
        ),
    ),
    "functiongemma": Family(
        models="FunctionGemma",
        signs=Signs(
            templates=(("<start_function_call>",),),
            tokens=("<start_function_call>", "<end_function_call>"),
        ),
        calls={"<start_function_call>": Region(reader="gemma", end="<end_function_call>")},
        hidden_markers=("<end_function_call>",),
        end_markers=("<end_of_turn>", "<start_function_response>", "<eos>"),
        call_form=CallForm(
            begin="<start_function_call>call:{name}{",
            end="}<end_function_call>",
            arguments="functiongemma",
            trigger="<start_function_call>",
        ),
    ),
}
