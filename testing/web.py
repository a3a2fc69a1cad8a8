"""Contract tests for the port `Web`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from antiphon.application.ports import DomainFilter, Web, WebPage, WebResult
from antiphon.domain.errors import WebError

EVERYWHERE = DomainFilter()
US = "us"
LINK = re.compile("【([0-9]+)†([^【】†]*)】")


@pytest.mark.asyncio
class WebContract:
    """Subclass it where pytest collects tests.

    `known_query` finds pages that can be read; there is no page at `missing_url`.

    class TestMyWeb(WebContract):
        known_query = "antiphon"
        missing_url = "https://example.org/nowhere"

        @pytest.fixture
        def new_web(self):
            return MyWeb()
    """

    known_query: str
    missing_url: str

    @pytest.fixture
    def new_web(self) -> Web:
        raise NotImplementedError("override this fixture: return your web, not started")

    @pytest_asyncio.fixture
    async def web(self, new_web: Web) -> AsyncIterator[Web]:
        await new_web.start()
        yield new_web
        await new_web.aclose()

    async def test_a_search_finds_pages_with_one_line_titles(self, web: Web) -> None:
        results = await web.search(self.known_query, tenant=US, limit=5, domains=EVERYWHERE)
        assert results
        assert len({result.url for result in results}) == len(results)
        for result in results:
            assert result.url.startswith(("http://", "https://"))
            assert result.title
            assert "\n" not in result.title + result.text
            assert not re.search("[【】†]", result.title + result.text)

    async def test_a_search_returns_no_more_than_its_limit(self, web: Web) -> None:
        assert len(await web.search(self.known_query, tenant=US, limit=1, domains=EVERYWHERE)) == 1

    async def test_a_page_that_a_search_finds_can_be_read(self, web: Web) -> None:
        [result] = await web.search(self.known_query, tenant=US, limit=1, domains=EVERYWHERE)
        check_page(await web.read(result.url, tenant=US))

    async def test_blocked_domains_are_not_shown(self, web: Web) -> None:
        results = await web.search(self.known_query, tenant=US, limit=20, domains=EVERYWHERE)
        blocked = tuple({host(result) for result in results})
        assert not await web.search(
            self.known_query, tenant=US, limit=20, domains=DomainFilter(blocked=blocked)
        )

    async def test_only_allowed_domains_are_shown(self, web: Web) -> None:
        [result] = await web.search(self.known_query, tenant=US, limit=1, domains=EVERYWHERE)
        domains = DomainFilter(allowed=(host(result),))
        results = await web.search(self.known_query, tenant=US, limit=20, domains=domains)
        assert {host(result) for result in results} == {host(result)}
        elsewhere = DomainFilter(allowed=("elsewhere.example",))
        assert not await web.search(self.known_query, tenant=US, limit=20, domains=elsewhere)

    async def test_a_search_accepts_any_user_location(self, web: Web) -> None:
        place = {"type": "approximate", "country": "DE", "city": "Köln\r\nx: y", "region": None}
        assert await web.search(
            self.known_query, tenant=US, limit=5, domains=EVERYWHERE, location=place
        )

    @pytest.mark.parametrize("query", ["", '"', "NEAR(a b) AND", "x" * 5000, "\x00\n", "ö 漢字"])
    async def test_any_text_is_a_query(self, web: Web, query: str) -> None:
        await web.search(query, tenant=US, limit=5, domains=EVERYWHERE)

    async def test_a_missing_page_is_an_error(self, web: Web) -> None:
        await check_refused(web, self.missing_url)

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "nonsense",
            "file:///etc/passwd",
            "data:text/plain,hello",
            "javascript:alert(1)",
            "/etc/passwd",
            "../../etc/passwd",
            "http://[",
            "http://user:password@example.org/",
            "https://example.org/\r\nx: y",
            "view-source:https://example.org/",
        ],
    )
    async def test_a_url_that_is_no_web_page_is_refused(self, web: Web, url: str) -> None:
        await check_refused(web, url)

    async def test_searches_and_reads_go_side_by_side(self, web: Web) -> None:
        [result] = await web.search(self.known_query, tenant=US, limit=1, domains=EVERYWHERE)
        pages = await asyncio.gather(*(web.read(result.url, tenant=US) for _ in range(5)))
        again = await asyncio.gather(
            *(
                web.search(self.known_query, tenant=US, limit=1, domains=EVERYWHERE)
                for _ in range(5)
            )
        )
        assert len(set(pages)) == 1
        assert [each[0].url for each in again] == [result.url] * 5

    async def test_a_cancelled_caller_does_not_affect_the_others(self, web: Web) -> None:
        [result] = await web.search(self.known_query, tenant=US, limit=1, domains=EVERYWHERE)
        leaving, staying = (asyncio.create_task(web.read(result.url, tenant=US)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        check_page(await staying)
        await asyncio.wait([leaving])
        check_page(await web.read(result.url, tenant=US))

    async def test_a_web_that_was_not_started_can_be_closed(self, new_web: Web) -> None:
        await new_web.aclose()


def host(result: WebResult) -> str:
    return urlsplit(result.url).hostname or ""


def check_page(page: WebPage) -> None:
    assert page.url.startswith(("http://", "https://"))
    assert page.title
    assert "\n" not in page.title
    assert page.text.strip()
    assert len(page.text.encode()) <= 1024 * 1024
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", page.text)
    numbers = [int(link[1]) for link in LINK.finditer(page.text)]
    assert all(number < len(page.links) for number in numbers)
    assert not re.search("[【】†]", LINK.sub("", page.text))
    assert all(link.startswith(("http://", "https://")) for link in page.links)


async def check_refused(web: Web, url: str) -> None:
    with pytest.raises(WebError, match=r"^[^\n]+\.\Z"):  # a sentence for a model
        await web.read(url, tenant=US)
