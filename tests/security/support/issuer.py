"""An OpenID Connect issuer on loopback, with real keys: what it answers can be changed."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms
from tests.security.support.certificates import write_certificate

AUDIENCE = "antiphon"
DISCOVERY = "/.well-known/openid-configuration"
JWKS = "/keys"


class SigningKey:
    """A private key, and how the issuer publishes it."""

    def __init__(self, kid: str | None, algorithm: str) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.private = self._generate()

    def _generate(self) -> Any:
        match self.algorithm[:2]:
            case "RS" | "PS":
                return rsa.generate_private_key(public_exponent=65537, key_size=2048)
            case "ES":
                return ec.generate_private_key(ec.SECP256R1())
            case _:
                return ed25519.Ed25519PrivateKey.generate()

    @property
    def jwk(self) -> dict[str, Any]:
        algorithm: Any = get_default_algorithms()[self.algorithm]
        kid = {} if self.kid is None else {"kid": self.kid}
        return {**algorithm.to_jwk(self.private.public_key(), as_dict=True), **kid, "use": "sig"}

    def sign(self, claims: Mapping[str, Any], headers: Mapping[str, Any] | None = None) -> str:
        kid = {} if self.kid is None else {"kid": self.kid}
        return jwt.encode(
            dict(claims), self.private, self.algorithm, headers={**kid, **(headers or {})}
        )


class Issuer:
    """`published` are its keys; `answers` replaces what a path answers; `asked` are the paths.

    It answers while `may_answer` is set.
    """

    def __init__(self) -> None:
        self.url = ""
        self.key = SigningKey("first", "ES256")
        self.published: list[dict[str, Any]] = [self.key.jwk]
        self.answers: dict[str, bytes] = {}
        self.is_down = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked: list[str] = []

    def answer(self, path: str) -> bytes | None:
        self.asked.append(path)
        self.may_answer.wait()
        if self.is_down:
            return None
        configuration = {"issuer": self.url, "jwks_uri": self.url + JWKS}
        own = {
            DISCOVERY: json.dumps(configuration).encode(),
            JWKS: json.dumps({"keys": self.published}).encode(),
        }
        return self.answers.get(path, own.get(path))

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return good claims, changed; None removes one."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "anna",
            "iat": now,
            "exp": now + 600,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, *, headers: Mapping[str, Any] | None = None, **changes: Any) -> str:
        return self.key.sign(self.claims(**changes), headers)


def own_authority(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return a file with an authority's certificate, and TLS for 127.0.0.1 that it vouches for."""
    address = x509.IPAddress(ip_address("127.0.0.1"))
    certificate_file, key_file = write_certificate(
        folder,
        "127.0.0.1",
        [
            (x509.SubjectAlternativeName([address]), False),
            (x509.BasicConstraints(ca=True, path_length=None), True),
        ],
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    return certificate_file, context


@contextmanager
def issuing(tls: ssl.SSLContext | None = None) -> Iterator[Issuer]:
    """Yield an issuer that answers until the block is left."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = issuer.answer(self.path)
            self.send_response(200 if body is not None else 503)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    issuer.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield issuer
    finally:
        issuer.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()
