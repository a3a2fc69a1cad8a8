"""Which errors of Redis, of its client and of the network mean that the store cannot be used."""

from __future__ import annotations

import pytest
from redis import exceptions

from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.domain.errors import StoreError

CLOSED = "unable to perform operation on <TCPTransport closed=True 0x7f>; the handler is closed"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.ConnectionError("refused"), "connection was lost"),
        (ConnectionResetError("reset"), "connection was lost"),
        (RuntimeError(CLOSED), "the connection was lost"),
        (exceptions.ResponseError("OOM command not allowed"), "its memory is full"),
    ],
)
def test_an_error_that_may_pass_is_one_of_the_store(error: Exception, reason: str) -> None:
    scripts = RedisScripts("redis://127.0.0.1:1/0", prefix="p")
    with pytest.raises(StoreError, match=reason), scripts.raising_store_errors():
        raise error


def test_a_defect_of_ours_is_none_of_the_store() -> None:
    scripts = RedisScripts("redis://127.0.0.1:1/0", prefix="p")
    with pytest.raises(RuntimeError, match="changed size"), scripts.raising_store_errors():
        raise RuntimeError("dictionary changed size during iteration")
