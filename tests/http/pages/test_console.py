"""The console's files: complete, cached by their content, and strict about what may run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.entrypoints.http.console.pages import ASSETS, FOLDER

ROOT = Path(__file__).parents[3]
MAX_LINES = 300
POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' blob: data:",
    "connect-src 'self'",
    "form-action 'none'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
}
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser"
    r"|createContextualFragment|\bstyle\.cssText|setAttribute\(\"style|https?://(?!www\.w3\.org)"
)


def files(suffix: str) -> list[Path]:
    found = sorted(FOLDER.rglob(f"*{suffix}"))
    assert found
    return found


def test_the_page_and_all_that_it_needs_are_served(server: Any) -> None:
    page = httpx.get(f"{server.url}/console")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = set(re.findall(r'(?:href|src)="(console/[^"]+)"', page.text))
    assert {"console/assets/app.js", "console/assets/style.css"} <= named
    for path in named:
        assert httpx.get(f"{server.url}/{path}").status_code == 200, path
    for module in files(".js"):
        for imported in re.findall(r'from "(\.[^"]+)"', module.read_text(encoding="utf-8")):
            path = (module.parent / imported).resolve()
            assert path.relative_to(FOLDER.resolve()).as_posix() in ASSETS, (module.name, imported)


@pytest.mark.parametrize("name", sorted(ASSETS))
def test_each_file_has_its_type_and_a_strict_policy(server: Any, name: str) -> None:
    answer = httpx.get(f"{server.url}/console/assets/{name}")
    assert answer.content == (FOLDER / name).read_bytes()
    assert set(answer.headers["content-security-policy"].split("; ")) == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-frame-options"] == "DENY"
    again = {"if-none-match": answer.headers["etag"]}
    unchanged = httpx.get(f"{server.url}/console/assets/{name}", headers=again)
    assert (unchanged.status_code, unchanged.content) == (304, b"")


@pytest.mark.parametrize("name", ["none.js", "..%2fpages.py", "%2e%2e", "pages.py", "__init__.py"])
def test_no_other_file_is_served(server: Any, name: str) -> None:
    assert httpx.get(f"{server.url}/console/assets/{name}").status_code == 404


def test_no_module_is_long_or_makes_nodes_of_text() -> None:
    for module in files(".js"):
        text = module.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MAX_LINES, module.name
        assert not UNSAFE.search(text), (module.name, UNSAFE.search(text))
        assert "createElement" not in text or module.name == "dom.js", module.name


def test_each_file_of_the_folder_is_served_and_in_the_wheel() -> None:
    paths = {file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*") if file.is_file()}
    assert paths == set(ASSETS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    build = project["tool"]["hatch"]["build"]
    for target in ("wheel", "sdist"):
        assert "entrypoints" in build["targets"][target]["only-include"]
        assert "exclude" not in {*build, *build["targets"][target]}


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert "<style" not in page
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\s(on\w+|style)=", page)


def test_the_console_explains_each_reason_of_an_incomplete_response() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    section = page.partition("## Incomplete responses")[2].partition("\n## ")[0]
    reasons = set(re.findall(r"^\| `(\w+)` \| (?!When)", section, re.MULTILINE)) - {"reason"}
    table = (
        (FOLDER / "response" / "why.js")
        .read_text("utf-8")
        .partition("REASONS = {")[2]
        .partition("};")[0]
    )
    assert reasons == set(re.findall(r"^  (\w+): ", table, re.MULTILINE))


def test_the_home_page_leads_to_the_console_if_there_is_one(server: Any, serve: Any) -> None:
    html = {"accept": "text/html"}
    assert 'href="/console"' in httpx.get(server.url, headers=html).text
    with serve(console=False) as other:
        assert "/console" not in httpx.get(other.url, headers=html).text
