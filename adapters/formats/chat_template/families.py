"""The table of chat-template families: the markers of each, and how it writes a call.

The parser, the constraint builder and the detector read this table; a family is a row. The parser
is lenient and accepts several spellings of a call. The constraint is exact: it allows the one
spelling in `call_form`.

To add a family: a row here, a clue in `CLUES`, a golden in tests/golden/chat_template. Only a new
way to write a call's name and arguments needs a reader in payloads.py.
"""

# ruff: noqa: RUF001 - DeepSeek's markers contain a full-width bar

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct


class Region(Struct, frozen=True, kw_only=True):
    """Text with calls: `reader` names its payload reader, `end` is the marker that closes it."""

    reader: Literal["tool_call", "json", "xml", "named", "fenced", "pythonic"]
    end: str = ""


class CallForm(Struct, frozen=True, kw_only=True):
    """How a constrained engine writes calls: open, begin arguments end, separator, …, close.

    `{name}` in `begin` stands for the tool's name. `trigger` is the marker that always starts a
    call. Without one (a call starts like any text), calls are only constrained where they are
    required.
    """

    begin: str
    end: str
    separator: str = ""
    open: str = ""
    close: str = ""
    arguments: Literal["json", "qwen_xml", "pythonic"] = "json"
    trigger: str = ""


class Family(Struct, frozen=True, kw_only=True):
    """What templates of one kind have in common.

    `think` and `refusal` are pairs of markers. `calls` maps markers to the regions that they open;
    `bare_calls` maps characters, each of which may start a region as the first one of a text.
    `end_markers` end a turn and `hidden_markers` surround calls: neither is ever visible text.
    `call_id_length` is set if the templates refuse ids of any other length.
    """

    think: tuple[str, str] | None = None
    refusal: tuple[str, str] | None = None
    calls: Mapping[str, Region] = {}
    bare_calls: Mapping[str, Region] = {}
    hidden_markers: tuple[str, ...] = ()
    end_markers: tuple[str, ...] = ()
    call_form: CallForm | None = None
    call_id_length: int | None = None


THINK = ("<think>", "</think>")
CHATML_END_MARKERS = ("<|im_end|>", "<|endoftext|>")
HERMES_CALLS = {"<tool_call>": Region(reader="tool_call", end="</tool_call>")}
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
HERMES_CALL_FORM = CallForm(
    begin='<tool_call>\n{"name": "{name}", "arguments": ',
    end="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
)
MISTRAL = Family(
    think=("[THINK]", "[/THINK]"),
    calls={"[TOOL_CALLS]": Region(reader="named")},
    end_markers=("</s>",),
    call_form=CallForm(begin="[TOOL_CALLS]{name}[ARGS]", end="", trigger="[TOOL_CALLS]"),
    call_id_length=9,
)

FAMILIES: Mapping[str, Family] = {
    "plain": Family(end_markers=(*CHATML_END_MARKERS, "<|eot_id|>", "</s>")),
    "think": Family(think=THINK, end_markers=(*CHATML_END_MARKERS, "<|eot_id|>", "</s>")),
    "hermes": Family(
        think=THINK,
        calls=HERMES_CALLS,
        hidden_markers=("</tool_call>",),
        end_markers=CHATML_END_MARKERS,
        call_form=HERMES_CALL_FORM,
    ),
    "qwen3_coder": Family(
        think=THINK,
        # Models often forget the outer marker, so the inner one opens a region, too.
        calls={**HERMES_CALLS, "<function=": Region(reader="xml", end="</function>")},
        hidden_markers=("</tool_call>", "</function>"),
        end_markers=CHATML_END_MARKERS,
        call_form=CallForm(
            begin="<tool_call>\n<function={name}>\n",
            end="\n</function>\n</tool_call>",
            separator="\n",
            arguments="qwen_xml",
            trigger="<tool_call>",
        ),
    ),
    "llama3_json": Family(
        calls={"<|python_tag|>": Region(reader="json")},
        bare_calls={"{": Region(reader="json")},
        end_markers=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        call_form=CallForm(begin='{"name": "{name}", "parameters": ', end="}", separator="; "),
    ),
    "mistral": MISTRAL,
    "mistral_array": Family(
        calls=MISTRAL.calls,
        end_markers=MISTRAL.end_markers,
        call_form=CallForm(
            open="[TOOL_CALLS] [",
            begin='{"name": "{name}", "arguments": ',
            end="}",
            separator=", ",
            close="]",
            trigger="[TOOL_CALLS]",
        ),
        call_id_length=9,
    ),
    "deepseek_r1": Family(
        think=THINK,
        calls=DEEPSEEK_CALLS,
        hidden_markers=DEEPSEEK_HIDDEN_MARKERS,
        end_markers=("<｜end▁of▁sentence｜>",),
        call_form=DEEPSEEK_CALL_FORM,
    ),
    "deepseek_v3": Family(
        calls=DEEPSEEK_CALLS,
        hidden_markers=DEEPSEEK_HIDDEN_MARKERS,
        end_markers=("<｜end▁of▁sentence｜>",),
        call_form=DEEPSEEK_CALL_FORM,
    ),
    "deepseek_v31": Family(
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
    "pythonic": Family(
        calls={"<|python_start|>": Region(reader="pythonic", end="<|python_end|>")},
        bare_calls={"[": Region(reader="pythonic")},
        hidden_markers=("<|python_end|>",),
        end_markers=("<|eot|>", "<|eot_id|>", "<|eom|>", *CHATML_END_MARKERS),
        call_form=CallForm(
            open="[", begin="{name}(", end=")", separator=", ", close="]", arguments="pythonic"
        ),
    ),
    # What the scripted engine writes: Hermes calls, and refusals between markers of its own.
    "scripted": Family(
        think=THINK,
        refusal=("<|refusal|>", "<|/refusal|>"),
        calls=HERMES_CALLS,
        hidden_markers=("</tool_call>",),
        end_markers=("<|im_end|>",),
        call_form=HERMES_CALL_FORM,
    ),
}

CLUES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("deepseek_r1", ("<｜tool▁sep｜>", "```json", "</think>")),
    ("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁sep｜>",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral_array", ("[TOOL_CALLS]",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("[func_name1(",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ("<|eot_id|>", '"parameters"')),
    ("hermes", ("<tool_call>",)),
    ("think", ("<think>",)),
    ("think", ("</think>",)),
)
"""Families, with texts that their templates contain; the most specific come first."""


def detect_family(template: str) -> str:
    """Return the name of the family that a chat template belongs to, by its source.

    >>> detect_family("{{ '<tool_call>' }}"), detect_family("{{ messages }}")
    ('hermes', 'plain')
    """
    for name, clues in CLUES:
        if all(clue in template for clue in clues):
            return name
    return "plain"
