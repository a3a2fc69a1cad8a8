"""The instrument itself: it must see a server that stands still."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from tests.security.support.server_probe import probe_server

pytestmark = pytest.mark.slow


def test_the_probe_sees_a_server_that_stands_still(tmp_path: Path) -> None:
    with probe_server(tmp_path, "--store", "memory") as server:
        with server.watch() as nothing:
            pass
        with server.watch() as stop:
            server.replica.signal(signal.SIGSTOP)
            waker = threading.Timer(0.4, server.replica.signal, [signal.SIGCONT])
            waker.start()
            waker.join()
    assert nothing.growth_bytes < 5_000_000
    assert stop.freeze_s > 0.3
