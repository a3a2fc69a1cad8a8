"""Solar Open and PLaMo 3, which write each part of a call between markers of its own."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.adapters.formats.chat_template.families.family import CallForm, Family, Region, Signs


def _plamo(name: str) -> str:
    return f"<|plamo:{name}:plamo|>"


MARKED_FAMILIES: Mapping[str, Family] = {
    "solar": Family(
        models="Solar Open",
        signs=Signs(
            templates=(("<|tool_call:name|>", "<|tool_calls|>"),),
            tokens=("<|tool_call:name|>", "<|tool_calls|>"),
            model_types=("solar_open",),
        ),
        think=("<|think|>", "<|end|>"),
        message_start="<|begin|>assistant",
        text=("<|content|>", "<|end|>"),
        calls={"<|tool_call:begin|>": Region(reader="marked", end="<|tool_call:end|>")},
        hidden_markers=("<|begin|>assistant", "<|tool_calls|>", "<|tool_call:end|>"),
        end_markers=("<|flush|>", "<|calls|>", "<|endoftext|>"),
        # The model is told to write an id of ten letters and digits.
        call_form=CallForm(
            open="<|tool_calls|>",
            begin=("<|tool_call:begin|>call00000{index}<|tool_call:name|>{name}<|tool_call:args|>"),
            end="<|tool_call:end|>",
            close="<|calls|>",
            trigger="<|tool_calls|>",
        ),
    ),
    "plamo3": Family(
        models="PLaMo 3",
        signs=Signs(
            templates=((_plamo("begin_tool_request"),), ("<|plamo:begin_tool_request",)),
            model_types=("plamo3",),
        ),
        think=(_plamo("begin_think"), _plamo("end_think")),
        calls={
            _plamo("begin_tool_name"): Region(reader="marked", end=_plamo("end_tool_arguments"))
        },
        hidden_markers=(
            _plamo("begin_tool_requests"),
            _plamo("begin_tool_request"),
            _plamo("end_tool_arguments"),
            _plamo("end_tool_request"),
            _plamo("end_tool_requests"),
        ),
        end_markers=("<|plamo:tag|>",),
        call_form=CallForm(
            open=_plamo("begin_tool_requests"),
            begin=(
                f"{_plamo('begin_tool_request')}{_plamo('begin_tool_name')}{{name}}"
                f"{_plamo('end_tool_name')}{_plamo('begin_tool_arguments')}"
                "<|plamo:constrain|>json<|plamo:msg|>"
            ),
            end=f"{_plamo('end_tool_arguments')}{_plamo('end_tool_request')}",
            close=_plamo("end_tool_requests"),
            trigger=_plamo("begin_tool_requests"),
        ),
    ),
}
