"""The documentation site has no broken link and needs no other host."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.scripts_of_docs import load

building = load("build_site")
HEAD = '<link rel="stylesheet" href="style.css">'


def site(folder: Path, body: str) -> Path:
    (folder / "guides").mkdir()
    (folder / "style.css").write_text("a { background: url(picture.png) }")
    (folder / "index.html").write_text(f'{HEAD}<h1 id="home">Home</h1>{body}')
    (folder / "guides" / "tools.html").write_text('<h2 id="own-tools">Own tools</h2>')
    return folder


def test_every_link_of_a_page_leads_to_a_file_of_this_repository(tmp_path: Path) -> None:
    building.Staging(tmp_path / "pages").run()
    assert (tmp_path / "pages" / "index.md").exists()


def test_a_page_says_where_to_read_a_file_of_the_repository(tmp_path: Path) -> None:
    building.Staging(tmp_path / "pages").run()
    tools = (tmp_path / "pages" / "guides" / "tools.md").read_text()
    assert "[examples/tools.py](../source/examples/tools.py.md)" in tools
    assert "class Lengths" in (tmp_path / "pages" / "source/examples/tools.py.md").read_text()


def test_every_page_is_in_the_navigation() -> None:
    building.check_navigation()


@pytest.mark.parametrize(
    "body",
    [
        '<a href="guides/tools.html#own-tools">tools</a>',
        '<a href="#home">up</a>',
        '<a href="https://example.org/page">elsewhere</a>',
    ],
)
def test_a_link_that_leads_somewhere_is_fine(tmp_path: Path, body: str) -> None:
    building.check_html(site(tmp_path, body))


@pytest.mark.parametrize(
    ("body", "defect"),
    [
        ('<a href="guides/missing.html">x</a>', "guides/missing.html is not there"),
        ('<a href="guides/tools.html#missing">x</a>', "#missing is not there"),
        ('<a href="#missing">x</a>', "#missing is not there"),
        ('<img src="missing.png">', "missing.png is not there"),
        ('<script src="https://cdn.example/x.js"></script>', "x.js is on another host"),
        ('<link rel="preconnect" href="//fonts.example">', "fonts.example is on another host"),
    ],
)
def test_a_defect_of_a_page_breaks_the_site(tmp_path: Path, body: str, defect: str) -> None:
    with pytest.raises(building.BrokenSite, match=defect):
        building.check_html(site(tmp_path, body))


def test_a_style_that_loads_from_another_host_breaks_the_site(tmp_path: Path) -> None:
    built = site(tmp_path, "")
    (built / "style.css").write_text("@import 'https://fonts.example/a.css'")
    with pytest.raises(building.BrokenSite, match=r"style\.css"):
        building.check_html(built)
