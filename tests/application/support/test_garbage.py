"""The garbage collector waits for calls that make very many objects."""

from __future__ import annotations

import gc

import pytest

from antiphon.application.support.garbage import without_collections


def test_the_garbage_collector_comes_back_after_a_call_whatever_it_raises() -> None:
    assert without_collections(gc.isenabled) is False
    assert gc.isenabled()
    with pytest.raises(ValueError, match="invalid literal"):
        without_collections(int, "x")
    assert gc.isenabled()
