"""The settings of the connections that this server makes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from antiphon.entrypoints.settings.about import OUTGOING, about

PROXY_URL = r"^http://([^/@\s?#]+@)?[^/@\s?#]+/?\Z"
DIRECT_NAME = r"^\.?[A-Za-z0-9:]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?\Z"


class Outgoing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Connections to other servers: with which certificate, and through which proxy."""

    cert: Annotated[
        Path | None,
        about(
            OUTGOING,
            "The certificate, in PEM, that this server shows to those that you configured and that "
            "ask for one: MCP servers, model servers, embeddings, search services and webhooks. It "
            "needs outgoing.key. Both are read when the server starts.",
            shown_default="none",
        ),
    ] = None
    key: Annotated[
        Path | None,
        about(
            OUTGOING,
            "The private key of that certificate, in PEM, unencrypted.",
            shown_default="none",
        ),
    ] = None
    proxy: Annotated[
        Annotated[str, Meta(pattern=PROXY_URL)] | None,
        about(
            OUTGOING,
            "An HTTP proxy for URLs that requests name, MCP servers, search services and webhooks "
            "at public addresses. This server looks up each name itself and asks the proxy for the "
            "address. Set it as an environment variable if it has a password.",
            allowed="http://HOST:PORT or http://NAME:PASSWORD@HOST:PORT",
            shown_default="none",
            is_secret=True,
        ),
    ] = None
    no_proxy: Annotated[
        tuple[Annotated[str, Meta(pattern=DIRECT_NAME)], ...],
        about(
            OUTGOING,
            "A host to reach without the proxy: NAME, or .NAME for it and its subdomains. Repeat "
            "the option to add hosts. Private addresses are always reached without it.",
            allowed="a list of host names, without ports",
            shown_default="none",
        ),
    ] = ()

    def __repr__(self) -> str:
        return "Outgoing()"  # the proxy's password is secret
