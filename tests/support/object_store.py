"""A real server of the S3 protocol, as a process of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.faults.support.replicas import wait_for

ROOT = Path(__file__).parents[2]
MOTO = os.environ.get("ANTIPHON_TEST_MOTO", str(ROOT / ".venv-s3/bin/moto_server"))
"""It has an environment of its own, since it needs other versions than we do."""

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[str]:
    """Yield the URL of a server without buckets, which accepts CREDENTIALS."""
    binary = shutil.which(MOTO)
    if binary is None:
        pytest.skip(f"no server of S3 at ANTIPHON_TEST_MOTO ({MOTO}): make .venv-s3/ready")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [binary, "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, **CREDENTIALS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _answers(url))
        yield url
    finally:
        process.kill()
        process.wait(timeout=30)


def new_bucket(endpoint: str) -> str:
    """Return the name of a new, empty bucket."""
    name = f"bucket-{secrets.token_hex(6)}"
    httpx.put(f"{endpoint}/{name}").raise_for_status()
    return name


def delete_bucket(endpoint: str, bucket: str) -> None:
    httpx.delete(f"{endpoint}/{bucket}").raise_for_status()


def keys_in(endpoint: str, bucket: str) -> list[str]:
    """Return the keys of the objects in a bucket, up to a thousand."""
    listed = httpx.get(f"{endpoint}/{bucket}", params={"list-type": "2"}).raise_for_status().text
    return [each.partition("</Key>")[0] for each in listed.split("<Key>")[1:]]


def _answers(url: str) -> bool | None:
    try:
        return httpx.get(url, timeout=5).is_success or None
    except httpx.HTTPError:
        return None
