"""A web of a few pages, for tests of the services that use the port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.application.ports import DomainFilter, Json, Web, WebPage, WebResult
from antiphon.domain.errors import WebError


class FakeWeb(Web):
    """A web of a few pages; URLs and queries in `blocked` wait until `unblock` is set."""

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
        self.requests: list[Any] = []
        self.blocked: set[str] = set()
        self.unblock = asyncio.Event()
        self.running = self.max_running = 0

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def search(
        self,
        query: str,
        *,
        tenant: str,
        limit: int,
        domains: DomainFilter,
        location: Json | None = None,
    ) -> Sequence[WebResult]:
        self.requests.append((query, limit, domains, location))
        await self._wait(query)
        if query == "broken":
            raise WebError("The search does not answer.")
        results = [
            WebResult(url=page.url, title=page.title, text=query) for page in self.pages.values()
        ]
        return results[: min(2, limit)]

    async def read(self, url: str, *, tenant: str) -> WebPage:
        self.requests.append(url)
        await self._wait(url)
        if url not in self.pages:
            raise WebError(f"There is no page at {url}.")
        return self.pages[url]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)

    async def _wait(self, request: str) -> None:
        self.running += 1
        self.max_running = max(self.running, self.max_running)
        if request in self.blocked:
            await self.unblock.wait()
        self.running -= 1
