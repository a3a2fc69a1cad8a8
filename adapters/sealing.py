"""The server's secret key: encryption for a tenant with AES-GCM (docs/reference/api.md#reasoning),
cache salts, and the key's fingerprint.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from functools import lru_cache
from pathlib import Path
from tempfile import mkstemp

import msgspec

from antiphon.domain.errors import SettingsError

CACHED_SALTS = 1024
"""Of as many tenants: each request needs the salt of its tenant."""

KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = b"\x01"
SALTS = b"antiphon cache salts, version 1"
"""Derives the key for salts, so that a salt reveals nothing about the server's key."""
FINGERPRINT = b"antiphon seal key fingerprint, version 1"
"""Derives the fingerprint, which is in the store: its readers must not learn the server's key."""


RELAYED = b"antiphon relayed requests, version 1"
"""Derives the key for the signatures of requests between servers."""


class Sealer:
    """Encrypts text so that only servers with this key can decrypt it, and only for its tenant.

    Servers that share clients share the key file. The first use of the key creates it.
    """

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file
        self._key: bytes | None = None
        self._salt_key: bytes | None = None
        self._salt_of_tenant = lru_cache(CACHED_SALTS)(self._make_salt)

    def start(self) -> None:
        """Read the key, or create it. Raises: SettingsError."""
        self._load()

    def fingerprint(self) -> bytes:
        """Return 32 bytes that are the same on all servers with one key. Raises: SettingsError."""
        return hmac.digest(self._load(), FINGERPRINT, "sha256")

    def seal(self, tenant: str, text: str) -> str:
        """Return the encrypted text. Raises: SettingsError if the key cannot be read or created."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # costs 10 MB; few need it

        nonce = secrets.token_bytes(NONCE_BYTES)
        ciphertext = AESGCM(self._load()).encrypt(nonce, text.encode(), tenant.encode())
        return base64.urlsafe_b64encode(VERSION + nonce + ciphertext).decode()

    def unseal(self, tenant: str, sealed: str) -> str | None:
        """Return the text, or None if `sealed` was not made with this key for this tenant."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            blob = base64.urlsafe_b64decode(sealed.encode())
        except (binascii.Error, ValueError):
            return None
        version, nonce, ciphertext = blob[:1], blob[1 : 1 + NONCE_BYTES], blob[1 + NONCE_BYTES :]
        if version != VERSION or len(nonce) != NONCE_BYTES:
            return None
        try:
            return AESGCM(self._load()).decrypt(nonce, ciphertext, tenant.encode()).decode()
        except InvalidTag:
            return None

    def salt(self, tenant: str, text: str | None) -> str:
        """Return the salt of a tenant and a text: 43 characters of A-Z, a-z, 0-9, - and _.

        Servers with the same key return the same salt; without the key nobody can compute it.
        Raises: SettingsError.
        """
        # Only the salts without a text are cached: a client could fill a cache of texts.
        return self._salt_of_tenant(tenant) if text is None else self._make_salt(tenant, text)

    def _make_salt(self, tenant: str, text: str | None = None) -> str:
        if self._salt_key is None:
            self._salt_key = hmac.digest(self._load(), SALTS, "sha256")
        salt = hmac.digest(self._salt_key, msgspec.json.encode((tenant, text)), "sha256")
        return base64.urlsafe_b64encode(salt).decode().rstrip("=")

    def sign(self, message: bytes) -> bytes:
        """Return a signature that only servers with this key can make. Raises: SettingsError."""
        return hmac.digest(hmac.digest(self._load(), RELAYED, "sha256"), message, "sha256")

    def _load(self) -> bytes:
        if self._key is None:
            self._key = self._read() or self._create()
        return self._key

    def _read(self) -> bytes | None:
        try:
            key = self._key_file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise SettingsError(f"The key file {self._key_file} cannot be read: {exc}.") from None
        if len(key) != KEY_BYTES:
            raise SettingsError(f"The key file {self._key_file} does not have {KEY_BYTES} bytes.")
        return key

    def _create(self) -> bytes:
        try:
            self._publish(secrets.token_bytes(KEY_BYTES))
        except OSError as exc:
            raise SettingsError(
                f"The key file {self._key_file} cannot be created: {exc.strerror}. Choose another "
                "path with --seal-key-file or --data-dir."
            ) from None
        return self._read() or self._create()

    def _publish(self, key: bytes) -> None:
        # A link never replaces a file: if two servers start at the same time, one key wins.
        self._key_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary_file = mkstemp(
            prefix=f"{self._key_file.name}.", dir=self._key_file.parent
        )
        try:
            with open(descriptor, "wb") as file:
                file.write(key)
            os.link(temporary_file, self._key_file)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary_file)
