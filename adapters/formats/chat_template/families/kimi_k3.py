"""Kimi K3, which writes reasoning, text and calls as elements."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.adapters.formats.chat_template.families.family import CallForm, Family, Region, Signs

KIMI_K3_FAMILIES: Mapping[str, Family] = {
    "kimi_k3": Family(
        models="Kimi K3",
        signs=Signs(
            templates=(("<|open|>", "<|close|>", "<|sep|>"),),
            tokens=("<|open|>", "<|close|>", "<|sep|>"),
            model_types=("kimi_k3",),
        ),
        think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        text=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        calls={"<|open|>call": Region(reader="kimi_k3", end="<|close|>call<|sep|>")},
        hidden_markers=(
            "<|open|>tools<|sep|>",
            "<|close|>tools<|sep|>",
            "<|close|>call<|sep|>",
            "<|close|>argument<|sep|>",
        ),
        end_markers=("<|close|>message<|sep|>", "<|end_of_msg|>"),
        call_form=CallForm(
            open="<|open|>tools<|sep|>",
            begin='<|open|>call tool="{name}" index="{number}"<|sep|>',
            end="<|close|>call<|sep|>",
            close="<|close|>tools<|sep|>",
            arguments="kimi_k3",
            trigger="<|open|>tools<|sep|>",
        ),
    ),
}
