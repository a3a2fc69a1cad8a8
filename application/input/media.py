"""Pictures and files of a conversation, as a model is shown them.

A picture becomes a data URL whose type was looked up in its bytes; a file becomes its text. What is
stored stays what the client sent. Everything is bounded: how many, how large, how long; and what is
wrong with one is told with its path, before the run begins.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import Fetcher, FetchResult, FileStore, ReadPdf
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.errors import (
    DocumentError,
    FetchError,
    FetchRefused,
    FetchTooLarge,
    NotFound,
    RequestError,
    missing_parameter,
)
from antiphon.domain.image_info import image_info_of

T = TypeVar("T")

AT_ONCE = 4
"""Pictures and files of one request that are fetched or read at the same time."""

LONG = 64 * 1024
"""Characters of base64 from which on decoding is given a thread."""

TOGETHER = 8
"""All images of a request may have so many times the pixels of one: each is unpacked in memory."""

MAX_TEXT = 10_485_760
"""Characters of a file's text: the API's limit for texts."""

HOLDERS: Mapping[type[i.Item], str] = {
    i.Message: "content",
    i.FunctionCallOutput: "output",
    i.CustomToolCallOutput: "output",
    i.ComputerCallOutput: "output",
}
"""Items that may hold pictures and files, and the field they hold them in."""

MEDIA = (c.InputImage, c.InputFile, c.ComputerScreenshot)
Media = c.InputImage | c.InputFile | c.ComputerScreenshot


class MediaLimits(Struct, frozen=True, kw_only=True):
    """What one request may bring, its history included."""

    count: int = 100
    max_bytes: int = 64 * 1024 * 1024
    max_pixels: int = 50_000_000
    timeout_s: float = 60.0


class ErrorCodes(Struct, frozen=True, kw_only=True):
    """The codes of what can go wrong, for pictures or for files
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
    """The bytes of a picture or a file; `encoded` is their base64, where they came as that."""

    content: bytes
    path: str
    encoded: str | None = None
    media_type: str = ""
    filename: str | None = None


class LoadMedia:
    """Opens pictures and files; `read_pdf` is what makes text of a PDF."""

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
        reads_images: bool,
        path_of: Callable[[i.AnyItem], str | None],
    ) -> list[i.AnyItem]:
        """Return the items with what they hold opened.

        `path_of` says where in the request an item stands, None for one of an earlier turn.
        Raises: RequestError with the path.
        """
        found = [(item, media) for item in items for media in _media_of(item, path_of)]
        if not found:
            return list(items)
        if len(found) > self._limits.count:
            raise RequestError(
                f"The conversation holds {len(found)} images and files; "
                f"at most {self._limits.count} are taken in one request.",
                param="input",
                code="array_above_max_length",
            )
        opening = _Opening(self, tenant, reads_images, self._limits)
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                opened = await _all([opening.open(part, path) for _, (part, path) in found])
        except TimeoutError:
            raise RequestError(
                f"The images and files of this request took more than {self._limits.timeout_s:g} "
                "seconds to fetch and read.",
                param="input",
                code=IMAGE_CODES.failed,
            ) from None
        new = {id(part): shown for (_, (part, _)), shown in zip(found, opened, strict=True)}
        return [_with(item, new) for item in items]

    # --- where bytes come from --------------------------------------------------------------------

    async def stored(self, tenant: str, file_id: str, path: str, codes: ErrorCodes) -> Content:
        """Return an uploaded file."""
        path = f"{path}.file_id"
        try:
            file = await self._files.get(tenant, file_id)
            content = await self._files.content(tenant, file_id)
        except NotFound:
            raise RequestError(
                f"There is no file {file_id[:100]!r}.", param=path, code=codes.not_found
            ) from None
        return Content(content=content, path=path, filename=file.filename)

    async def fetched(self, url: str, path: str, codes: ErrorCodes) -> Content:
        """Return what a URL names."""
        try:
            answer: FetchResult = await self._fetcher.fetch(url)
        except FetchError as error:
            code = {FetchRefused: codes.refused, FetchTooLarge: codes.too_large}
            raise RequestError(
                str(error), param=path, code=code.get(type(error), codes.failed)
            ) from error
        if answer.status != 200:
            raise RequestError(
                f"The URL answered with status {answer.status}.", param=path, code=codes.failed
            )
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        return Content(
            content=answer.content, path=path, media_type=answer.content_type, filename=name or None
        )

    async def text_of_pdf(self, content: bytes, path: str) -> str:
        """Return the text of a PDF."""
        try:
            return await self._read_pdf(content)
        except DocumentError as error:
            raise RequestError(str(error), param=path, code="invalid_value") from error


