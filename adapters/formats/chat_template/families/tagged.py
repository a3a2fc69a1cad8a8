"""Seed-OSS, Hunyuan Hy3 and Hy4, Step 3, MiniCPM 5, Dots and K2 Horizon, with calls as tags."""

# ruff: noqa: RUF001 - some markers contain a full-width bar

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.families.family import (
    CHATML_END_MARKERS,
    THINK,
    CallForm,
    Family,
    Region,
    Signs,
    Tags,
)

SEED_TAGS = Tags(
    call="<function=",
    key="<parameter",
    value_end="</parameter>",
    call_end="</function>",
    has_padding=True,
)


def _hunyuan_tags(suffix: str) -> Tags:
    return Tags(
        call=f"<tool_call{suffix}>",
        name_ends=(
            f"<tool_sep{suffix}>",
            "\n",
            f"<arg_key{suffix}>",
            f"</tool_call{suffix}>",
            "{",
        ),
        key=f"<arg_key{suffix}>",
        key_end=f"</arg_key{suffix}>",
        value=f"<arg_value{suffix}>",
        value_end=f"</arg_value{suffix}>",
        call_end=f"</tool_call{suffix}>",
    )


def _hunyuan_family(models: str, signs: Signs, form: CallForm, *, suffix: str = "") -> Family:
    """Return a row of Hunyuan; `suffix` ends the name of each marker."""
    tags = _hunyuan_tags(suffix)
    end = f"</tool_calls{suffix}>"
    return Family(
        models=models,
        signs=signs,
        think=(f"<think{suffix}>", f"</think{suffix}>"),
        calls=_regions(tags, f"<tool_calls{suffix}>", end),
        hidden_markers=(tags.call_end, end),
        end_markers=(f"<｜hy_eos{suffix}｜>",),
        call_form=form,
    )


def _hy3_form(suffix: str, arguments: str) -> CallForm:
    return CallForm(
        open=f"<tool_calls{suffix}>\n",
        begin=f"<tool_call{suffix}>{{name}}<tool_sep{suffix}>\n",
        end=f"</tool_call{suffix}>\n",
        close=f"</tool_calls{suffix}>",
        arguments=arguments,
        trigger=f"<tool_calls{suffix}>",
    )


def _regions(tags: Tags, begin: str, end: str) -> Mapping[str, Region]:
    """Return the regions of a section of calls, and of a call without the section's marker."""
    region = Region(reader="tags", end=end, tags=tags)
    return {begin: region, tags.call: region}


STEP3_TAGS = Tags(
    call="<steptml:invoke name=",
    key="<steptml:parameter",
    value_end="</steptml:parameter>",
    call_end="</steptml:invoke>",
    prelude=("function", "<｜tool_sep｜>"),
)

MINICPM5_TAGS = Tags(
    call="<function name=",
    key="<param",
    value_end="</param>",
    call_end="</function>",
    is_xml=True,
)

DOTS_TAGS = Tags(
    call="<invoke name=",
    key="<parameter",
    value_end="</parameter>",
    call_end="</invoke>",
)

K2_HORIZON_TAGS = Tags(
    call="<ifm|tool_call>",
    name_ends=("<ifm|arg_key>", "</ifm|tool_call>", "\n", "{"),
    key="<ifm|arg_key>",
    key_end="</ifm|arg_key>",
    value="<ifm|arg_value>",
    value_end="</ifm|arg_value>",
    call_end="</ifm|tool_call>",
    value_type=("<ifm|arg_type>", "</ifm|arg_type>"),
)


