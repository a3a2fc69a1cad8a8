"""Cohere's Command A, Command R7B, and the Command R models before them."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.adapters.formats.chat_template.families.family import CallForm, Family, Region, Signs

COHERE_FAMILIES: Mapping[str, Family] = {
    "cohere": Family(
        models="Command A, Command A Reasoning, Command R7B, Cohere2 MoE",
        signs=Signs(
            templates=(("<|START_ACTION|>", "<|CHATBOT_TOKEN|>"),),
            tokens=("<|START_ACTION|>", "<|START_THINKING|>"),
            model_types=("cohere2", "cohere2_moe", "cohere2_vision"),
        ),
        think=("<|START_THINKING|>", "<|END_THINKING|>"),
        citations=("<co>", "</co:"),
        calls={"<|START_ACTION|>": Region(reader="json", end="<|END_ACTION|>")},
        hidden_markers=(
            "<|END_ACTION|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ),
        answer_starts=("<|START_RESPONSE|>", "<|START_TEXT|>"),
        answer_ends=("<|END_RESPONSE|>", "<|END_TEXT|>"),
        end_markers=("<|END_OF_TURN_TOKEN|>",),
        call_form=CallForm(
            open="<|START_ACTION|>[\n",
            begin='    {"tool_call_id": "{index}", "tool_name": "{name}", "parameters": ',
            end="}",
            separator=",\n",
            close="\n]<|END_ACTION|>",
            trigger="<|START_ACTION|>",
        ),
    ),
    "command_r": Family(
        models="Command R, Command R+",
        signs=Signs(
            templates=(("<|CHATBOT_TOKEN|>", "Action:", "directly-answer"),),
            model_types=("cohere",),
        ),
        calls={
            "Action:\n```json": Region(reader="json", end="```"),
            "Action: ```json": Region(reader="json", end="```"),
            "Action:```json": Region(reader="json", end="```"),
        },
        end_markers=("<|END_OF_TURN_TOKEN|>",),
        call_form=CallForm(
            open="Action:\n```json\n[\n",
            begin='    {\n        "tool_name": "{name}",\n        "parameters": ',
            end="\n    }",
            separator=",\n",
            close="\n]```",
            trigger="Action:\n```json",
        ),
    ),
}
