"""Tokens of an issuer: only what it signed for us, now, with a key that it publishes, is valid."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.security.support.issuer import (
    AUDIENCE,
    DISCOVERY,
    JWKS,
    Issuer,
    SigningKey,
    issuing,
    own_authority,
)

from antiphon.adapters.oidc import issuer_keys
from antiphon.adapters.oidc.jwt_verifier import JwtVerifier
from antiphon.application.ports import TokenVerifier, VerifiedToken
from antiphon.application.resources.tokens import ClaimRules, FindTokenCaller, caller_of_claims
from antiphon.domain.errors import InvalidToken, IssuerUnavailable
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.wiring import access

ALGORITHMS = ("RS256", "PS256", "ES256", "EdDSA")
MUTATIONS = int(os.environ.get("ANTIPHON_TEST_MUTATIONS", "700"))
MAX_CACHED = 10


class CountingVerifier(TokenVerifier):
    """Counts how often a token is verified."""

    def __init__(self, verifier: TokenVerifier) -> None:
        self._verifier = verifier
        self.calls = 0

    @property
    def keys_version(self) -> int:
        return self._verifier.keys_version

    async def verify(self, token: str) -> VerifiedToken:
        self.calls += 1
        return await self._verifier.verify(token)


class Server:
    """What a server verifies tokens with, and a clock for the age of its keys."""

    def __init__(self, issuer: Issuer, **options: Any) -> None:
        given = {"oidc.issuer": issuer.url, "oidc.audience": [AUDIENCE], "oidc.leeway_s": "0"}
        settings = load(None, {}, {**given, **options})
        self.now = 1000.0
        self.clock = time.time
        keys = access.issuer_keys(settings, now=lambda: self.now)
        assert keys is not None
        self.keys = keys
        self.verifier = CountingVerifier(
            JwtVerifier(
                keys,
                issuer=issuer.url,
                audience=settings.oidc.audience,
                algorithms=settings.oidc.algorithms,
                leeway_s=settings.oidc.leeway_s,
            )
        )
        self.find = FindTokenCaller(
            self.verifier, ClaimRules(), now=lambda: self.clock(), max_cached=MAX_CACHED
        )

    async def refusal(self, token: str) -> str:
        with pytest.raises(InvalidToken) as refused:
            await self.find(token)
        return refused.value.message


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture
async def server(issuer: Issuer) -> Server:
    server = Server(issuer)
    await server.keys.start()
    return server


def encoded(part: Any) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


# --- what is valid --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_token_of_each_algorithm_names_its_tenant(issuer: Issuer, algorithm: str) -> None:
    issuer.key = SigningKey("k", algorithm)
    issuer.published = [issuer.key.jwk]
    server = Server(issuer)
    await server.keys.start()
    caller = await server.find(issuer.token())
    assert caller.tenant == "anna"
    assert caller.key_name == "anna"
    subject = f"{issuer.url}\0anna".encode()
    assert caller.key_id == "oidc:" + hashlib.sha256(subject).hexdigest()[:32]


async def test_a_token_for_several_audiences_is_valid_for_each(
    issuer: Issuer, server: Server
) -> None:
    assert (await server.find(issuer.token(aud=["other", AUDIENCE]))).tenant == "anna"


async def test_a_token_without_a_key_id_is_verified_with_the_only_key(
    issuer: Issuer, server: Server
) -> None:
    issuer.key.kid = None
    assert (await server.find(issuer.token())).tenant == "anna"


async def test_the_keys_may_be_at_a_url_that_the_settings_name(issuer: Issuer) -> None:
    issuer.answers["/elsewhere"] = issuer.answer(JWKS) or b""
    server = Server(issuer, **{"oidc.jwks_url": f"{issuer.url}/elsewhere"})
    await server.keys.start()
    assert (await server.find(issuer.token())).tenant == "anna"
    assert DISCOVERY not in issuer.asked


# --- what is not ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": 1_000_000}, "The token has expired."),
        ({"exp": None}, "The token has no claim 'exp'."),
        ({"exp": "soon"}, "The token is malformed."),
        ({"exp": [1]}, "The token is malformed."),
        ({"nbf": 1_000_000_000_000}, "The token is not valid yet."),
        ({"iat": 1_000_000_000_000}, "The token is not valid yet."),
        ({"aud": "billing"}, "The token is for another audience."),
        ({"aud": ["billing", "x"]}, "The token is for another audience."),
        ({"aud": {"antiphon": 1}}, "The token is for another audience."),
        ({"aud": None}, "The token has no claim 'aud'."),
        ({"iss": "https://evil.example"}, "The token is from another issuer."),
        ({"iss": None}, "The token has no claim 'iss'."),
        ({"sub": None}, "The token has no claim 'sub'."),
        ({"sub": 7}, "The token is malformed."),
    ],
)
async def test_a_claim_that_is_wrong_is_refused_with_its_name(
    issuer: Issuer, server: Server, changes: dict[str, Any], reason: str
) -> None:
    assert await server.refusal(issuer.token(**changes)) == reason


@pytest.mark.parametrize(
    "tenant",
    [
        *("", " ", "a b", "../b", "a/b", "ä", "a\n", "a\0", "-a", "a" * 65, "A" * 64 + "\n"),
        *("auth0|x", "\ud800", "a%00", 7, True, 1e400, ["a"], {"a": "b"}),
    ],
)
async def test_a_claim_that_can_name_no_tenant_is_refused(tenant: Any) -> None:
    claims = {"iss": "i", "sub": "s", "tenant": tenant}
    with pytest.raises(InvalidToken, match="cannot name a tenant"):
        caller_of_claims(claims, ClaimRules(tenant_claim="tenant"))


@pytest.mark.parametrize("claims", [{}, {"org": None}, {"org": {}}, {"org": "id"}, {"org": ["id"]}])
async def test_a_token_without_the_tenants_claim_is_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken, match=r"no claim 'org\.id' to name its tenant"):
        caller_of_claims({"iss": "i", "sub": "s", **claims}, ClaimRules(tenant_claim="org.id"))


def test_a_prefix_keeps_the_tenants_of_tokens_from_those_of_keys() -> None:
    rules = ClaimRules(tenant_claim="sub", tenant_prefix="oidc-")
    claims = {"iss": "i", "sub": "default"}
    assert caller_of_claims(claims, rules).tenant == "oidc-default"
    assert load(None, {}, {}).oidc.tenant_prefix == "oidc-"


def test_a_claim_inside_an_object_can_name_the_tenant() -> None:
    claims = {"iss": "i", "sub": "s", "kubernetes.io": {"namespace": "billing"}, "name": "\x07"}
    rules = ClaimRules(tenant_claim="kubernetes.io.namespace", name_claim="name")
    caller = caller_of_claims(claims, rules)
    assert (caller.tenant, caller.key_name) == ("billing", "")


@pytest.mark.parametrize(
    ("claims", "is_enough"),
    [
        ({"scope": "a b", "groups": ["llm"], "email_verified": True}, True),
        ({"scp": ["b", "a"], "groups": "llm", "email_verified": "true"}, True),
        ({"scope": "b", "groups": ["llm"], "email_verified": True}, False),
        ({"scope": "ab", "groups": ["llm"], "email_verified": True}, False),
        ({"scope": {"a": "b"}, "groups": ["llm"], "email_verified": True}, False),
        ({"scope": "a b", "groups": "llm2", "email_verified": True}, False),
        ({"scope": "a b", "groups": [["llm"]], "email_verified": True}, False),
        ({"scope": "a b", "groups": ["llm"], "email_verified": False}, False),
        ({"scope": "a b", "groups": ["llm"]}, False),
        ({}, False),
    ],
)
def test_scopes_and_claims_can_be_required(claims: dict[str, Any], is_enough: bool) -> None:
    rules = ClaimRules(scopes=["a", "b"], claims=["groups=llm", "email_verified=true"])
    expected: AbstractContextManager[Any] = (
        nullcontext() if is_enough else pytest.raises(InvalidToken)
    )
    with expected:
        caller_of_claims({"iss": "i", "sub": "s", **claims}, rules)


async def test_an_algorithm_without_a_private_key_is_refused(
    issuer: Issuer, server: Server
) -> None:
    claims = encoded(issuer.claims())
    public = issuer.key.private.public_key()
    secrets = [
        b"",
        json.dumps(issuer.key.jwk).encode(),
        public.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    ]
    for name in ("none", "None", "NONE", "nOnE", ""):
        head = encoded({"alg": name, "kid": "first"})
        for signature in ("", "AA"):
            assert "not allowed" in await server.refusal(f"{head}.{claims}.{signature}")
    for name, digest in (("HS256", "sha256"), ("HS384", "sha384"), ("HS512", "sha512")):
        signed = f"{encoded({'alg': name, 'kid': 'first'})}.{claims}"
        for secret in secrets:
            signature = encoded(hmac.digest(secret, signed.encode(), digest))
            assert "not allowed" in await server.refusal(f"{signed}.{signature}")


async def test_a_key_that_a_token_brings_along_is_not_used(issuer: Issuer, server: Server) -> None:
    forger = SigningKey("first", "ES256")
    issuer.answers["/forged"] = json.dumps({"keys": [forger.jwk]}).encode()
    for headers in (
        {"jku": f"{issuer.url}/forged"},
        {"x5u": f"{issuer.url}/forged"},
        {"jwk": forger.jwk},
        {"x5c": ["MIIB"]},
        {"kid": "second", "jku": f"{issuer.url}/forged"},
        {"kid": f"{issuer.url}/forged"},
        {"kid": "../../dev/null"},
        {"kid": "' OR 1=1 --"},
    ):
        await server.refusal(forger.sign(issuer.claims(), headers))
    assert "/forged" not in issuer.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"crit": ["exp"], "exp": 1},
        {"crit": ["b64"], "b64": False},
        {"crit": []},
        {"typ": "logout+jwt"},
        {"typ": "application/secevent+jwt"},
        {"alg": "RS256"},
        {"alg": 7},
        {"alg": None},
        {"alg": ["ES256"]},
        {"kid": 7},
        {"kid": ["first"]},
    ],
)
async def test_a_header_that_changes_the_rules_is_refused(
    issuer: Issuer, server: Server, headers: dict[str, Any]
) -> None:
    head = encoded({"alg": "ES256", "kid": "first", **headers})
    _, claims, signature = issuer.token().split(".")
    await server.refusal(f"{head}.{claims}.{signature}")
    if "alg" not in headers and not isinstance(headers.get("kid"), int | list):
        await server.refusal(issuer.token(headers=headers) if "b64" not in headers else "eyJ.e.e")


async def test_a_key_is_used_only_for_what_it_is_published_for(issuer: Issuer) -> None:
    weak = SigningKey("weak", "RS256")
    weak.private = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    secret = {"kty": "oct", "kid": "secret", "k": encoded(b"x" * 32)}
    jwk = issuer.key.jwk
    private = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(issuer.key.private))
    issuer.published = [
        SigningKey("good", "EdDSA").jwk,
        weak.jwk,
        secret,
        {**jwk, "kid": "encrypts", "use": "enc"},
        {**jwk, "kid": "signs", "key_ops": ["sign"]},
        {**jwk, "kid": "other", "alg": "ES384"},
        {**private, "kid": "leaked"},
        {**jwk, "kid": "broken", "x": "AA"},
        {"kid": "nothing"},
    ]
    server = Server(issuer)
    await server.keys.start()
    for kid in ("encrypts", "signs", "other", "leaked", "broken", "nothing"):
        assert "does not publish" in await server.refusal(issuer.token(headers={"kid": kid}))
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = weak.sign(issuer.claims())
    assert "does not publish" in await server.refusal(token)


async def test_a_deep_or_long_token_is_refused(issuer: Issuer, server: Server) -> None:
    deep = b"[" * 6000
    for head in (deep, b'{"alg":' + deep, b'{"alg":"ES256","kid":"first","x":' + deep, b"\xff{"):
        await server.refusal(f"{encoded(head)}.{encoded(issuer.claims())}.AA")
    signed = jwt.api_jws.encode(deep, issuer.key.private, "ES256", headers={"kid": "first"})
    await server.refusal(signed)
    assert (await server.find(issuer.token(groups=["g" * 36] * 150))).tenant == "anna"


def test_no_token_that_was_tampered_with_is_valid(issuer: Issuer) -> None:
    """Also one whose bytes differ in bits that lenient readers of Base64 skip."""
    server = Server(issuer)
    token = issuer.token(admin=False)
    forger = SigningKey("first", "ES256")
    segments = token.split(".")
    parts = st.one_of(
        st.sampled_from([*segments, *forger.sign(issuer.claims()).split("."), "", "e30", "AA"]),
        st.text("ABCabc019-_=+/. \n", max_size=100),
        st.dictionaries(
            st.sampled_from(["alg", "kid", "typ", "sub", "exp", "aud", "iss", "crit", "b64"]),
            st.sampled_from(
                ["ES256", "none", "HS256", "first", "bob", issuer.url, AUDIENCE, 2**40, None, True]
            ),
        ).map(encoded),
    )

    @st.composite
    def edited(draw: Any) -> str:
        text = list(token)
        for _ in range(draw(st.integers(1, 3))):
            place = draw(st.integers(0, len(text) - 1))
            new = draw(st.sampled_from("Aaz09-_=.+/ \n"))
            match draw(st.sampled_from(["replace", "insert", "delete", "cut"])):
                case "replace":
                    text[place] = new
                case "insert":
                    text.insert(place, new)
                case "delete" if len(text) > 1:
                    del text[place]
                case _:
                    text = text[: max(place, 1)]
        return "".join(text)

    mutated = st.one_of(edited(), edited(), st.lists(parts, min_size=1, max_size=4).map(".".join))
    tried: set[str] = set()
    with asyncio.Runner() as runner:
        runner.run(server.keys.start())
        assert runner.run(server.find(token)).tenant == "anna"

        @settings(max_examples=MUTATIONS)
        @given(mutated)
        def refuse(mutant: str) -> None:
            if mutant != token:
                tried.add(mutant)
                assert runner.run(server.refusal(mutant))

        refuse()
    assert len(tried) > 0.7 * MUTATIONS


# --- keys that change -----------------------------------------------------------------------------


async def test_a_new_key_is_fetched_when_a_token_names_it(issuer: Issuer, server: Server) -> None:
    old = issuer.token()
    await server.find(old)
    issuer.key = SigningKey("second", "EdDSA")
    issuer.published = [issuer.key.jwk]
    server.now += issuer_keys.MIN_INTERVAL_S
    assert (await server.find(issuer.token())).tenant == "anna"
    # What the old key signed was verified, and is not anymore.
    assert "does not publish" in await server.refusal(old)


async def test_a_flood_of_unknown_keys_fetches_once_in_an_interval(
    issuer: Issuer, server: Server
) -> None:
    forger = SigningKey("x", "ES256")
    tokens = [forger.sign(issuer.claims(), {"kid": f"k{n}"}) for n in range(200)]
    for _ in range(3):
        server.now += issuer_keys.MIN_INTERVAL_S
        issuer.asked.clear()
        await asyncio.gather(*map(server.refusal, tokens))
        assert issuer.asked == [DISCOVERY, JWKS]


async def test_a_request_that_ends_does_not_end_the_fetch_that_others_wait_for(
    issuer: Issuer, server: Server
) -> None:
    issuer.key = SigningKey("second", "ES256")
    issuer.published = [issuer.key.jwk]
    server.now += issuer_keys.MIN_INTERVAL_S
    token = issuer.token()
    left = asyncio.create_task(server.find(token))
    stays = asyncio.create_task(server.find(token))
    await asyncio.sleep(0)
    left.cancel()
    assert (await stays).tenant == "anna"


async def test_known_keys_are_used_while_a_fetch_hangs(issuer: Issuer, server: Server) -> None:
    issuer.may_answer.clear()
    server.now += issuer_keys.MIN_INTERVAL_S
    unknown = asyncio.create_task(server.refusal(SigningKey("new", "ES256").sign(issuer.claims())))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert (await server.find(issuer.token())).tenant == "anna"
        assert not unknown.done()
        issuer.may_answer.set()
        assert "does not publish" in await unknown


async def test_the_issuer_must_prove_its_name(tmp_path: Path) -> None:
    authority, tls = own_authority(tmp_path)
    with issuing(tls) as issuer:
        server = Server(issuer, **{"oidc.ca_file": authority})
        await server.keys.start()
        assert (await server.find(issuer.token())).tenant == "anna"
        stranger = Server(issuer)
        await stranger.keys.start()
        with pytest.raises(IssuerUnavailable):
            await stranger.find(issuer.token())


async def test_keys_outlast_an_issuer_that_is_down_for_a_while(
    issuer: Issuer, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.is_down = True
    for _ in range(3):
        server.now += issuer_keys.MAX_AGE_S / 4
        await server.keys.refresh()
        assert (await server.find(issuer.token())).tenant == "anna"
    unknown = SigningKey("second", "ES256").sign(issuer.claims())
    with pytest.raises(IssuerUnavailable):  # its key may be new
        await server.find(unknown)
    server.now += issuer_keys.MAX_AGE_S
    with pytest.raises(IssuerUnavailable):
        await server.find(issuer.token())
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1
    issuer.is_down = False
    server.now += issuer_keys.MIN_INTERVAL_S
    assert (await server.find(issuer.token())).tenant == "anna"


async def test_a_server_starts_before_its_issuer(issuer: Issuer) -> None:
    issuer.is_down = True
    server = Server(issuer)
    await server.keys.start()
    with pytest.raises(IssuerUnavailable):
        await server.find(issuer.token())
    issuer.is_down = False
    server.now += issuer_keys.MIN_INTERVAL_S
    assert (await server.find(issuer.token())).tenant == "anna"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (DISCOVERY, {"issuer": "https://other.example", "jwks_uri": "{url}/keys"}),
        (DISCOVERY, {"issuer": "{url}/", "jwks_uri": "{url}/keys"}),
        (DISCOVERY, {"issuer": "{url}", "jwks_uri": "http://id.example.org/keys"}),
        (DISCOVERY, {"issuer": "{url}", "jwks_uri": "file:///etc/passwd"}),
        (DISCOVERY, {"issuer": "{url}", "jwks_uri": "https://169.254.169.254/keys"}),
        (DISCOVERY, {"issuer": "{url}"}),
        (DISCOVERY, []),
        (JWKS, {"keys": []}),
        (JWKS, {"keys": {}}),
        (JWKS, {"keys": [1, None, "x", {"kty": "RSA", "n": "!", "e": "?"}]}),
        (JWKS, "[" * 100_000),
        (JWKS, "\xff\xfe"),
        (JWKS, " " * (access.ISSUER_ANSWER_BYTES + 1)),
    ],
)
async def test_an_answer_of_the_issuer_that_is_wrong_gives_no_access(
    issuer: Issuer, path: str, answer: Any
) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    issuer.answers[path] = text.replace("{url}", issuer.url).encode("latin-1")
    server = Server(issuer)
    await server.keys.start()
    with pytest.raises(IssuerUnavailable):
        await server.find(issuer.token())


# --- what is remembered ---------------------------------------------------------------------------


async def test_a_token_that_was_verified_is_refused_once_it_has_expired(
    issuer: Issuer, server: Server
) -> None:
    token = issuer.token()
    await server.find(token)
    await server.find(token)
    server.clock = lambda: time.time() + 600
    assert await server.refusal(token) == "The token has expired."


async def test_a_token_is_verified_once_and_the_least_used_is_forgotten(
    issuer: Issuer, server: Server
) -> None:
    tokens = [issuer.token(jti=str(number)) for number in range(MAX_CACHED + 1)]
    for token in [*tokens, *tokens[1:]]:
        await server.find(token)
    assert server.verifier.calls == MAX_CACHED + 1
    await server.find(tokens[0])
    assert server.verifier.calls == MAX_CACHED + 2


async def test_tokens_that_are_invalid_evict_none_that_is_valid(
    issuer: Issuer, server: Server
) -> None:
    token = issuer.token()
    await server.find(token)
    forger = SigningKey("first", "ES256")
    for number in range(2 * MAX_CACHED):
        await server.refusal(forger.sign(issuer.claims(jti=str(number))))
    calls = server.verifier.calls
    await server.find(token)
    assert server.verifier.calls == calls
