"""Load the images and files of a conversation for a model.

An image becomes a data URL whose type is read from its bytes; a file becomes its text. The stored
items stay as the client sent them. Number, size and time are bounded. An error names the path of
the image or file, before the run starts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import Fetcher, FetchResult, FileStore, ReadPdf
from antiphon.application.support.tasks import all_of
from antiphon.application.support.threads import WALK_BYTES, run_in_thread
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.access.rights import check_url
from antiphon.domain.errors import (
    DocumentError,
    FetchError,
    FetchRefused,
    FetchTooLarge,
    Forbidden,
    NotFound,
    RequestError,
    missing_parameter,
)
from antiphon.domain.image_info import image_info_of

MAX_CONCURRENT = 4
"""Images and files of one request that are loaded at the same time."""

MIN_THREAD_CHARS = 64 * 1024
"""Longer base64 texts are decoded in a thread."""

MAX_PIXELS_FACTOR = 8
"""All images of a request may have this many times the pixels of one, because each is unpacked in
memory."""

MAX_TEXT_CHARS = 10_485_760
"""The API's limit for texts."""

MEDIA_FIELDS: Mapping[type[i.Item], str] = {
    i.Message: "content",
    i.FunctionCallOutput: "output",
    i.CustomToolCallOutput: "output",
    i.ComputerCallOutput: "output",
}
"""Item type -> the field that may hold images and files."""

MEDIA = (c.InputImage, c.InputFile, c.ComputerScreenshot)
Media = c.InputImage | c.InputFile | c.ComputerScreenshot | i.ImageGenerationCall
"""What is loaded. An image that a tool has made is its item itself, whose `result` is base64."""


class MediaLimits(Struct, frozen=True, kw_only=True):
    """The limits of one request, its history included."""

    count: int = 100
    max_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 50_000_000
    timeout_s: float = 60.0


class ErrorCodes(Struct, frozen=True, kw_only=True):
    """The error codes for images, or for files
    (docs/reference/errors.md#codes-of-images-and-files)."""

    bad_base64: str
    refused: str
    failed: str
    too_large: str
    not_found: str


IMAGE_CODES = ErrorCodes(
    bad_base64="invalid_base64_image",
    refused="invalid_image_url",
    failed="failed_to_download_image",
    too_large="image_file_too_large",
    not_found="image_file_not_found",
)
FILE_CODES = ErrorCodes(
    bad_base64="invalid_value",
    refused="invalid_value",
    failed="failed_to_download_file",
    too_large="file_too_large",
    not_found="file_not_found",
)


class Content(Struct, frozen=True, kw_only=True):
    """The bytes of an image or a file; `encoded` is their base64 form if the client sent that."""

    content: bytes
    path: str
    encoded: str | None = None
    media_type: str = ""
    filename: str | None = None


