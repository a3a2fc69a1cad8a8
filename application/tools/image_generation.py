"""Image generation: the calls of one response, each of which makes or edits one image.

An edit changes the images of the conversation: those that users and tools have shown, and those
that earlier calls have made, also in this response.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from msgspec import Struct

from antiphon.application.input.media import MEDIA_FIELDS
from antiphon.application.ports import (
    FileStore,
    ImageGenerator,
    ImageRequest,
    MadeImage,
    SourceImage,
)
from antiphon.application.support.threads import run_in_thread
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.work import WorkOutput
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.content import InputImage
from antiphon.domain.errors import ImageError, NotFound, RequestError
from antiphon.domain.image_info import ImageInfo, image_info_of
from antiphon.domain.json import Json
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.tools import (
    IMAGE_GENERATION,
    ImageGeneration,
    RequestTool,
    parse_arguments,
)
from antiphon.domain.vocabulary.tool import none_if_unset

Action = Literal["generate", "edit"]

MAX_PROMPT_CHARS = 32_000
"""The images API's limit."""

MAX_SOURCE_IMAGES = 16
"""Images that one edit gets, the newest ones: the images API's limit."""

INVALID_ARGUMENTS = "The arguments must be an object with 'prompt', a string that is not blank."
LONG_PROMPT = f"The prompt may have at most {MAX_PROMPT_CHARS} characters."
NOTHING_TO_EDIT = "There is no image in the conversation to edit. Make one first."
NO_IMAGE = "The image generator returned no image."
NOT_AN_IMAGE = "The image generator returned something that is not a PNG, JPEG, GIF or WebP image."

WORDS: Mapping[str, tuple[str, ...]] = {
    "action": ("auto", "generate", "edit"),
    "quality": ("auto", "low", "medium", "high", "xhigh", "max", "standard", "hd"),
    "background": ("auto", "opaque", "transparent"),
    "output_format": ("png", "jpeg", "webp"),
    "moderation": ("auto", "low"),
    "input_fidelity": ("low", "high"),
}
"""The fields of the tool that are words, and what each of them may be."""

_SIZE = re.compile(r"auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4}")
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,")


class ImageLimits(Struct, frozen=True, kw_only=True):
    """The limits of one call: its seconds, and the bytes and pixels of each image that comes."""

    timeout_s: float = 180.0
    max_bytes: int = 8 * 1024 * 1024
    max_pixels: int = 50_000_000


class ImageOptions(Struct, frozen=True, kw_only=True):
    """The options of all calls, as the request sets them; None is the generator's choice."""

    action: Action | None = None
    size: str | None = None
    quality: str | None = None
    background: str | None = None
    output_format: str | None = None
    output_compression: int | None = None
    moderation: str | None = None
    input_fidelity: str | None = None
    partial_images: int = 0
    mask: SourceImage | None = None


