"""What the server's key is for: sealing with AES-GCM, bound to the tenant
(docs/reference/api.md#reasoning), and
salts; and what it is known by.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
from pathlib import Path
from tempfile import mkstemp

import msgspec

from antiphon.domain.errors import SettingsError

KEY_BYTES = 32
NONCE_BYTES = 12
VERSION = b"\x01"
SALTS = b"antiphon cache salts, version 1"
"""What the key for salts is derived with: nothing that is told of a salt tells of the key."""
FINGERPRINT = b"antiphon seal key fingerprint, version 1"
"""As SALTS; the fingerprint lies in the store, whose readers are not to read what is sealed."""


class Sealer:
    """Seals texts so that only this server, for this tenant, reads them again.

    The key is a file that servers share if they share clients; it is made at the first use.
    """

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file
        self._key: bytes | None = None
        self._salting: hmac.HMAC | None = None

    def start(self) -> None:
        """Read the key, or make it. Raises: SettingsError."""
        self._load()

    def fingerprint(self) -> bytes:
        """Return 32 bytes that are the same for all servers of one key. Raises: SettingsError."""
        return hmac.digest(self._load(), FINGERPRINT, "sha256")

    def seal(self, tenant: str, text: str) -> str:
        """Return an opaque string. Raises: SettingsError when the key cannot be read or made."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # costs 10 MB; few need it

        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = AESGCM(self._load()).encrypt(nonce, text.encode(), tenant.encode())
        return base64.urlsafe_b64encode(VERSION + nonce + sealed).decode()

    def unseal(self, tenant: str, sealed: str) -> str | None:
        """Return the text, or None if it is not ours, was changed or is another tenant's."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            blob = base64.urlsafe_b64decode(sealed.encode())
        except (binascii.Error, ValueError):
            return None
        version, nonce, body = blob[:1], blob[1 : 1 + NONCE_BYTES], blob[1 + NONCE_BYTES :]
        if version != VERSION or len(nonce) != NONCE_BYTES:
            return None
        try:
            return AESGCM(self._load()).decrypt(nonce, body, tenant.encode()).decode()
        except InvalidTag:
            return None

    def salt(self, tenant: str, text: str | None) -> str:
        """Return 43 characters of A-Z, a-z, 0-9, - and _ that stand for a tenant and a text of its.

        All servers of one key give the same, and nobody else can. Raises: SettingsError.
        """
        if self._salting is None:
            key = hmac.digest(self._load(), SALTS, "sha256")
            self._salting = hmac.new(key, digestmod="sha256")
        salting = self._salting.copy()  # each request needs a salt, and to set a key costs the most
        salting.update(msgspec.json.encode((tenant, text)))
        return base64.urlsafe_b64encode(salting.digest()).decode().rstrip("=")

    def _load(self) -> bytes:
        if self._key is None:
            self._key = self._read() or self._make()
        return self._key

    def _read(self) -> bytes | None:
        try:
            key = self._key_file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise SettingsError(f"The key file {self._key_file} cannot be read: {exc}.") from None
        if len(key) != KEY_BYTES:
            raise SettingsError(f"The key file {self._key_file} does not hold {KEY_BYTES} bytes.")
        return key

    def _make(self) -> bytes:
        try:
            self._publish(secrets.token_bytes(KEY_BYTES))
        except OSError as exc:
            raise SettingsError(
                f"The key file {self._key_file} cannot be made: {exc.strerror}. Name another place "
                "with --seal-key-file or --data-dir."
            ) from None
        return self._read() or self._make()

    def _publish(self, key: bytes) -> None:
        # Written aside and linked into place: of two servers that start at once, one key wins.
        self._key_file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, draft = mkstemp(prefix=f"{self._key_file.name}.", dir=self._key_file.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(key)
            os.link(draft, self._key_file)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
