"""The brackets and commas of a JSON text are counted without those in its strings."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.requests.json_structure import structure_of

TEXTS = st.text(st.sampled_from('\\"[{,]}n\n\u00e9u'), max_size=12)
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def without_texts(value: Any) -> Any:
    """Return the value with an empty text for each text, and a number for each key."""
    if isinstance(value, list):
        return [without_texts(each) for each in value]
    if isinstance(value, dict):
        return {str(n): without_texts(each) for n, each in enumerate(value.values())}
    return "" if isinstance(value, str) else value


@given(VALUES, st.booleans(), st.integers(1, 9))
def test_texts_change_nothing_wherever_slices_end(
    value: Any, ensure_ascii: bool, slice_bytes: int
) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii).encode()
    bare = json.dumps(without_texts(value)).encode()
    expected = bytes(byte for byte in bare if byte in b"[]{},")
    assert structure_of(text, slice_bytes=slice_bytes) == expected
