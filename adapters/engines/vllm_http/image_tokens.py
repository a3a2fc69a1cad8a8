"""Which tokens images become, in the words of vLLM's wires (no I/O).

A server renders a chat message with the images and says where the tokens of each are. What comes
back is only used to count: the run sends the images themselves, and the server expands them again.
vLLM's `features` would save it that, but they lack which of an image's tokens are embeddings.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from antiphon.adapters.upstreams.client import UpstreamAnswer
from antiphon.domain.bounds import Count, TokenId
from antiphon.domain.errors import EngineError, RequestError

RENDER_PATH = "/v1/chat/completions/render"
TOKEN_FIELDS = (
    *("image_token_id", "image_token_index", "media_placeholder_token_id"),
    "boi_token_index",
)
"""Names that models' configurations have for the token that stands for an image."""


class ImagePrompt(Struct, frozen=True, kw_only=True):
    """A prompt as the server gets it: a placeholder for each image, and the images.

    A server's caches know an image by its id; None is the hash of its pixels.
    """

    token_ids: Sequence[int]
    image_urls: Sequence[str]
    image_ids: Sequence[str | None]

    def content_parts(self) -> list[dict[str, str]]:
        return [
            {"type": "image_url", "url": url} | ({} if image_id is None else {"uuid": image_id})
            for url, image_id in zip(self.image_urls, self.image_ids, strict=True)
        ]


def render_request(model_name: str, urls: Iterable[str]) -> bytes:
    """Return the request to render one message with these images."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    messages = [{"role": "user", "content": parts}]
    # "none" leaves out the images' pixels, which would be megabytes.
    body = {"model": model_name, "messages": messages, "mm_payload": "none", "max_tokens": 1}
    return msgspec.json.encode(body)


# --- answers --------------------------------------------------------------------------------------


class _Range(Struct):
    offset: Count
    length: Count


class _Features(Struct):
    mm_placeholders: Mapping[str, Sequence[_Range]] = {}


class _Rendered(Struct):
    token_ids: list[TokenId]
    features: _Features | None = None


def read_images(answer: UpstreamAnswer) -> list[list[int]]:
    """Return the tokens of each image that a server has rendered. Raises: EngineError."""
    try:
        rendered = msgspec.json.decode(answer.body, type=_Rendered)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise EngineError("The model server sent an answer that cannot be read.") from None
    ranges = () if rendered.features is None else rendered.features.mm_placeholders.get("image", ())
    return [rendered.token_ids[each.offset : each.offset + each.length] for each in ranges]


# --- placeholders ---------------------------------------------------------------------------------


def spelled_token() -> RequestError:
    """Return the error for a prompt with more placeholders than images."""
    message = "A text in the input spells this model's image token; remove it."
    return RequestError(message, param="input", code="invalid_prompt")


def find_placeholder(
    token_ids: Sequence[int], images: Sequence[Sequence[int]], *, named: Collection[int]
) -> int:
    """Return the token that stands for each image in the prompt.

    No wire tells it. It is one of an image's own tokens, and the model's configuration names it, if
    it is `named`; the prompt has as many of it as images. A wrong guess would only be a wrong
    count: the server expands the prompt itself. Raises: RequestError if there is none.

    >>> find_placeholder([1, 5, 2], [[7, 5, 5, 5, 8]], named=[])
    5
    """
    shared = set(images[0]).intersection(*images[1:])
    likely = shared.intersection(named) or shared
    counts = {token: token_ids.count(token) for token in likely}
    found = [token for token, count in counts.items() if count == len(images)]
    if len(found) == 1:
        return found[0]
    if not found and max(counts.values(), default=0) > len(images):
        raise spelled_token()
    raise RequestError("This model cannot be sent images: it has no token for one.", param="input")


def expand(
    token_ids: Sequence[int], placeholder: int, images: Sequence[Sequence[int]]
) -> list[int]:
    """Return the prompt with the images' tokens; it has a placeholder for each.

    >>> expand([1, 9, 2, 9], 9, [[9, 9], [8, 9]])
    [1, 9, 9, 2, 8, 9]
    """
    remaining = iter(images)
    expanded: list[int] = []
    for token in token_ids:
        if token == placeholder:
            expanded += next(remaining)
        else:
            expanded.append(token)
    return expanded


# --- the image of the health check ----------------------------------------------------------------


def gray_png(side: int) -> str:
    """Return the data URL of a gray square."""
    header = b"".join(each.to_bytes(4) for each in (side, side)) + bytes([8, 2, 0, 0, 0])
    rows = (b"\0" + b"\x80" * 3 * side) * side
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks)
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return len(content).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)


PROBE_IMAGE = gray_png(64)
