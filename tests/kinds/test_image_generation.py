"""Image generation as a model is offered it, and as it is shown calls and their images."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.domain import items as i
from antiphon.domain.content import InputImage, InputText
from antiphon.domain.kinds import ITEM_KINDS, TOOL_KINDS
from antiphon.domain.kinds.image_generation import SHOWN_TO_USER, without_image
from antiphon.domain.tools import ImageGeneration, ToolSpec
from antiphon.domain.vocabulary.shown import Result, View

SHOWN = ITEM_KINDS["image_generation_call"].shown
PNG, SVG = "iVBORw0KGgoAAAAN", "PHN2Zz48L3N2Zz4="


def spec_of(**fields: Any) -> ToolSpec:
    specs = TOOL_KINDS["image_generation"].server_specs
    assert specs is not None
    [spec] = specs(ImageGeneration(**fields), "tools[0]")
    return spec


def image(**fields: Any) -> i.ImageGenerationCall:
    return i.ImageGenerationCall(id="ig_1", **{"status": "completed", **fields})


def shown_call(item: i.ImageGenerationCall, *tools: ToolSpec) -> Any:
    assert SHOWN.call is not None
    call = SHOWN.call(item, View(tools=tools))
    return call.name, json.loads(call.text)


def result_of(item: i.ImageGenerationCall) -> Result:
    assert SHOWN.result is not None
    return SHOWN.result(item, View())


@pytest.mark.parametrize(
    ("fields", "properties"),
    [
        ({}, {"prompt", "action"}),
        ({"action": "auto"}, {"prompt", "action"}),
        ({"action": None}, {"prompt", "action"}),
        ({"action": "generate"}, {"prompt"}),
        ({"action": "edit"}, {"prompt"}),
    ],
)
def test_a_model_chooses_the_action_unless_the_request_does(
    fields: dict[str, Any], properties: set[str]
) -> None:
    spec = spec_of(**fields)
    assert spec.parameters is not None
    assert spec.parameters["properties"].keys() == properties
    assert spec.description.startswith("Edits" if fields.get("action") == "edit" else "Makes")


def test_a_call_is_shown_as_the_model_wrote_it() -> None:
    edit = image(revised_prompt="Bluer.", action="edit", size="1x1")
    both, prompt = {"prompt": "Bluer.", "action": "edit"}, {"prompt": "Bluer."}
    assert shown_call(edit, spec_of()) == ("image_generation", both)
    assert shown_call(edit, spec_of(action="edit")) == ("image_generation", prompt)
    assert shown_call(edit) == ("image_generation", both)
    assert shown_call(image(revised_prompt="A cat.", action="generate"))[1] == {"prompt": "A cat."}
    assert shown_call(image())[1] == {}


def test_an_image_is_shown_as_a_picture_of_its_type() -> None:
    result = result_of(image(result=PNG, output_format="webp"))
    assert isinstance(result.body, tuple)
    words, picture = result.body
    assert isinstance(words, InputText)
    assert picture == InputImage(image_url=f"data:image/png;base64,{PNG}")


@pytest.mark.parametrize(
    ("item", "body", "status"),
    [
        (image(), SHOWN_TO_USER, "completed"),
        (image(status=None), SHOWN_TO_USER, "completed"),
        (image(status="failed", error={"message": "No."}), "No.", ""),
        (image(status="failed", error={"message": 7}), None, "failed"),
        (image(status="failed", error="No."), None, "failed"),
        (image(status="incomplete"), None, "incomplete"),
    ],
)
def test_without_an_image_words_say_what_became_of_it(
    item: i.ImageGenerationCall, body: str | None, status: str
) -> None:
    result = result_of(item)
    assert (result.body, result.status) == (body, status)


@pytest.mark.parametrize(
    ("result", "reads_images", "kept"),
    [(PNG, True, True), (PNG, False, False), (SVG, True, False), (SVG, False, False)],
)
def test_an_image_is_left_out_for_a_model_that_cannot_read_it(
    result: str, reads_images: bool, kept: bool
) -> None:
    item = image(result=result)
    shown = without_image(item, reads_images=reads_images)
    assert (shown is item) is kept
    assert (shown.result is not None) is kept
