"""Families of chat templates, as a table: the markers each writes and how it writes a call.

One parser, one constraint builder and one detector read this table; a family is a row. What a row
says of reading is generous (several spellings of a call), what it says of binding is exact: the one
spelling that a constrained engine may write.

To add a family: a row here, a clue in `CLUES`, a golden in tests/golden/chat_template. Only a new
way to write a call's name and arguments needs a reader in payloads.py.
"""

# ruff: noqa: RUF001 - DeepSeek's markers are spelled with a full-width bar

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct


class Region(Struct, frozen=True, kw_only=True):
    """Where calls stand: `reader` names a payload reader, `end` is the marker that closes it."""

    reader: Literal["tool_call", "json", "xml", "named", "fenced", "pythonic"]
    end: str = ""


class CallForm(Struct, frozen=True, kw_only=True):
    """How a bound engine writes calls: open, begin arguments end, separator, …, close.

    `{name}` in `begin` stands for the tool's name. `trigger` is the marker after which a call is
    certain; without one (calls that begin like any text) calls are bound only where one must come.
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

    `bare` calls begin, without a marker, with the first character that a model writes. `ends` are
    the markers that end a turn and `dropped` those around calls: neither is ever visible text.
    `call_id_length` is set where templates refuse ids of another length.
    """

    think: tuple[str, str] | None = None
    refusal: tuple[str, str] | None = None
    calls: Mapping[str, Region] = {}
    bare: Mapping[str, Region] = {}
    dropped: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    form: CallForm | None = None
    call_id_length: int | None = None


THINK = ("<think>", "</think>")
CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")
HERMES_CALLS = {"<tool_call>": Region(reader="tool_call", end="</tool_call>")}
DEEPSEEK_CALLS = {"<｜tool▁call▁begin｜>": Region(reader="fenced", end="<｜tool▁call▁end｜>")}
DEEPSEEK_DROPPED = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>")
DEEPSEEK_FORM = CallForm(
    open="<｜tool▁calls▁begin｜>",
    begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
    end="\n```<｜tool▁call▁end｜>",
    separator="\n",
    close="<｜tool▁calls▁end｜>",
    trigger="<｜tool▁calls▁begin｜>",
)
HERMES_FORM = CallForm(
    begin='<tool_call>\n{"name": "{name}", "arguments": ',
    end="}\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
)
MISTRAL = Family(
    think=("[THINK]", "[/THINK]"),
    calls={"[TOOL_CALLS]": Region(reader="named")},
    ends=("</s>",),
    form=CallForm(begin="[TOOL_CALLS]{name}[ARGS]", end="", trigger="[TOOL_CALLS]"),
    call_id_length=9,
)

FAMILIES: Mapping[str, Family] = {
    "plain": Family(ends=(*CHATML_ENDS, "<|eot_id|>", "</s>")),
    "think": Family(think=THINK, ends=(*CHATML_ENDS, "<|eot_id|>", "</s>")),
    "hermes": Family(
        think=THINK,
        calls=HERMES_CALLS,
        dropped=("</tool_call>",),
        ends=CHATML_ENDS,
        form=HERMES_FORM,
    ),
    "qwen3_coder": Family(
        think=THINK,
        # The outer marker is often forgotten: the inner one opens a region of its own.
        calls={**HERMES_CALLS, "<function=": Region(reader="xml", end="</function>")},
        dropped=("</tool_call>", "</function>"),
        ends=CHATML_ENDS,
        form=CallForm(
            begin="<tool_call>\n<function={name}>\n",
            end="\n</function>\n</tool_call>",
            separator="\n",
            arguments="qwen_xml",
            trigger="<tool_call>",
        ),
    ),
    "llama3_json": Family(
        calls={"<|python_tag|>": Region(reader="json")},
        bare={"{": Region(reader="json")},
        ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        form=CallForm(begin='{"name": "{name}", "parameters": ', end="}", separator="; "),
    ),
    "mistral": MISTRAL,
    "mistral_array": Family(
        calls=MISTRAL.calls,
        ends=MISTRAL.ends,
        form=CallForm(
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
        dropped=DEEPSEEK_DROPPED,
        ends=("<｜end▁of▁sentence｜>",),
        form=DEEPSEEK_FORM,
    ),
    "deepseek_v3": Family(
        calls=DEEPSEEK_CALLS,
        dropped=DEEPSEEK_DROPPED,
        ends=("<｜end▁of▁sentence｜>",),
        form=DEEPSEEK_FORM,
    ),
    "deepseek_v31": Family(
        think=THINK,
        calls=DEEPSEEK_CALLS,
        dropped=DEEPSEEK_DROPPED,
        ends=("<｜end▁of▁sentence｜>",),
        form=CallForm(
            open="<｜tool▁calls▁begin｜>",
            begin="<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            end="<｜tool▁call▁end｜>",
            close="<｜tool▁calls▁end｜>",
            trigger="<｜tool▁calls▁begin｜>",
        ),
    ),
    "pythonic": Family(
        calls={"<|python_start|>": Region(reader="pythonic", end="<|python_end|>")},
        bare={"[": Region(reader="pythonic")},
        dropped=("<|python_end|>",),
        ends=("<|eot|>", "<|eot_id|>", "<|eom|>", *CHATML_ENDS),
        form=CallForm(
            open="[", begin="{name}(", end=")", separator=", ", close="]", arguments="pythonic"
        ),
    ),
    # What the scripted engine speaks: Hermes calls, and refusals between markers of our own.
    "scripted": Family(
        think=THINK,
        refusal=("<|refusal|>", "<|/refusal|>"),
        calls=HERMES_CALLS,
        dropped=("</tool_call>",),
        ends=("<|im_end|>",),
        form=HERMES_FORM,
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
"""Families by what their templates contain, most telling first."""


def detect_family(template: str) -> str:
    """Return the name of the family that a chat template's text belongs to.

    >>> detect_family("{{ '<tool_call>' }}"), detect_family("{{ messages }}")
    ('hermes', 'plain')
    """
    for name, clues in CLUES:
        if all(clue in template for clue in clues):
            return name
    return "plain"
