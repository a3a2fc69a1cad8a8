"""Image generation, which this server does not do: a client may have calls of another server."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from antiphon.domain.bounds import Count, Name, Text
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import AS_SENT, ItemKind, Kind, Shown, ToolKind
from antiphon.domain.vocabulary.shown import Call, Result, View, to_json_text
from antiphon.domain.vocabulary.steps import ItemSteps
from antiphon.domain.vocabulary.tool import Tool


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


NAME = "image_generation"


def _shown_call(item: ImageGenerationCall, _: View) -> Call:
    prompt = {"prompt": item.revised_prompt} if item.revised_prompt else {}
    return Call(kind=NAME, name=NAME, text=to_json_text(prompt))


def _result(item: ImageGenerationCall, _: View) -> Result:
    return Result(body="[image]" if item.result else None, status=item.status or "completed")


CALL = ItemKind(
    item=ImageGenerationCall,
    prefix="ig",
    events=ItemSteps(
        opening_events=(ImageInProgress,),
        steps={"generating": ImageGenerating},
        repeatable_steps={"partial_image": PartialImage},
        end_events={"completed": ImageCompleted},
    ),
    next="nobody",
    shown=Shown(call=_shown_call, result=_result),
    include={},
)

TOOL = ToolKind(
    tool=ImageGeneration,
    client_specs=None,
    server_specs=None,
    chosen=None,
    stand_in=NAME,
    echo=AS_SENT,
)

KIND = Kind(name="image_generation", items=(CALL,), tools=(TOOL,), calls=())