class _Opening:
    """The pictures and files of one request, and what of its limits is left."""

    def __init__(
        self, source: LoadMedia, tenant: str, reads_images: bool, limits: MediaLimits
    ) -> None:
        self._source = source
        self._tenant = tenant
        self._reads_images = reads_images
        self._limits = limits
        self._left = limits.max_bytes
        self._pixels_left = limits.max_pixels * TOGETHER
        self._places = asyncio.Semaphore(AT_ONCE)

    async def open(self, part: Media, path: str | None) -> c.InputImage | c.InputText:
        """Raises: RequestError."""
        try:
            return await self._opened(part, path or "input")
        except RequestError as error:
            if path is not None:
                raise
            raise RequestError(
                f"An earlier turn cannot be shown again. {error.message}",
                param="input",
                code=error.code,
            ) from error

    async def _opened(self, part: Media, path: str) -> c.InputImage | c.InputText:
        if not isinstance(part, c.InputFile) and not self._reads_images:
            raise _text_only(path)
        async with self._places:
            if isinstance(part, c.InputFile):
                return await self._file(part, await self._content_of_file(part, path))
            content = await self._content_of_image(part, path)
            return self._image(content, getattr(part, "detail", "auto"))

    async def _content_of_image(
        self, part: c.InputImage | c.ComputerScreenshot, path: str
    ) -> Content:
        if part.file_id:
            return self._counted(
                await self._source.stored(self._tenant, part.file_id, path, IMAGE_CODES),
                IMAGE_CODES,
            )
        path = f"{path}.image_url"
        if not part.image_url:
            raise missing_parameter(path)
        return await self._at(part.image_url, path, IMAGE_CODES)

    async def _content_of_file(self, part: c.InputFile, path: str) -> Content:
        if part.file_id:
            found = await self._source.stored(self._tenant, part.file_id, path, FILE_CODES)
            return self._counted(found, FILE_CODES)
        if part.file_data:
            path = f"{path}.file_data"
            if part.file_data[:5].lower() != "data:":
                return self._counted(
                    await _decoded("", part.file_data, path, FILE_CODES), FILE_CODES
                )
            return await self._at(part.file_data, path, FILE_CODES)
        if part.file_url:
            return await self._at(part.file_url, f"{path}.file_url", FILE_CODES)
        raise missing_parameter(f"{path}.file_id")

    async def _at(self, url: str, path: str, codes: ErrorCodes) -> Content:
        """Return what a URL or a data URL holds."""
        if url[:5].lower() != "data:":
            return self._counted(await self._source.fetched(url, path, codes), codes)
        head, comma, encoded = url[5:].partition(",")
        media_type, *options = (word.strip().lower() for word in head[:200].split(";"))
        if not comma or "base64" not in options:
            raise RequestError(
                "A data URL must be written as 'data:TYPE;base64,CONTENT'.",
                param=path,
                code=codes.bad_base64,
            )
        return self._counted(await _decoded(media_type, encoded, path, codes), codes)

    def _counted(self, found: Content, codes: ErrorCodes) -> Content:
        self._left -= len(found.content)
        if self._left < 0:
            raise RequestError(
                f"The images and files of a request may have {self._limits.max_bytes} bytes "
                "in all.",
                param=found.path,
                code=codes.too_large,
            )
        return found

    def _image(self, found: Content, detail: Any) -> c.InputImage:
        if not self._reads_images:
            raise _text_only(found.path)
        if not found.content:
            raise RequestError("The image is empty.", param=found.path, code="empty_image_file")
        picture = image_info_of(found.content)
        if picture is None:
            is_other = found.media_type.partition("/")[0] not in ("", "image", "application")
            raise RequestError(
                "This is not an image that can be read: PNG, JPEG, GIF and WebP can.",
                param=found.path,
                code="unsupported_image_media_type" if is_other else "invalid_image_format",
            )
        pixels = picture.width * picture.height
        self._pixels_left -= pixels
        if pixels > self._limits.max_pixels or self._pixels_left < 0:
            raise RequestError(
                f"The image has {picture.width} x {picture.height} pixels; at most "
                f"{self._limits.max_pixels} are taken of one image, and "
                f"{self._limits.max_pixels * TOGETHER} of all images of a request.",
                param=found.path,
                code="image_too_large",
            )
        encoded = found.encoded or base64.b64encode(found.content).decode()
        return c.InputImage(image_url=f"data:{picture.media_type};base64,{encoded}", detail=detail)

    async def _file(self, part: c.InputFile, found: Content) -> c.InputImage | c.InputText:
        name = part.filename or found.filename or "file"
        if image_info_of(found.content) is not None:
            return self._image(found, "auto")
        if found.content.startswith(b"%PDF-"):
            text = await self._source.text_of_pdf(found.content, found.path)
        else:
            text = _text(found)
        if len(text) > MAX_TEXT:
            raise RequestError(
                f"The file has {len(text)} characters of text; at most {MAX_TEXT} are taken.",
                param=found.path,
                code="string_above_max_length",
            )
        return c.InputText(text=f'<file name="{_as_label(name)}">\n{text}\n</file>')


