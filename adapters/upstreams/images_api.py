"""Images from a server of OpenAI's images API, which the operator configures.

Servers differ in what they take. What this client adds by itself (the form of the answer, drafts)
is left out for a server that refuses it, and the server is not asked for it again; what the request
sets is not left out, so that a refusal of it reaches the model.
"""

from __future__ import annotations

import base64
import binascii
import http
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpcore
import httpx
import msgspec
from msgspec import Struct

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.outgoing.connections import cause_of
from antiphon.adapters.upstreams.event_stream import DONE, EventSplitter
from antiphon.application.ports import ImageGenerator, ImageRequest, MadeImage
from antiphon.application.support.bytes_in_work import draw_bytes
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import EngineError, ImageError, RequestError

logger = logging.getLogger("antiphon.images")

REFUSALS = (400, 403, 413, 422)
"""How servers say that they do not make this image, and why."""

MAX_REFUSAL_BYTES = 16 * 1024
MAX_REASON_CHARS = 500
"""Of a server's reason that the model reads."""

ROOM_FOR_JSON = 64 * 1024
"""Bytes of an answer besides its image."""

UNAVAILABLE = "This server's image generator is not available."

FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    OSError,
    msgspec.MsgspecError,
    binascii.Error,
    ValueError,
    RuntimeError,  # anyio's, for some failures of TLS
)

OPTIONS = (
    *("size", "quality", "background", "output_format", "output_compression"),
    *("moderation", "input_fidelity"),
)
"""The fields of a request that are sent as they are."""

EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


class _Image(Struct, frozen=True):
    b64_json: str | None = None
    revised_prompt: str | None = None


class _Answer(Struct, frozen=True):
    data: list[_Image]
    quality: Any = None
    background: Any = None


class _Event(Struct, frozen=True):
    type: str = ""
    b64_json: str | None = None
    revised_prompt: str | None = None
    quality: Any = None
    background: Any = None
    error: Any = None


class _Error(Struct, frozen=True):
    message: Any = ""
    code: Any = None
    param: Any = None


class _Refusal(Struct, frozen=True):
    error: _Error = _Error()


class _Refused(Exception):
    """The server does not take the request."""

    def __init__(self, status: int, error: _Error) -> None:
        super().__init__(f"it answers with status {status}: {_one_line(error.message)}")
        self.error = error

    def names(self, field: str) -> bool:
        return field == self.error.param or field in str(self.error.message)


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_refusal = msgspec.json.Decoder(_Refusal).decode


