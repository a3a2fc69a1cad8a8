"""Images that are drawn, not generated: for tests, and for teams without an image model."""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from collections.abc import AsyncGenerator
from hashlib import blake2b

from antiphon.application.ports import ImageGenerator, ImageRequest, MadeImage
from antiphon.domain.errors import ImageError

DEFAULT_SIZE = (64, 64)
MAX_SIDE = 2048
TILES = 8
"""In a row and in a column of the image; a draft has fewer."""

_FAIL = re.compile(r"\s*@@fail(?:\s+(?P<reason>.+))?", re.DOTALL)


class ScriptedImageGenerator(ImageGenerator):
    """Draws a PNG of colored tiles, the same one for the same request.

    Drafts have larger tiles. A prompt `@@fail REASON` fails for this reason. It makes PNG files
    alone, with sides of up to `MAX_SIDE` pixels, and ignores what makes no difference for tiles.
    """

    async def generate(self, request: ImageRequest) -> AsyncGenerator[MadeImage]:
        if (failure := _FAIL.match(request.prompt)) is not None:
            raise ImageError(failure["reason"] or "The script says so.", code="moderation_blocked")
        if request.output_format not in (None, "png"):
            raise ImageError(
                f"The scripted images are PNG files, not {request.output_format}.",
                code="invalid_value",
            )
        width, height = _size_of(request.size)
        seed = _seed_of(request)
        for draft in range(request.partial_images):
            content = await asyncio.to_thread(draw_png, seed, width, height, tiles=draft + 1)
            yield MadeImage(content=content, is_partial=True)
        content = await asyncio.to_thread(draw_png, seed, width, height, tiles=TILES)
        quality, background = request.quality or "low", request.background or "opaque"
        yield MadeImage(content=content, quality=quality, background=background)


def _size_of(size: str | None) -> tuple[int, int]:
    """Raises: ImageError."""
    if size is None:
        return DEFAULT_SIZE
    width, height = map(int, size.split("x"))
    if max(width, height) > MAX_SIDE:
        raise ImageError(
            f"The size {size!r} is too large: a side has at most {MAX_SIDE} pixels.",
            code="invalid_value",
        )
    return width, height


def _seed_of(request: ImageRequest) -> bytes:
    digest = blake2b(request.prompt.encode("utf-8", "replace"), digest_size=32)
    for image in (*request.images, *filter(None, [request.mask])):
        digest.update(image.content)
    return digest.digest()


def draw_png(seed: bytes, width: int, height: int, *, tiles: int) -> bytes:
    """Return a PNG of `tiles` times `tiles` tiles, whose colors follow from the seed."""
    palette = blake2b(seed, digest_size=48).digest()  # 16 colors
    choices = blake2b(seed, digest_size=TILES * TILES // 2).digest()
    columns = [x * tiles // width for x in range(width)]
    rows: list[bytes] = []
    for row in range(tiles):
        colors = [_nibble(choices, row * TILES + column) for column in range(tiles)]
        line = b"\0" + bytes(colors[column] for column in columns)
        rows += [line] * sum(y * tiles // height == row for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"IDAT", zlib.compress(b"".join(rows))),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _nibble(data: bytes, number: int) -> int:
    return data[number // 2] >> (4 if number % 2 else 0) & 15


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
