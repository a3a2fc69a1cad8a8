"""Image generation: images that an image model makes for the model that calls it.

The models that call it know functions, so they write a prompt, which clients see as
`revised_prompt`; what the request sets (size, quality, format…) is not theirs to choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from antiphon.domain.bounds import Count, Name, Text
from antiphon.domain.content import InputImage, InputText
from antiphon.domain.image_info import media_type_of_base64
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import open_unrun_call
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import (
    JSON_ARGUMENTS,
    CallKind,
    Echo,
    ItemKind,
    Kind,
    Shown,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result, View, name_of_kind, to_json_text
from antiphon.domain.vocabulary.steps import ItemSteps
from antiphon.domain.vocabulary.tool import Tool, ToolSpec

IMAGE_GENERATION = "image_generation"
"""The kind of the tool, and its name for models."""


class ImageGenerationCall(Item, frozen=True, kw_only=True, tag="image_generation_call"):
    status: Text | None = None
    result: Text | None = None
    revised_prompt: Text | None | UnsetType = UNSET
    action: Text | None | UnsetType = UNSET
    background: Text | None | UnsetType = UNSET
    output_format: Text | None | UnsetType = UNSET
    quality: Text | None | UnsetType = UNSET
    size: Text | None | UnsetType = UNSET
    svg_usage: Json | None | UnsetType = UNSET
    error: Any = UNSET


class ImageInProgress(
    ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.image_generation_call.in_progress",
):
    pass


class ImageGenerating(ItemEvent, frozen=True, tag="response.image_generation_call.generating"):
    pass


class PartialImage(
    ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.image_generation_call.partial_image",
):
    partial_image_index: int
    partial_image_b64: str
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET


class ImageCompleted(ItemEvent, frozen=True, tag="response.image_generation_call.completed"):
    pass


class ImageGeneration(Tool, frozen=True, kw_only=True, tag="image_generation"):
    model: Name | None | UnsetType = UNSET
    action: Name | None | UnsetType = UNSET
    size: Name | None | UnsetType = UNSET
    quality: Name | None | UnsetType = UNSET
    background: Name | None | UnsetType = UNSET
    output_format: Name | None | UnsetType = UNSET
    output_compression: Count | None | UnsetType = UNSET
    moderation: Name | None | UnsetType = UNSET
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None | UnsetType = UNSET
    input_fidelity: Name | None | UnsetType = UNSET
    input_image_mask: Json | None | UnsetType = UNSET
    complexity: Name | None | UnsetType = UNSET
    frame_count: Count | None | UnsetType = UNSET
    frame_duration_ms: Count | None | UnsetType = UNSET
    svg: Json | None | UnsetType = UNSET


_PROMPT: Json = {
    "type": "string",
    "minLength": 1,
    "description": "What the image shows, in every detail that matters: subject, style, colors, "
    "light, composition, and any text in it.",
}
_ACTION: Json = {
    "type": "string",
    "enum": ["generate", "edit"],
    "description": "`edit` changes the images of the conversation, the newest first, as the prompt "
    "says. `generate`, the default, makes a new image.",
}


def chooses_action(tool: ImageGeneration) -> bool:
    """Return whether the model may choose between a new image and an edit of those there are."""
    return tool.action in (UNSET, None, "auto")


def _specs(tool: ImageGeneration, _: str) -> tuple[ToolSpec, ...]:
    properties = {"prompt": _PROMPT} | ({"action": _ACTION} if chooses_action(tool) else {})
    verb = "Edits the images of the conversation" if tool.action == "edit" else "Makes an image"
    spec = ToolSpec(
        name=IMAGE_GENERATION,
        kind=IMAGE_GENERATION,
        description=f"{verb} from a description in words, and shows the result to the user.",
        parameters={
            "type": "object",
            "properties": properties,
            "required": ["prompt"],
            "additionalProperties": False,
        },
    )
    return (spec,)


WITHOUT_EFFECT = ("model", "complexity", "frame_count", "frame_duration_ms", "svg")
"""The operator chooses the image model, and the others are for models that only OpenAI has."""


def _ignored_paths(tool: ImageGeneration, path: str) -> Iterator[str]:
    for name in WITHOUT_EFFECT:
        if getattr(tool, name) not in (UNSET, None):
            yield f"{path}.{name}"


SHOWN_TO_USER = "The image was made and shown to the user. You cannot see it."
"""What a model reads that reads no images."""


def _shown_call(item: ImageGenerationCall, view: View) -> Call:
    arguments = {"prompt": item.revised_prompt} if item.revised_prompt else {}
    if item.action == "edit" and _offers_action(view):
        arguments["action"] = "edit"
    return Call(
        kind=IMAGE_GENERATION,
        name=name_of_kind(IMAGE_GENERATION, view.tools),
        text=to_json_text(arguments),
    )


def _offers_action(view: View) -> bool:
    spec = next((each for each in view.tools if each.kind == IMAGE_GENERATION), None)
    return spec is None or "action" in (spec.parameters or {}).get("properties", {})


def without_image(item: ImageGenerationCall, *, reads_images: bool) -> ImageGenerationCall:
    """Return the call as a model is shown it: without an image that the model cannot read.

    Other servers make images that no model here reads, such as SVG.
    """
    if not item.result or (reads_images and media_type_of_base64(item.result)):
        return item
    return replace(item, result=None)


def _result(item: ImageGenerationCall, _: View) -> Result:
    if item.result:
        url = f"data:{media_type_of_base64(item.result)};base64,{item.result}"
        words = InputText(text="The image, which the user is shown as well:")
        return Result(body=(words, InputImage(image_url=url)))
    message = item.error.get("message") if isinstance(item.error, dict) else None
    if isinstance(message, str) and message:
        return Result(body=message, is_error=True)
    is_done = item.status in (None, "completed")
    return Result(body=SHOWN_TO_USER if is_done else None, status=item.status or "completed")


CALL = ItemKind(
    item=ImageGenerationCall,
    prefix="ig",
    events=ItemSteps(
        opening_events=(ImageInProgress,),
        steps={"generating": ImageGenerating},
        repeatable_steps={"partial_image": PartialImage},
        end_events={"completed": ImageCompleted},
    ),
    next="model",
    shown=Shown(call=_shown_call, result=_result),
    include={},
)

TOOL = ToolKind(
    tool=ImageGeneration,
    client_specs=None,
    server_specs=_specs,
    chosen=(IMAGE_GENERATION,),
    stand_in="image_generation",
    echo=Echo(ignored=_ignored_paths),
)

GENERATE = CallKind(
    name=IMAGE_GENERATION,
    tool_type="image_generation",
    item=ImageGenerationCall,
    open=open_unrun_call,
    arguments=JSON_ARGUMENTS,
)

KIND = Kind(name="image_generation", items=(CALL,), tools=(TOOL,), calls=(GENERATE,))
