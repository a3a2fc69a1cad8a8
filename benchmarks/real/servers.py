"""The servers that are compared: this one and the engines' own, over the same weights."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from msgspec import Struct

from benchmarks.servers.server_process import Server, free_port, run_server

CONTEXT = 8192
LOAD_S = 600.0
"""vLLM takes minutes on a busy processor."""

LLAMA_SERVER = """\
import sys, time, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
parameters.n_ctx, parameters.n_parallel, parameters.use_jinja = int(sys.argv[4]), 1, True
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
parameters.fit_params = False
server = xllamacpp.Server(parameters)
while True:
    time.sleep(1)
"""


class Target(Struct, frozen=True, kw_only=True):
    """A door of a running server."""

    url: str
    model: str
    is_chat: bool
    process: Server


class Peer(Struct, frozen=True, kw_only=True):
    """A server and which of its doors is asked."""

    command: Sequence[str]
    """`{port}` is where it listens."""

    model: str
    is_chat: bool = False


def peers(weights: Path, vllm_folder: Path | None, threads: int) -> Mapping[str, Peer]:
    """Return by name what can be compared with these weights."""
    context, listening = str(CONTEXT), ("--port", "{port}")
    ours = (sys.executable, "-m", "antiphon.entrypoints.cli", "serve")
    quiet = (*listening, "--store", "memory", "--log-level", "warning")
    llama = (sys.executable, "-c", LLAMA_SERVER, str(weights), "{port}", str(threads), context)
    found = {
        "antiphon, llama.cpp": Peer(command=(*ours, str(weights), *quiet), model=weights.stem),
        "llama-server, chat": Peer(command=llama, model=weights.stem, is_chat=True),
        "llama-server, responses": Peer(command=llama, model=weights.stem),
    }
    if vllm_folder is not None:
        options = ("--max-model-len", context, "--enable-prefix-caching")
        name = vllm_folder.name
        vllm = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(vllm_folder))
        named = ("--served-model-name", name, *options)
        calls = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        served = (*vllm, *listening, *named, *calls)
        in_process = (*ours, str(vllm_folder), *quiet, "--served-model-name", name, "--", *options)
        found |= {
            "antiphon, vLLM": Peer(command=in_process, model=name),
            "vLLM, chat": Peer(command=served, model=name, is_chat=True),
            "vLLM, responses": Peer(command=served, model=name),
        }
    return found


@contextmanager
def run_peer(peer: Peer, folder: Path) -> Iterator[Target]:
    """Run a server until the block ends; its model is there. Raises: StartFailed, TimeoutError."""
    port = free_port()
    command = [part.replace("{port}", str(port)) for part in peer.command]
    with run_server(
        command, port=port, folder=folder, variables=_environment(), start_limit_s=LOAD_S
    ) as process:
        url = f"http://127.0.0.1:{port}"
        target = Target(url=url, model=peer.model, is_chat=peer.is_chat, process=process)
        _await_model(target)
        yield target


def _await_model(target: Target) -> None:
    deadline = time.monotonic() + LOAD_S
    path = "chat/completions" if target.is_chat else "responses"
    body = {"model": target.model, "messages" if target.is_chat else "input": _hello(target)}
    while time.monotonic() < deadline:
        answer = httpx.post(f"{target.url}/v1/{path}", json=body, timeout=LOAD_S)
        if answer.is_success:
            return
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            answer.raise_for_status()
        time.sleep(1)
    raise TimeoutError(f"{target.model} was not ready within {LOAD_S:.0f} s")


def _hello(target: Target) -> object:
    return [{"role": "user", "content": "Hello"}] if target.is_chat else "Hello"


def _environment() -> Mapping[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    return {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **kept}
