"""Options for reaching a model on another server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from antiphon.adapters.outgoing.egress import ClientCertificate
from antiphon.domain.errors import SettingsError

SERVER_URL = r"^https?://[^/@\s?#]+(/[^\s?#]*)?\Z"
"""The URL of a server. A user and a password in it would be in logs."""


class UpstreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for reaching a model server: the base of the options of each engine that uses one."""

    key_env: Annotated[
        str | None, Meta(description="The environment variable with the server's API key.")
    ] = None
    key_file: Annotated[
        str | None,
        Meta(description="A file with the server's API key. It is read again when it changes."),
    ] = None
    headers: Annotated[
        dict[str, str], Meta(description="More headers for each request to the server.")
    ] = {}
    client_cert: Annotated[
        str | None,
        Meta(
            description="The certificate, in PEM, for a server that asks for one; it needs "
            "`client_key`. The default is that of all connections (`outgoing.cert`)."
        ),
    ] = None
    client_key: Annotated[
        str | None, Meta(description="The private key of that certificate, in PEM.")
    ] = None
    connect_s: Annotated[float, Meta(gt=0, description="Seconds to connect to the server.")] = 10.0
    response_s: Annotated[
        float,
        Meta(gt=0, description="Seconds until the server starts its response to a request."),
    ] = 300.0

    def __post_init__(self) -> None:
        if self.key_env and self.key_file:
            raise ValueError("set either `key_env` or `key_file`")
        if bool(self.client_cert) != bool(self.client_key):
            raise ValueError("`client_cert` and `client_key` belong together: set both")

    @property
    def certificate(self) -> ClientCertificate | None:
        if self.client_cert is None or self.client_key is None:
            return None
        cert, key = (Path(each).expanduser() for each in (self.client_cert, self.client_key))
        return ClientCertificate(cert=cert, key=key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # headers and additions to bodies may be secret


class UpstreamApiKey:
    """The key of a model server. It is never part of a message, a log line or a `repr`."""

    def __init__(self, options: UpstreamOptions) -> None:
        self._variable = options.key_env
        self._file = None if options.key_file is None else Path(options.key_file).expanduser()
        self._cached: tuple[int, str] | None = None

    def read(self) -> str | None:
        """Return the key as it is now, or None if the server needs none. Raises: SettingsError."""
        if self._variable is not None:
            key = os.environ.get(self._variable, "").strip()
            if not key:
                raise SettingsError(f"The variable {self._variable!r} (key_env) is not set.")
            return key
        return None if self._file is None else self._read_file(self._file)

    def _read_file(self, file: Path) -> str:
        try:
            changed_at = file.stat().st_mtime_ns
            if self._cached is None or self._cached[0] != changed_at:
                self._cached = (changed_at, file.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"key_file {str(file)!r} cannot be read: {error}.") from None
        if not self._cached[1]:
            raise SettingsError(f"key_file {str(file)!r} is empty.")
        return self._cached[1]
