"""Web search, and the pages of the web."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.domain.json import Json


class DomainFilter(Struct, frozen=True, kw_only=True):
    """Hosts that a search may show, with all below them: none of `blocked`, and only those of
    `allowed`, where that is not empty."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def allows(self, url: str) -> bool:
        """Whether a page at this URL may be shown.

        >>> domains = DomainFilter(allowed=("example.org",), blocked=("ads.example.org",))
        >>> [domains.allows(f"https://{host}/") for host in ("www.example.org", "ads.example.org")]
        [True, False]
        """
        host = _host(url)
        if any(_is_below(host, each) for each in self.blocked):
            return False
        return not self.allowed or any(_is_below(host, each) for each in self.allowed)


def _host(url: str) -> str:
    try:
        return _spelled(urlsplit(url).hostname or "")
    except ValueError:
        return ""


def _is_below(host: str, domain: str) -> bool:
    domain = _spelled(domain.removeprefix("*."))
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _spelled(host: str) -> str:
    """Return the one spelling of a host: what is not ASCII as DNS has it."""
    host = host.strip(".").lower()
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


class WebResult(Struct, frozen=True, kw_only=True):
    """A page that a search found; `text` is what the search shows of it."""

    url: str
    title: str
    text: str = ""


class WebPage(Struct, frozen=True, kw_only=True):
    """A page as text. In `text`, `【n†words】` is a link to `links[n]`, as models know it; nothing
    else there is written so."""

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()


class Web(Protocol):
    """Pages: those that a search finds, and those of a URL.

    Titles, and the texts of results, are one line, and a title is never empty. `【`, `】` and `†`
    occur in links alone. Searches and reads run side by side; cancelling one affects no other. Each
    use ends within a time that the operator set. Raises: WebError, from any method, with what the
    model is to be told: a sentence in one line.
    """

    is_external: bool = True
    """Whether it asks anything of other machines."""

    async def start(self) -> None:
        """Open what it needs. Raises: SettingsError."""

    async def aclose(self) -> None:
        """Release what it has opened, if it was started."""

    async def search(
        self, query: str, *, most: int, domains: DomainFilter, location: Json | None = None
    ) -> Sequence[WebResult]:
        """Return up to `most` pages, best first; `location` is `user_location` of a web search.

        Any text is a query. All URLs are of http or https, no two are equal, `domains` allows them,
        and those that can be read are read by `read`.
        """

    async def read(self, url: str) -> WebPage:
        """Return the page at `url`, with at most as much text as the operator lets it have.

        The text has no control characters but tabs and line feeds, at most 1 MiB, and links to http
        and https alone. Raises: WebError for all that is no page of the web, such as `file:` URLs,
        paths and URLs with a user name.
        """
