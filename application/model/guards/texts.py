"""The texts in JSON that people and models read: guards are asked about them, and replace them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

NOT_TEXT = frozenset(
    {
        "id",
        "type",
        "role",
        "status",
        "phase",
        "call_id",
        "item_id",
        "file_id",
        "container_id",
        "response_id",
        "approval_request_id",
        "server_label",
        "namespace",
        "detail",
        "format",
        "encrypted_content",
        "file_data",
        "image_url",
        "input_audio",
        "partial_image_b64",
        "video_url",
        "input_image_mask",
        "prompt_cache_breakpoint",
        "mime_type",
        "output_format",
        "size",
        "quality",
        "background",
    }
)
"""Keys of values that are no text: identifiers, words of the API, and contents of files."""

NOT_TEXT_OF = {"image_generation_call": frozenset({"result"})}
"""Keys of values that are no text in objects of one type."""


def texts_in(value: Any, not_text: Collection[str] = ()) -> list[str]:
    """Return the texts in a JSON value, in their order, but for the values of keys of `not_text`.

    >>> texts_in({"type": "message", "content": [{"type": "input_text", "text": "Hello."}]})
    ['Hello.']
    """
    texts: list[str] = []

    def note(text: str) -> str:
        texts.append(text)
        return text

    _walk(value, note, not_text)
    return texts


def with_texts(value: Any, texts: Iterator[str], not_text: Collection[str] = ()) -> Any:
    """Return the value with other texts in the place of `texts_in` it.

    >>> with_texts({"output": "a", "id": "fc_1"}, iter(["b"]))
    {'output': 'b', 'id': 'fc_1'}
    """
    return _walk(value, lambda _: next(texts), not_text)


def _walk(value: Any, change: Callable[[str], str], not_text: Collection[str]) -> Any:
    if isinstance(value, str):
        return value if not value or value.startswith("data:") else change(value)
    if isinstance(value, Mapping):
        others = NOT_TEXT_OF.get(str(value.get("type")), frozenset())
        return {
            name: each
            if name in NOT_TEXT or name in others or name in not_text
            else _walk(each, change, not_text)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_walk(each, change, not_text) for each in value]
    return value
