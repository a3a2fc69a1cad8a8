"""Count the files, functions and calls that one request enters.

    python -m benchmarks.request_path [--gate] [--files] [--functions] [SETTING=VALUE ...]

A server runs in this process, with the scripted model and default settings. A warm-up request
comes first. Then a profile function counts what the next one calls in the server's thread: a
resumed coroutine or generator counts as a call, as in cProfile. `ours` is the code of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

from antiphon.entrypoints.container import Container
from antiphon.entrypoints.process.event_loop import new_event_loop
from antiphon.entrypoints.server.process import Process
from antiphon.entrypoints.server.serve import serving
from antiphon.entrypoints.settings import load
from benchmarks import load as clients

ROOT = Path(__file__).resolve().parent.parent
OURS = tuple(f"{ROOT / name}/" for name in ("domain", "application", "adapters", "entrypoints"))
MODEL = "scripted-chat"
WARM_UPS = 3
PLAIN = "streamed"
MAX_FILES, MAX_FUNCTIONS, MAX_CALLS = 60, 350, 700
"""What a plain streamed request may enter of this project. `--gate` checks it."""
REQUESTS: dict[str, dict[str, Any]] = {
    PLAIN: {"input": "Hello", "stream": True, "store": False},
    "streamed and stored": {"input": "Hello", "stream": True},
    "without a stream, stored": {"input": "Hello"},
    "without a stream, 256 tokens, not stored": {
        "input": '@@script [{"say":"word ","repeat":400}]',
        "max_output_tokens": 256,
        "store": False,
    },
    "without a stream, not stored": {"input": "Hello", "store": False},
    "chat, streamed": {"messages": [{"role": "user", "content": "Hello"}], "stream": True},
    "chat, without a stream": {"messages": [{"role": "user", "content": "Hello"}]},
}


class QuietProcess(Process):
    """A server's process that leaves this interpreter as it is."""

    def tune(self) -> None: ...


class CallCounter:
    """Counts the calls of Python functions in the thread that starts it."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.builtin_calls = 0

    def start(self) -> None:
        sys.setprofile(self._count)

    def stop(self) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self.calls[frame.f_code] += 1
        elif event == "c_call":
            self.builtin_calls += 1

    def ours(self) -> Counter[CodeType]:
        return Counter(
            {code: n for code, n in self.calls.items() if file_of(code).startswith(OURS)}
        )


def file_of(code: CodeType) -> str:
    # The folders are linked into the package, so a module's file may have either path.
    return code.co_filename.replace(f"{ROOT}/src/antiphon/", f"{ROOT}/")


def main() -> int:
    options = _arguments()
    settings = dict(each.split("=", 1) for each in options.settings)
    with (
        TemporaryDirectory(prefix="antiphon-bench-") as folder,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        counted = runner.run(count_requests(Path(folder), settings, REQUESTS))
    for name, counter in counted.items():
        _report(name, counter, with_files=options.files, with_functions=options.functions)
    ours = counted[PLAIN].ours()
    is_short = (
        len(set(map(file_of, ours))) <= MAX_FILES
        and len(ours) <= MAX_FUNCTIONS
        and ours.total() <= MAX_CALLS
    )
    print(
        "the plain request is within its bars" if is_short else "MISSED: the bars of the plain one"
    )
    return int(options.gate and not is_short)


def _arguments() -> argparse.Namespace:
    summary, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.request_path",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--files", action="store_true", help="list the files with their calls")
    parser.add_argument("--functions", action="store_true", help="list the functions, too")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    return parser.parse_args()


async def count_requests(
    folder: Path, settings: dict[str, Any], requests: Mapping[str, dict[str, Any]]
) -> dict[str, CallCounter]:
    """Return what each of these requests calls in a server with these settings."""
    tree = {"model": MODEL, "port": 0, "data_dir": folder, "log_level": "warning", **settings}
    loaded = load(None, {}, tree)
    counted: dict[str, CallCounter] = {}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            serving(Container(settings=loaded), QuietProcess(loaded))
        )
        port = int(running.url.rpartition(":")[2])
        for name, body in requests.items():
            path = "/v1/chat/completions" if "messages" in body else "/v1/responses"
            request = clients.request_of(port, {"model": MODEL, **body}, path=path)
            for _ in range(WARM_UPS):
                await asyncio.to_thread(_send, port, request)
            counted[name] = counter = CallCounter()
            counter.start()
            await asyncio.to_thread(_send, port, request)
            counter.stop()
    return counted


def _send(port: int, request: bytes) -> None:
    clients.run(port, request, requests=1, concurrency=1)


def _report(name: str, counter: CallCounter, *, with_files: bool, with_functions: bool) -> None:
    ours = counter.ours()
    files: dict[str, Counter[CodeType]] = {}
    for code, n in ours.items():
        files.setdefault(file_of(code).removeprefix(f"{ROOT}/"), Counter())[code] = n
    print(
        f"{name}: {len(files)} files, {len(ours)} functions, {ours.total()} calls of ours; "
        f"{counter.calls.total()} calls of Python functions in all, "
        f"{counter.builtin_calls} of builtins"
    )
    if not (with_files or with_functions):
        return
    for file, functions in sorted(files.items(), key=lambda each: -each[1].total()):
        print(f"  {functions.total():5} {len(functions):4}  {file}")
        if with_functions:
            for code, n in functions.most_common():
                print(f"        {n:5}  {code.co_qualname}:{code.co_firstlineno}")


if __name__ == "__main__":
    sys.exit(main())
