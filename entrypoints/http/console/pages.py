"""`GET /console`: the page of the console and its files. They are the same for everybody.

All data comes from the API, so these need no key. Only files that were in the folder when the
server started are served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from msgspec import Struct

from antiphon.entrypoints.http.api.requests import HttpRequest, header, response_headers

FOLDER = Path(__file__).parent / "static"
PAGE = "index.html"
PATH = "/console"
TYPES: Mapping[str, str] = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""On all answers of the console: no script but its own runs, and no other site shows it."""


class Asset(Struct, frozen=True, kw_only=True):
    """A file of the console. `etag` changes with its content."""

    content: bytes
    media_type: str
    etag: str


def _read(file: Path) -> Asset:
    content = file.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Asset(content=content, media_type=TYPES[file.suffix], etag=etag)


ASSETS: Mapping[str, Asset] = {
    file.relative_to(FOLDER).as_posix(): _read(file)
    for file in sorted(FOLDER.rglob("*"))
    if file.suffix in TYPES
}
PUBLIC_PATHS = frozenset({PATH, *(f"{PATH}/assets/{name}" for name in ASSETS)})


@get(PATH, include_in_schema=False)
async def console_page(request: HttpRequest) -> Response[bytes]:
    return _answer(request, ASSETS[PAGE])


@get(f"{PATH}/assets/{{name:path}}", include_in_schema=False)
async def console_asset(request: HttpRequest, name: FromPath[Path]) -> Response[bytes]:
    asset = ASSETS.get(name.as_posix().removeprefix("/"))
    if asset is None:
        raise NotFoundException
    return _answer(request, asset)


def console_headers(request: HttpRequest) -> dict[str, str]:
    """Return the headers of an answer that nobody may cache."""
    return {**HEADERS, **response_headers(request)}


def _answer(request: Request, asset: Asset) -> Response[bytes]:  # type: ignore[type-arg]
    headers = {**console_headers(request), "cache-control": "no-cache", "etag": asset.etag}
    if header(request, b"if-none-match") == asset.etag:
        return Response(b"", status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
