"""Each check of `antiphon doctor` finds the fault that it is for."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from tests.security.support.certificates import write_certificate
from tests.support.object_store import CREDENTIALS, keys_in, new_bucket, s3_server

from antiphon.adapters.sandboxes.cgroups import CgroupUnavailable
from antiphon.adapters.sandboxes.cgroups import find as find_cgroups
from antiphon.adapters.sealing import Sealer
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.commands.doctor import access, models, storage, tools
from antiphon.entrypoints.commands.doctor.findings import Check, Finding, Installation, ok
from antiphon.entrypoints.commands.doctor.machine import check_extra
from antiphon.entrypoints.commands.doctor.run import exit_code_of
from antiphon.entrypoints.commands.doctor.run_checks import run_checks
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.server.seal_key import FINGERPRINT_NAME
from antiphon.entrypoints.server.serve import serving
from antiphon.entrypoints.settings import Settings, WebSearchSettings
from antiphon.entrypoints.settings.sections import Code

SECRET = "whsec_" + "A" * 44

CHECKS = {
    check.name: check for check in (*access.CHECKS, *storage.CHECKS, *tools.CHECKS, *models.CHECKS)
}


def findings(name: str, **settings: Any) -> list[tuple[str, str]]:
    """Return the status of each finding with all that it says."""
    installation = Installation(settings=Settings(**settings))
    results = run_checks([CHECKS[name]], installation, str)
    return [(each.status, f"{each.found} {each.advice}") for each in results]


@pytest.mark.parametrize(
    ("mode", "status"), [(0o600, "ok"), (0o644, "warning"), (0o666, "problem")]
)
def test_a_keys_file_is_closed_to_others(tmp_path: Path, mode: int, status: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("")
    file.chmod(mode)
    [(found, _)] = findings("file modes", keys_file=file, data_dir=tmp_path / "data")
    assert found == status


def test_a_readable_seal_key_is_a_problem(tmp_path: Path) -> None:
    Sealer(tmp_path / "seal.key").start()
    (tmp_path / "seal.key").chmod(0o644)
    [(status, text)] = findings("file modes", data_dir=tmp_path)
    assert status == "problem"
    assert "chmod 600" in text


def test_a_keys_file_that_is_not_toml_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("[[")
    [(status, text)] = findings("keys file", keys_file=tmp_path / "keys.toml")
    assert status == "problem"
    assert "cannot be used" in text


def test_a_public_server_without_keys_is_a_warning() -> None:
    found = findings("settings", host="0.0.0.0", auth="off")
    assert any(status == "warning" and "Everyone" in text for status, text in found)


def test_a_certificate_that_ends_soon_is_a_warning(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "localhost")
    [(status, text)] = findings("certificate", tls_cert=cert, tls_key=key)
    assert (status, "expires on" in text) == ("warning", True)


def test_an_expired_certificate_is_a_problem(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "localhost")
    old = x509.load_pem_x509_certificate(cert.read_bytes())
    private: Any = serialization.load_pem_private_key(key.read_bytes(), None)
    expired = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(private.public_key())
        .serial_number(old.serial_number)
        .not_valid_before(old.not_valid_before_utc.replace(year=2020))
        .not_valid_after(old.not_valid_after_utc.replace(year=2021))
        .sign(private, hashes.SHA256())
    )
    cert.write_bytes(expired.public_bytes(serialization.Encoding.PEM))
    [(status, text)] = findings("certificate", tls_cert=cert, tls_key=key)
    assert (status, "expired on 2021" in text) == ("problem", True)


def test_a_certificate_with_another_key_is_a_problem(tmp_path: Path) -> None:
    cert, _ = write_certificate(tmp_path, "localhost")
    (tmp_path / "other").mkdir()
    _, key = write_certificate(tmp_path / "other", "localhost")
    [(status, text)] = findings("certificate", tls_cert=cert, tls_key=key)
    assert (status, "the key is that of another certificate" in text) == ("problem", True)


def test_a_certificate_that_is_not_pem_is_a_problem_in_words(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "localhost")
    cert.write_text("garbage")
    [(status, text)] = findings("certificate", tls_cert=cert, tls_key=key)
    assert (status, "not in PEM format" in text, "_ssl.c" in text) == ("problem", True, False)
    key.unlink()
    [(_, text)] = findings("certificate", tls_cert=cert, tls_key=key)
    assert f"there is no file {str(key)!r}" in text


def test_a_port_in_use_is_a_problem() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        [(status, _)] = findings("port", port=taken.getsockname()[1])
    assert status == "problem"


@pytest.mark.parametrize("store", ["postgresql://127.0.0.1:1/kept", "redis://127.0.0.1:1/0"])
def test_a_store_that_does_not_answer_is_a_problem(store: str) -> None:
    [(status, _)] = findings("store", store=store)
    assert status == "problem"


def test_a_bucket_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as endpoint:
        bucket = new_bucket(endpoint)
        for url, expected, said in (
            (f"s3://{bucket}/files", "ok", f"s3://{bucket}/files took an object"),
            ("s3://no-such-bucket", "problem", "the bucket does not exist"),
        ):
            [(status, text)] = findings("files", file_store=url, file_store_endpoint=endpoint)
            assert (status, said in text) == (expected, True), text
        assert keys_in(endpoint, bucket) == []


def test_files_in_a_folder_need_no_check_of_their_own(tmp_path: Path) -> None:
    assert findings("files", data_dir=tmp_path) == []


def test_a_damaged_store_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "antiphon.db").write_bytes(b"not a database" * 1000)
    [(status, text)] = findings("store", data_dir=tmp_path)
    assert (status, "cannot be used" in text) == ("problem", True)


async def test_a_store_is_read_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "antiphon.db"
    store = SqliteStore(file)
    await store.start()
    await store.aclose()
    before = file.read_bytes()
    found = await asyncio.to_thread(findings, "store", data_dir=tmp_path)
    assert [status for status, _ in found] == ["ok", "ok"]
    assert "up to date" in found[0][1]
    assert file.read_bytes() == before


@pytest.mark.parametrize(("version", "status"), [(1, "warning"), (9999, "problem")])
async def test_a_store_of_another_version_is_not_migrated(
    tmp_path: Path, version: int, status: str
) -> None:
    store = SqliteStore(tmp_path / "antiphon.db")
    await store.start()
    await store.aclose()
    with contextlib.closing(sqlite3.connect(tmp_path / "antiphon.db")) as db:
        db.execute(f"PRAGMA user_version = {version}")
        found = await asyncio.to_thread(findings, "store", data_dir=tmp_path)
        assert found[0][0] == status
        assert db.execute("PRAGMA user_version").fetchone() == (version,)


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_server_needs_the_seal_key_of_its_store(tmp_path: Path, is_same: bool) -> None:
    Sealer(tmp_path / "seal.key").start()
    own = Sealer(tmp_path / "seal.key").fingerprint()
    store = SqliteStore(tmp_path / "antiphon.db")
    await store.start()
    await store.compare_and_set(FINGERPRINT_NAME, own if is_same else b"another")
    await store.aclose()
    [(status, _)] = await asyncio.to_thread(findings, "seal key", data_dir=tmp_path)
    assert status == ("ok" if is_same else "problem")


def test_a_data_folder_that_everyone_can_change_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (status, text), _ = findings("data folder", data_dir=tmp_path)
    assert (status, "chmod o-w" in text) == ("problem", True)


def test_a_relative_data_folder_is_checked_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir(mode=0o777)
    Path("data").chmod(0o777)
    [(status, text)] = findings("data folder", data_dir=Path("data"))[:1]
    assert (status, "chmod o-w" in text) == ("problem", True)


def test_a_data_folder_in_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    [(status, text)] = findings("data folder", data_dir=tmp_path / "data" / "inner")
    assert status == "problem"
    assert "is a file" in text


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"web_search": "corpus"}, "needs web.folder"),
        ({"web_search": "corpus", "web": WebSearchSettings(folder=Path("/nowhere"))}, "no folder"),
        ({"web_search": "brave"}, "needs web.key"),
        ({"keys_file": Path("/nowhere/keys.toml")}, "keys file '/nowhere/keys.toml'"),
        ({"tls_cert": Path("/nowhere.pem"), "tls_key": Path("/nowhere.pem")}, "certificate"),
        ({"webhook_url": "nope", "webhook_secret": SECRET}, "webhook_url cannot be called"),
        ({"prompt_templates": Path("/nowhere")}, "/nowhere"),
    ],
)
async def test_what_a_server_refuses_to_start_with_is_a_problem(
    tmp_path: Path, wrong: dict[str, Any], sentence: str
) -> None:
    settings = Settings(**wrong, data_dir=tmp_path / "data", port=0)
    with pytest.raises(SettingsError) as refused:
        async with serving(Container(settings=settings)):
            raise AssertionError
    assert sentence in str(refused.value)
    every = [
        result.found
        for result in run_checks(
            [*CHECKS.values()], Installation(settings=settings, quick=True), str
        )
        if result.status == "problem"
    ]
    assert str(refused.value) in every


def test_a_missing_sandbox_program_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for check, setting in (("sandbox", "code_interpreter"), ("programs", "programs")):
        [(status, text)] = findings(check, **{setting: True})
        assert (status, "apt-get install" in text) == ("problem", True)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")
def test_a_program_is_tried() -> None:
    assert findings("programs", programs=True) == [("ok", "A program ran in its sandbox. ")]
    [(status, _)] = findings("programs")
    assert status == "skipped"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")
def test_a_shell_without_a_cgroup_is_the_problem_that_stops_the_server() -> None:
    try:
        find_cgroups()
    except CgroupUnavailable as error:
        reason = str(error)
    else:
        pytest.skip("this machine can make cgroups")
    [(status, text)] = findings("sandbox", shell=True)
    assert status == "problem"
    assert reason in text
    assert "set --code-cgroup off" in text
    [(status, text)] = findings("sandbox", shell=True, code=Code(cgroup="off"))
    assert (status, "may together use two or three times" in text) == ("warning", True)


def test_a_template_that_cannot_write_calls_is_named(tmp_path: Path) -> None:
    # A template alone stands for the folder, since no tokenizer is needed to see it.
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    [(status, text)] = findings(
        "formats",
        model=str(tmp_path / "chat_template.jinja"),
        engine="vllm",
        format="chat:hermes",
    )
    assert (status, "It shows no calls" in text, "It says: no tools" in text) == ("ok", True, True)


def test_an_endpoint_without_an_address_is_a_problem() -> None:
    [(status, _)] = findings(
        "webhooks",
        webhook_url="https://no-such-host.invalid/hook",
        webhook_secret="whsec_" + "A" * 32,
    )
    assert status == "problem"


def test_inner_addresses_that_clients_reach_are_named() -> None:
    from antiphon.entrypoints.settings.sections import Fetch

    (_, _), (status, text) = findings("network rules", fetch=Fetch(urls=True))
    assert (status, "are refused" in text) == ("ok", True)
    fetch = Fetch(urls=True, private=("169.254.0.0/16",))
    (_, _), (status, text) = findings("network rules", fetch=fetch)
    assert (status, "169.254.169.254" in text) == ("warning", True)


def test_a_model_that_does_not_start_is_a_problem(tmp_path: Path) -> None:
    [(status, _)] = findings("models", model="no-such", engine="scripted")
    assert status == "problem"


def test_a_chosen_feature_names_what_it_needs() -> None:
    [found] = check_extra("mcp", "MCP servers")
    assert found.status == "ok"
    assert [each.status for each in check_extra("vllm", "the engine vllm")] == ["problem"]


def results_of(check: Check) -> list[tuple[str, str]]:
    results = run_checks([check], Installation(settings=Settings()), str, grace_s=0.1)
    return [(each.status, each.found) for each in results]


def test_an_exception_is_a_problem_in_one_sentence() -> None:
    def fail(_: Installation) -> list[Finding]:
        raise ZeroDivisionError("by zero")

    expected = [("problem", "The check failed with ZeroDivisionError: by zero")]
    assert results_of(Check(name="x", run=fail)) == expected


def test_a_check_that_hangs_ends_at_its_limit() -> None:
    released = threading.Event()

    def hang(_: Installation) -> list[Finding]:
        released.wait()
        return []

    async def wait(_: Installation) -> list[Finding]:
        await asyncio.Event().wait()
        return []

    try:
        for run in (hang, wait):
            [(status, found)] = results_of(Check(name="x", run=run, limit_s=0.1))
            assert (status, "0.1 seconds" in found) == ("problem", True)
    finally:
        released.set()


def test_the_exit_code_is_one_for_a_problem() -> None:
    check = Check(name="x", run=lambda _: [ok("fine")])
    results = list(run_checks([check], Installation(settings=Settings()), str))
    assert exit_code_of(results, fail_on_warnings=True) == 0
