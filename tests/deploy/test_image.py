"""The image: its Containerfile as hadolint reads it, and as buildah builds it.

`make test-image` builds it, for which it needs root, buildah, mmdebstrap and bubblewrap, and some
minutes. It pulls no base image: the base is a Debian that mmdebstrap makes. ANTIPHON_TEST_IMAGE is
a folder that keeps the base for the next time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.deploy.tools import DEPLOY, ROOT, program, run
from tests.faults.support.replicas import wait_for

FOLDER = os.environ.get("ANTIPHON_TEST_IMAGE")
CONTAINERFILE = DEPLOY / "container/Containerfile"
BASE = "docker.io/library/debian:bookworm-slim"
IMAGE = "antiphon:tested"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
IN_BUILD = "/run/certificates.crt"
USER = "10001"
PORT = "18777"
BUILD_S = 1500

# The versions of Debian's packages change with its security updates, and stay within a release.
IGNORED = ("DL3008",)

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(2 * BUILD_S)]


def test_hadolint_has_nothing_to_say() -> None:
    ignored = [option for rule in IGNORED for option in ("--ignore", rule)]
    run(program("hadolint"), *ignored, str(CONTAINERFILE))


class Builder:
    """Builds images in a folder of its own, without a daemon."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        places = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"))
        self._buildah = (program("buildah"), "--storage-driver", "overlay", *places)

    def __call__(self, *words: str) -> str:
        command = [*self._buildah, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)
        assert done.returncode == 0, f"{words} failed:\n{(done.stdout + done.stderr)[-5000:]}"
        return done.stdout.strip()

    def make_base(self) -> None:
        if BASE in self("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
            return
        archive = self._folder / "base.tar"
        command = [program("mmdebstrap"), "--variant=minbase", "bookworm", str(archive)]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S)
        made = self("from", "scratch")
        self("add", made, str(archive), "/")
        self("commit", "--rm", made, BASE)

    def build(self) -> None:
        pip = self._folder / "pip.conf"
        pip.write_text(f"[global]\ncert = {IN_BUILD}\n")
        self(
            *("build", "--isolation", "chroot", "--pull-never"),
            *("--format", "docker"),
            *("--secret", f"id=pip,src={pip}", "--volume", f"{CERTIFICATES}:{IN_BUILD}:ro"),
            *("--file", str(CONTAINERFILE), "--tag", IMAGE, str(ROOT)),
        )


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """Yield the root of a container of the image."""
    if FOLDER is None:
        pytest.skip("make test-image builds the image")
    program("bwrap")
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    builder = Builder(Path(FOLDER))
    builder.make_base()
    builder.build()
    container = builder("from", "--pull-never", IMAGE)
    try:
        yield Path(builder("mount", container))
    finally:
        builder("umount", container)
        builder("rm", container)


def confined(root: Path, data: Path, *command: str) -> Sequence[str]:
    """Return the command as a container runs it: not root, and its root read-only."""
    return (
        *(program("bwrap"), "--ro-bind", str(root), "/", "--dev", "/dev", "--proc", "/proc"),
        *("--tmpfs", "/tmp", "--bind", str(data), "/var/lib/antiphon", "--chdir", "/"),
        *("--unshare-user", "--uid", USER, "--gid", USER, "--unshare-pid", "--cap-drop", "ALL"),
        *("--die-with-parent", "--clearenv", "--setenv", "PATH", "/opt/antiphon/bin:/usr/bin:/bin"),
        *("--setenv", "ANTIPHON_PORT", PORT, "--setenv", "ANTIPHON_DATA_DIR", "/var/lib/antiphon"),
        *("--setenv", "ANTIPHON_AUTH", "on", *command),
    )


@contextmanager
def serving(root: Path, data: Path) -> Iterator[None]:
    command = confined(root, data, "antiphon", "serve")
    with (data / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(lambda: answers(process, data / "server.log"), limit_s=60)
            yield
        finally:
            process.kill()
            process.wait(timeout=30)


def test_the_image_serves_from_a_root_that_nobody_writes(root: Path, tmp_path: Path) -> None:
    with serving(root, tmp_path):
        refused = httpx.get(f"http://127.0.0.1:{PORT}/v1/models")
        assert refused.status_code == 401
        created = run(*confined(root, tmp_path, "antiphon", "keys", "create", "--name", "me"))
        headers = {"authorization": f"Bearer {created.strip()}"}
        asked = {"model": "scripted", "input": "Say hello."}
        answer = httpx.post(
            f"http://127.0.0.1:{PORT}/v1/responses", json=asked, headers=headers, timeout=30
        )
        assert answer.json()["status"] == "completed"
    assert {path.name for path in tmp_path.iterdir()} >= {"antiphon.db", "seal.key"}


def test_its_health_check_asks_the_server(root: Path, tmp_path: Path) -> None:
    [check] = [line for line in CONTAINERFILE.read_text().splitlines() if "urllib.request" in line]
    words = json.loads(check.strip().removeprefix("CMD "))
    with pytest.raises(AssertionError, match="refused"):
        run(*confined(root, tmp_path, *words))
    with serving(root, tmp_path):
        run(*confined(root, tmp_path, *words))


def test_the_image_has_no_pip_and_no_compiler(root: Path) -> None:
    for name in ("pip", "gcc", "make"):
        assert not list(root.glob(f"opt/antiphon/bin/{name}*"))
        assert not (root / "usr/bin" / name).exists()


def answers(process: subprocess.Popen[bytes], log: Path) -> bool | None:
    assert process.poll() is None, log.read_text()
    try:
        return httpx.get(f"http://127.0.0.1:{PORT}/livez", timeout=5).is_success or None
    except httpx.TransportError:
        return None
