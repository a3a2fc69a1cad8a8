"""What is found out about a model's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.format_check import check_format
from antiphon.domain.errors import SettingsError

TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>' }}{% endif %}
"""


def make_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text) for text in ("<|im_start|>", "<|im_end|>")])
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def test_a_call_of_a_known_model_is_read_back(folder: Path) -> None:
    report = check_format(folder)
    assert (report.format, report.knows_calls, report.reads_call) == ("chat:hermes", True, True)
    assert report.written_call.startswith('<tool_call>\n{"name": "get_weather"')
    assert report.prompt.endswith("21 degrees<|im_end|>\n<|im_start|>assistant\n")
    assert report.notes == []
    assert report.reasons
    assert not report.is_chosen


def test_the_check_says_what_a_template_refuses_and_what_is_done_about_it(tmp_path: Path) -> None:
    refusal = "{%- if messages[0].role == 'system' %}{{ raise_exception('No system.') }}{% endif %}"
    file = tmp_path / "chat_template.jinja"
    file.write_text(refusal + TEMPLATE)
    report = check_format(file)
    assert (report.format, report.reads_call) == ("chat:hermes", True)
    assert "<|im_start|>user\nAnswer in one sentence." in report.prompt
    assert report.notes[1] == (
        "Template: It has no place for instructions, or drops them: a user says them. It says: "
        "No system."
    )


def test_a_template_is_enough(folder: Path) -> None:
    with_tokenizer, alone = check_format(folder), check_format(folder / "chat_template.jinja")
    assert (alone.format, alone.prompt) == (with_tokenizer.format, with_tokenizer.prompt)
    assert alone.reads_call
    assert "<bos> and <eos> stand for two of them" in alone.notes[0]


def test_a_folder_without_a_tokenizer_is_checked_as_far_as_possible(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    report = check_format(folder)
    assert report.reads_call
    assert report.notes[0].startswith("The tokenizer was not checked: no tokenizer.json in ")


def test_a_model_whose_calls_are_unknown_still_shows_its_prompt(folder: Path) -> None:
    unknown = TEMPLATE.replace("<tool_call>", "<<").replace("</tool_call>", ">>")
    (folder / "chat_template.jinja").write_text(unknown)
    report = check_format(folder)
    assert (report.format, report.knows_calls, report.reads_call) == ("chat:think", False, False)
    assert '<<\n{"name": "get_weather"' in report.prompt
    assert "no family reads the call" in report.reasons[0]


def test_another_format_can_be_tried(folder: Path) -> None:
    report = check_format(folder, "qwen3_coder")
    assert (report.format, report.is_chosen, report.reads_call) == ("chat:qwen3_coder", True, True)
    assert report.candidates[0] == "hermes"
    assert report.notes == ["Without --format, chat:hermes is recognized."]


def test_what_a_template_leaves_out_is_noted(folder: Path) -> None:
    silent = TEMPLATE.replace("{%- for tool in", "{%- for tool in [] and")
    (folder / "chat_template.jinja").write_text(silent)
    note = "The template does not show the model the description of a tool."
    assert check_format(folder).notes == [note]


def test_a_history_without_its_calls_is_noted_and_mended(folder: Path) -> None:
    start = TEMPLATE.index("{%- for call in")
    end = TEMPLATE.index("{%- endfor %}", start) + len("{%- endfor %}")
    (folder / "chat_template.jinja").write_text(TEMPLATE[:start] + TEMPLATE[end:])
    report = check_format(folder)
    assert "Template: It shows no calls: the assistant's text has them." in report.notes
    assert report.prompt.count("Bonn") == 1


def test_what_the_template_can_do_is_listed(folder: Path) -> None:
    capabilities = check_format(folder).capabilities
    assert capabilities
    assert capabilities.thinking_switch
    assert capabilities.parallel_calls
    assert not capabilities.images
    assert capabilities.efforts == []
    with_efforts = (
        TEMPLATE + "{% if reasoning_effort in ['low', 'high'] %}{{ reasoning_effort }}{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(with_efforts)
    changed = check_format(folder).capabilities
    assert changed
    assert changed.efforts == ["low", "high"]


def test_a_model_of_gpt_oss_needs_no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    report = check_format(folder)
    assert (report.format, report.reads_call, report.notes) == ("harmony", True, [])
    assert report.prompt.endswith("21 degrees<|end|><|start|>assistant")
    assert "to=functions.get_weather" in report.written_call
    assert check_format(folder, "harmony").is_chosen


@pytest.mark.parametrize(
    ("path", "name", "why"),
    [
        ("nowhere", "auto", "no model folder or template"),
        ("nowhere", "harmony", "no model folder or template"),
        ("", "nothing", "There is no format 'nothing'; choose one of: auto, harmony"),
        ("tokenizer.json", "auto", "does not compile"),
    ],
)
def test_what_cannot_be_checked_is_an_error(folder: Path, path: str, name: str, why: str) -> None:
    (folder / "tokenizer.json").write_text("{% if")
    with pytest.raises(SettingsError, match=why):
        check_format(folder / path, name)


def test_a_folder_without_a_template_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has no chat template"):
        check_format(tmp_path)


def test_a_template_from_elsewhere_is_used_instead(folder: Path) -> None:
    other = folder / "better.jinja"
    other.write_text(TEMPLATE.replace("21", "").replace("im_start", "begin"))
    report = check_format(folder, template_file=other)
    assert report.prompt.startswith("{")
    assert "<|begin|>user" in report.prompt


def test_a_family_of_ones_own_is_checked_like_the_others(folder: Path) -> None:
    mine = FAMILIES["hermes"]
    report = check_format(folder, mine)
    assert (report.format, report.is_chosen, report.reads_call) == ("chat:own", True, True)
