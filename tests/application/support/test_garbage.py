"""The garbage collector waits for calls that make very many objects."""

from __future__ import annotations

import gc
import threading

import pytest

from antiphon.application.support.garbage import without_collections


def test_the_garbage_collector_comes_back_after_a_call_whatever_it_raises() -> None:
    assert without_collections(gc.isenabled) is False
    assert gc.isenabled()
    with pytest.raises(ValueError, match="invalid literal"):
        without_collections(int, "x")
    assert gc.isenabled()


def test_the_collector_comes_back_after_the_last_of_several_threads() -> None:
    first_is_in, second_is_over = threading.Event(), threading.Event()
    seen: list[bool] = []

    def stay() -> None:
        first_is_in.set()
        second_is_over.wait(10)
        seen.append(gc.isenabled())

    thread = threading.Thread(target=without_collections, args=(stay,))
    thread.start()
    first_is_in.wait(10)
    without_collections(lambda: seen.append(gc.isenabled()))
    second_is_over.set()
    thread.join()
    assert seen == [False, False]
    assert gc.isenabled()
