"""HTML to text with trafilatura. Run as a module, this file serves pages to its parent process.

    load_html       parses, without a network, external entities or scripts
    _mark_links     puts each link's text between characters that the page does not contain
    extract         returns the main text, including the text of links
    PageLinks       numbers the links that are left, in their order

Malicious HTML can take endless time or all memory: page_reader.py limits and kills the process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from itertools import islice
from typing import Any
from urllib.parse import urljoin

import httpx
import msgspec
from lxml import etree  # the `web` extra, as trafilatura
from trafilatura import extract, load_html

from antiphon.adapters.url_policy import DEFAULT_PORTS
from antiphon.adapters.web.page_reader import HTML_S, LENGTH_PREFIX, HtmlRequest
from antiphon.adapters.web.text import PageLinks, clean, one_line, truncate
from antiphon.application.ports import WebPage

MEMORY_BYTES = 1 << 30
MIN_MAIN_CHARS = 200
MIN_MAIN_SHARE = 0.1
"""With a shorter main text, or a smaller share of all text, a page is not an article."""

MAX_CHARS = 500_000
MAX_ELEMENTS = 20_000
"""Above these limits it takes seconds to find the main text."""

RARE_CHARS = range(0x2A000, 0x2A6D7)
"""Characters that few pages contain. Trafilatura drops private-use characters."""

MAX_LINK_CHARS = 2000
MAX_LINKS = 5000
BLOCKS = (
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 "
    "h3 h4 h5 h6 header hr li main nav ol p pre section table td th tr ul"
)
IGNORED_ELEMENTS = ("noscript", "script", "style", "svg", "template")


def page_of(html: str, url: str) -> WebPage:
    """Convert HTML to a page. Raises: any exception of the libraries."""
    tree = load_html(html)
    if tree is None:
        return WebPage(url=url, title="", text="")
    etree.strip_elements(tree, *IGNORED_ELEMENTS, with_tail=False)
    title = one_line(tree.findtext(".//title") or tree.findtext(".//h1") or "")
    marks = _unused_chars(tree)
    targets = _mark_links(tree, url, marks)
    # Truncate before numbering, so that a link is never cut in half.
    text = clean(truncate(_main_text(tree, _full_text(tree))))
    links = PageLinks()
    opening, middle, closing = marks
    text = re.sub(
        f"{opening}([0-9]+){middle}([^{opening}{middle}{closing}]*){closing}",
        lambda match: links.mark(" ".join(match[2].split()), targets[int(match[1])]),
        text,
    )
    text = re.sub(f"[{opening}{middle}{closing}]", "", text)
    return WebPage(url=url, title=title, text=text, links=links.urls)


def _unused_chars(tree: Any) -> tuple[str, str, str]:
    """Return three characters that the page does not contain."""
    used = set().union(*tree.itertext(), *tree.xpath("//@*"))
    first, second, third, *_ = (char for char in map(chr, RARE_CHARS) if char not in used)
    return first, second, third


def _mark_links(tree: Any, url: str, marks: tuple[str, str, str]) -> list[str]:
    """Replace links by marked text with their number, and return their targets by number."""
    opening, middle, closing = marks
    base = urljoin(url, next(iter(tree.xpath("//base/@href")), ""))
    targets: list[str] = []
    for link in list(islice(tree.iter("a"), MAX_LINKS)):
        target = _target_of(base, link.get("href") or "")
        words = " ".join("".join(link.itertext()).split()) or _label_of(link)
        if target is None or not words:
            continue
        tail = link.tail
        attributes = dict(link.attrib)
        link.clear()
        link.attrib.update(attributes)
        link.text, link.tail = f"{opening}{len(targets)}{middle}{words}{closing}", tail
        targets.append(target)
    return targets


def _label_of(link: Any) -> str:
    labels = [link.get("aria-label"), link.get("title"), *link.xpath(".//img/@alt")]
    return one_line(next(filter(None, labels), ""))


def _target_of(base: str, href: str) -> str | None:
    """Return the URL that a link leads to, or None if it is not another http(s) page."""
    href = href.strip()
    if not href or href.startswith("#") or len(href) > MAX_LINK_CHARS:
        return None
    try:
        target = httpx.URL(urljoin(base, href))
        is_page = target.scheme in DEFAULT_PORTS and bool(target.host)  # reading it may fail, too
    except (httpx.InvalidURL, ValueError):
        return None
    return str(target) if is_page else None


def _main_text(tree: Any, full_text: str) -> str:
    """Return the article of a page, or the full text if there is hardly an article."""
    if len(full_text) > MAX_CHARS or sum(1 for _ in tree.iter()) > MAX_ELEMENTS:
        return full_text
    text = extract(tree, output_format="markdown", favor_recall=True) or ""
    min_chars = max(MIN_MAIN_CHARS, MIN_MAIN_SHARE * len(full_text))
    return text if len(text) >= min_chars else full_text


def _full_text(tree: Any) -> str:
    """Return all text of a page, with a line for each block."""
    blocks = frozenset(BLOCKS.split())
    lines: list[list[str]] = [[]]
    body = tree.find(".//body")
    walk = etree.iterwalk(tree if body is None else body, events=("start", "end", "comment", "pi"))
    for event, element in walk:
        if element.tag in blocks:
            lines.append([])
        lines[-1].append((element.text if event == "start" else element.tail) or "")
    words = (" ".join("".join(line).split()) for line in lines)
    return "\n".join(filter(None, words))


def main() -> None:
    """Answer requests from stdin with pages on stdout, one after another, until stdin ends.

    The argument is how many seconds of a processor a page may take.
    """
    cpu_limit_s = float(sys.argv[1])
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.nice(10)  # the server answers everybody, and this process one tenant
    while prefix := sys.stdin.buffer.read(LENGTH_PREFIX.size):
        body = sys.stdin.buffer.read(*LENGTH_PREFIX.unpack(prefix))
        html, url = msgspec.msgpack.decode(body, type=HtmlRequest)
        _end_after(cpu_s=cpu_limit_s, wall_s=HTML_S)
        page = msgspec.msgpack.encode(page_of(html, url))
        _end_after(cpu_s=0, wall_s=0)
        sys.stdout.buffer.write(LENGTH_PREFIX.pack(len(page)) + page)
        sys.stdout.buffer.flush()


def _end_after(*, cpu_s: float, wall_s: float) -> None:
    """End this process after so much time of the processor or of the clock, 0 for never.

    The parent counts the clock's time too, unless it has died.
    """
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, wall_s)


if __name__ == "__main__":
    main()
