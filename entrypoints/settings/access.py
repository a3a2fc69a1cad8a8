"""The settings of those who vouch for callers: an OpenID Connect issuer, and a trusted proxy."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.adapters.oidc.secure_url import SECURE_URL
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.about import OIDC, TRUSTED_PROXY, about

TENANT_PREFIX = r"^([A-Za-z0-9][A-Za-z0-9._@-]{0,31})?\Z"

Algorithm = Literal[
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
]
"""Signatures with a private key. With any other, who verifies a token could also forge it."""


class Oidc(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The issuer whose tokens are accepted beside API keys."""

    issuer: Annotated[
        Annotated[str, Meta(pattern=SECURE_URL)] | None,
        about(
            OIDC,
            "The issuer whose tokens (JWT) are accepted beside API keys, exactly as the tokens "
            "spell it. It needs oidc.audience. Each request then needs a key or a token.",
            allowed="an https URL, or an http URL on this machine",
            shown_default="none: only API keys are accepted",
        ),
    ] = None
    audience: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            OIDC,
            "What a token's `aud` must name: the name of this server at the issuer. Repeat the "
            "option to accept several.",
            shown_default="none",
        ),
    ] = ()
    jwks_url: Annotated[
        Annotated[str, Meta(pattern=SECURE_URL)] | None,
        about(
            OIDC,
            "The URL of the issuer's public keys (JWKS).",
            allowed="an https URL, or an http URL on this machine",
            shown_default="as ISSUER/.well-known/openid-configuration says",
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        about(
            OIDC,
            "A PEM file of the certificate authorities that may vouch for the issuer's server.",
            shown_default="the public ones",
        ),
    ] = None
    tenant_claim: Annotated[
        str,
        about(
            OIDC,
            "The claim that names the tenant. A dot steps into an object: org.id. Callers with "
            "the same value share all objects.",
            min_length=1,
        ),
    ] = "sub"
    tenant_prefix: Annotated[
        str,
        about(
            OIDC,
            "What to put before that value to get the tenant, so that no claim can name the tenant "
            'of an API key by accident. "" puts nothing before it.',
            allowed="up to 32 letters, digits, '.', '_', '@' and '-', beginning with a letter or "
            "a digit",
            pattern=TENANT_PREFIX,
        ),
    ] = "oidc-"
    name_claim: Annotated[
        str,
        about(OIDC, "The claim that names the caller for people.", min_length=1),
    ] = "sub"
    scopes: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            OIDC,
            "A scope that a token must have. Repeat the option to require several.",
            shown_default="none",
        ),
    ] = ()
    claims: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^=]+=.+\Z")], ...],
        about(
            OIDC,
            "A claim that a token must have: NAME=VALUE. A list must contain the value. Repeat "
            "the option to require several.",
            allowed="a list of NAME=VALUE",
            shown_default="none",
        ),
    ] = ()
    algorithms: Annotated[
        tuple[Algorithm, ...],
        about(
            OIDC,
            "An algorithm that may have signed a token. Repeat the option to allow several.",
            allowed="a list of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, "
            "EdDSA",
            shown_default="RS256, PS256, ES256, EdDSA",
        ),
    ] = ("RS256", "PS256", "ES256", "EdDSA")
    leeway_s: Annotated[
        float,
        about(
            OIDC,
            "Seconds by which the issuer's clock may differ from this machine's.",
            ge=0,
            le=300,
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        if not self.algorithms:
            raise SettingsError("oidc.algorithms must have at least one algorithm.")

    @property
    def is_on(self) -> bool:
        return self.issuer is not None


class TrustedProxy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proxy that authenticates callers itself."""

    addresses: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        about(
            TRUSTED_PROXY,
            "The address or network of a proxy in front of this server that says who sends a "
            "request, for example 10.1.2.3. Everything at that address can act as any tenant. "
            "Repeat the option to add addresses.",
            allowed="a list of addresses and networks",
            shown_default="none: no proxy is trusted",
        ),
    ] = ()
    tenant_header: Annotated[
        str,
        about(
            TRUSTED_PROXY,
            "The header in which the proxy names the tenant. The proxy must remove it from what "
            "clients send.",
            allowed="the name of a header",
            pattern=r"^[A-Za-z0-9-]{1,64}\Z",
        ),
    ] = "x-antiphon-tenant"
    tenant_prefix: Annotated[
        str,
        about(
            TRUSTED_PROXY,
            "What to put before that value to get the tenant, so that it cannot name the tenant of "
            'an API key by accident. "" puts nothing before it.',
            allowed="up to 32 letters, digits, '.', '_', '@' and '-', beginning with a letter or "
            "a digit",
            pattern=TENANT_PREFIX,
        ),
    ] = "proxy-"
    secret: Annotated[
        Annotated[str, Meta(pattern=r"^[!-~]{16,512}\Z")] | None,
        about(
            TRUSTED_PROXY,
            "What the proxy must send in the header x-antiphon-proxy-secret, if other programs at "
            "its address could pose as it. Set it as an environment variable: other users can see "
            "the command line.",
            allowed="16 to 512 printable characters without spaces",
            shown_default="none",
            is_secret=True,
        ),
    ] = None

    def __post_init__(self) -> None:
        for text in self.addresses:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                raise SettingsError(
                    "trusted_proxy.addresses must list addresses like 10.1.2.3 and networks like "
                    f"10.1.2.0/24, not {text!r}: {error}."
                ) from None
        if self.tenant_header.lower() in _NO_TENANT_HEADERS:
            raise SettingsError(
                f"trusted_proxy.tenant_header cannot be {self.tenant_header!r}: name a header that "
                "only the proxy sends."
            )

    @property
    def is_on(self) -> bool:
        return bool(self.addresses)

    def __repr__(self) -> str:
        return f"TrustedProxy({self.addresses!r})"  # without the secret


_NO_TENANT_HEADERS = frozenset(
    {
        "authorization",
        "cookie",
        "host",
        "x-antiphon-proxy-secret",
        "x-api-key",
        "x-forwarded-for",
    }
)