class ImageGenerationProvider(ToolProvider):
    """Provides each response with the caller for its images."""

    tool_types = ("image_generation",)

    def __init__(
        self,
        generator: ImageGenerator,
        files: FileStore,
        *,
        limits: ImageLimits = ImageLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._generator = generator
        self._files = files
        self._limits = limits

    def handles(self, tool: RequestTool) -> bool:
        return isinstance(tool, ImageGeneration)

    async def callers(
        self,
        tools: Sequence[ToolDefinition],
        conversation: Sequence[i.AnyItem],
        *,
        tenant: str,
    ) -> Mapping[str, ToolCaller]:
        tool, path = tools[-1].tool, tools[-1].path
        assert isinstance(tool, ImageGeneration)
        mask = None
        if isinstance(tool.input_image_mask, dict):
            mask = await self._read_mask(
                tool.input_image_mask, tenant, path=f"{path}.input_image_mask"
            )
        options = _parse_options(tool, path, mask)
        caller = ImageGenerationCaller(
            self._generator, options, conversation, self._limits, tenant=tenant
        )
        return {IMAGE_GENERATION: caller}

    async def _read_mask(self, mask: Json, tenant: str, *, path: str) -> SourceImage:
        """Return the mask. Raises: RequestError."""
        file_id, url = mask.get("file_id"), mask.get("image_url")
        if isinstance(file_id, str) and file_id:
            path = f"{path}.file_id"
            content = await self._read_file(file_id, tenant, path=path)
        elif isinstance(url, str) and url:
            path = f"{path}.image_url"
            try:
                content = await _decode(_DATA_URL.sub("", url, count=1))
            except (binascii.Error, ValueError):
                raise RequestError(
                    "A mask is a data URL or base64; no mask is fetched from another URL.",
                    param=path,
                    code="invalid_base64_image",
                ) from None
        else:
            raise RequestError(
                "A mask needs an 'image_url' or a 'file_id'.",
                param=path,
                code="missing_required_parameter",
            )
        self._check_size(len(content), path)
        info = image_info_of(content)
        if info is None:
            raise RequestError(
                "This is not a PNG, JPEG, GIF or WebP image.",
                param=path,
                code="invalid_image_format",
            )
        return SourceImage(content=content, media_type=info.media_type)

    async def _read_file(self, file_id: str, tenant: str, *, path: str) -> bytes:
        try:
            file = await self._files.get_file(tenant, file_id)
            self._check_size(file.bytes, path)
            return await self._files.get_content(tenant, file_id)
        except NotFound:
            raise RequestError(
                f"There is no file {file_id[:100]!r}.", param=path, code="image_file_not_found"
            ) from None

    def _check_size(self, size: int, path: str) -> None:
        if size > self._limits.max_bytes:
            raise RequestError(
                f"A mask may have at most {self._limits.max_bytes} bytes.",
                param=path,
                code="image_file_too_large",
            )


def _parse_options(tool: ImageGeneration, path: str, mask: SourceImage | None) -> ImageOptions:
    """Raises: RequestError."""
    words = {name: _parse_word(tool, name, path) for name in WORDS}
    size = none_if_unset(tool.size)
    if size is not None and not _SIZE.fullmatch(size):
        raise _invalid(size, "'auto' and 'WIDTHxHEIGHT', such as '1024x1536'", f"{path}.size")
    compression = none_if_unset(tool.output_compression)
    if compression is not None and compression > 100:
        raise _invalid(compression, "0 to 100", f"{path}.output_compression")
    return ImageOptions(
        **words,
        size=None if size == "auto" else size,
        output_compression=compression,
        partial_images=none_if_unset(tool.partial_images) or 0,
        mask=mask,
    )


def _parse_word(tool: ImageGeneration, name: str, path: str) -> Any:
    value = none_if_unset(getattr(tool, name))
    if value is not None and value not in WORDS[name]:
        supported = ", ".join(map(repr, WORDS[name]))
        raise _invalid(value, supported, f"{path}.{name}")
    return None if value == "auto" else value


def _invalid(value: object, supported: str, path: str) -> RequestError:
    return RequestError(
        f"Invalid value: {str(value)[:64]!r}. Supported values are: {supported}.",
        param=path,
        code="invalid_value",
    )


class _Call(Struct, eq=False):
    """A call, its image in base64, and those that earlier turns of the response have made."""

    start: d.CallStart
    made_before: Sequence[str]
    result: str | None = None


class ImageGenerationCaller(ToolCaller):
    """Makes the images of one response."""

    step = "generating"

    def __init__(
        self,
        generator: ImageGenerator,
        options: ImageOptions,
        conversation: Sequence[i.AnyItem],
        limits: ImageLimits,
        *,
        tenant: str,
    ) -> None:
        self._generator = generator
        self._options = options
        self._conversation = conversation
        self._limits = limits
        self._tenant = tenant
        self._calls: list[_Call] = []

    def open_item(self, start: d.CallStart) -> d.Delta:
        # All calls of a turn are opened before any of them runs: an edit gets what came before it.
        made = [call.result for call in self._calls if call.result is not None]
        self._calls.append(_Call(start, made))
        return d.ToolStart("image_generation_call", {})

    def restore(self, start: d.CallStart, arguments: str, output: Sequence[d.Delta]) -> None:  # noqa: ARG002
        for delta in output:
            if isinstance(delta, d.ToolEnd) and delta.status == "completed":
                self._call_of(start).result = delta.fields["result"]

    def _call_of(self, start: d.CallStart) -> _Call:
        return next(call for call in self._calls if call.start is start)

    async def may_repeat(self, start: d.CallStart, arguments: str) -> bool:  # noqa: ARG002
        return True  # it costs another image, and nobody has seen the first one

    def is_unreachable(self, end: d.ToolEnd) -> bool:
        return (end.fields.get("error") or {}).get("code") in _UNREACHABLE

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:  # noqa: ARG002
        prompt = (parse_arguments(arguments) or {}).get("prompt")
        return [_to_failure(ImageError(reason), prompt if isinstance(prompt, str) else None)]

    def abort(self, reason: str) -> Sequence[d.Delta]:
        return [_to_failure(ImageError(reason))]

    async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
        prompt: str | None = None
        call = self._call_of(start)
        try:
            prompt, action = self._parse(arguments)
            request = await self._request(prompt, action, call)
            async with aclosing(self._generate(request)) as deltas:
                async for delta in deltas:
                    if isinstance(delta, d.ToolEnd):
                        call.result = delta.fields["result"]
                    yield [delta]
        except ImageError as error:
            yield [_to_failure(error, prompt)]

    def _parse(self, arguments: str) -> tuple[str, Action | None]:
        """Return the prompt and what the model wants to do. Raises: ImageError."""
        values = parse_arguments(arguments) or {}
        prompt, action = values.get("prompt"), values.get("action")
        if not isinstance(prompt, str) or not prompt.strip():
            raise ImageError(INVALID_ARGUMENTS, code="invalid_value")
        if len(prompt) > MAX_PROMPT_CHARS:
            raise ImageError(LONG_PROMPT, code="string_above_max_length")
        return prompt, action if action in ("generate", "edit") else None

    async def _request(self, prompt: str, wanted: Action | None, call: _Call) -> ImageRequest:
        """Raises: ImageError."""
        options = self._options
        action = options.action or wanted or ("generate" if options.mask is None else "edit")
        images: Sequence[SourceImage] = ()
        if action == "edit":
            images = await self._source_images(call.made_before)
            if not images:
                raise ImageError(NOTHING_TO_EDIT, code="image_file_not_found")
        return ImageRequest(
            prompt=prompt,
            tenant=self._tenant,
            action=action,
            images=images,
            mask=options.mask if action == "edit" else None,
            size=options.size,
            quality=options.quality,
            background=options.background,
            output_format=options.output_format,
            output_compression=options.output_compression,
            moderation=options.moderation,
            input_fidelity=options.input_fidelity if action == "edit" else None,
            partial_images=options.partial_images,
        )

    async def _source_images(self, made_before: Sequence[str]) -> list[SourceImage]:
        """Return the images to edit: those of the newest item first, in its order."""
        made = ([each] for each in reversed(made_before))
        shown = map(_images_of, reversed(self._conversation))
        images: list[SourceImage] = []
        for encoded in (each for group in (*made, *shown) for each in group):
            if len(images) == MAX_SOURCE_IMAGES:
                break
            try:
                content = await _decode(encoded)
            except (binascii.Error, ValueError):
                continue  # a client may send anything as an image that it says was made
            if (info := image_info_of(content)) is not None:
                images.append(SourceImage(content=content, media_type=info.media_type))
        return images

    async def _generate(self, request: ImageRequest) -> AsyncGenerator[d.Delta]:
        """Yield the events of an image's drafts, and its end. Raises: ImageError."""
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s
        drafts = 0
        async with aclosing(self._generator.generate(request)) as images:
            while True:
                image = await self._next(images, deadline)
                if not image.is_partial:
                    break
                if drafts < request.partial_images:
                    fields = await self._shown_fields(image, request)
                    yield d.ToolProgress(
                        "partial_image",
                        {
                            "partial_image_index": drafts,
                            "partial_image_b64": fields.pop("result"),
                            **fields,
                        },
                    )
                    drafts += 1
        fields = await self._shown_fields(image, request)
        prompt = image.revised_prompt or request.prompt
        yield d.ToolEnd("completed", {**fields, "revised_prompt": prompt, "action": request.action})

    async def _next(self, images: AsyncGenerator[MadeImage], deadline: float) -> MadeImage:
        try:
            async with asyncio.timeout_at(deadline):
                return await anext(images)
        except StopAsyncIteration:
            raise ImageError(NO_IMAGE) from None
        except TimeoutError:
            raise ImageError(
                f"The image was not made in {self._limits.timeout_s:g} seconds.",
                code="timeout",
                is_unreachable=True,
            ) from None

    async def _shown_fields(self, image: MadeImage, request: ImageRequest) -> dict[str, Any]:
        """Return the image in base64, and what is true of it. Raises: ImageError."""
        info = self._check(image.content)
        fields = {
            "result": await _encode(image.content),
            "size": f"{info.width}x{info.height}",
            "output_format": info.media_type.removeprefix("image/"),
            "quality": image.quality or request.quality,
            "background": image.background or request.background,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _check(self, content: bytes) -> ImageInfo:
        if len(content) > self._limits.max_bytes:
            raise ImageError(
                f"The image has more than the {self._limits.max_bytes} bytes that are allowed.",
                code="image_too_large",
            )
        info = image_info_of(content)
        if info is None:
            raise ImageError(NOT_AN_IMAGE, code="invalid_image_format")
        if info.width * info.height > self._limits.max_pixels:
            raise ImageError(
                f"The image has more than the {self._limits.max_pixels} pixels that are allowed.",
                code="image_too_large",
            )
        return info


_UNREACHABLE = ("timeout", "unavailable")


def _to_failure(error: ImageError, prompt: str | None = None) -> d.ToolEnd:
    code = error.code
    if error.is_unreachable and code not in _UNREACHABLE:
        code = "unavailable"
    details = {"type": "image_generation_error", "code": code, "message": str(error)}
    fields: dict[str, Any] = {"error": details}
    if prompt is not None:
        fields["revised_prompt"] = prompt
    return d.ToolEnd("failed", fields)


def _images_of(item: i.AnyItem) -> Iterator[str]:
    """Yield the images of an item in base64, in its order."""
    if isinstance(item, i.ImageGenerationCall):
        if item.result:
            yield item.result
        return
    field = MEDIA_FIELDS.get(type(item))
    parts = getattr(item, field) if field else ()
    for part in parts if isinstance(parts, tuple) else ():
        if isinstance(part, InputImage) and isinstance(part.image_url, str):
            head = _DATA_URL.match(part.image_url)
            if head is not None:
                yield part.image_url[head.end() :]


async def _decode(encoded: str) -> bytes:
    """Raises: binascii.Error, ValueError."""
    return await run_in_thread(len(encoded), base64.b64decode, encoded, validate=True)


async def _encode(content: bytes) -> str:
    return (await run_in_thread(len(content), base64.b64encode, content)).decode()
