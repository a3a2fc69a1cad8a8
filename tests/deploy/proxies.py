"""Real proxies with the files of deploy/proxies: only addresses, paths and times are changed."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography import x509
from tests.deploy.tools import DEPLOY, program
from tests.faults.support.replicas import wait_for
from tests.security.support.certificates import write_certificate

NAME = "localhost"
SILENCE_S = 2
"""How long a proxy of a test waits for a server that says nothing."""

Changes = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """A proxy that runs, and what its clients need."""

    port: int
    tls: ssl.SSLContext

    @property
    def api(self) -> str:
        return f"https://{NAME}:{self.port}/v1"

    @property
    def websocket(self) -> str:
        return f"wss://{NAME}:{self.port}/v1/responses"


@contextmanager
def running(kind: str, server: str, folder: Path) -> Iterator[Proxy]:
    """Run a proxy before the server at this address, HOST:PORT, until the block ends."""
    folder.mkdir()
    san = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    cert, _ = write_certificate(folder, NAME, [(san, False)])
    proxy = Proxy(port=_free_port(), tls=ssl.create_default_context(cafile=str(cert)))
    command = KINDS[kind](folder, proxy.port, server)
    log = folder / "proxy.log"
    with log.open("wb") as output:
        variables = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
        try:
            wait_for(lambda: _answers(process, proxy, log))
            yield proxy
        finally:
            process.terminate()
            process.wait(timeout=30)


def _nginx(folder: Path, port: int, server: str) -> Sequence[str]:
    changes = (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("server 127.0.0.1:8000;", f"server {server};"),
        ("/etc/ssl/antiphon/fullchain.pem", f"{folder}/cert.pem"),
        ("/etc/ssl/antiphon/privkey.pem", f"{folder}/key.pem"),
        ("proxy_read_timeout 3660s;", f"proxy_read_timeout {SILENCE_S}s;"),
    )
    _copy("nginx.conf", folder / "antiphon.conf", changes)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\npid {folder}/nginx.pid;\nerror_log stderr;\nworker_processes 1;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{folders}include {folder}/antiphon.conf;\n}}\n"
    )
    nginx = program("nginx")
    command = (nginx, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf"))
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr, checked.stderr
    return command


def _caddy(folder: Path, port: int, server: str) -> Sequence[str]:
    own = f"https://{NAME}:{port} {{\n\tbind 127.0.0.1\n\ttls {folder}/cert.pem {folder}/key.pem"
    changes = (
        ("llm.example.org {", f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n\n{own}"),
        ("127.0.0.1:8000", server),
        ("read_timeout 3660s\n\t\t}", f"read_timeout {SILENCE_S}s\n\t\t}}"),
    )
    _copy("Caddyfile", folder / "Caddyfile", changes)
    options = ("--adapter", "caddyfile", "--config", str(folder / "Caddyfile"))
    return (program("caddy"), "run", *options)


KINDS: Mapping[str, Callable[[Path, int, str], Sequence[str]]] = {"nginx": _nginx, "caddy": _caddy}


def _copy(name: str, to: Path, changes: Changes) -> None:
    text = (DEPLOY / "proxies" / name).read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    to.write_text(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(process: subprocess.Popen[bytes], proxy: Proxy, log: Path) -> bool | None:
    assert process.poll() is None, log.read_text()
    try:
        answer = httpx.get(f"https://{NAME}:{proxy.port}/livez", verify=proxy.tls, timeout=5)
    except httpx.TransportError:
        return None
    return True if answer.status_code == 200 else None
