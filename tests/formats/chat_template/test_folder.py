"""Formats from a model folder, with its own template and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from antiphon.adapters.formats.chat_template import ChatTemplateFormat, from_hf_tokenizer, load
from antiphon.application.ports import Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.tools import ToolChoice, ToolSpec

TEMPLATE = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- for tool in tools or [] %}<tool_call>{{ tool | tojson }}{% endfor %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}
{%- elif always_thinks or (thinks_after_tools and messages[-1].role == 'tool') %}
{{- '<think>\\n' }}{% endif %}
"""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in PLAIN])
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [256]}))
    return tmp_path


def hello(**turn: Any) -> Turn:
    return Turn(model="m", items=[i.Message(role="user", content="Hé!")], **turn)


async def test_a_folder_renders_with_its_template_and_tokenizer(folder: Path) -> None:
    model = load(folder)
    prompt = await model.render(hello(instructions="Be brief."))
    text = byte_tokenizer().decode(list(prompt.token_ids), skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHé!<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt.token_ids[0] == 257
    assert model.messages(prompt.token_ids)[0]["message"] == text


async def test_a_long_prompt_is_encoded_like_a_short_one(folder: Path) -> None:
    model = load(folder)
    item = i.Message(role="user", content="word " * 10_000)
    prompt = await model.render(Turn(model="m", items=[item]))
    assert len(prompt.token_ids) == 50_000 + len("user\n" + "\n" + "assistant\n") + 3


def test_tokens_that_end_a_turn_stop_the_engine(folder: Path) -> None:
    assert load(folder).stop_token_ids == (256, 258)


async def test_the_parser_is_of_the_family_that_the_template_reveals(folder: Path) -> None:
    model = load(folder)
    turn = hello(tools=[ToolSpec(name="look")])
    parser = model.make_parser(turn, await model.render(turn))
    text = '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    ids = byte_tokenizer().encode(text).ids
    assert [*parser.feed(Step(text=text, token_ids=ids)), *parser.end()] == [
        d.ReasoningDelta("Hm."),
        d.ItemEnd(),
        d.CallStart("look"),
        d.ArgumentsDelta("{}"),
        d.ItemEnd(),
    ]
    assert parser.reasoning_tokens == len("\nHm.\n")


@pytest.mark.parametrize(
    ("turn", "first"),
    [
        ({}, d.TextDelta("Hm.")),
        ({"effort": "high"}, d.TextDelta("Hm.")),
        ({"template_kwargs": {"always_thinks": True}}, d.ReasoningDelta("Hm.")),
        ({"effort": "none", "template_kwargs": {"always_thinks": True}}, d.TextDelta("Hm.")),
    ],
)
async def test_a_prompt_may_have_opened_the_reasoning(
    folder: Path, turn: dict[str, Any], first: d.Delta
) -> None:
    model = load(folder)
    built = hello(**turn)
    assert model.make_parser(built, await model.render(built)).feed(Step(text="Hm.")) == [first]


async def test_a_constraint_knows_whether_the_prompt_opens_the_reasoning(folder: Path) -> None:
    model = load(folder)

    async def reasoning(*items: i.Item, **fields: Any) -> Any:
        tools, choice = [ToolSpec(name="look")], ToolChoice(mode="required")
        question = i.Message(role="user", content="Hé!")
        turn = Turn(model="m", items=[question, *items], tools=tools, choice=choice, **fields)
        constraint = model.constraint(turn, await model.render(turn))
        assert constraint
        first = constraint.value["format"]
        return first["elements"][0] if first["type"] == "sequence" else None

    assert (await reasoning())["type"] == "optional"
    opened = await reasoning(template_kwargs={"always_thinks": True})
    assert opened["elements"][0]["begin"] == ""
    assert await reasoning(effort="none", template_kwargs={"always_thinks": True}) is None

    after_tools = {"thinks_after_tools": True}
    call = i.FunctionCall(call_id="call_1", name="look", arguments="{}")
    result = i.FunctionCallOutput(call_id="call_1", output="Seen.")
    assert (await reasoning(template_kwargs=after_tools))["type"] == "optional"
    opened = await reasoning(call, result, template_kwargs=after_tools)
    assert opened["elements"][0]["begin"] == ""


def test_a_transformers_tokenizer_works_as_well(folder: Path) -> None:
    class HfLike:
        """The part of transformers' fast tokenizers that is used."""

        chat_template = TEMPLATE
        eos_token_id = 258
        unk_token_id = None
        special_tokens_map = {"eos_token": "<|im_end|>"}  # noqa: RUF012

        def __init__(self) -> None:
            self._inner = byte_tokenizer()

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
            return ids

        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            text: str = self._inner.decode(ids, skip_special_tokens=skip_special_tokens)
            return text

        def convert_tokens_to_ids(self, text: str) -> int | None:
            token: int | None = self._inner.token_to_id(text)
            return token

    ours, theirs = load(folder), from_hf_tokenizer(HfLike())
    assert theirs.stop_token_ids == (256, 258)  # <|endoftext|> comes from the family
    prompt = Turn(model="m", items=[i.Message(role="user", content="Hé <|im_end|>")])
    rendered = []
    for each in (ours, theirs):
        with pytest.raises(StopIteration) as stopped:
            each.render(prompt).send(None)
        rendered.append(list(stopped.value.value.token_ids))
    assert rendered[0] == rendered[1]
    (folder / "own.jinja").write_text("{{ messages[0].content }}")
    plain = from_hf_tokenizer(HfLike(), family="plain", template_file=folder / "own.jinja")
    with pytest.raises(StopIteration) as stopped:
        plain.render(hello()).send(None)
    assert plain.messages(stopped.value.value.token_ids)[0]["message"] == "Hé!"


@pytest.mark.parametrize("missing", ["tokenizer.json", "tokenizer_config.json"])
def test_a_folder_with_a_missing_file_prevents_the_start(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(SettingsError, match="tokenizer|template"):
        load(folder)


def prompt_of(model: ChatTemplateFormat, turn: Turn) -> str:
    with pytest.raises(StopIteration) as stopped:
        model.render(turn).send(None)
    return str(model.messages(stopped.value.value.token_ids)[0]["message"])


@pytest.mark.parametrize("has_template", [True, False])
def test_a_template_from_elsewhere_is_used_instead(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, has_template: bool
) -> None:
    if not has_template:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    file = tmp_path_factory.mktemp("elsewhere") / "mine.jinja"
    file.write_text("{{ eos_token }}{{ messages[0].content }}")
    assert prompt_of(load(folder, template_file=file), hello()) == "<|im_end|>Hé!"


def test_a_folder_without_a_template_names_the_option(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"no chat template.*--chat-template FILE"):
        load(folder)


def test_a_missing_template_file_prevents_the_start(folder: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(folder, template_file=folder / "none.jinja")


def test_a_missing_folder_prevents_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no model folder"):
        load(tmp_path / "none")


def test_a_broken_tokenizer_prevents_the_start(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match="not a tokenizer"):
        load(folder)


def test_an_unknown_family_prevents_the_start(folder: Path) -> None:
    with pytest.raises(SettingsError, match="hermes"):
        load(folder, family="hermetic")


def test_a_folder_with_tekken_alone_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(SettingsError, match="tekken.json needs a package|is not a tokenizer"):
        load(tmp_path)


@pytest.mark.parametrize("family", ["plain", "think"])
async def test_tools_are_refused_where_the_way_of_calling_them_is_unknown(
    folder: Path, family: str
) -> None:
    model = load(folder, family=family)
    tools = [ToolSpec(name="look")]
    with pytest.raises(RequestError, match=f"chat:{family}") as refusal:
        await model.render(hello(tools=tools))
    assert refusal.value.param == "tools"
    assert await model.render(hello(tools=tools, choice=ToolChoice(mode="none")))
    assert await model.render(hello())


def test_the_start_says_what_was_recognized(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "antiphon")
    load(folder)
    assert "The model's format is chat:hermes: the template writes a call exactly" in caplog.text


def test_the_start_warns_where_no_way_of_calling_tools_is_recognized(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert load(folder).name == "chat:think"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "name its format with --format; `antiphon formats` lists them" in record.getMessage()


def test_a_model_of_gpt_oss_needs_its_own_format(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    with pytest.raises(SettingsError, match="--format harmony"):
        load(folder)