class HttpImageGenerator(ImageGenerator):
    """Sends prompts to `{url}/images/generations`, and images to `{url}/images/edits`.

    It does not follow redirects. `max_bytes` bounds an image; the caller bounds the time.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        pools: GuardedPools,
        api_key: str | None = None,
        max_bytes: int,
    ) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._pools = pools
        self._headers = {
            "user-agent": "antiphon",
            "accept-encoding": "identity",  # a few compressed bytes may become very many
            **({"authorization": f"Bearer {api_key}"} if api_key else {}),
        }
        self._max_bytes = max_bytes
        self._max_json_bytes = max_bytes * 4 // 3 + ROOM_FOR_JSON
        self._left_out: set[str] = set()
        """Of what this client adds, the fields that the server does not take."""

    async def generate(self, request: ImageRequest) -> AsyncGenerator[MadeImage]:
        try:
            async with aclosing(self._generate(request)) as images:
                async for image in images:
                    yield image
        except _Refused as refused:
            logger.warning("no image from %s: %s", self._url, refused)
            reason = _one_line(refused.error.message) or "it gives no reason"
            code = refused.error.code
            raise ImageError(
                f"The image generator refuses: {reason}",
                code=code[:64] if isinstance(code, str) and code else "invalid_value",
            ) from refused
        except FAILURES as error:
            # Models get one message for every failure; the details go to the operator's log.
            reason = cause_of(error) or f"{type(error).__name__}: {error}"
            logger.warning("no image from %s: %s", self._url, reason)
            raise ImageError(UNAVAILABLE, code="unavailable", is_unreachable=True) from error

    async def _generate(self, request: ImageRequest) -> AsyncGenerator[MadeImage]:
        while True:
            fields = self._fields_of(request)
            try:
                async with aclosing(self._ask(request, fields)) as images:
                    async for image in images:
                        yield image
                return
            except _Refused as refused:
                own = {"response_format", "stream", "partial_images"} & fields.keys()
                unknown = {name for name in own if refused.names(name)}
                if not unknown:
                    raise
                self._left_out |= unknown

    def _fields_of(self, request: ImageRequest) -> Mapping[str, Any]:
        fields: dict[str, Any] = {"model": self._model, "prompt": request.prompt, "n": 1}
        values = {name: getattr(request, name) for name in OPTIONS}
        fields |= {name: value for name, value in values.items() if value is not None}
        added: dict[str, Any] = {"response_format": "b64_json"}
        if request.partial_images and "stream" not in self._left_out:
            added |= {"stream": True, "partial_images": request.partial_images}
        return fields | {k: v for k, v in added.items() if k not in self._left_out}

    async def _ask(
        self, request: ImageRequest, fields: Mapping[str, Any]
    ) -> AsyncGenerator[MadeImage]:
        if request.action == "edit":
            path, kind, body = "edits", *_to_form(request, fields)
        else:
            path, kind, body = "generations", "application/json", msgspec.json.encode(fields)
        async with self._exchange(path, kind, body, request.tenant) as answer:
            if answer.status != http.HTTPStatus.OK:
                raise await _refusal_of(answer)
            headers = {name.lower(): value.lower() for name, value in answer.headers}
            if headers.get(b"content-encoding", b"identity") != b"identity":
                raise ValueError("its answer is compressed")
            await self._draw(headers.get(b"content-length", b""))
            if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                max_bytes = self._max_json_bytes * (1 + request.partial_images)
                async with aclosing(self._read_events(answer, max_bytes)) as images:
                    async for image in images:
                        yield image
            else:
                yield await self._read_image(answer)

    @asynccontextmanager
    async def _exchange(
        self, path: str, kind: str, body: bytes, tenant: str
    ) -> AsyncGenerator[httpcore.Response]:
        url = httpx.URL(f"{self._url}/images/{path}")
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        headers = {
            "host": url.netloc.decode(),
            "content-type": kind,
            "content-length": str(len(body)),
            **self._headers,
        }
        async with (
            self._pools.pool(url, tenant=tenant) as pool,
            pool.stream("POST", target, headers=[*headers.items()], content=body) as answer,
        ):
            yield answer

    async def _draw(self, length: bytes) -> None:
        """Wait for room for an answer, and for the image in it. Raises: ImageError."""
        announced = int(length) if length.isdigit() else self._max_json_bytes
        try:
            await draw_bytes(2 * min(announced, self._max_json_bytes))
        except RequestError as error:
            raise ImageError(error.message, code="rate_limit_exceeded") from None

    async def _read_image(self, answer: httpcore.Response) -> MadeImage:
        content = bytearray()
        async for chunk in answer.aiter_stream():
            content += chunk
            if len(content) > self._max_json_bytes:
                raise self._too_large()
        decoded = _decode_answer(content)
        [image] = decoded.data[:1] or [_Image()]
        return MadeImage(
            content=await self._decode_image(image.b64_json),
            revised_prompt=image.revised_prompt,
            quality=_word(decoded.quality),
            background=_word(decoded.background),
        )

    async def _read_events(
        self, answer: httpcore.Response, max_bytes: int
    ) -> AsyncGenerator[MadeImage]:
        splitter = EventSplitter(self._max_json_bytes)
        size = 0
        async for chunk in answer.aiter_stream():
            size += len(chunk)
            if size > max_bytes:
                raise self._too_large()
            try:
                ready = splitter.feed(chunk)
            except EngineError:
                raise self._too_large() from None
            for data in ready:
                if data == DONE:
                    continue
                event = _decode_event(data)
                if event.error is not None or event.type == "error":
                    error = msgspec.convert({"error": event.error or {}}, _Refusal).error
                    raise _Refused(answer.status, error)
                is_partial = event.type.endswith(".partial_image")
                if not is_partial and not event.type.endswith(".completed"):
                    continue
                yield MadeImage(
                    content=await self._decode_image(event.b64_json),
                    is_partial=is_partial,
                    revised_prompt=event.revised_prompt,
                    quality=_word(event.quality),
                    background=_word(event.background),
                )

    async def _decode_image(self, encoded: str | None) -> bytes:
        if encoded is None:
            raise ValueError("its answer has no image in base64 (b64_json)")
        if len(encoded) > self._max_json_bytes:
            raise self._too_large()
        return await run_in_thread(len(encoded), base64.b64decode, encoded)

    def _too_large(self) -> ImageError:
        return ImageError(
            f"The image has more than the {self._max_bytes} bytes that are allowed.",
            code="image_too_large",
        )


async def _refusal_of(answer: httpcore.Response) -> Exception:
    """Return why the server does not make the image."""
    if answer.status not in REFUSALS:
        return ValueError(f"it answers with status {answer.status}")
    content = b""
    async for chunk in answer.aiter_stream():
        content = (content + chunk)[:MAX_REFUSAL_BYTES]
        if len(content) == MAX_REFUSAL_BYTES:
            break
    try:
        return _Refused(answer.status, _decode_refusal(content).error)
    except msgspec.MsgspecError:
        return _Refused(answer.status, _Error())


def _one_line(message: Any) -> str:
    return " ".join(message.split())[:MAX_REASON_CHARS] if isinstance(message, str) else ""


def _word(value: Any) -> str | None:
    return value[:64] if isinstance(value, str) and value else None


def _to_form(request: ImageRequest, fields: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the content type and the body of a form with the images (RFC 7578)."""
    boundary = secrets.token_hex(16)
    body = b"".join(_parts_of(request, fields, boundary.encode()))
    return f"multipart/form-data; boundary={boundary}", body


def _parts_of(request: ImageRequest, fields: Mapping[str, Any], boundary: bytes) -> Iterator[bytes]:
    for name, value in fields.items():
        text = "true" if value is True else str(value)
        yield _part(boundary, name, "", text.encode("utf-8", "replace"))
    # Servers that edit a single image know no list of them.
    name = "image" if len(request.images) == 1 else "image[]"
    files: Sequence[tuple[str, Any]] = [(name, image) for image in request.images]
    if request.mask is not None:
        files = [*files, ("mask", request.mask)]
    for number, (field, image) in enumerate(files):
        filename = f"{field.removesuffix('[]')}_{number}.{EXTENSIONS[image.media_type]}"
        yield _part(boundary, field, filename, image.content, image.media_type)
    yield b"--%b--\r\n" % boundary


def _part(boundary: bytes, name: str, filename: str, content: bytes, kind: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"'
    if filename:
        head += f'; filename="{filename}"\r\nContent-Type: {kind}'
    return b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, head.encode(), content)
