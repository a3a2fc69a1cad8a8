"""The reader of pages notices what a page gets wrong."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.docs import blocks, matching
from tests.docs.blocks import blocks_of
from tests.docs.reader import Reader
from tests.docs.scripts_of_docs import load

ASK = '```json\n{"model": "scripted", "input": "Hi"}\n```\n'
REFUSED = '```json\n{"model": "nobody", "input": "Hi"}\n```\n'


@pytest.fixture
def reader(server: Any, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path, int(server.url.rpartition(":")[2]))
    yield reader
    reader.close()


def read(reader: Reader, folder: Path, text: str) -> None:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    reader.read(blocks_of(page))


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ echo a; echo b\na\n…\n```",
        "```console\n$ export NAME=antiphon\n```\n\n```console\n$ echo $NAME\nantiphon\n```",
        "<!-- file: a/b.txt -->\n```text\nhello\n```\n```console\n$ cat a/b.txt\nhello\n```",
        "```console\n$ .venv/bin/python -c 'print(1)'\n1\n```",
        "```python\na = 1\n```\n\n```python\nprint(a)\n```\n<!-- output -->\n```text\n1\n```",
        "<!-- first: python\na = 1\n-->\n```python\nprint(a)\n```",
        f'{ASK}<!-- answer -->\n```json\n{{"type": "output_text", "text": "Echo: …"}}\n```',
        f'{REFUSED}<!-- answer: 400 -->\n```json\n{{"code": "model_not_found"}}\n```',
        "<!-- not run: needs a GPU -->\n```console\n$ false\n```",
    ],
)
def test_what_is_so_passes(reader: Reader, tmp_path: Path, text: str) -> None:
    read(reader, tmp_path, text)


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        ("```console\n$ echo a\nb\n```", "printed a"),
        ("```console\n$ false\n```", "line 1: false"),
        ("```console\n$ antiphon serve --nothing\n```", "the server did not start"),
        ("```console\n$ antiphon serve --engine vllm\nit is ready\n```", "needs a model"),
        ("```console\n$ make nothing\n```", "make nothing"),
        ("```console\n$ pip install antiphon\n```", "`not run` must stand before"),
        ("text\n\n```python\nprint(a)\n```", "line 3: .*\n.*\n.*\nNameError"),
        ("```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```", "it printed '1"),
        (f'{ASK}<!-- answer -->\n```json\n{{"text": "Goodbye"}}\n```', "the answer is"),
        (REFUSED, "model_not_found"),
    ],
)
def test_what_is_not_so_fails(reader: Reader, tmp_path: Path, text: str, defect: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=f"(?s){defect}"):
        read(reader, tmp_path, text)


@pytest.mark.parametrize("module", [blocks, matching, load("build_site")])
def test_the_examples_in_docstrings_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert (result.failed, result.attempted > 0) == (0, True)
