"""Which hosts a search may show."""

from __future__ import annotations

import pytest

from antiphon.application.ports import DomainFilter


@pytest.mark.parametrize(
    ("domain", "url", "is_below"),
    [
        ("a.example", "https://a.example/x", True),
        ("a.example", "https://b.a.example:8443/", True),
        ("A.Example.", "HTTPS://B.a.EXAMPLE./", True),
        ("*.a.example", "https://b.a.example/", True),
        ("a.example", "https://xa.example/", False),
        ("a.example", "https://a.example.evil/", False),
        ("a.example", "https://evil/a.example", False),
        ("a.example", "https://a.example@evil/", False),
        ("bücher.example", "https://xn--bcher-kva.example/", True),
        ("xn--bcher-kva.example", "https://bücher.example/", True),
        ("example", "https://a.example/", True),
        ("", "https://a.example/", False),
        ("a.example", "http://[", False),
        ("a.example", "nonsense", False),
    ],
)
def test_a_domain_is_its_host_and_all_below_it(domain: str, url: str, is_below: bool) -> None:
    assert DomainFilter(allowed=(domain,)).allows(url) is is_below
    assert DomainFilter(blocked=(domain,)).allows(url) is not is_below


def test_what_is_blocked_is_not_allowed() -> None:
    domains = DomainFilter(allowed=("a.example", "b.example"), blocked=("x.a.example",))
    hosts = ["a.example", "x.a.example", "y.x.a.example", "b.example", "c.example"]
    allowed = [domains.allows(f"https://{host}/") for host in hosts]
    assert allowed == [True, False, False, True, False]
    assert DomainFilter().allows("https://anywhere.example/")