TAGGED_FAMILIES: Mapping[str, Family] = {
    "seed_oss": Family(
        models="Seed-OSS",
        signs=Signs(
            templates=(("seed:tool_call", "<function="),),
            tokens=("<seed:tool_call>", "<seed:think>"),
            model_types=("seed_oss",),
        ),
        think=("<seed:think>", "</seed:think>"),
        calls=_regions(SEED_TAGS, "<seed:tool_call>", "</seed:tool_call>"),
        hidden_markers=("</seed:tool_call>", "</function>"),
        end_markers=("<seed:eos>",),
        call_form=CallForm(
            begin="<seed:tool_call>\n<function={name}>\n",
            end="</function>\n</seed:tool_call>",
            separator="\n",
            arguments="seed_xml",
            trigger="<seed:tool_call>",
        ),
    ),
    "hy3": _hunyuan_family(
        "Hunyuan Hy3",
        Signs(
            templates=(("<tool_sep{}>", "<arg_key{}>", ":opensource"),),
            tokens=("<tool_sep:opensource>", "<arg_key:opensource>"),
            model_types=("hy_v3",),
        ),
        _hy3_form(":opensource", "hy3_xml"),
        suffix=":opensource",
    ),
    "hy3_preview": _hunyuan_family(
        "Hunyuan Hy3 preview",
        Signs(
            templates=(("<tool_sep>", "<arg_key>"),),
            tokens=("<tool_sep>", "<arg_key>"),
            model_types=("hy_v3",),
        ),
        _hy3_form("", "glm_xml_lines"),
    ),
    "hy4": _hunyuan_family(
        "Hunyuan Hy4",
        Signs(tokens=("<tool_calls>", "<arg_key>"), model_types=("hy_v4",)),
        CallForm(
            open="<tool_calls>",
            begin="<tool_call>{name}",
            end="</tool_call>",
            close="</tool_calls>",
            arguments="glm_xml",
            trigger="<tool_calls>",
        ),
    ),
    "step3": Family(
        models="Step 3",
        signs=Signs(
            templates=(("<steptml:invoke",),),
            tokens=("<｜tool_call_begin｜>", "<｜tool_sep｜>"),
            model_types=("step3", "step3_vl", "step3_text"),
        ),
        think=THINK,
        calls=_regions(STEP3_TAGS, "<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
        hidden_markers=(
            "<｜tool_calls_begin｜>",
            "<｜tool_calls_end｜>",
            "<｜tool_call_end｜>",
            "<｜tool_sep｜>",
            "</steptml:invoke>",
        ),
        end_markers=("<|EOT|>", "<｜end▁of▁sentence｜>"),
        call_form=CallForm(
            open="<｜tool_calls_begin｜>\n",
            begin='<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">\n',
            end="</steptml:invoke><｜tool_call_end｜>\n",
            close="<｜tool_calls_end｜>",
            arguments="step3_xml",
            trigger="<｜tool_calls_begin｜>",
        ),
    ),
    "k2_horizon": Family(
        models="K2 Horizon, Jais 3",
        signs=Signs(
            templates=(("<ifm|tool_calls>",),),
            tokens=("<ifm|tool_calls>", "<ifm|arg_key>"),
        ),
        # There are other markers for less effort.
        think=("<ifm|think>", "</ifm|think>"),
        more_thinks=(
            ("<ifm|think_fast>", "</ifm|think_fast>"),
            ("<ifm|think_faster>", "</ifm|think_faster>"),
        ),
        calls=_regions(K2_HORIZON_TAGS, "<ifm|tool_calls>", "</ifm|tool_calls>"),
        hidden_markers=("</ifm|tool_call>", "</ifm|tool_calls>"),
        end_markers=CHATML_END_MARKERS,
        call_form=CallForm(
            open="<ifm|tool_calls>",
            begin="<ifm|tool_call>{name}",
            end="</ifm|tool_call>",
            separator="\n",
            close="</ifm|tool_calls>",
            arguments="ifm_xml",
            trigger="<ifm|tool_calls>",
        ),
    ),
    "minicpm5": Family(
        models="MiniCPM 5",
        signs=Signs(templates=(('<function name="', '<param name="', "<![CDATA["),)),
        think=THINK,
        # Small models forget the space, or write it as it stands in their vocabulary.
        calls={
            tags.call: Region(reader="tags", end="</function>", tags=tags)
            for tags in (
                MINICPM5_TAGS,
                replace(MINICPM5_TAGS, call="<functionname="),
                replace(MINICPM5_TAGS, call="<functionĠname="),
            )
        },
        hidden_markers=("</function>",),
        end_markers=(*CHATML_END_MARKERS, "</s>"),
        call_form=CallForm(
            begin='<function name="{name}">',
            end="</function>",
            separator="\n",
            arguments="minicpm_xml",
            trigger="<function name=",
        ),
    ),
    "dots": Family(
        models="Dots",
        signs=Signs(
            templates=(("<dots_function_call>",),),
            tokens=("<dots_function_call>",),
            model_types=("dots1", "dots3_note"),
        ),
        think=THINK,
        calls=_regions(DOTS_TAGS, "<dots_function_call>", "</dots_function_call>"),
        hidden_markers=("</invoke>", "</dots_function_call>"),
        end_markers=("<|endofresponse|>", "<|endoftext|>"),
        call_form=CallForm(
            open="<dots_function_call>\n",
            begin='<invoke name="{name}">\n',
            end="</invoke>\n",
            close="</dots_function_call>",
            arguments="minimax_xml",
            trigger="<dots_function_call>",
        ),
    ),
}
