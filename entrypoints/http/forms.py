"""Forms with a file (`multipart/form-data`): files of any size, and short texts in UTF-8.

Litestar's own reader decodes a text by the charset that its part names, whatever its length: a
megabyte of Punycode takes minutes, in which nothing else runs.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from litestar.datastructures import FormMultiDict, UploadFile
from multipart import MultipartError, MultipartSegment, PushMultipartParser

from antiphon.domain.errors import BodyTooLarge, RequestError, UnsupportedMediaType
from antiphon.entrypoints.http.requests import HttpRequest, header

FORM_BYTES = 64 * 1024
"""What a form may have beside its file: other fields, boundaries, heads of parts."""

MOST_PARTS = 100

Parts = list[tuple[str, UploadFile | bytearray]]


async def read_form(request: HttpRequest) -> FormMultiDict:
    """Return the form that a request has; its files are to be closed.

    Raises: RequestError, UnsupportedMediaType, BodyTooLarge.
    """
    kind = header(request, b"content-type").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise UnsupportedMediaType("Send a file as 'multipart/form-data', in a part named 'file'.")
    parts: Parts = []
    try:
        await _receive(request, parts)
        return FormMultiDict([(name, await _whole(value)) for name, value in parts])
    except BaseException as error:
        for _, value in parts:
            if isinstance(value, UploadFile):
                with suppress(OSError):
                    await value.close()
        if isinstance(error, MultipartError | UnicodeDecodeError):
            raise RequestError("The form cannot be read.", code="invalid_value") from None
        raise


async def _receive(request: HttpRequest, parts: Parts) -> None:
    boundary = request.content_type[1].get("boundary", "")
    left = FORM_BYTES
    with PushMultipartParser(boundary, max_segment_count=MOST_PARTS) as parser:
        async for chunk in request.stream():
            for event in parser.parse(chunk):
                if isinstance(event, MultipartSegment):
                    parts.append((event.name, _begun(event)))
                elif event and isinstance(file := parts[-1][1], UploadFile):
                    await file.write(event)
                elif event and isinstance(text := parts[-1][1], bytearray):
                    text += event
                    left -= len(event)
                    if left < 0:
                        raise BodyTooLarge(f"The form's texts have more than {FORM_BYTES} bytes.")


def _begun(part: MultipartSegment) -> UploadFile | bytearray:
    if not part.filename:
        return bytearray()
    return UploadFile(content_type=part.content_type or "", filename=part.filename)


async def _whole(value: UploadFile | bytearray) -> UploadFile | str:
    if isinstance(value, bytearray):
        return value.decode()
    await value.seek(0)
    return value


def check_parts(form: FormMultiDict, known: Collection[str]) -> None:
    """Raises: RequestError for a part that is not known, or comes twice."""
    for name, values in ((name[:100], values) for name, values in form.dict().items()):
        if name not in known:
            raise RequestError(
                f"Unsupported parameter: {name!r}.", param=name, code="unsupported_parameter"
            )
        if len(values) > 1:
            raise RequestError(
                f"The form has {len(values)} parts named {name!r}; send one.",
                param=name,
                code="invalid_value",
            )
