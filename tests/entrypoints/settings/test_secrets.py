"""No message shows a secret setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.stores.postgres.store import PostgresStore
from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings, load

HALVES = ("h4lf", "r3st")
ADDRESSES = [
    *(f"//anna:h4lf{character}r3st@127.0.0.1:1/0" for character in ":/?#@[%&= "),
    "//:h4lfr3st@127.0.0.1:1/0",
    "//127.0.0.1:1/0?user=anna&password=h4lfr3st",
    "//127.0.0.1:1/0?sslpassword=h4lf%23r3st&sslmode=disable",
    "//anna:h4lf@127.0.0.1:1/0?password=r3st",
]


def hides_secrets(text: str) -> bool:
    return not any(half in text for half in HALVES)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_the_banner_shows_no_password(scheme: str, address: str) -> None:
    assert hides_secrets(load(None, {}, {"store": f"{scheme}:{address}"}).shown_store)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_unknown_store_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(None, {"ANTIPHON_STORE": f"mysql:{address}"}, {})
    assert hides_secrets(str(refused.value))


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "store", [lambda it: PostgresStore(f"postgresql:{it}"), lambda it: RedisStore(f"redis:{it}")]
)
async def test_an_unreachable_store_is_named_without_its_password(store: Any, address: str) -> None:
    with pytest.raises(SettingsError) as refused:
        await store(address).start()
    assert hides_secrets(str(refused.value))


@pytest.mark.parametrize("store", [PostgresStore, RedisStore])
async def test_a_password_that_is_not_percent_encoded_is_refused_with_advice(
    store: Any,
) -> None:
    scheme = "postgresql" if store is PostgresStore else "redis"
    with pytest.raises(SettingsError, match="%2F for /"):
        await store(f"{scheme}://anna:h4lf/r3st@127.0.0.1/0").start()


async def test_an_unknown_redis_option_is_refused_in_one_sentence() -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        await RedisStore("redis://127.0.0.1:1/0?h4lf=r3st").start()


@pytest.mark.parametrize("name", ["webhook_secret", "webhook_url"])
@pytest.mark.parametrize("value", ['["h4lf"]', '{ r3st = "h4lf" }', '""'])
def test_an_invalid_secret_is_refused_without_its_value(
    tmp_path: Path, name: str, value: str
) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(f"{name} = {value}")
    with pytest.raises(
        SettingsError, match=rf"^{name} in .* must be a non-empty string"
    ) as refused:
        load(file, {}, {})
    assert hides_secrets(str(refused.value))


def test_no_message_shows_the_password_of_a_store(refusal: Any) -> None:
    wrong = "postgres:/anna:se:cret@db/kept"
    assert "cret" not in refusal(options={"store": f"x://{wrong[10:]}"})
    assert Settings(store="redis://:s@cret@host").shown_store == "redis://:***@host"
