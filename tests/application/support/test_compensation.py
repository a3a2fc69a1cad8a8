"""What cannot be undone now is undone later, and holds up nobody meanwhile."""

from __future__ import annotations

import asyncio

from antiphon.application.support.compensation import Compensation, Undo
from antiphon.domain.errors import StoreError


class Undone:
    """Things to undo in a store that is out."""

    def __init__(self) -> None:
        self.is_out = True
        self.names: list[str] = []
        self.tries = 0

    def of(self, name: str) -> Undo:
        async def undo() -> None:
            self.tries += 1
            if self.is_out:
                raise StoreError("the disk is full")
            self.names.append(name)

        return undo


async def until_undone(undone: Undone, count: int) -> None:
    async with asyncio.timeout(30):
        while len(undone.names) < count:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


async def test_what_fails_is_undone_as_soon_as_the_store_takes_it() -> None:
    undone, compensation = Undone(), Compensation()
    for name in "abc":
        await compensation.run(undone.of(name), log_message="it is there")
    assert undone.names == []
    undone.is_out = False
    await until_undone(undone, 3)
    assert undone.names == ["a", "b", "c"]


async def test_only_one_thing_is_tried_at_a_time() -> None:
    undone, compensation = Undone(), Compensation()
    for _ in range(100):
        await compensation.run(undone.of("it"), log_message="it is there")
    before = undone.tries
    async with asyncio.timeout(30):
        while undone.tries < before + 2:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
    assert undone.tries < before + 10
    undone.is_out = False
    await until_undone(undone, 100)


async def test_what_fails_of_a_defect_is_logged_and_the_rest_is_undone() -> None:
    undone, compensation = Undone(), Compensation()
    is_broken = False

    async def breaks() -> None:
        raise ValueError("a defect") if is_broken else StoreError("the disk is full")

    await compensation.run(breaks, log_message="it is there")
    await compensation.run(undone.of("it"), log_message="it is there")
    is_broken, undone.is_out = True, False
    await until_undone(undone, 1)
    await compensation.run(breaks, log_message="it stays there")
