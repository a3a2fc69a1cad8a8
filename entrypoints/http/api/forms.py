"""Forms with a file (`multipart/form-data`): files of any size, and short text fields in UTF-8.

Litestar's reader decodes a field of any length in the charset that its part names. A megabyte of
Punycode would block the event loop for minutes.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from io import SEEK_END
from urllib.parse import unquote

from litestar.datastructures import FormMultiDict, UploadFile
from msgspec import Struct
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from antiphon.application.support.bytes_in_work import FREE_BYTES
from antiphon.domain.errors import BodyTooLarge, RequestError, UnsupportedMediaType
from antiphon.entrypoints.http.api.requests import HttpRequest, header
from antiphon.entrypoints.http.wire.asgi_responses import room_for

FORM_BYTES = 64 * 1024
"""The limit for a form without its file: other fields, boundaries, and headers of parts."""

MAX_PARTS = 100

_EXTENDED_NAME = re.compile(
    r";\s*filename\*\s*=\s*\"?(utf-8|iso-8859-1|us-ascii)'[^';]*'([^;\"\s]+)",
    re.ASCII | re.IGNORECASE,
)
"""A file's name in the form of RFC 8187, which clients send beside a poorer one, or alone."""


class FormPart(Struct, frozen=True, kw_only=True):
    """A part of a form that is in memory as a whole; a text field has no `filename`."""

    name: str
    filename: str | None
    content_type: str
    content: bytes


Parts = list[tuple[str, UploadFile | bytearray]]


def boundary_of(request: HttpRequest) -> str:
    """Return the boundary of the request's form. Raises: UnsupportedMediaType."""
    kind = header(request, b"content-type").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise UnsupportedMediaType("Send a form, as 'multipart/form-data'.")
    return str(request.content_type[1].get("boundary", ""))


def parse_form(body: bytes, boundary: str, *, max_parts: int) -> list[FormPart]:
    """Return the parts of a form. Raises: RequestError."""
    parts: list[tuple[MultipartSegment, bytearray]] = []
    try:
        with PushMultipartParser(boundary, max_segment_count=max_parts) as parser:
            for event in parser.parse(body):
                if isinstance(event, MultipartSegment):
                    parts.append((event, bytearray()))
                elif event:
                    parts[-1][1].extend(event)
    except (MultipartError, UnicodeDecodeError):
        raise RequestError("The form cannot be read.", code="invalid_value") from None
    return [
        FormPart(
            name=segment.name or "",
            filename=_filename_of(segment) or None,
            content_type=segment.content_type or "",
            content=bytes(content),
        )
        for segment, content in parts
    ]


async def read_form(request: HttpRequest) -> FormMultiDict:
    """Return the request's form. The caller closes its files.

    Raises: RequestError, UnsupportedMediaType, BodyTooLarge.
    """
    kind = header(request, b"content-type").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise UnsupportedMediaType("Send a file as 'multipart/form-data', in a part named 'file'.")
    parts: Parts = []
    try:
        await _receive(request, parts)
        return FormMultiDict([(name, await _finish_part(value)) for name, value in parts])
    except BaseException as error:
        for _, value in parts:
            if isinstance(value, UploadFile):
                with suppress(OSError):
                    await value.close()
        if isinstance(error, MultipartError | UnicodeDecodeError):
            raise RequestError("The form cannot be read.", code="invalid_value") from None
        raise


@asynccontextmanager
async def read_file(request: HttpRequest, file: UploadFile) -> AsyncIterator[bytes]:
    """Yield the content of a form's file. It counts as work until the block ends.

    Raises: ConcurrencyLimitExceeded, ServerOverloaded.
    """
    size = file.file.seek(0, SEEK_END)
    await file.seek(0)
    async with room_for(request.scope, size, subject="files"):
        yield await file.read()


async def _receive(request: HttpRequest, parts: Parts) -> None:
    boundary = request.content_type[1].get("boundary", "")
    remaining_bytes = FORM_BYTES
    with PushMultipartParser(boundary, max_segment_count=MAX_PARTS) as parser:
        async for chunk in request.stream():
            for event in parser.parse(chunk):
                if isinstance(event, MultipartSegment):
                    parts.append((event.name, _start_part(event)))
                elif event and isinstance(file := parts[-1][1], UploadFile):
                    await file.write(event)
                elif event and isinstance(text := parts[-1][1], bytearray):
                    text += event
                    remaining_bytes -= len(event)
                    if remaining_bytes < 0:
                        raise BodyTooLarge(f"The form's fields have more than {FORM_BYTES} bytes.")


def _start_part(part: MultipartSegment) -> UploadFile | bytearray:
    filename = _filename_of(part)
    if not filename:
        return bytearray()
    # On disk beyond what a connection may hold: many clients may send files at a time.
    return UploadFile(
        content_type=part.content_type or "", filename=filename, max_spool_size=FREE_BYTES
    )


def _filename_of(part: MultipartSegment) -> str | None:
    extended = _EXTENDED_NAME.search(part.header("content-disposition", "") or "")
    if extended is None:
        filename: str | None = part.filename
        return filename
    charset, quoted = extended.groups()
    return unquote(quoted, encoding=charset, errors="replace")


async def _finish_part(value: UploadFile | bytearray) -> UploadFile | str:
    if isinstance(value, bytearray):
        return value.decode()
    await value.seek(0)
    return value


def check_parts(form: FormMultiDict, allowed: Collection[str]) -> None:
    """Check the names of a form's parts. Raises: RequestError for an unknown or repeated part."""
    for name, values in ((name[:100], values) for name, values in form.dict().items()):
        if name not in allowed:
            raise RequestError(
                f"Unsupported parameter: {name!r}.", param=name, code="unsupported_parameter"
            )
        if len(values) > 1:
            raise RequestError(
                f"The form has {len(values)} parts named {name!r}; send one.",
                param=name,
                code="invalid_value",
            )
