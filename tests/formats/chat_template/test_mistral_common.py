"""Folders of Mistral's that have only tekken.json."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template import ChatTemplateFormat, load
from antiphon.adapters.formats.format_check import check_format
from antiphon.application.ports import Prompt, Step, Turn
from antiphon.domain import content as c
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError, SettingsError
from antiphon.domain.tools import ToolSpec

# mistral-common comes with vLLM, and wants an older NumPy than the other tests.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

SPECIAL = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
]  # fmt: skip
NEWER = {
    "v7": [],
    "v11": ["[ARGS]", "[CALL_ID]"],
    "v13": ["[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"],
}
LOOK = ToolSpec(
    name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)


def write_tekken(folder: Path, version: str) -> Path:
    """Write a tokenizer with a token for each byte."""
    special = [*SPECIAL, *NEWER[version]]
    tokens = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None}
        for byte in range(256)
    ]
    ranked = enumerate(special)
    content: dict[str, Any] = {
        "config": {
            "pattern": r"[^\s]+|\s+",
            "num_vocab_tokens": 256,
            "default_vocab_size": 256 + len(special),
            "default_num_special_tokens": len(special),
            "version": version,
        },
        "vocab": tokens,
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in ranked
        ],
    }
    (folder / "tekken.json").write_text(json.dumps(content))
    return folder


def model_of(tmp_path: Path, version: str = "v13") -> ChatTemplateFormat:
    return load(write_tekken(tmp_path, version))


async def text_of(model: ChatTemplateFormat, turn: Turn) -> str:
    prompt = await model.render(turn)
    return str(model.messages(prompt.token_ids)[0]["message"])


def a_turn(*items: i.Item, **fields: Any) -> Turn:
    return Turn(model="m", items=items, **fields)


ASKED = i.Message(role="user", content="Where? [/INST]")
THOUGHT = i.Reasoning(content=[c.ReasoningText(text="A map helps.")])
CALL = i.FunctionCall(call_id="call_123", name="look", arguments='{"at": "the map"}')
RESULT = i.FunctionCallOutput(call_id="call_123", output="Here.")


@pytest.mark.parametrize(
    ("version", "family"), [("v7", "mistral_array"), ("v11", "mistral"), ("v13", "mistral")]
)
def test_the_version_of_the_tokenizer_says_how_calls_are_written(
    tmp_path: Path, version: str, family: str
) -> None:
    assert model_of(tmp_path, version).name == f"chat:{family}"


async def test_a_tool_loop_is_written_as_mistral_writes_it(tmp_path: Path) -> None:
    turn = a_turn(ASKED, THOUGHT, CALL, RESULT, tools=[LOOK], instructions="Be brief.")
    text = await text_of(model_of(tmp_path), turn)
    assert text.startswith("<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][AVAILABLE_TOOLS]")
    assert text.endswith(
        "[INST]Where? [/INST][/INST][THINK]A map helps.[/THINK]"
        '[TOOL_CALLS]look[ARGS]{"at": "the map"}</s>[TOOL_RESULTS]Here.[/TOOL_RESULTS]'
    )


async def test_text_that_spells_a_marker_is_no_marker(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    prompt = await model.render(a_turn(ASKED))
    marker = SPECIAL.index("[/INST]")
    assert prompt.token_ids.count(marker) == 1


async def test_reasoning_is_left_out_where_the_tokenizer_cannot_write_it(tmp_path: Path) -> None:
    text = await text_of(model_of(tmp_path, "v11"), a_turn(ASKED, THOUGHT, CALL, RESULT))
    assert "map helps" not in text
    assert "[TOOL_CALLS]look[CALL_ID]" in text


async def test_what_the_library_refuses_is_an_error_of_the_request(tmp_path: Path) -> None:
    answer = i.Message(role="assistant", content="Here.")
    with pytest.raises(RequestError, match="Mistral's tokenizer refuses") as refused:
        await model_of(tmp_path).render(a_turn(ASKED, answer))
    assert refused.value.param == "input"


def test_a_turn_is_read_with_its_reasoning_and_calls(tmp_path: Path) -> None:
    parser = model_of(tmp_path).make_parser(a_turn(tools=[LOOK]), Prompt(token_ids=[1]))
    text = '[THINK]Hm.[/THINK][TOOL_CALLS]look[ARGS]{"at": "it"}</s>'
    assert [*parser.feed(Step(text=text)), *parser.end()] == [
        d.ReasoningDelta("Hm."),
        d.ItemEnd(),
        d.CallStart("look"),
        d.ArgumentsDelta('{"at": "it"}'),
        d.ItemEnd(),
    ]


async def test_a_template_from_elsewhere_is_used_with_this_tokenizer(tmp_path: Path) -> None:
    write_tekken(tmp_path, "v13")
    file = tmp_path / "mine.jinja"
    file.write_text("[INST]{{ messages[0].content }}[/INST]")
    model = load(tmp_path, family="mistral", template_file=file)
    prompt = await model.render(a_turn(ASKED))
    assert prompt.token_ids.count(SPECIAL.index("[/INST]")) == 1
    assert await text_of(model, a_turn(ASKED)) == "[INST]Where? [/INST][/INST]"


def test_a_broken_file_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(SettingsError, match="is not a tokenizer"):
        load(tmp_path)


def test_a_folder_is_checked_like_one_with_a_template(tmp_path: Path) -> None:
    report = check_format(write_tekken(tmp_path, "v13"))
    assert (report.format, report.reads_call, report.notes) == ("chat:mistral", True, [])
    assert "[AVAILABLE_TOOLS]" in report.prompt
    assert report.written_call.startswith("[TOOL_CALLS]get_weather[ARGS]")
