"""`POST /console/markdown`: texts as trees of a few kinds of nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key

from antiphon.entrypoints.http.console.markdown import (
    ADDRESSES,
    MAX_CHARS,
    MAX_DEPTH,
    MAX_TEXTS,
    Kind,
    MarkdownNode,
    tree_of,
)

SLOWEST_S = 10
WORST = {
    "table": "|" + "a|" * 3000 + "\n|" + "-|" * 3000 + "\n" + "a\n" * 3900,
    "narrow table": "|a|b|\n|-|-|\n" + "a\n" * 9000,
    "brackets": "[" * MAX_CHARS,
    "images": "![" * (MAX_CHARS // 2),
    "stars": "*" * 9000 + "a" + "*" * 9000,
    "list": "- a\n" * (MAX_CHARS // 4),
    "quotes": "> " * (MAX_CHARS // 2),
}


def nodes_of(tree: Any, depth: int = 1) -> Iterator[tuple[MarkdownNode, int]]:
    for node in tree or ():
        if isinstance(node, MarkdownNode):
            yield node, depth
            yield from nodes_of(node.children, depth + 1)


@pytest.mark.parametrize("text", WORST.values(), ids=WORST.keys())
def test_the_worst_texts_are_read_in_time(text: str) -> None:
    started = time.process_time()
    tree = tree_of(text[:MAX_CHARS])
    assert time.process_time() - started < SLOWEST_S
    assert all(depth <= MAX_DEPTH for _, depth in nodes_of(tree))


@pytest.mark.parametrize(
    "text",
    [
        "<b>a</b> <script>b</script>\n\n<div onclick=x>c</div>",
        "[a](javascript:x) [b](data:text/html,x) ![c](file:///x) [d](/relative) [e](//host)",
        "[a](HTTPS://a.example) <mailto:a@b.example> ![c](http://b.example/c.png)",
        "&lt;script&gt; &#106;avascript:x [a](&#106;avascript:x)",
    ],
)
def test_a_tree_has_no_kind_but_those_listed_and_no_other_address(text: str) -> None:
    for node, _ in nodes_of(tree_of(text)):
        assert node.kind in get_args(Kind)
        if node.kind == "link":
            assert str(node.href).lower().startswith(ADDRESSES)


@pytest.fixture(scope="module")
def client(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("markdown")
    file = folder / "keys.toml"
    key = new_key(file, "blue")
    with (
        serve_from(folder, auth="on", keys_file=file) as server,
        httpx.Client(base_url=server.url, headers=bearer(key), timeout=20) as client,
    ):
        yield client


def test_each_text_has_a_tree(client: httpx.Client) -> None:
    answer = client.post("/console/markdown", json={"texts": ["a", "# *b*\n"]})
    emphasis = {"kind": "emphasis", "children": ["b"]}
    assert answer.json() == {
        "trees": [
            [{"kind": "paragraph", "children": ["a"]}],
            [{"kind": "heading", "level": 1, "children": [emphasis]}],
        ]
    }


@pytest.mark.parametrize(
    "body",
    [{}, {"texts": []}, {"texts": ["a" * (MAX_CHARS + 1)]}, {"texts": ["a"] * (MAX_TEXTS + 1)}, []],
)
def test_a_wrong_body_is_refused(client: httpx.Client, body: Any) -> None:
    refused = client.post("/console/markdown", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "texts")


def test_it_needs_a_key_and_has_a_bound(client: httpx.Client) -> None:
    url = f"{client.base_url}/console/markdown"
    assert httpx.post(url, json={"texts": ["a"]}).status_code == 401
    assert client.post("/console/markdown", content=b" " * 600_000).status_code == 413
