"""Build the documentation site into site/: `make docs-site`. It asks nothing of a network.

The pages are the README, docs/ and every file of the repository to which they link, which becomes
a page too. A link that leads nowhere, a page that is not in the navigation and an asset of another
host end the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
STAGE = ROOT / ".site"
SITE = ROOT / "site"
CONFIG = ROOT / "zensical.toml"
MERMAID = ROOT / ".venv-docs" / "mermaid.min.js"
MERMAID_IN_SITE = "assets/javascripts/mermaid.min.js"

HOME = "README.md"
STYLE = "docs/site.css"
COPIED = {".css", ".png", ".svg"}
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".json": "json", ".yaml": "yaml"}

_CODE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$|(?<!`)`[^`]+`(?!`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_MERMAID_FENCE = re.compile(r"^```mermaid$", re.MULTILINE)


class BrokenSite(Exception):
    """What is wrong with the site, one line for each defect."""


def main() -> None:
    """Build the site, or say what is wrong with it."""
    try:
        Staging(STAGE).run()
        zensical = Path(sys.executable).with_name("zensical")
        subprocess.run([zensical, "build", "--strict", "--clean"], cwd=ROOT, check=True)
        _add_mermaid()
        check_navigation()
        check_html(SITE)
    except BrokenSite as error:
        sys.exit(f"The site is broken:\n{error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    print(f"The site is built: {SITE / 'index.html'}")


# --- preparing the pages --------------------------------------------------------------------------


class Staging:
    """Writes the pages into a folder, their links changed to what they are called in the site."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting = [HOME, STYLE, *_own_pages()]
        self._staged: set[str] = set()
        self._broken: list[str] = []

    def run(self) -> None:
        """Raises: BrokenSite."""
        shutil.rmtree(self._folder, ignore_errors=True)
        while self._waiting:
            path = self._waiting.pop()
            if path not in self._staged:
                self._staged.add(path)
                self._stage(path)
        if self._broken:
            raise BrokenSite("\n".join(sorted(self._broken)))

    def _stage(self, path: str) -> None:
        source, staged = ROOT / path, self._folder / _staged_name(path)
        staged.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in COPIED:
            shutil.copy(source, staged)
        elif source.suffix == ".md":
            staged.write_text(self._with_links(path), encoding="utf-8")
        elif source.is_dir():
            staged.write_text(self._listing(path), encoding="utf-8")
        else:
            staged.write_text(_as_page(path, source), encoding="utf-8")

    def _with_links(self, path: str) -> str:
        text = (ROOT / path).read_text(encoding="utf-8")
        if not MERMAID.exists():
            text = _MERMAID_FENCE.sub("```text", text)
        parts, end = [], 0
        for code in _CODE.finditer(text):
            parts += [self._prose(text[end : code.start()], path), code.group()]
            end = code.end()
        return "".join([*parts, self._prose(text[end:], path)])

    def _prose(self, text: str, path: str) -> str:
        return _LINK.sub(lambda link: f"]({self._target(link['target'], path)})", text)

    def _target(self, target: str, path: str) -> str:
        """Return where a link of the page at `path` leads in the site; what is there is staged."""
        url = urlsplit(target)
        if url.scheme or url.netloc or not url.path:
            return target
        found = os.path.normpath(os.path.join(os.path.dirname(path), url.path))
        if not (ROOT / found).exists() or found.startswith(".."):
            self._broken.append(f"{path}: {target} is not there")
            return target
        found = _index_of(found)
        self._waiting.append(found)
        inside = _relative(_staged_name(found), _staged_name(path))
        return f"{inside}#{url.fragment}" if url.fragment else inside

    def _listing(self, path: str) -> str:
        """Return a page for a folder that has none of its own."""
        lines = [f"# {path}/", ""]
        for each in sorted((ROOT / path).iterdir()):
            if not each.name.startswith((".", "__pycache__")):
                name = _index_of(each.relative_to(ROOT).as_posix())
                self._waiting.append(name)
                lines.append(
                    f"- [{each.name}]({_relative(_staged_name(name), _staged_name(path))})"
                )
        return _UNSEARCHED + "\n".join(lines) + "\n"


