"""A web of a few pages for tests of what is above the port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.application.ports import DomainFilter, Json, Web, WebPage, WebResult
from antiphon.domain.errors import WebError


class FakeWeb(Web):
    """A web of a few pages; `held` are URLs and queries that wait for `go`."""

    def __init__(self) -> None:
        self.pages = {
            "https://a.example/": WebPage(
                url="https://a.example/",
                title="A",
                text="first\nsee 【0†the other】\nlast",
                links=("https://b.example/",),
            ),
            "https://b.example/": WebPage(url="https://b.example/", title="B", text="bee\n" * 5000),
            "https://moved.example/": WebPage(url="https://b.example/", title="B", text="bee"),
        }
        self.asked: list[Any] = []
        self.held: set[str] = set()
        self.go = asyncio.Event()
        self.busy = self.busiest = 0

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def search(
        self, query: str, *, most: int, domains: DomainFilter, location: Json | None = None
    ) -> Sequence[WebResult]:
        self.asked.append((query, most, domains, location))
        await self._wait(query)
        if query == "broken":
            raise WebError("The search does not answer.")
        found = [
            WebResult(url=page.url, title=page.title, text=query) for page in self.pages.values()
        ]
        return found[: min(2, most)]

    async def read(self, url: str) -> WebPage:
        self.asked.append(url)
        await self._wait(url)
        if url not in self.pages:
            raise WebError(f"There is no page at {url}.")
        return self.pages[url]

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)

    async def _wait(self, what: str) -> None:
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        if what in self.held:
            await self.go.wait()
        self.busy -= 1
