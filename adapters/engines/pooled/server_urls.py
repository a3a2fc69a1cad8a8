"""Where the members of a pool come from."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphon.adapters.engines.pooled.options import SERVER_URL, PoolOptions
from antiphon.domain.errors import EngineDead, SettingsError


class ServerUrls:
    """Reads the servers' URLs, from the source that the options name."""

    def __init__(self, options: PoolOptions) -> None:
        self._urls = (options.url,) if options.url else options.urls
        self._file = Path(options.urls_file).expanduser() if options.urls_file else None
        self._dns = options.dns

    async def read(self) -> Sequence[str]:
        """Return the URLs as they are now, without duplicates.

        Raises: SettingsError for a file that cannot be read; EngineDead for a name that cannot be
        resolved.
        """
        if self._dns is not None:
            return await _resolve(self._dns)
        urls = self._urls if self._file is None else _read_file(self._file)
        return list(dict.fromkeys(map(without_v1, urls)))


def without_v1(url: str) -> str:
    """Return where a server's paths start: clients' URLs often end in /v1.

    >>> without_v1("http://gpu1:8000/v1/"), without_v1("http://lb/qwen/")
    ('http://gpu1:8000', 'http://lb/qwen')
    """
    return url.rstrip("/").removesuffix("/v1")


def _read_file(file: Path) -> list[str]:
    try:
        return list(parse_urls(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SettingsError(f"urls_file {str(file)!r} cannot be read: {error}.") from None


def parse_urls(text: str) -> Iterator[str]:
    """Yield the URLs, one a line. Raises: ValueError.

    >>> list(parse_urls("http://a:1  # the old one\\n\\n# http://b:1\\nhttps://c"))
    ['http://a:1', 'https://c']
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if url := line.partition("#")[0].strip():
            if not re.match(SERVER_URL, url):
                raise ValueError(f"line {number} is not an http(s) URL")
            yield url


async def _resolve(dns: str) -> list[str]:
    host, _, port = dns.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        raise EngineDead(f"The name {host!r} of the model servers cannot be resolved.") from None
    addresses = {str(address[0]) for *_, address in found}
    return [f"http://{f'[{each}]' if ':' in each else each}:{port}" for each in sorted(addresses)]
