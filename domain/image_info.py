"""Read an image's type and size from its first bytes, without decoding it."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence

from msgspec import Struct


class ImageInfo(Struct, frozen=True, kw_only=True):
    media_type: str
    width: int
    height: int


def image_info_of(content: bytes) -> ImageInfo | None:
    """Return an image's type and size, None if `content` is not an image that models accept.

    >>> image_info_of(b"GIF89a" + bytes([2, 0, 3, 0]))
    ImageInfo(media_type='image/gif', width=2, height=3)
    """
    for media_type, signature, size_of in KINDS:
        if content.startswith(signature):
            size = size_of(content)
            if size is None or not all(size):
                return None
            return ImageInfo(media_type=media_type, width=size[0], height=size[1])
    return None


Size = tuple[int, int] | None


def _png_size(content: bytes) -> Size:
    if content[12:16] != b"IHDR" or len(content) < 24:
        return None
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def _gif_size(content: bytes) -> Size:
    if content[:6] not in (b"GIF87a", b"GIF89a") or len(content) < 10:
        return None
    return int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")


# Start of frame: all but DHT (C4), JPG (C8) and DAC (CC) among C0 to CF.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})


MAX_SEGMENTS = 1000
"""A photo has a few dozen segments before its size; a file with millions is an attack."""


def _jpeg_size(content: bytes) -> Size:
    position = 2
    for _ in range(MAX_SEGMENTS):
        if position + 9 > len(content) or content[position] != 0xFF:
            return None
        marker = content[position + 1]
        if marker == 0xFF:  # a fill byte
            position += 1
        elif marker in _WITHOUT_LENGTH:
            position += 2
        elif marker in _FRAMES:
            height = int.from_bytes(content[position + 5 : position + 7], "big")
            return int.from_bytes(content[position + 7 : position + 9], "big"), height
        else:
            position += 2 + max(2, int.from_bytes(content[position + 2 : position + 4], "big"))
    return None


def _webp_size(content: bytes) -> Size:
    if content[8:12] != b"WEBP" or len(content) < 30:
        return None
    match content[12:16]:
        case b"VP8 ":
            width, height = content[26:28], content[28:30]
            return (
                int.from_bytes(width, "little") & 0x3FFF,
                int.from_bytes(height, "little") & 0x3FFF,
            )
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            width, height = content[24:27], content[27:30]
            return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    return None


KINDS: Sequence[tuple[str, bytes, Callable[[bytes], Size]]] = [
    ("image/png", b"\x89PNG\r\n\x1a\n", _png_size),
    ("image/jpeg", b"\xff\xd8\xff", _jpeg_size),
    ("image/gif", b"GIF8", _gif_size),
    ("image/webp", b"RIFF", _webp_size),
]
"""(media type, signature, function that reads the size)."""

_HEAD_CHARS = 16
"""Of an image in base64: the characters of the longest signature, in whole groups of four."""


def media_type_of_base64(encoded: str) -> str | None:
    """Return the type of an image in base64, None if it is not one that models accept.

    >>> media_type_of_base64("/9j/4AAQ"), media_type_of_base64("PHN2Zz4=")
    ('image/jpeg', None)
    """
    head = encoded[:_HEAD_CHARS]
    try:
        content = binascii.a2b_base64(head + "=" * (-len(head) % 4))
    except (binascii.Error, ValueError):
        content = b""
    kinds = (kind for kind, signature, _ in KINDS if content.startswith(signature))
    return next(kinds, None)
