"""Endpoints of webhooks: what the settings and their file may say, and what is never repeated."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.fetching import UrlPolicy
from antiphon.application.resources.webhooks import WebhookEndpoint
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.wiring.webhooks import operator_policy, read_endpoints

SECRET = b"s" * 32
WHSEC = f"whsec_{base64.b64encode(SECRET).decode()}"


def endpoints(**given: Any) -> list[WebhookEndpoint]:
    return list(read_endpoints(load(None, {}, given)))


def refusal(**given: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        endpoints(**given)
    return str(caught.value)


def in_file(folder: Path, text: str) -> str:
    file = folder / "webhooks.toml"
    file.write_text(text)
    return str(file)


def test_none_are_told_unless_the_settings_say_so() -> None:
    assert endpoints() == []


def test_one_endpoint_needs_no_file() -> None:
    [told] = endpoints(webhook_url="https://example.org/hook?key=k", webhook_secret=WHSEC)
    assert told.url == "https://example.org/hook?key=k"
    assert told.secrets == [SECRET]
    assert told.wants("anybody", "response.cancelled")
    assert told.name.startswith("example.org-")
    assert "key" not in told.name


def test_a_file_has_any_number_of_them(tmp_path: Path) -> None:
    new = f"whsec_{base64.b64encode(b'n' * 24).decode()}"
    file = in_file(
        tmp_path,
        f"""
        [[endpoint]]
        url = "https://example.org/one"
        secret = ["{new}", "{WHSEC}"]
        events = ["response.failed"]

        [[endpoint]]
        name = "two"
        url = "http://10.0.0.7:9000/two"
        secret = "{WHSEC}"
        tenant = "us"
        """,
    )
    one, two = endpoints(webhooks=file)
    assert one.secrets == [b"n" * 24, SECRET]
    assert one.events == ("response.failed",)
    assert (two.name, two.tenant) == ("two", "us")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[endpoint]", "is not TOML"),
        ('[[endpoint]]\nurl = "https://example.org/"', "missing required field `secret`"),
        ('[[endpoint]]\nurl = "https://example.org/"\nsecret = "x"\nadress = ""', "`adress`"),
        (
            f'[[endpoint]]\nurl = "ftp://example.org/k3y"\nsecret = "{WHSEC}"',
            "Only http and https URLs",
        ),
        (f'[[endpoint]]\nurl = "https://u:k3y@example.org"\nsecret = "{WHSEC}"', "password"),
        ('[[endpoint]]\nurl = "https://example.org/"\nsecret = "k3y"', "24 to 64 bytes"),
        ('[[endpoint]]\nurl = "https://example.org/"\nsecret = "whsec_k3y="', "24 to 64 bytes"),
        ('[[endpoint]]\nurl = "https://example.org/"\nsecret = []', "is empty"),
        (
            f'[[endpoint]]\nurl = "https://e.org/"\nsecret = "{WHSEC}"\nevents = ["response.done"]',
            "events",
        ),
        (f'[[endpoint]]\nurl = "https://e.org/"\nsecret = "{WHSEC}"\n' * 2, "name of its own"),
    ],
)
def test_a_wrong_file_is_answered_with_what_is_wrong_but_not_with_secrets(
    tmp_path: Path, text: str, sentence: str
) -> None:
    told = refusal(webhooks=in_file(tmp_path, text))
    assert sentence in told
    assert "k3y" not in told


def test_url_and_secret_need_each_other() -> None:
    assert "set both" in refusal(webhook_url="https://example.org/")
    assert "set both" in refusal(webhook_secret=WHSEC)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(webhooks=str(tmp_path / "none.toml"))


def guard_of(*urls: str) -> UrlPolicy:
    return operator_policy(urls)


@pytest.mark.parametrize(
    "url", ["https://hooks.example.org/other", "http://10.0.0.7:9000/", "http://[::1]:9000/x"]
)
def test_exactly_the_hosts_and_ports_of_the_settings_are_reached(url: str) -> None:
    guard = guard_of("https://Hooks.example.org./a", "http://10.0.0.7:9000", "http://[::1]:9000/")
    guard.check_url(url)


@pytest.mark.parametrize(
    "url",
    ["http://hooks.example.org/", "http://10.0.0.7/", "http://10.0.0.8:9000/", "http://[::1]/"],
)
def test_no_other_host_or_port_is_reached(url: str) -> None:
    guard = guard_of("https://hooks.example.org/a", "http://10.0.0.7:9000", "http://[::1]:9000/")
    with pytest.raises(FetchRefused):
        guard.check_url(url)


def test_the_operators_networks_are_reached_and_a_clouds_metadata_are_not() -> None:
    guard = guard_of("http://hooks.internal/")
    assert all(map(guard.allows_address, ("127.0.0.1", "10.1.1.1", "::1", "fd00::1", "9.9.9.9")))
    assert not any(
        map(guard.allows_address, ("169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"))
    )
