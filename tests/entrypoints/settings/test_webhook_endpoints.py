"""Webhook endpoints in the settings and their file, and secrets that errors never repeat."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.resources.webhooks import WebhookEndpoint
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.wiring.webhooks import operator_policy, read_endpoints

SECRET = b"s" * 32
WHSEC = f"whsec_{base64.b64encode(SECRET).decode()}"


def endpoints(**options: Any) -> list[WebhookEndpoint]:
    return list(read_endpoints(load(None, {}, options)))


def refusal(**options: Any) -> str:
    with pytest.raises(SettingsError) as error:
        endpoints(**options)
    return str(error.value)


def write_file(folder: Path, text: str) -> str:
    file = folder / "webhooks.toml"
    file.write_text(text)
    return str(file)


def test_there_are_no_endpoints_by_default() -> None:
    assert endpoints() == []


def test_one_endpoint_needs_no_file() -> None:
    [endpoint] = endpoints(webhook_url="https://example.org/hook?key=k", webhook_secret=WHSEC)
    assert endpoint.url == "https://example.org/hook?key=k"
    assert endpoint.secrets == [SECRET]
    assert endpoint.wants("anybody", "response.cancelled")
    assert endpoint.name.startswith("example.org-")
    assert "key" not in endpoint.name


def test_a_file_can_hold_several_endpoints(tmp_path: Path) -> None:
    new = f"whsec_{base64.b64encode(b'n' * 24).decode()}"
    file = write_file(
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
        (f'[[endpoint]]\nurl = "https://e.org/"\nsecret = "{WHSEC}"\n' * 2, "a unique name"),
    ],
)
def test_an_invalid_file_is_refused_without_showing_secrets(
    tmp_path: Path, text: str, sentence: str
) -> None:
    error = refusal(webhooks=write_file(tmp_path, text))
    assert sentence in error
    assert "k3y" not in error


def test_url_and_secret_need_each_other() -> None:
    assert "set both" in refusal(webhook_url="https://example.org/")
    assert "set both" in refusal(webhook_secret=WHSEC)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(webhooks=str(tmp_path / "none.toml"))


def policy_for(*urls: str) -> UrlPolicy:
    return operator_policy(urls)


@pytest.mark.parametrize(
    "url", ["https://hooks.example.org/other", "http://10.0.0.7:9000/", "http://[::1]:9000/x"]
)
def test_the_hosts_and_ports_of_the_settings_are_allowed(url: str) -> None:
    policy = policy_for(
        "https://Hooks.example.org./a", "http://10.0.0.7:9000", "http://[::1]:9000/"
    )
    policy.check_url(url)


@pytest.mark.parametrize(
    "url",
    ["http://hooks.example.org/", "http://10.0.0.7/", "http://10.0.0.8:9000/", "http://[::1]/"],
)
def test_no_other_host_or_port_is_allowed(url: str) -> None:
    policy = policy_for("https://hooks.example.org/a", "http://10.0.0.7:9000", "http://[::1]:9000/")
    with pytest.raises(FetchRefused):
        policy.check_url(url)


def test_the_operators_networks_are_allowed_but_not_a_clouds_metadata_service() -> None:
    policy = policy_for("http://hooks.internal/")
    assert all(map(policy.allows_address, ("127.0.0.1", "10.1.1.1", "::1", "fd00::1", "9.9.9.9")))
    assert not any(
        map(policy.allows_address, ("169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"))
    )
