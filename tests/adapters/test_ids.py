"""Ids are unique, within a process and across a fork."""

from __future__ import annotations

import os

from antiphon.adapters.ids import POOL_BYTES, new_id


def test_ids_bear_their_prefix_and_do_not_repeat() -> None:
    ids = [new_id("msg") for _ in range(POOL_BYTES)]
    assert len(set(ids)) == len(ids)
    assert all(each.startswith("msg_") and len(each) == 52 for each in ids)


def test_a_child_gives_out_other_ids_than_its_parent() -> None:
    new_id("msg")  # the parent has a pool now
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_id("msg").encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100).decode() != new_id("msg")
    os.close(reading)
    os.close(writing)
