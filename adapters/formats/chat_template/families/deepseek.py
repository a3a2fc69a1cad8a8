"""DeepSeek R1, V3 to V3.2, V4 and V4.1."""

# ruff: noqa: RUF001 - the markers contain a full-width bar

from __future__ import annotations

from collections.abc import Mapping

from antiphon.adapters.formats.chat_template.families.family import (
    THINK,
    CallForm,
    Family,
    Region,
    Signs,
    Tags,
)

DEEPSEEK_CALLS = {"<｜tool▁call▁begin｜>": Region(reader="fenced", end="<｜tool▁call▁end｜>")}

DEEPSEEK_HIDDEN_MARKERS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>")

DEEPSEEK_CALL_FORM = CallForm(
    open="<｜tool▁calls▁begin｜>",
    begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    end="\n```<｜tool▁call▁end｜>",
    separator="\n",
    close="<｜tool▁calls▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
)

DSML_SECTIONS = ("function_calls", "tool_calls", "toolcalls", "tool", "calls")

DSML_MARKS = ("｜DSML｜", "｜｜DSML｜｜", "|DSML|")
"""The mark of a tag, and how models misspell it."""


def _dsml_tags(mark: str) -> Tags:
    return Tags(
        call=f"<{mark}invoke",
        key=f"<{mark}parameter",
        value_end=f"</{mark}parameter>",
        call_end=f"</{mark}invoke>",
    )


def _dsml_family(models: str, section: str, blank: str, style: str, signs: Signs) -> Family:
    """Return a row of the models that mark tags as DSML; `blank` comes after each mark."""
    begin, end = f"<｜DSML｜{blank}", f"</｜DSML｜{blank}"
    # Models forget or misspell the outer marker, so the inner one opens a region, too.
    sections = sorted({section, *DSML_SECTIONS})
    spellings = [_dsml_tags(f"{mark}{blank}") for mark in DSML_MARKS]
    calls: dict[str, Region] = {}
    closers: list[str] = []
    for tags in spellings:
        opening, closing = tags.call.removesuffix("invoke"), tags.call_end.removesuffix("invoke>")
        region = Region(reader="tags", end=f"{closing}{section}>", tags=tags)
        calls |= {**{f"{opening}{name}>": region for name in sections}, tags.call: region}
        closers += [*(f"{closing}{name}>" for name in sections), tags.call_end]
    return Family(
        models=models,
        signs=signs,
        think=THINK,
        calls=calls,
        hidden_markers=tuple(closers),
        end_markers=("<｜end▁of▁sentence｜>",),
        call_form=CallForm(
            open=f"{begin}{section}>\n",
            begin=f'{begin}invoke name="{{name}}">\n',
            end=f"{end}invoke>\n",
            close=f"{end}{section}>",
            arguments=style,
            trigger=f"{begin}{section}>",
        ),
    )


DEEPSEEK_FAMILIES: Mapping[str, Family] = {
    "deepseek_r1": Family(
        models="DeepSeek R1 and its distillations",
        signs=Signs(templates=(("<｜tool▁sep｜>", "```json", "</think>"),)),
        think=THINK,
        calls=DEEPSEEK_CALLS,
        hidden_markers=DEEPSEEK_HIDDEN_MARKERS,
        end_markers=("<｜end▁of▁sentence｜>",),
        call_form=DEEPSEEK_CALL_FORM,
    ),
    "deepseek_v3": Family(
        models="DeepSeek V3",
        signs=Signs(templates=(("<｜tool▁sep｜>", "```json"),)),
        calls=DEEPSEEK_CALLS,
        hidden_markers=DEEPSEEK_HIDDEN_MARKERS,
        end_markers=("<｜end▁of▁sentence｜>",),
        call_form=DEEPSEEK_CALL_FORM,
    ),
    "deepseek_v31": Family(
        models="DeepSeek V3.1",
        signs=Signs(templates=(("<｜tool▁sep｜>",),)),
        think=THINK,
        calls=DEEPSEEK_CALLS,
        hidden_markers=DEEPSEEK_HIDDEN_MARKERS,
        end_markers=("<｜end▁of▁sentence｜>",),
        call_form=CallForm(
            open="<｜tool▁calls▁begin｜>",
            begin="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            end="<｜tool▁call▁end｜>",
            close="<｜tool▁calls▁end｜>",
            trigger="<｜tool▁calls▁begin｜>",
        ),
    ),
    "deepseek_v32": _dsml_family(
        "DeepSeek V3.2",
        "function_calls",
        "",
        "deepseek_xml",
        Signs(
            templates=(("｜DSML｜", "function_calls>"),),
            tokens=("｜DSML｜",),
            model_types=("deepseek_v32",),
        ),
    ),
    "deepseek_v4": _dsml_family(
        "DeepSeek V4",
        "tool_calls",
        "",
        "deepseek_xml",
        Signs(
            templates=(("｜DSML｜", "tool_calls>"),),
            tokens=("｜DSML｜",),
            model_types=("deepseek_v4",),
        ),
    ),
    "deepseek_v41": _dsml_family(
        "DeepSeek V4.1",
        "calls",
        " ",
        "deepseek_v4_1_xml",
        Signs(templates=(("｜DSML｜", " calls>"),), model_types=("deepseek_v41",)),
    ),
}
