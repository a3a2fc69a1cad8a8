"""Read what a GGUF file says of its model: the key-value pairs of its header, and no weights.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from antiphon.domain.errors import SettingsError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""By number of the type, its format in the words of `struct`."""

MAX_STRING_BYTES = 64 * 1024 * 1024
MAX_ARRAY_LENGTH = 8 * 1024 * 1024
"""More is a broken file: the largest vocabularies have some hundred thousand tokens."""


def read_header(file: Path) -> Mapping[str, Any]:
    """Return the pairs of a GGUF file. Raises: SettingsError if it cannot be read."""
    try:
        with file.open("rb") as stream:
            return _read_pairs(stream)
    except (OSError, struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a whole GGUF file"
        raise SettingsError(f"The model file {str(file)!r} cannot be read: {reason}.") from None


def _read_pairs(stream: BinaryIO) -> Mapping[str, Any]:
    if stream.read(4) != MAGIC:
        raise ValueError
    version, _, count = _unpack(stream, "IQQ")
    if version not in VERSIONS:
        raise ValueError
    return {_read_string(stream): _read_value(stream) for _ in range(count)}


def _unpack(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    form = "<" + form
    return struct.unpack(form, stream.read(struct.calcsize(form)))


def _read_string(stream: BinaryIO) -> str:
    (length,) = _unpack(stream, "Q")
    if length > MAX_STRING_BYTES:
        raise ValueError
    content = stream.read(length)
    if len(content) < length:
        raise ValueError
    return content.decode("utf-8")


def _read_value(stream: BinaryIO) -> Any:
    (kind,) = _unpack(stream, "I")
    return _read_array(stream) if kind == ARRAY else _reader(kind)(stream)


def _read_array(stream: BinaryIO) -> list[Any]:
    kind, length = _unpack(stream, "IQ")
    if length > MAX_ARRAY_LENGTH:
        raise ValueError
    if kind in FORMATS:
        return list(_unpack(stream, f"{length}{FORMATS[kind]}"))
    read = _read_array if kind == ARRAY else _reader(kind)
    return [read(stream) for _ in range(length)]


def _reader(kind: int) -> Callable[[BinaryIO], Any]:
    if kind == STRING:
        return _read_string
    form = FORMATS[kind]
    return lambda stream: _unpack(stream, form)[0]
