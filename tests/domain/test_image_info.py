"""An image's type and size, read from its first bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.image_info import ImageInfo, image_info_of

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + b"\x08\x02\0\0\0"
JPEG = b"\xff\xd8\xff\xe0\0\x04JF\xff\xff\xc0\0\x11\x08" + struct.pack(">HH", 480, 640) + b"\x03"
GIF = b"GIF89a" + struct.pack("<HH", 640, 480)
LOSSY = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 640, 480)
LOSSLESS = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + struct.pack("<I", 639 | 479 << 14) + bytes(5)
EXTENDED = b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\x7f\x02\0\xdf\x01\0"


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (GIF, "image/gif"),
        (LOSSY, "image/webp"),
        (LOSSLESS, "image/webp"),
        (EXTENDED, "image/webp"),
    ],
)
def test_type_and_size_are_read(content: bytes, media_type: str) -> None:
    assert image_info_of(content) == ImageInfo(media_type=media_type, width=640, height=480)
    assert image_info_of(content[:-8]) is None or media_type == "image/png"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4",
        b"BM" + bytes(60),
        b"GIF89a" + bytes(4),
        b"RIFF\0\0\0\0WAVE" + bytes(40),
        b"\xff\xd8\xff" + b"\xff\xd0" * 1_000_000,
        b"\xff\xd8" + b"\xff" * 1_000_000,
    ],
)
def test_content_that_is_not_an_image_has_no_info(content: bytes) -> None:
    assert image_info_of(content) is None


@given(st.sampled_from([PNG, JPEG, GIF, LOSSY, LOSSLESS, EXTENDED]), st.binary(max_size=60))
def test_any_bytes_are_read_without_an_error(head: bytes, rest: bytes) -> None:
    for cut in range(len(head)):
        info = image_info_of(head[:cut] + rest)
        assert info is None or info.width * info.height > 0
