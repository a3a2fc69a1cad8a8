"""HTML as text, by trafilatura; run as a module, it serves pages to the process that began it.

    load_html       what it is parsed with: no network, no entities of others, no scripts
    _mark_links     each link's words between characters that the page does not have
    extract         the text that is worth reading, the words of links among it
    Links           the links that are still there, numbered in their order

Hostile HTML can take for ever, or all memory: see `reading.py`, which bounds the process.
"""

from __future__ import annotations

import contextlib
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

from antiphon.adapters.fetching import DEFAULT_PORTS
from antiphon.adapters.web.page_reader import LENGTH, Work
from antiphon.adapters.web.text import PageLinks, clean, cut, one_line
from antiphon.application.ports import WebPage

MEMORY_BYTES = 1 << 30
PAGE_S = 30
"""An orphan that never comes to an end is ended by its own alarm."""

MIN_TEXT = 200
MIN_SHARE = 0.1
"""What has less text than this, or less of the whole, is no article but a page of links."""

LONG = 500_000
MANY = 20_000
"""To find what is worth reading in a longer text, or among more elements, takes seconds."""

RARE = range(0x2A000, 0x2A6D7)
"""Characters that hardly any page has. Those of private use, trafilatura drops."""

LINK_LENGTH = 2000
MAX_LINKS = 5000
BLOCKS = (
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 "
    "h3 h4 h5 h6 header hr li main nav ol p pre section table td th tr ul"
)
UNREAD = ("noscript", "script", "style", "svg", "template")


def page_of(html: str, url: str) -> WebPage:
    """Return the page. Raises: whatever the libraries raise."""
    tree = load_html(html)
    if tree is None:
        return WebPage(url=url, title="", text="")
    etree.strip_elements(tree, *UNREAD, with_tail=False)
    title = one_line(tree.findtext(".//title") or tree.findtext(".//h1") or "")
    marks = _unused(tree)
    targets = _mark_links(tree, url, marks)
    whole = _whole(tree)
    # Cut before links are numbered: half a link is none.
    text = clean(cut(_main(tree, whole)))
    links = PageLinks()
    opening, middle, closing = marks
    text = re.sub(
        f"{opening}([0-9]+){middle}([^{opening}{middle}{closing}]*){closing}",
        lambda found: links.mark(" ".join(found[2].split()), targets[int(found[1])]),
        text,
    )
    text = re.sub(f"[{opening}{middle}{closing}]", "", text)
    return WebPage(url=url, title=title, text=text, links=links.urls)


def _unused(tree: Any) -> tuple[str, str, str]:
    """Return three characters that the page has nowhere."""
    used = set().union(*tree.itertext(), *tree.xpath("//@*"))
    first, second, third, *_ = (each for each in map(chr, RARE) if each not in used)
    return first, second, third


def _mark_links(tree: Any, url: str, marks: tuple[str, str, str]) -> list[str]:
    opening, middle, closing = marks
    base = urljoin(url, next(iter(tree.xpath("//base/@href")), ""))
    targets: list[str] = []
    for link in list(islice(tree.iter("a"), MAX_LINKS)):
        target = _target(base, link.get("href") or "")
        words = " ".join("".join(link.itertext()).split()) or _described(link)
        if target is None or not words:
            continue
        tail = link.tail
        attributes = dict(link.attrib)
        link.clear()
        link.attrib.update(attributes)
        link.text, link.tail = f"{opening}{len(targets)}{middle}{words}{closing}", tail
        targets.append(target)
    return targets


def _described(link: Any) -> str:
    told = [link.get("aria-label"), link.get("title"), *link.xpath(".//img/@alt")]
    return one_line(next(filter(None, told), ""))


def _target(base: str, href: str) -> str | None:
    """Return where a link leads; None where that is no other page of http(s)."""
    href = href.strip()
    if not href or href.startswith("#") or len(href) > LINK_LENGTH:
        return None
    try:
        target = httpx.URL(urljoin(base, href))
    except (httpx.InvalidURL, ValueError):
        return None
    return str(target) if target.scheme in DEFAULT_PORTS and target.host else None


def _main(tree: Any, whole: str) -> str:
    """Return the text worth reading: the article, or all there is where that is hardly any."""
    if len(whole) > LONG or sum(1 for _ in tree.iter()) > MANY:
        return whole
    text = extract(tree, output_format="markdown", favor_recall=True) or ""
    return text if len(text) >= max(MIN_TEXT, MIN_SHARE * len(whole)) else whole


def _whole(tree: Any) -> str:
    """Return all text, a line for each block."""
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
    """Read pages from the input and write them as text, one after another, until it ends."""
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    alarm = getattr(signal, "alarm", lambda _: None)
    while head := sys.stdin.buffer.read(LENGTH.size):
        work = msgspec.msgpack.decode(sys.stdin.buffer.read(*LENGTH.unpack(head)), type=Work)
        alarm(PAGE_S)
        written = msgspec.msgpack.encode(page_of(*work))
        alarm(0)
        sys.stdout.buffer.write(LENGTH.pack(len(written)) + written)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
