"""Web search, and the pages of the web."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from antiphon.domain.json import Json


class DomainFilter(Struct, frozen=True, kw_only=True):
    """The domains that a search may return: none of `blocked`, and only those of `allowed` if that
    is not empty. Each includes its subdomains."""

    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()

    def allows(self, url: str) -> bool:
        """Return whether a search may return this URL.

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
        return _normalize(urlsplit(url).hostname or "")
    except ValueError:
        return ""


def _is_below(host: str, domain: str) -> bool:
    domain = _normalize(domain.removeprefix("*."))
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _normalize(host: str) -> str:
    """Return the host in lower case and ASCII (IDNA)."""
    host = host.strip(".").lower()
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


class WebResult(Struct, frozen=True, kw_only=True):
    """A page that a search found; `text` is the search service's excerpt."""

    url: str
    title: str
    text: str = ""


class WebPage(Struct, frozen=True, kw_only=True):
    """A page as text.

    In `text`, `【n†words】` is a link to `links[n]`, in the notation that models know. Nothing
    else in the text looks like that.
    """

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()


class Web(Protocol):
    """Searches the web and reads its pages.

    Titles and the texts of results are single lines, and a title is never empty. `【`, `】` and `†`
    occur only in links. Searches and reads may run concurrently; cancelling one affects no other,
    and slow ones of one tenant do not keep the others waiting.
    Each call ends within a time that the operator sets. Raises: WebError, from any method, with a
    sentence in one line for the model.
    """

    is_external: bool = True
    """Whether it sends requests to other machines."""

    async def start(self) -> None:
        """Open. Does nothing by default. Raises: SettingsError."""
        return

    async def aclose(self) -> None:
        """Release all resources, if it was started. Does nothing by default."""
        return

    @abstractmethod
    async def search(
        self,
        query: str,
        *,
        tenant: str,
        limit: int,
        domains: DomainFilter,
        location: Json | None = None,
    ) -> Sequence[WebResult]:
        """Return up to `limit` pages, best first; `location` is a web search's `user_location`.

        Any text is a query. The URLs are unique http or https URLs that `domains` allows. `read`
        returns the page of each URL, if it can be read.
        """

    @abstractmethod
    async def read(self, url: str, *, tenant: str) -> WebPage:
        """Return the page at `url`; the operator limits the length of its text.

        The text has at most 1 MiB, no control characters but tabs and line feeds, and only links to
        http and https. Raises: WebError for anything but a web page, such as `file:` URLs, paths
        and URLs with a user name.
        """
