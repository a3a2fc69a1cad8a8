"""The Python process inside a sandbox: it runs one call after another in one namespace.

The interpreter receives this file as text, so it imports only the standard library and nothing
from this project. Requests and answers travel over one socket (request_channel.py), each as a head
in JSON and a body of bytes. The code prints to descriptors 1 and 2, which the server reads.

With a shell, a second process runs the commands. It starts before any code runs and has its own
socket, so code and commands do not depend on what the other has done to its process.

This file enforces nothing, because code can change all of it. The restrictions are outside.
"""

from __future__ import annotations

import ast
import contextlib
import json
import linecache
import os
import resource
import signal
import stat
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

Answer = tuple[dict[str, Any], bytes]
"""The head and the body of an answer."""

PNG = b"\x89PNG\r\n\x1a\n"


class Kernel:
    """Runs code in the module `__main__`. bwrap_command.py writes the options."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._folder: str = options["folder"]
        self._max_image_bytes: int = options["image_bytes"]
        self._max_images: int = options["images"]
        self._max_total_bytes: int = options["all_images_bytes"]
        self._calls = 0
        self._images: list[bytes] = []
        self._main = types.ModuleType("__main__")
        self._main.__dict__["display"] = self.display
        sys.modules["__main__"] = self._main

    def answer(self, request: dict[str, Any], body: bytes) -> Answer:
        if request["do"] == "run":
            return self._run(request)
        if request["do"] == "read":
            return self._read(request)
        if request["do"] == "put":
            return self._put(request, body), b""
        handlers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "files": self._files,
            "remove": self._remove,
            "reap": self._reap,
        }
        return handlers[request["do"]](request), b""

    def display(self, *values: Any) -> None:
        """Show values: images as images, everything else as text."""
        for value in values:
            image = _png_of(value)
            if image is None:
                print(value if isinstance(value, str) else repr(value))  # noqa: T201
            else:
                self._show(image)

    def _show(self, image: bytes) -> None:
        all_bytes = len(image) + sum(map(len, self._images))
        fits = len(image) <= self._max_image_bytes and all_bytes <= self._max_total_bytes
        if fits and len(self._images) < self._max_images:
            self._images.append(image)
        else:
            print("[image dropped: too many images, or too large]")  # noqa: T201

    def _run(self, request: dict[str, Any]) -> Answer:
        self._images = []
        self._calls += 1
        failed = False
        try:
            self._execute(request["code"], f"<call {self._calls}>")
            self._show_figures()
        except BaseException as error:
            failed = True
            _print_error(error)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                failed = True
        head = {"is_error": failed, "image_sizes": [len(image) for image in self._images]}
        return head, b"".join(self._images)

    def _execute(self, code: str, name: str) -> None:
        # Lets a traceback show the lines of the code.
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        scope = self._main.__dict__
        exec(compile(tree, name, "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
            if value is not None:
                scope["_"] = value
                self.display(value if _png_of(value) else repr(value))

    def _show_figures(self) -> None:
        plots = sys.modules.get("matplotlib.pyplot")
        if plots is None:
            return
        import io

        for number in plots.get_fignums():
            image = io.BytesIO()
            plots.figure(number).savefig(image, format="png", bbox_inches="tight")
            self._show(image.getvalue())
        plots.close("all")

    # --- files ----------------------------------------------------------------------------------

    def _put(self, request: dict[str, Any], content: bytes) -> dict[str, Any]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_TRUNC if request["offset"] == 0 else os.O_APPEND
        path = os.path.join(self._folder, request["name"])
        try:
            descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            return {"error": error.strerror}
        try:
            _write_all(descriptor, content)
        except OSError as error:
            os.unlink(path)  # a file that is not complete must not exist
            return {"error": error.strerror}
        finally:
            os.close(descriptor)
        return {}

    def _files(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return (path, size, modification time) of the files below the folder, without links.

        They are as many as fit into the answer.
        """
        files: list[tuple[str, int, int]] = []
        remaining_bytes = request["max_bytes"]
        for folder, subfolders, names in os.walk(self._folder):
            subfolders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                try:
                    status = os.lstat(path)
                except OSError:
                    continue
                relative_path = os.path.relpath(path, self._folder)
                if stat.S_ISREG(status.st_mode) and _is_utf8(relative_path):
                    file = (relative_path, status.st_size, max(0, int(status.st_mtime)))
                    remaining_bytes -= len(json.dumps(file)) + 2
                    if remaining_bytes < 0 or len(files) == request["limit"]:
                        return {"files": files}
                    files.append(file)
        return {"files": files}

    def _read(self, request: dict[str, Any]) -> Answer:
        # Does not follow a symbolic link, and does not block on a named pipe.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(os.path.join(self._folder, request["name"]), flags)
        except OSError as error:
            return {"error": error.strerror}, b""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {"error": "Not a file"}, b""
            return {}, os.pread(descriptor, request["size"], request["offset"])
        finally:
            os.close(descriptor)

    def _remove(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            os.unlink(os.path.join(self._folder, request["name"]))
        except OSError as error:
            return {"error": error.strerror}
        return {}

    def _reap(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Reap the processes that have ended; this process adopts all orphans of the sandbox."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        return {}


class Commander:
    """Runs shell commands one after another, and ends every process that a command leaves."""

    def __init__(self, folder: str, stdout: int, stderr: int) -> None:
        self._folder = folder
        self._streams = ((stdout, 1), (stderr, 2))
        self._environment = dict(os.environ)
        self._shell = next(path for path in ("/bin/bash", "/bin/sh") if os.path.exists(path))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "command":
            return self._run(request["command"], request["timeout_s"])
        _kill_all()
        return {}

    def _run(self, command: str, timeout_s: float) -> dict[str, Any]:
        """Return the exit code, or nothing if the command took too long."""
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in self._streams]
        try:
            os.chdir(self._folder)
            process = os.posix_spawn(
                self._shell,
                [self._shell, "-c", command],
                self._environment,
                file_actions=actions,
                setsid=True,
                setsigdef=(signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ),
            )
        except (OSError, ValueError) as error:
            return {"error": str(getattr(error, "strerror", None) or error)}
        in_time = _ends_within(process, timeout_s)
        _kill_all()
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        return {"exit_code": code if code >= 0 else 128 - code} if in_time else {}


def _ends_within(process: int, timeout_s: float) -> bool:
    """Wait for the process, for `timeout_s` at most, and return whether it has ended."""
    import select

    pidfd = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(pidfd)


def _kill_all() -> None:
    """Kill all processes except this one and the first one of the sandbox."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _print_error(error: BaseException) -> None:
    """Print the traceback, starting at the code's own frames."""
    frames = error.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<call "):
        frames = frames.tb_next
    try:
        sys.stdout.flush()
        traceback.print_exception(type(error), error, frames, file=sys.stderr)
    except BaseException:
        os.write(2, b"an error that cannot be shown\n")


def _png_of(value: Any) -> bytes | None:
    if isinstance(value, bytes):
        return value if value.startswith(PNG) else None
    to_png = getattr(type(value), "_repr_png_", None)
    image = to_png(value) if callable(to_png) else None
    return image if isinstance(image, bytes) and image.startswith(PNG) else None


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def set_limits(options: dict[str, Any]) -> None:
    """Limit this process for good, and give it a lower priority than the server."""
    os.nice(10)
    for name, limit in options["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))


def add_packages(options: dict[str, Any]) -> None:
    if options["packages"]:
        import site

        for folder in options["packages"]:
            site.addsitedir(folder)


def serve(requests: int, options: dict[str, Any]) -> None:
    """Answer the requests of a socket, forever."""
    # A shell script starts background processes with SIGINT ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel = Kernel(options)
    _send(requests, {"is_ready": True})
    while True:
        try:
            request, body = _receive(requests)
            try:
                answer = kernel.answer(request, body)
            except MemoryError:
                answer = {"error": "Out of memory"}, b""
            _send(requests, *answer)
        except KeyboardInterrupt:
            # The server interrupted a call that had just ended.
            continue


def start_commander(options: dict[str, Any]) -> None:
    """Start the process that runs commands, if the sandbox has a shell."""
    descriptors = options["commands"]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if descriptors and os.fork() == 0:
        set_limits(options)
        requests, stdout, stderr = descriptors
        commander = Commander(options["folder"], stdout, stderr)
        while True:
            request, _ = _receive(requests)
            _send(requests, commander.answer(request))
    for descriptor in descriptors:
        os.close(descriptor)


def _receive(requests: int) -> tuple[dict[str, Any], bytes]:
    head_bytes, body_bytes = [int.from_bytes(_read(requests, 4), "big") for _ in range(2)]
    request: dict[str, Any] = json.loads(_read(requests, head_bytes))
    return request, _read(requests, body_bytes)


def _read(requests: int, count: int) -> bytes:
    """Return the next `count` bytes. Ends this process if the server has closed the socket."""
    content = b""
    while len(content) < count:
        chunk = os.read(requests, min(count - len(content), 1 << 20))
        if not chunk:
            os._exit(0)
        content += chunk
    return content


def _send(requests: int, answer: dict[str, Any], body: bytes = b"") -> None:
    head = json.dumps(answer).encode()
    lengths = len(head).to_bytes(4, "big") + len(body).to_bytes(4, "big")
    _write_all(requests, lengths + head + body)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    _requests, _options = int(sys.argv[1]), json.loads(sys.argv[2])
    sys.argv = [""]
    os.set_inheritable(_requests, False)
    os.chdir(_options["folder"])
    start_commander(_options)
    add_packages(_options)
    set_limits(_options)
    serve(_requests, _options)
