"""The outputs that a client puts into a response while it runs (`response.inject`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import Entry
from antiphon.domain.items import answered_call_id


class Injections:
    """The injected outputs of one response, which waits for them in `wait`.

    Those that it has not taken have at most `max_bytes`. Without `has_client`, none come: this
    server goes on with a run that has taken some from a client of another one.
    """

    def __init__(self, *, max_bytes: int, has_client: bool = True) -> None:
        self._max_bytes = max_bytes
        self.has_client = has_client
        self._open_calls: set[str] = set()
        self._entries: list[Entry] = []
        self._changed = asyncio.Event()
        self.is_closed = False
        """Whether the response waits for no more outputs: it ends."""

    def expect(self, call_id: str) -> None:
        """Note a call that the client has seen, and may answer."""
        self._open_calls.add(call_id)

    def add(self, entries: Sequence[Entry]) -> None:
        """Take all of these outputs, or none. Raises: RequestError."""
        call_ids = [answered_call_id(entry.item) for entry in entries]
        for place, call_id in enumerate(call_ids):
            if call_id not in self._open_calls or call_id in call_ids[:place]:
                raise RequestError(
                    f"The response has no open call {str(call_id)[:100]!r} of the client.",
                    param=f"input[{place}].call_id",
                    code="invalid_value",
                )
        size = sum(len(memoryview(entry.raw)) for entry in (*self._entries, *entries))
        if size > self._max_bytes:
            raise RequestError(
                f"The outputs that wait may have at most {self._max_bytes} bytes together.",
                param="input",
                code="string_above_max_length",
            )
        self._open_calls.difference_update(each for each in call_ids if each is not None)
        self._entries += entries
        self._changed.set()

    def take(self) -> Sequence[Entry]:
        """Return the outputs that have come, in their order."""
        taken, self._entries = self._entries, []
        self._changed.clear()
        return taken

    async def wait(self, limit_s: float) -> None:
        """Return when an output has come, or after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        self.is_closed = True