_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def _own_pages() -> Iterator[str]:
    for file in sorted((ROOT / "docs").rglob("*.md")):
        yield file.relative_to(ROOT).as_posix()


def _staged_name(path: str) -> str:
    """Return what a file of the repository is called in the site.

    >>> _staged_name("README.md"), _staged_name("docs/guides/tools.md")
    ('index.md', 'guides/tools.md')
    >>> _staged_name("examples/tools.py"), _staged_name("CONTRIBUTING.md")
    ('source/examples/tools.py.md', 'source/CONTRIBUTING.md')
    """
    if path == HOME:
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if PurePosixPath(path).suffix in {".md", *COPIED}:
        return f"source/{path}"
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def _index_of(path: str) -> str:
    """Return the page that stands for a folder; any other path as it is."""
    for name in ("index.md", "README.md"):
        if (ROOT / path).is_dir() and (ROOT / path / name).exists():
            return f"{path}/{name}"
    return path


def _relative(target: str, page: str) -> str:
    return PurePosixPath(os.path.relpath(target, os.path.dirname(page) or ".")).as_posix()


def _as_page(path: str, source: Path) -> str:
    language = LANGUAGES.get(source.suffix, "text")
    text = source.read_text(encoding="utf-8")
    return f"{_UNSEARCHED}# {path}\n\n`````{language}\n{text}`````\n"


# --- the built site -------------------------------------------------------------------------------


def _add_mermaid() -> None:
    """Give the pages with diagrams what draws them: else the theme would load it from a CDN."""
    if not MERMAID.exists():
        return
    shutil.copy(MERMAID, SITE / MERMAID_IN_SITE)
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if 'class="mermaid"' in text:
            script = os.path.relpath(SITE / MERMAID_IN_SITE, page.parent)
            tag = f'<script src="{script}"></script>'
            page.write_text(text.replace("</head>", f"{tag}</head>", 1), encoding="utf-8")


def check_navigation() -> None:
    """Raises: BrokenSite, for entries without a page, and for pages without an entry."""
    entries = set(_entries(tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]))
    pages = {_staged_name(path) for path in (HOME, *_own_pages())}
    pages = {page for page in pages if not re.match(r"decisions/\d", page)}  # their index has these
    wrong = [f"zensical.toml: {page} is not there" for page in sorted(entries - pages)]
    wrong += [f"zensical.toml: {page} is not in the navigation" for page in sorted(pages - entries)]
    if wrong:
        raise BrokenSite("\n".join(wrong))


def _entries(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case list():
            for each in nav:
                yield from _entries(each)
        case dict():
            for each in nav.values():
                yield from _entries(each)


class Page(HTMLParser):
    """What a page has and needs: its anchors, its links, and its scripts, styles and pictures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element has or needs."""
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if "src" in values:
            self.assets.append(values["src"])
        if "href" in values:
            (self.links if tag == "a" else self.assets).append(values["href"])


def check_html(site: Path) -> None:
    """Raises: BrokenSite, for links and anchors that are not there, and assets of other hosts."""
    pages = {page: Page(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    wrong = []
    for file, page in pages.items():
        wrong += [
            f"{file.relative_to(site)}: {asset} is on another host"
            for asset in page.assets
            if urlsplit(asset).netloc
        ]
        wrong += [
            f"{file.relative_to(site)}: {target} is not there"
            for target in (*page.links, *page.assets)
            if not _leads_somewhere(target, file, site, pages)
        ]
    for style in site.rglob("*.css"):
        if re.search(r"(url\(|@import )[\"']?(https?:)?//", style.read_text(encoding="utf-8")):
            wrong.append(f"{style.relative_to(site)}: it loads from another host")
    if wrong:
        raise BrokenSite("\n".join(sorted(wrong)))


def _leads_somewhere(target: str, file: Path, site: Path, pages: dict[Path, Page]) -> bool:
    url = urlsplit(target)
    if url.scheme or url.netloc:
        return True
    path = site if url.path.startswith("/") else file.parent
    found = Path(os.path.normpath(path / unquote(url.path).lstrip("/"))) if url.path else file
    if found.is_dir():
        found /= "index.html"
    if not found.exists():
        return False
    return not url.fragment or found not in pages or unquote(url.fragment) in pages[found].anchors


if __name__ == "__main__":
    main()
