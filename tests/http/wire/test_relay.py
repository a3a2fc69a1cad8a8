"""What a server accepts as relayed by another one: a voucher for this request, once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.adapters.ids import new_tagged_id
from antiphon.adapters.sealing import Sealer
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.resources.server_addresses import ALIVE_S, ServerAddresses, server_tag
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import RequestError, Unauthenticated
from antiphon.entrypoints.http.relay.relayed_requests import (
    VALID_S,
    Voucher,
    Vouchers,
    can_be_relayed,
    check_digest,
    digest_of,
)

TAG = server_tag("srv_1")
SCOPE: Any = {
    "type": "http",
    "method": "DELETE",
    "raw_path": b"/v1/containers/cntr_1",
    "query_string": b"a=%20b",
}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "seal.key"


@pytest.fixture
def vouchers(key_file: Path) -> Iterator[Vouchers]:
    return Vouchers(Sealer(key_file).sign, TAG)


def a_voucher(**fields: Any) -> Voucher:
    voucher = Voucher(
        method="DELETE",
        target="/v1/containers/cntr_1?a=%20b",
        digest=digest_of(b"body"),
        caller=Caller(tenant="anna"),
        receiver=TAG,
        signed_at=time.time(),
        nonce="1",
    )
    return replace(voucher, **fields)


def test_a_voucher_counts_once(vouchers: Vouchers) -> None:
    value = vouchers.encode(a_voucher())
    assert vouchers.check(value, SCOPE).caller == Caller(tenant="anna")
    with pytest.raises(Unauthenticated):
        vouchers.check(value, SCOPE)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "GET"},
        {"target": "/v1/containers/cntr_1"},
        {"target": "/v1/containers/cntr_2?a=%20b"},
        {"receiver": server_tag("srv_2")},
        {"signed_at": time.time() - VALID_S - 1},
        {"signed_at": time.time() + 86_400},
        {"signed_at": float("inf")},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_voucher_for_something_else_is_refused(
    vouchers: Vouchers, fields: dict[str, Any]
) -> None:
    with pytest.raises(Unauthenticated):
        vouchers.check(vouchers.encode(a_voucher(**fields)), SCOPE)


def test_a_voucher_that_was_changed_or_signed_with_another_key_is_refused(
    vouchers: Vouchers, tmp_path: Path
) -> None:
    content, _, signature = vouchers.encode(a_voucher()).partition(".")
    other = vouchers.encode(a_voucher(caller=Caller(tenant="ben"))).partition(".")[0]
    stranger = Vouchers(Sealer(tmp_path / "other.key").sign, TAG).encode(a_voucher())
    for value in (f"{other}.{signature}", f"{content}.", content, f"{content}.é", stranger, ""):
        with pytest.raises(Unauthenticated):
            vouchers.check(value, SCOPE)
    assert vouchers.check(f"{content}.{signature}", SCOPE)


def test_another_body_is_refused() -> None:
    check_digest(a_voucher(), b"body")
    with pytest.raises(RequestError):
        check_digest(a_voucher(), b"another")


def test_an_id_begins_with_the_tag_of_its_server() -> None:
    ids = {new_tagged_id(TAG, "cntr") for _ in range(3)}
    assert len(ids) == 3
    assert {len(each) for each in ids} == {len("cntr_") + 48}
    assert all(each.startswith(f"cntr_{TAG}") for each in ids)


@pytest.mark.parametrize(
    ("method", "path", "is_relayed"),
    [
        ("GET", "/v1/containers", True),
        ("DELETE", f"/v1/containers/cntr_{TAG}{'0' * 32}", True),
        ("POST", f"/v1/containers/cntr_{TAG}{'0' * 32}/files", True),
        ("POST", "/v1/responses", True),
        ("POST", "/v1/responses/input_tokens", True),
        ("POST", "/v1/responses/compact", True),
        ("POST", "/v1/chat/completions", True),
        ("POST", "/v1/messages", True),
        ("POST", "/v1/messages/count_tokens", True),
        ("POST", "/v1/containers", False),
        ("GET", f"/v1/containers/cntr_{TAG}{'0' * 31}", False),
        ("GET", f"/v1/containers/cntr_{TAG}{'0' * 32}x", False),
        ("GET", "/v1/responses", False),
        ("POST", "/v1/responses/resp_1/cancel", False),
        ("GET", "/v1/files", False),
        ("GET", "/metrics", False),
    ],
)
def test_servers_relay_only_what_needs_a_container(
    method: str, path: str, is_relayed: bool
) -> None:
    assert can_be_relayed(method, path) is is_relayed


def test_a_voucher_names_the_rights_of_the_caller(vouchers: Vouchers) -> None:
    policy = KeyPolicy(limits={"requests/min": 3}, models=("small",))
    caller = Caller(tenant="anna", key_id="key_1", policy=policy, is_counted=True)
    assert vouchers.check(vouchers.encode(a_voucher(caller=caller)), SCOPE).caller == caller


async def test_servers_find_each_other_until_one_stops_or_dies() -> None:
    store = MemoryStore()
    now = 1000.0
    one, other, third = (
        ServerAddresses(store, tag=tag, url=f"http://{tag}", now=lambda: now) for tag in "123"
    )
    for server in (one, other, third):
        await server.announce()
    assert await one.others() == {"2": "http://2", "3": "http://3"}
    await third.withdraw()
    now += 2
    assert await one.others() == {"2": "http://2"}
    now += ALIVE_S - 3
    await one.announce()
    assert await one.others() == {"2": "http://2"}
    now += 2
    assert await one.others() == {}, "it was silent for too long"
    assert await other.others() == {"1": "http://1"}
