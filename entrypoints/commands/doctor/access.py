"""Checks of the settings, and of who may reach the server: keys, files, certificate, port."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography import x509

from antiphon.adapters.keys.file import KeysFile
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.commands.doctor.findings import (
    Check,
    Finding,
    Installation,
    ok,
    problem,
    skipped,
    warning,
)
from antiphon.entrypoints.server.banner import url_of
from antiphon.entrypoints.server.listener import bind
from antiphon.entrypoints.settings import SETTINGS, Settings
from antiphon.entrypoints.wiring.access import check_access
from antiphon.entrypoints.wiring.transport import certificate

EXPIRES_SOON = timedelta(days=14)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def check_settings(installation: Installation) -> Iterator[Finding]:
    """Yield where the settings come from, and which of them are unsafe together."""
    settings = installation.settings
    check_access(settings)
    file = "no settings file" if installation.file is None else str(installation.file.absolute())
    yield ok(
        f"The settings are valid: {file}, {len(installation.variables)} environment variables, "
        f"{len(installation.options)} options."
    )
    for applies, found, advice in UNSAFE:
        if applies(settings):
            yield warning(found, advice)
    for path in installation.options:
        if SETTINGS[path].is_secret:
            yield warning(
                f"{SETTINGS[path].option} is on the command line, where other users see it.",
                f"Set {SETTINGS[path].variable} instead.",
            )


UNSAFE: Sequence[tuple[Callable[[Settings], bool], str, str]] = (
    (
        lambda s: s.host not in LOOPBACK and not s.needs_keys,
        "Everyone who can reach this server can use it: it listens on the network without keys.",
        "Remove --auth off and create a key with `antiphon keys create`, or use --host 127.0.0.1.",
    ),
    (
        lambda s: s.host not in LOOPBACK and s.tls_cert is None and not s.trusted_proxy.is_on,
        "API keys and prompts cross the network unencrypted.",
        "Set --tls-cert and --tls-key, or let a proxy speak HTTPS for the server.",
    ),
    (
        lambda s: s.log_requests or s.log_outputs,
        "The logs contain what clients send or what models write.",
        "Remove --log-requests and --log-outputs when you no longer need them.",
    ),
    (
        lambda s: bool(s.cors_origin) and not s.needs_keys,
        "Web sites may call this server without a key from a browser on this machine.",
        "Use --auth on.",
    ),
    (
        lambda s: s.store == "memory" and s.needs_keys and not _has_callers(s),
        "Every request is refused: the memory store has no keys, and there is no keys file.",
        "Run `antiphon keys create --name me --file keys.toml` and set --keys-file keys.toml.",
    ),
)
"""Settings that are valid one by one and unsafe together: when, what is wrong, what to do."""


def _has_callers(settings: Settings) -> bool:
    return bool(settings.keys_file or settings.oidc.is_on or settings.trusted_proxy.is_on)


async def check_keys_file(installation: Installation) -> Sequence[Finding]:
    """Return whether the keys file can be used."""
    file = installation.settings.keys_file
    if file is None:
        return [skipped("There is no keys file; keys are in the store.")]
    keys = KeysFile(file)
    await keys.start()
    return [ok(f"The keys file {str(file)!r} has {len(await keys.keys())} keys.")]


def check_file_modes(installation: Installation) -> Iterator[Finding]:
    """Yield each file with a secret that other users of this machine can read or change."""
    settings = installation.settings
    files = {
        "keys file": settings.keys_file,
        "seal key": settings.seal_key_path,
        "TLS key": settings.tls_key,
        "webhooks file": settings.webhooks,
        "settings file": installation.file,
    }
    existing = {name: file for name, file in files.items() if file is not None and file.exists()}
    for name, file in existing.items():
        yield from _check_mode(name, file)
    if not existing:
        yield skipped("There are no files with secrets yet.")


def _check_mode(name: str, file: Path) -> Iterator[Finding]:
    mode = file.stat().st_mode
    shown = f"The {name} {str(file)!r}"
    if not os.access(file, os.R_OK):
        yield problem(f"{shown} cannot be read.", "Give it to the user of the server.")
    elif mode & stat.S_IWOTH:
        yield problem(f"{shown} can be changed by every user.", f"Run `chmod 600 {file}`.")
    elif mode & stat.S_IROTH and name == "settings file":
        # Most settings files hold no secret, so that alone is no reason to warn.
        yield ok(f"{shown} can be read by every user: keep secrets out of it.")
    elif mode & stat.S_IROTH and name == "keys file":
        yield warning(
            f"{shown} can be read by every user; it has only hashes of keys.",
            f"Run `chmod 600 {file}`.",
        )
    elif mode & stat.S_IROTH:
        yield problem(f"{shown} can be read by every user.", f"Run `chmod 600 {file}`.")
    else:
        yield ok(f"{shown} is closed to other users.")


def check_certificate(installation: Installation) -> Iterator[Finding]:
    """Yield whether the certificate fits its key, and until when it is valid."""
    settings = installation.settings
    if certificate(settings) is None:
        yield skipped("The server speaks HTTP: there is no certificate.")
        return
    assert settings.tls_cert is not None
    leaf = x509.load_pem_x509_certificates(settings.tls_cert.read_bytes())[0]
    now, ends = datetime.now(UTC), leaf.not_valid_after_utc
    day = ends.strftime("%Y-%m-%d")
    renew = "Renew it; the server reads the new files without a restart."
    if leaf.not_valid_before_utc > now:
        yield problem("The certificate is not valid yet.", "Check the clock and the certificate.")
    elif ends <= now:
        yield problem(f"The certificate expired on {day}.", renew)
    elif ends - now < EXPIRES_SOON:
        yield warning(f"The certificate fits its key but expires on {day}.", renew)
    else:
        yield ok(f"The certificate fits its key and is valid until {day}: {_names_in(leaf)}.")


def _names_in(leaf: x509.Certificate) -> str:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "it names no host, so clients refuse it"
    return ", ".join(str(each.value) for each in names)


def check_port(installation: Installation) -> Iterator[Finding]:
    """Yield whether the server can listen. A server of ours that runs there is fine."""
    settings = installation.settings
    try:
        bind(settings.host, settings.port).close()
    except SettingsError as error:
        if _answers(settings):
            yield ok(f"A server of Antiphon already answers on port {settings.port}.")
        else:
            yield problem(str(error))
    else:
        yield ok(f"The server can listen on {settings.host} port {settings.port}.")


def _answers(settings: Settings) -> bool:
    url = url_of(settings.host, settings.port, is_tls=settings.tls_cert is not None)
    try:
        # No secret is sent, and the certificate need not name this address.
        answer = httpx.get(f"{url}/livez", timeout=2, verify=False, trust_env=False)
        return bool(answer.json() == {"status": "live"})
    except (httpx.HTTPError, ValueError):
        return False


CHECKS: Sequence[Check] = (
    Check(name="settings", run=check_settings),
    Check(name="keys file", run=check_keys_file),
    Check(name="file modes", run=check_file_modes),
    Check(name="certificate", run=check_certificate),
    Check(name="port", run=check_port),
)
