"""Inkling and Muse, whose messages have headers: a name, and a marker that says what follows."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.adapters.formats.chat_template.families.family import (
    CallForm,
    Family,
    Region,
    Signs,
    Tags,
)

ATEM_TAGS = Tags(
    call="<atem:invoke name=",
    key="<atem:parameter",
    value_end="</atem:parameter>",
    call_end="</atem:invoke>",
    prelude=("<atem:function_calls>",),
)


def _to(name: str) -> str:
    return f"to={name}<|message|>"


def _muse_family(
    models: str,
    signs: Signs,
    *,
    more_thinks: tuple[tuple[str, str], ...] = (),
    more_texts: tuple[str, ...],
) -> Family:
    """Return a row of the models whose calls are messages to a tool.

    A call that is quoted in a message to the user, or in one to the model itself, is none.
    """
    return Family(
        models=models,
        signs=signs,
        think=(_to("self"), "<|eom|>"),
        more_thinks=more_thinks,
        message_start="<|start|>assistant",
        header=" to=",
        text=(_to("user"), "<|eot|>"),
        calls={"<|message|>": Region(reader="tags", end="</atem:function_calls>", tags=ATEM_TAGS)},
        hidden_markers=("<|start|>assistant", *more_texts, "<|eom|>"),
        answer_starts=more_texts,
        answer_ends=("<|eom|>",),
        end_markers=("<|eot|>",),
        call_form=CallForm(
            begin=' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n',
            end="</atem:invoke>\n</atem:function_calls>",
            separator="<|eom|><|start|>assistant",
            arguments="atem_xml",
            trigger=" to={name}<|message|>",
        ),
    )


MESSAGE_FAMILIES: Mapping[str, Family] = {
    "inkling": Family(
        models="Inkling",
        signs=Signs(
            tokens=("<|content_thinking|>", "<|content_invoke_tool_json|>"),
            model_types=("inkling_mm_model", "inkling_model"),
        ),
        think=("<|content_thinking|>", "<|end_message|>"),
        message_start="<|message_model|>",
        header="",
        text=("<|content_text|>", "<|end_message|>"),
        calls={"<|content_invoke_tool_json|>": Region(reader="json", end="<|end_message|>")},
        hidden_markers=(
            "<|message_model|>",
            "<|content_invoke_tool_text|>",
            "<|content_tool_error|>",
        ),
        answer_starts=("<|content_invoke_tool_text|>", "<|content_tool_error|>"),
        end_markers=("<|content_model_end_sampling|>",),
        call_form=CallForm(
            begin='<|content_invoke_tool_json|>{"name":"{name}","args":',
            end="}<|end_message|>",
            separator="<|message_model|>",
            trigger="<|content_invoke_tool_json|>",
        ),
    ),
    # A message to nobody is a thought of Muse Spark, and an answer of Muse Glimmer.
    "muse": _muse_family(
        "Muse Spark",
        Signs(model_types=("muse_spark",)),
        more_thinks=((_to("developer"), "<|eom|>"), ("<|message|>", "<|eom|>")),
        more_texts=(_to("commentary"),),
    ),
    "muse_glimmer": _muse_family(
        "Muse Glimmer",
        Signs(
            templates=(("<atem:function_calls>", "to=self<|message|>"),),
            model_types=("muse_glimmer",),
        ),
        more_texts=("<|message|>",),
    ),
}
