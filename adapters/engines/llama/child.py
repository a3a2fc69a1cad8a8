"""The process that runs llama.cpp's server for one model; process.py starts it.

It reads what to do as a line of JSON from its input, writes its address or an error as a line of
JSON to its output, and ends when its input ends. So it ends with the process that started it,
however that one ends. The key comes the same way: others see a command line, and an environment.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

from msgspec import Struct

HOST = "127.0.0.1"
ERRORS_ALONE = 1


class ChildOptions(Struct, frozen=True, kw_only=True):
    """The model to run, and how. The context is that of each slot, in tokens."""

    model: str
    key: str
    context_length: int
    slots: int
    threads: int
    gpu_layers: int | None
    cache_mb: int
    repeatable: bool


def serve(options: ChildOptions) -> Any:
    """Return the server, which serves in threads of its own. Raises: RuntimeError."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.n_ctx = options.context_length * options.slots
    parameters.n_parallel = options.slots
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    if options.gpu_layers is not None:
        parameters.n_gpu_layers = options.gpu_layers
    parameters.fit_params = False  # it would change the context
    parameters.cache_ram_mib = options.cache_mb
    if options.repeatable:
        # The sums of a batch are rounded otherwise than those of a token: where two tokens are
        # almost as likely, the other one may follow.
        parameters.n_ubatch = 1
    parameters.hostnames = [HOST]
    parameters.port = 0
    parameters.api_keys = [options.key]
    parameters.ui = parameters.endpoint_slots = False
    parameters.verbosity = ERRORS_ALONE
    return xllamacpp.Server(parameters)


def main() -> None:
    # What the library prints goes to the log, and not between our lines.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    commands: BinaryIO = sys.stdin.buffer
    options = ChildOptions(**json.loads(commands.readline()))
    try:
        server = serve(options)
        answer = {"url": server.listening_address}
    except Exception as error:  # the library raises bare exceptions
        server, answer = None, {"error": str(error)}
    output.write(json.dumps(answer) + "\n")
    output.flush()
    if server is not None:
        commands.read()
    os._exit(0 if server is not None else 1)  # its threads would be waited for
