"""The header of a proxy names the tenant, if the proxy's own address sent it, and never else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.http.conftest import create

from antiphon.domain.errors import Unauthenticated
from antiphon.entrypoints.http.access.identity import ProxyIdentity
from antiphon.entrypoints.settings import TrustedProxy

BASE = {"model": "scripted-chat", "input": "hi"}
SECRET = "0123456789abcdef"
PROXY = TrustedProxy(addresses=("10.1.2.0/24", "fd00::7"), tenant_prefix="")
GUARDED = TrustedProxy(addresses=("10.1.2.0/24",), tenant_prefix="", secret=SECRET)
TENANT = b"x-antiphon-tenant"


def scope(peer: str | None, *headers: tuple[bytes, bytes]) -> Any:
    return {"client": None if peer is None else (peer, 4711), "headers": list(headers)}


def tenant_of(scope: Any, settings: TrustedProxy = PROXY) -> str | None:
    caller = asyncio.run(ProxyIdentity(settings)(scope))
    return caller and caller.tenant


def refusal(scope: Any, settings: TrustedProxy = PROXY) -> str:
    with pytest.raises(Unauthenticated) as refused:
        tenant_of(scope, settings)
    return refused.value.message


# --- who is believed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "peer", ["10.1.2.0", "10.1.2.255", "::ffff:10.1.2.3", "fd00::7", "FD00::7"]
)
def test_a_proxy_names_the_tenant(peer: str) -> None:
    assert tenant_of(scope(peer, (TENANT, b"anna"))) == "anna"
    assert tenant_of(scope(peer)) is None


@pytest.mark.parametrize(
    "peer",
    [
        *("10.1.3.0", "10.1.1.255", "127.0.0.1", "::1", "fd00::8", "::10.1.2.3"),
        *(
            "64:ff9b::10.1.2.3",
            "::ffff:0:10.1.2.3",
            "2002:a01:203::",
            "",
            "proxy",
            None,
            "010.1.2.3",
        ),
    ],
)
def test_nobody_else_does_whatever_the_headers_say(peer: str | None) -> None:
    spoofed = [
        (TENANT, b"anna"),
        (b"x-forwarded-for", b"10.1.2.3"),
        (b"x-real-ip", b"10.1.2.3"),
        (b"forwarded", b"for=10.1.2.3"),
        (b"x-antiphon-proxy-secret", SECRET.encode()),
    ]
    for settings_ in (PROXY, GUARDED):
        assert "only from a trusted proxy" in refusal(scope(peer, *spoofed), settings_)


@pytest.mark.parametrize(
    "secrets",
    [[], [b""], [SECRET[:-1].encode()], [SECRET.encode() + b" "], [b"\xff"], [SECRET.encode()] * 2],
)
def test_a_secret_is_needed_if_one_is_set(secrets: list[bytes]) -> None:
    name = b"x-antiphon-proxy-secret"
    headers = [(TENANT, b"anna"), *((name, secret) for secret in secrets)]
    assert "only from a trusted proxy" in refusal(scope("10.1.2.3", *headers), GUARDED)
    good = (name, SECRET.encode())
    assert tenant_of(scope("10.1.2.3", (TENANT, b"anna"), good), GUARDED) == "anna"


def test_a_header_that_was_sent_twice_is_refused() -> None:
    for second in (b"bob", b"anna", b""):
        assert "more than once" in refusal(scope("10.1.2.3", (TENANT, b"anna"), (TENANT, second)))


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b" ", b"anna,bob", b"anna, bob", b"anna bob", b"../anna", b"anna\0", b"\xc3\xa4"),
        *(b"anna\n", b"anna\r\nx: y", b"a" * 65, b"-anna", b"anna/b", b"%61nna", b"*"),
    ],
)
def test_a_value_that_can_name_no_tenant_is_refused(value: bytes) -> None:
    assert "must name a tenant" in refusal(scope("10.1.2.3", (TENANT, value)))


def test_a_prefix_keeps_its_tenants_from_those_of_keys() -> None:
    default = TrustedProxy(addresses=("10.1.2.3",), tenant_header="X-Forwarded-User")
    request = scope("10.1.2.3", (b"x-forwarded-user", b"default"))
    assert tenant_of(request, default) == "proxy-default"


@given(
    peer=st.one_of(st.ip_addresses(network="192.0.2.0/24").map(str), st.text(max_size=9)),
    values=st.lists(st.binary(max_size=80), max_size=3),
    forwarded=st.lists(st.binary(max_size=60), max_size=3),
)
@settings(max_examples=200)
def test_no_request_of_a_stranger_gets_a_tenant(
    peer: str, values: list[bytes], forwarded: list[bytes]
) -> None:
    headers = [(TENANT, value) for value in values]
    headers += [(b"x-forwarded-for", value) for value in forwarded]
    if values:
        refusal(scope(peer, *headers))
        if len(values) == 1:
            with suppress(Unauthenticated):
                assert tenant_of(scope("10.1.2.3", *headers)) == values[0].decode()


# --- on a server ----------------------------------------------------------------------------------


def test_a_server_behind_a_proxy_serves_each_tenant_its_own(serve: Callable[..., Any]) -> None:
    with (
        serve(**{"trusted_proxy.addresses": ["127.0.0.1"]}) as server,
        httpx.Client(base_url=server.api, timeout=20) as client,
    ):
        anna = {"x-antiphon-tenant": "anna", "authorization": "Basic of-the-proxy"}
        client.headers.update(anna)
        path = f"/responses/{create(client, **BASE)['id']}"
        assert client.get(path).status_code == 200
        assert client.get(path, headers={"x-antiphon-tenant": "bob"}).status_code == 404
        assert client.get(path, headers={"x-antiphon-tenant": "a b"}).status_code == 401
        assert httpx.get(f"{server.api}/models").status_code == 401


def test_a_server_refuses_the_header_from_another_address(serve: Callable[..., Any]) -> None:
    with serve(**{"trusted_proxy.addresses": ["10.1.2.3"]}) as server:
        headers = {"x-antiphon-tenant": "anna", "x-forwarded-for": "10.1.2.3"}
        answer = httpx.get(f"{server.api}/models", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "only from a trusted proxy" in answer.json()["error"]["message"]
