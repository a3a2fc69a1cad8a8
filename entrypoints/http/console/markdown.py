"""`POST /console/markdown`: texts as trees of nodes, for the console to show.

A tree has only kinds of nodes that are listed here, and text: no HTML, and no address but of http,
https and mailto. So the page makes elements from it without parsing anything itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Response, post
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.errors import RequestError
from antiphon.entrypoints.http.api.requests import HttpRequest
from antiphon.entrypoints.http.console.pages import console_headers
from antiphon.entrypoints.http.console.session import body_of

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_CHARS = 20_000
"""Of a text. The worst ones of this length take a second."""
MAX_TEXTS = 50
MAX_BODY_BYTES = 512 * 1024
MAX_NODES = 20_000
"""Of a tree; a text with more stays plain."""
MAX_DEPTH = 24
"""Of nodes in each other; what is deeper shows its text alone."""

Kind = Literal[
    "paragraph", "heading", "list", "item", "quote", "rule", "fence", "table", "row", "head",
    "cell", "code", "emphasis", "strong", "link", "break",
]  # fmt: skip

BLOCKS: Mapping[str, Kind] = {
    "paragraph_open": "paragraph",
    "heading_open": "heading",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
    "blockquote_open": "quote",
    "table_open": "table",
    "tr_open": "row",
    "th_open": "head",
    "td_open": "cell",
    "em_open": "emphasis",
    "strong_open": "strong",
    "link_open": "link",
}
"""Nodes with children. Other pairs, as of the parts of a table, leave theirs to what is around."""

LEAVES: Mapping[str, Kind] = {
    "hr": "rule",
    "fence": "fence",
    "code_block": "fence",
    "code_inline": "code",
    "hardbreak": "break",
    "image": "link",
}
ADDRESSES = ("http://", "https://", "mailto:")


class MarkdownNode(Struct, omit_defaults=True, kw_only=True):
    """`text` is of code; `level` of a heading; `start` is the first number of an ordered list."""

    kind: Kind
    children: list[MarkdownNode | str] = []
    text: str | UnsetType = UNSET
    level: int | UnsetType = UNSET
    start: int | UnsetType = UNSET
    language: str | UnsetType = UNSET
    href: str | UnsetType = UNSET
    align: str | UnsetType = UNSET


Tree = Sequence[MarkdownNode | str]


class MarkdownTexts(Struct, frozen=True):
    texts: Annotated[
        list[Annotated[str, Meta(max_length=MAX_CHARS)]], Meta(min_length=1, max_length=MAX_TEXTS)
    ]


def tree_of(text: str) -> Tree | None:
    """Return the nodes of a text in Markdown (CommonMark and tables); None if they are too many.

    >>> msgspec.to_builtins(tree_of("a *b*"))[0]["children"]
    ['a ', {'kind': 'emphasis', 'children': ['b']}]
    """
    tree = _Tree()
    tree.add(_parser(tables=_cells_of(text) <= MAX_NODES).parse(text))
    return None if tree.count > MAX_NODES else tree.nodes


class _Tree:
    def __init__(self) -> None:
        self.nodes: list[MarkdownNode | str] = []
        self.count = 0
        self._open: list[list[MarkdownNode | str]] = [self.nodes]

    def add(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if self.count > MAX_NODES:
                return
            if token.nesting == 1:
                self._enter(token)
            elif token.nesting == -1:
                self._open.pop()
            elif token.type == "inline":
                self.add(token.children or ())
            elif token.type in LEAVES:
                self._append(_node(LEAVES[token.type], token))
            else:
                self._append("\n" if token.type == "softbreak" else token.content)

    def _enter(self, token: Token) -> None:
        children = self._open[-1]
        if token.type in BLOCKS and not token.hidden and len(self._open) <= MAX_DEPTH:
            node = _node(BLOCKS[token.type], token)
            self._append(node)
            children = node.children
        self._open.append(children)

    def _append(self, node: MarkdownNode | str) -> None:
        if node:
            self._open[-1].append(node)
            self.count += 1


def _node(kind: Kind, token: Token) -> MarkdownNode:
    node = MarkdownNode(kind=kind)
    if kind == "heading":
        node.level = int(token.tag[1:])
    elif token.type == "ordered_list_open":
        node.start = int(token.attrs.get("start", 1))
    elif kind == "fence":
        node.text, node.language = token.content, token.info.strip().split(" ")[0][:40]
    elif kind == "code":
        node.text = token.content
    elif kind == "link":
        node.href = str(token.attrs.get("href") or token.attrs.get("src") or "")
        if token.type == "image":
            node.children = [token.content or "image"]
    elif kind in ("head", "cell"):
        node.align = str(token.attrs.get("style", "")).removeprefix("text-align:") or UNSET
    return node


def _cells_of(text: str) -> int:
    """Return how many cells tables may have: rows that are short are filled up."""
    lines = text.split("\n")
    return max(line.count("|") for line in lines) * len(lines)


@cache
def _parser(*, tables: bool) -> MarkdownIt:
    # Most servers show no Markdown; importing it takes a tenth of a second.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_DEPTH})
    if tables:
        parser.enable("table")
    # What is no address of the web is no link: it stays the text that was written.
    parser.validateLink = lambda url: url.strip().lower().startswith(ADDRESSES)  # type: ignore[method-assign]
    return parser


@post("/console/markdown", include_in_schema=False, status_code=200)
async def console_markdown(request: HttpRequest) -> Response[bytes]:
    """Answer a tree for each text; null for one that stays plain."""
    texts = _read(await body_of(request, MAX_BODY_BYTES)).texts
    # One by one, so that no text has to wait for all texts of another page.
    trees: list[Any] = [await compute_in_thread(tree_of, text) for text in texts]
    content = await compute_in_thread(msgspec.json.encode, {"trees": trees})
    return Response(content, media_type="application/json", headers=console_headers(request))


def _read(body: bytes) -> MarkdownTexts:
    try:
        return msgspec.json.decode(body, type=MarkdownTexts)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise RequestError(
            f"The body must be JSON with 'texts', a list of 1 to {MAX_TEXTS} strings of up to "
            f"{MAX_CHARS:,} characters: {error}",
            param="texts",
            code="invalid_value",
        ) from None
