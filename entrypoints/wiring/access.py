"""Build what finds out who sends a request."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.adapters.extras import install_command
from antiphon.adapters.keys.file import KeysFile
from antiphon.adapters.sealing import Sealer
from antiphon.application.ports import Clock, Fetcher, KeyStore
from antiphon.application.resources.keys import FindCaller, RefreshCaller
from antiphon.application.resources.tokens import ClaimRules, FindTokenCaller
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.http.access.identity import (
    BearerIdentity,
    HeaderIdentity,
    Identity,
    ProxyIdentity,
)
from antiphon.entrypoints.http.access.sites import ANY, Sites
from antiphon.entrypoints.http.console.session import Console
from antiphon.entrypoints.http.console.sessions import SessionIdentity, Sessions
from antiphon.entrypoints.settings import Oidc, Settings
from antiphon.entrypoints.wiring.fetching import egress, http_fetcher
from antiphon.entrypoints.wiring.webhooks import operator_policy

if TYPE_CHECKING:
    from antiphon.adapters.oidc.issuer_keys import IssuerKeys

ISSUER_TIMEOUT_S = 5.0
ISSUER_ANSWER_BYTES = 512 * 1024


def check_access(settings: Settings) -> None:
    """Raises: SettingsError for settings that contradict each other or leave a hole."""
    oidc, proxy = settings.oidc, settings.trusted_proxy
    if oidc.issuer is not None and not oidc.audience:
        raise SettingsError(
            "oidc.issuer needs oidc.audience: without it, this server would accept tokens that "
            "the issuer made for other services."
        )
    if oidc.issuer is None and oidc.audience:
        raise SettingsError("oidc.audience needs oidc.issuer: set both.")
    if proxy.secret is not None and not proxy.addresses:
        raise SettingsError("trusted_proxy.secret needs trusted_proxy.addresses: set both.")
    if settings.auth == "off" and (oidc.is_on or proxy.is_on):
        raise SettingsError(
            "With --auth off, nobody is asked who they are: remove it, or the settings of oidc "
            "and trusted_proxy."
        )


class Access(Struct, frozen=True, kw_only=True):
    """Who may use this server. `identities` is None if nobody is asked; `console` if it is off."""

    identities: Sequence[Identity] | None
    console: Console | None
    sites: Sites


def admin_sites(settings: Settings) -> Sites:
    """Return the names of the second port, which nobody needs a key for."""
    return Sites(hosts=(settings.admin_host, *settings.allowed_host))


def _sites(settings: Settings) -> Sites:
    """Return the names and pages that may be used; with keys, names matter only if they are set."""
    default = (ANY,) if settings.needs_keys else ()
    hosts = (settings.host, *(settings.allowed_host or default))
    return Sites(hosts=hosts, origins=settings.cors_origin)


def build_access(
    settings: Settings,
    file: KeysFile | None,
    store: KeyStore,
    keys: IssuerKeys | None,
    sealer: Sealer,
    *,
    now: Clock,
) -> Access:
    """Return what finds out who sends a request: a proxy's user, a key, a token or a session."""
    find_caller = FindCaller([store.get_api_key] if file is None else [file.key, store.get_api_key])
    bearer = BearerIdentity(find_caller, _find_token_caller(settings.oidc, keys))
    sessions = Sessions(sealer.seal, sealer.unseal, now=now)
    proxy = [ProxyIdentity(settings.trusted_proxy)] if settings.trusted_proxy.is_on else []
    session = [SessionIdentity(sessions, bearer)] if settings.console else []
    of_messages = HeaderIdentity(bearer.find)
    identities = [*proxy, bearer, of_messages, *session] if settings.needs_keys else None
    return Access(
        identities=identities,
        console=Console(identities, bearer, sessions) if settings.console else None,
        sites=_sites(settings),
    )


def refresh_caller(file: KeysFile | None, store: KeyStore) -> RefreshCaller:
    """Return what finds out the rights of who has sent a batch."""
    sources = [store.list_api_keys] if file is None else [file.keys, store.list_api_keys]
    return RefreshCaller(sources)


def issuer_keys(settings: Settings, *, now: Clock = time.monotonic) -> IssuerKeys | None:
    """Return the keys of the issuer, if tokens are accepted. Raises: SettingsError."""
    oidc = settings.oidc
    if oidc.issuer is None:
        return None
    try:
        from antiphon.adapters.oidc.issuer_keys import IssuerKeys
    except ImportError:
        raise SettingsError(
            f"oidc.issuer needs a package. Install it with: {install_command('oidc')}"
        ) from None
    context = _ssl_context(oidc)

    # Kept, because reading all authorities of the web for TLS takes as long as a thousand requests.
    @lru_cache(maxsize=2)
    def fetcher_for(url: str) -> Fetcher:
        return http_fetcher(
            operator_policy([url]),
            max_bytes=ISSUER_ANSWER_BYTES,
            timeout_s=ISSUER_TIMEOUT_S,
            max_redirects=0,
            ssl_context=context,
            egress=egress(settings).without_certificate,
        )

    return IssuerKeys(oidc.issuer, oidc.algorithms, fetcher_for, jwks_url=oidc.jwks_url, now=now)


def _ssl_context(oidc: Oidc) -> ssl.SSLContext | None:
    if oidc.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=oidc.ca_file)
    except OSError as error:
        raise SettingsError(
            f"oidc.ca_file {str(oidc.ca_file)!r} cannot be used: {error}."
        ) from None


def _find_token_caller(oidc: Oidc, keys: IssuerKeys | None) -> FindTokenCaller | None:
    if oidc.issuer is None or keys is None:
        return None
    from antiphon.adapters.oidc.jwt_verifier import JwtVerifier

    verifier = JwtVerifier(
        keys,
        issuer=oidc.issuer,
        audience=oidc.audience,
        algorithms=oidc.algorithms,
        leeway_s=oidc.leeway_s,
    )
    rules = ClaimRules(
        tenant_claim=oidc.tenant_claim,
        tenant_prefix=oidc.tenant_prefix,
        name_claim=oidc.name_claim,
        scopes=oidc.scopes,
        claims=oidc.claims,
    )
    return FindTokenCaller(verifier, rules)