class LoadMedia:
    """Loads images and files; `read_pdf` extracts the text of a PDF."""

    def __init__(
        self,
        files: FileStore,
        fetcher: Fetcher,
        read_pdf: ReadPdf,
        *,
        limits: MediaLimits = MediaLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._files = files
        self._fetcher = fetcher
        self._read_pdf = read_pdf
        self._limits = limits

    async def __call__(
        self,
        items: Sequence[i.AnyItem],
        *,
        tenant: str,
        policy: KeyPolicy,
        reads_images: bool,
        path_of: Callable[[i.AnyItem], str | None],
    ) -> list[i.AnyItem]:
        """Return the items with their images and files loaded.

        `path_of` returns an item's path in the request, None for an item of an earlier turn.
        Raises: RequestError with the path; Forbidden for a URL that the policy forbids, whoever
        has put it into the conversation.
        """
        parts = await run_in_thread(WALK_BYTES * len(items), _media_in, items, path_of)
        if not parts:
            return list(items)
        if len(parts) > self._limits.count:
            raise RequestError(
                f"The conversation holds {len(parts)} images and files; "
                f"one request may have at most {self._limits.count}.",
                param="input",
                code="array_above_max_length",
            )
        loader = _RequestMedia(self, tenant, policy, reads_images, self._limits)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                loaded = await all_of([loader.load(part, path) for part, path in parts])
        except TimeoutError:
            raise RequestError(
                f"The images and files of this request took more than {self._limits.timeout_s:g} "
                "seconds to fetch and read.",
                param="input",
                code=IMAGE_CODES.failed,
            ) from None
        loaded_by_id = {id(part): new for (part, _), new in zip(parts, loaded, strict=True)}
        return await run_in_thread(
            WALK_BYTES * len(items),
            lambda: [_with_loaded(item, loaded_by_id) for item in items],
        )

    # --- where bytes come from --------------------------------------------------------------------

    async def read_uploaded(
        self, tenant: str, file_id: str, path: str, codes: ErrorCodes
    ) -> Content:
        """Return an uploaded file."""
        path = f"{path}.file_id"
        try:
            file = await self._files.get_file(tenant, file_id)
            content = await self._files.get_content(tenant, file_id)
        except NotFound:
            raise RequestError(
                f"There is no file {file_id[:100]!r}.", param=path, code=codes.not_found
            ) from None
        return Content(content=content, path=path, filename=file.filename)

    async def fetch(
        self, tenant: str, policy: KeyPolicy, url: str, path: str, codes: ErrorCodes
    ) -> Content:
        """Return the content of a URL."""
        check_url(policy, url, path)
        try:
            result: FetchResult = await self._fetcher.fetch(url, tenant=tenant, hosts=policy.hosts)
        except FetchError as error:
            code = {FetchRefused: codes.refused, FetchTooLarge: codes.too_large}
            raise RequestError(
                str(error), param=path, code=code.get(type(error), codes.failed)
            ) from error
        if result.status != 200:
            raise RequestError(
                f"The URL answered with status {result.status}.", param=path, code=codes.failed
            )
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        return Content(
            content=result.content, path=path, media_type=result.content_type, filename=name or None
        )

    async def text_of_pdf(self, tenant: str, content: bytes, path: str) -> str:
        """Return the text of a PDF."""
        try:
            return await self._read_pdf(content, tenant=tenant)
        except DocumentError as error:
            raise RequestError(str(error), param=path, code="invalid_value") from error


class _RequestMedia:
    """Loads the images and files of one request within its limits."""

    def __init__(
        self,
        source: LoadMedia,
        tenant: str,
        policy: KeyPolicy,
        reads_images: bool,
        limits: MediaLimits,
    ) -> None:
        self._source = source
        self._tenant = tenant
        self._policy = policy
        self._reads_images = reads_images
        self._limits = limits
        self._bytes_left = limits.max_bytes
        self._pixels_left = limits.max_pixels * MAX_PIXELS_FACTOR
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def load(self, part: Media, path: str | None) -> c.InputImage | c.InputText:
        """Raises: RequestError."""
        try:
            return await self._load(part, path or "input")
        except RequestError as error:
            if path is not None or isinstance(error, Forbidden):
                raise
            raise RequestError(
                f"An item of an earlier turn cannot be loaded. {error.message}",
                param="input",
                code=error.code,
            ) from error

    async def _load(self, part: Media, path: str) -> c.InputImage | c.InputText:
        if not isinstance(part, c.InputFile) and not self._reads_images:
            raise _no_images_error(path)
        async with self._slots:
            if isinstance(part, c.InputFile):
                return await self._to_text_part(part, await self._content_of_file(part, path))
            content = await self._content_of_image(part, path)
            return self._to_image_part(content, getattr(part, "detail", "auto"))

    async def _content_of_image(
        self, part: c.InputImage | c.ComputerScreenshot | i.ImageGenerationCall, path: str
    ) -> Content:
        if isinstance(part, i.ImageGenerationCall):
            return self._count(
                await _decode_base64("", part.result or "", path, IMAGE_CODES), IMAGE_CODES
            )
        if part.file_id:
            return self._count(
                await self._source.read_uploaded(self._tenant, part.file_id, path, IMAGE_CODES),
                IMAGE_CODES,
            )
        path = f"{path}.image_url"
        if not part.image_url:
            raise missing_parameter(path)
        return await self._read_url(part.image_url, path, IMAGE_CODES)

    async def _content_of_file(self, part: c.InputFile, path: str) -> Content:
        if part.file_id:
            content = await self._source.read_uploaded(self._tenant, part.file_id, path, FILE_CODES)
            return self._count(content, FILE_CODES)
        if part.file_data:
            path = f"{path}.file_data"
            if part.file_data[:5].lower() != "data:":
                return self._count(
                    await _decode_base64("", part.file_data, path, FILE_CODES), FILE_CODES
                )
            return await self._read_url(part.file_data, path, FILE_CODES)
        if part.file_url:
            return await self._read_url(part.file_url, f"{path}.file_url", FILE_CODES)
        raise missing_parameter(f"{path}.file_id")

    async def _read_url(self, url: str, path: str, codes: ErrorCodes) -> Content:
        """Return the content of a URL or a data URL."""
        if url[:5].lower() != "data:":
            content = await self._source.fetch(self._tenant, self._policy, url, path, codes)
            return self._count(content, codes)
        head, comma, encoded = url[5:].partition(",")
        media_type, *options = (word.strip().lower() for word in head[:200].split(";"))
        if not comma or "base64" not in options:
            raise RequestError(
                "A data URL must be written as 'data:TYPE;base64,CONTENT'.",
                param=path,
                code=codes.bad_base64,
            )
        return self._count(await _decode_base64(media_type, encoded, path, codes), codes)

    def _count(self, content: Content, codes: ErrorCodes) -> Content:
        self._bytes_left -= len(content.content)
        if self._bytes_left < 0:
            raise RequestError(
                f"The images and files of a request may have {self._limits.max_bytes} bytes "
                "in total.",
                param=content.path,
                code=codes.too_large,
            )
        return content

    def _to_image_part(self, content: Content, detail: Any) -> c.InputImage:
        if not self._reads_images:
            raise _no_images_error(content.path)
        if not content.content:
            raise RequestError("The image is empty.", param=content.path, code="empty_image_file")
        image = image_info_of(content.content)
        if image is None:
            is_other = content.media_type.partition("/")[0] not in ("", "image", "application")
            raise RequestError(
                "This is not a PNG, JPEG, GIF or WebP image.",
                param=content.path,
                code="unsupported_image_media_type" if is_other else "invalid_image_format",
            )
        pixels = image.width * image.height
        self._pixels_left -= pixels
        if pixels > self._limits.max_pixels or self._pixels_left < 0:
            raise RequestError(
                f"The image has {image.width} x {image.height} pixels; at most "
                f"{self._limits.max_pixels} are allowed for one image, and "
                f"{self._limits.max_pixels * MAX_PIXELS_FACTOR} for all images of a request.",
                param=content.path,
                code="image_too_large",
            )
        encoded = content.encoded or base64.b64encode(content.content).decode()
        return c.InputImage(image_url=f"data:{image.media_type};base64,{encoded}", detail=detail)

    async def _to_text_part(
        self, part: c.InputFile, content: Content
    ) -> c.InputImage | c.InputText:
        name = part.filename or content.filename or "file"
        if image_info_of(content.content) is not None:
            return self._to_image_part(content, "auto")
        if content.content.startswith(b"%PDF-"):
            text = await self._source.text_of_pdf(self._tenant, content.content, content.path)
        else:
            text = _decode_text(content)
        if len(text) > MAX_TEXT_CHARS:
            raise RequestError(
                f"The file has {len(text)} characters of text; {MAX_TEXT_CHARS} are allowed.",
                param=content.path,
                code="string_above_max_length",
            )
        return c.InputText(text=f'<file name="{_label_of(name)}">\n{text}\n</file>')


def _media_in(
    items: Sequence[i.AnyItem], path_of: Callable[[i.AnyItem], str | None]
) -> list[tuple[Media, str | None]]:
    return [part for item in items for part in _media_of(item, path_of)]


def _media_of(
    item: i.AnyItem, path_of: Callable[[i.AnyItem], str | None]
) -> Iterator[tuple[Media, str | None]]:
    if isinstance(item, i.ImageGenerationCall) and item.result:
        path = path_of(item)
        yield item, path and f"{path}.result"
    field = MEDIA_FIELDS.get(type(item))
    value = getattr(item, field) if field else None
    if isinstance(value, MEDIA):
        path = path_of(item)
        yield value, path and f"{path}.{field}"
    elif isinstance(value, tuple):
        for position, part in enumerate(value):
            if isinstance(part, MEDIA):
                path = path_of(item)
                yield part, path and f"{path}.{field}[{position}]"


def _with_loaded(item: i.AnyItem, loaded: Mapping[int, c.InputImage | c.InputText]) -> i.AnyItem:
    if isinstance(item, i.ImageGenerationCall) and id(item) in loaded:
        made: Any = loaded[id(item)]
        return replace(item, result=made.image_url.partition(",")[2])
    field = MEDIA_FIELDS.get(type(item))
    value = getattr(item, field) if field else None
    if isinstance(value, c.ComputerScreenshot):
        image: Any = loaded[id(value)]
        return replace(item, output=c.ComputerScreenshot(image_url=image.image_url))
    if (
        field is None
        or not isinstance(value, tuple)
        or not any(id(part) in loaded for part in value)
    ):
        return item
    return replace(item, **{field: tuple(loaded.get(id(part), part) for part in value)})


async def _decode_base64(media_type: str, encoded: str, path: str, codes: ErrorCodes) -> Content:
    try:
        if len(encoded) > MIN_THREAD_CHARS:
            encoded, content = await asyncio.to_thread(_from_base64, encoded)
        else:
            encoded, content = _from_base64(encoded)
    except (binascii.Error, ValueError):
        raise RequestError("This is not valid base64.", param=path, code=codes.bad_base64) from None
    return Content(content=content, path=path, encoded=encoded, media_type=media_type)


def _from_base64(text: str) -> tuple[str, bytes]:
    try:
        return text, base64.b64decode(text, validate=True)
    except binascii.Error:
        joined = "".join(text.split())  # some encoders break lines
        return joined, base64.b64decode(joined, validate=True)


def _decode_text(content: Content) -> str:
    is_utf16 = content.content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = content.content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise RequestError(
            "This file can neither be read as text nor is it a PDF or an image.",
            param=content.path,
            code="invalid_value",
        )
    return text


def _label_of(name: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in name[:255])
    return printable.replace('"', "'").replace("<", "(").replace(">", ")")


def _no_images_error(path: str) -> RequestError:
    return RequestError(
        "This model reads text only, no images.", param=path, code="unsupported_value"
    )