def _media_of(
    item: i.AnyItem, path_of: Callable[[i.AnyItem], str | None]
) -> Iterator[tuple[Media, str | None]]:
    field = HOLDERS.get(type(item))
    held = getattr(item, field) if field else None
    if isinstance(held, MEDIA):
        path = path_of(item)
        yield held, path and f"{path}.{field}"
    elif isinstance(held, tuple):
        for position, part in enumerate(held):
            if isinstance(part, MEDIA):
                path = path_of(item)
                yield part, path and f"{path}.{field}[{position}]"


def _with(item: i.AnyItem, new: Mapping[int, c.InputImage | c.InputText]) -> i.AnyItem:
    field = HOLDERS.get(type(item))
    held = getattr(item, field) if field else None
    if isinstance(held, c.ComputerScreenshot):
        shown: Any = new[id(held)]
        return replace(item, output=c.ComputerScreenshot(image_url=shown.image_url))
    if field is None or not isinstance(held, tuple) or not any(id(part) in new for part in held):
        return item
    return replace(item, **{field: tuple(new.get(id(part), part) for part in held)})


async def _decoded(media_type: str, encoded: str, path: str, codes: ErrorCodes) -> Content:
    try:
        if len(encoded) > LONG:
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


def _text(found: Content) -> str:
    is_utf16 = found.content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        text = found.content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise RequestError(
            "This file can neither be read as text nor is it a PDF or an image.",
            param=found.path,
            code="invalid_value",
        )
    return text


def _as_label(name: str) -> str:
    printable = "".join(char if char.isprintable() else " " for char in name[:255])
    return printable.replace('"', "'").replace("<", "(").replace(">", ")")


def _text_only(path: str) -> RequestError:
    return RequestError(
        "This model reads text only, no images.", param=path, code="unsupported_value"
    )


async def _all(works: Sequence[Awaitable[T]]) -> list[T]:
    """Return all results; the first failure ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
