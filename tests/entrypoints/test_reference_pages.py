"""The reference pages say what the code says."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from antiphon.domain.requests.decoding import CODES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "reference").glob("*.md"))
LAYERS = ("domain", "application", "adapters", "entrypoints")
CITATION = re.compile(r"docs/reference/([a-z]+\.md)(?:#([\w-]+))?")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


@cache
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_reference", DOCS / "draw_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def sources() -> dict[Path, ast.Module]:
    files = (file for layer in LAYERS for file in sorted((ROOT / layer).rglob("*.py")))
    return {file: ast.parse(file.read_text()) for file in files if "testing" not in file.parts}


def texts_in(node: ast.AST) -> set[str]:
    constants = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {each.value for each in constants if isinstance(each.value, str)}


def codes_raised() -> Iterator[str]:
    """Yield what is given as `code` to a call anywhere in the server."""
    for tree in sources().values():
        for call in ast.walk(tree):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant | ast.IfExp):
                    yield from texts_in(keyword.value)
    yield from (code for _, code in CODES)


def anchors_of(page: Path) -> set[str]:
    """Return what a link to the page may name: its headings, as they are spelled in addresses."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s", "-", each) for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_are_fresh(page: Path) -> None:
    assert page.read_text() == drawing().draw_page(page.read_text()), "run `make docs`"


def test_a_table_without_words_for_each_row_is_not_drawn() -> None:
    with pytest.raises(ValueError, match="say once what these are: new"):
        drawing()._check_notes({"group": {"known": "It is known."}}, {"known", "new"})


def test_every_code_that_is_raised_is_explained() -> None:
    pages = "".join(page.read_text() for page in PAGES)
    assert {code for code in codes_raised() if f"`{code}`" not in pages} == set()


def test_every_code_that_is_explained_can_be_met() -> None:
    explained = set(
        re.findall(r"^ *\| `(\w+)` \|", (DOCS / "reference/errors.md").read_text(), re.MULTILINE)
    )
    explained -= {"message", "type", "param", "code"}  # the keys of an error
    known = set().union(*map(texts_in, sources().values()))
    assert explained
    assert explained - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors_of(file), f"{target}#{anchor}"


def test_comments_cite_headings_that_are_there() -> None:
    for file in sources():
        for name, anchor in CITATION.findall(file.read_text()):
            page = DOCS / "reference" / name
            assert page.is_file(), f"{file}: {name}"
            assert not anchor or anchor in anchors_of(page), f"{file}: {name}#{anchor}"
