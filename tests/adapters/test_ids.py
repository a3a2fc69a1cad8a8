"""Ids are unique within a process and across forks."""

from __future__ import annotations

import os

from antiphon.adapters.ids import POOL_BYTES, new_id


def test_ids_have_their_prefix_and_are_unique() -> None:
    ids = [new_id("msg") for _ in range(POOL_BYTES)]
    assert len(set(ids)) == len(ids)
    assert all(each.startswith("msg_") and len(each) == 52 for each in ids)


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    new_id("msg")  # fills the parent's pool
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, new_id("msg").encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 100).decode() != new_id("msg")
    os.close(read_end)
    os.close(write_end)
