"""The Python that runs inside a sandbox: one namespace, one call after another.

It is handed to its interpreter as text, so it imports the standard library alone and nothing of
ours. Requests come, and answers go, over one descriptor, each as four bytes of length and JSON;
bytes are base64. What code prints goes to descriptors 1 and 2, which the server reads.

Where there is to be a shell, a second process, begun before any code runs, runs its commands: it
has a line of its own, so that neither code nor commands have to wait for what the other has done to
its process.

Nothing here keeps code from anything: code may change all of it. The walls are outside.
"""

from __future__ import annotations

import ast
import base64
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

PNG = b"\x89PNG\r\n\x1a\n"


class Kernel:
    """Runs code in the module `__main__`. `options` are those of recipe.py."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._folder: str = options["folder"]
        self._most_image_bytes: int = options["image_bytes"]
        self._most_images: int = options["images"]
        self._calls = 0
        self._images: list[bytes] = []
        self._main = types.ModuleType("__main__")
        self._main.__dict__["display"] = self.display
        sys.modules["__main__"] = self._main

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        uses: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "run": self._run,
            "put": self._put,
            "files": self._files,
            "read": self._read,
            "remove": self._remove,
            "reap": self._reap,
        }
        return uses[request["do"]](request)

    def display(self, *values: Any) -> None:
        """Show values: pictures as pictures, all else as text."""
        for value in values:
            image = _png_of(value)
            if image is None:
                print(value if isinstance(value, str) else repr(value))  # noqa: T201
            else:
                self._show(image)

    def _show(self, image: bytes) -> None:
        if len(self._images) < self._most_images and len(image) <= self._most_image_bytes:
            self._images.append(image)
        else:
            print("[an image too many, or too large]")  # noqa: T201

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        self._images = []
        self._calls += 1
        failed = False
        try:
            self._execute(request["code"], f"<call {self._calls}>")
            self._show_figures()
        except BaseException as error:
            failed = True
            _tell(error)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                failed = True
        return {"is_error": failed, "images": [_written(image) for image in self._images]}

    def _execute(self, code: str, name: str) -> None:
        # So that a traceback shows the lines of the code.
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
            picture = io.BytesIO()
            plots.figure(number).savefig(picture, format="png", bbox_inches="tight")
            self._show(picture.getvalue())
        plots.close("all")

    # --- files ----------------------------------------------------------------------------------

    def _put(self, request: dict[str, Any]) -> dict[str, Any]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_TRUNC if request["offset"] == 0 else os.O_APPEND
        path = os.path.join(self._folder, request["name"])
        try:
            descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            return {"error": error.strerror}
        try:
            _write_all(descriptor, base64.b64decode(request["content"]))
        except OSError as error:
            os.unlink(path)  # a file is there whole, or not at all
            return {"error": error.strerror}
        finally:
            os.close(descriptor)
        return {}

    def _files(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return (path, size, when it was changed) of files below the folder, links left out."""
        found: list[tuple[str, int, int]] = []
        for place, folders, names in os.walk(self._folder):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(place, name)
                try:
                    about = os.lstat(path)
                except OSError:
                    continue
                shown = os.path.relpath(path, self._folder)
                if stat.S_ISREG(about.st_mode) and _is_utf8(shown):
                    found.append((shown, about.st_size, int(about.st_mtime)))
            if len(found) >= request["most"]:
                break
        return {"files": found[: request["most"]]}

    def _read(self, request: dict[str, Any]) -> dict[str, Any]:
        # A link leads nowhere and a pipe does not wait: both are no files.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(os.path.join(self._folder, request["name"]), flags)
        except OSError as error:
            return {"error": error.strerror}
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {"error": "Not a file"}
            content = os.pread(descriptor, request["size"], request["offset"])
        finally:
            os.close(descriptor)
        return {"content": _written(content)}

    def _remove(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            os.unlink(os.path.join(self._folder, request["name"]))
        except OSError as error:
            return {"error": error.strerror}
        return {}

    def _reap(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Let processes that have ended go: this one is the parent of all that lost theirs."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        return {}


class Commander:
    """Runs commands of a shell, one after another; none leaves a process behind."""

    def __init__(self, folder: str, stdout: int, stderr: int) -> None:
        self._folder = folder
        self._streams = ((stdout, 1), (stderr, 2))
        self._environment = dict(os.environ)
        self._shell = next(path for path in ("/bin/bash", "/bin/sh") if os.path.exists(path))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "command":
            return self._run(request["command"], request["timeout_s"])
        _end_all()
        return {}

    def _run(self, command: str, timeout_s: float) -> dict[str, Any]:
        """Return the exit code; none if the command took too long."""
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
        in_time = _ends(process, timeout_s)
        _end_all()
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        return {"exit_code": code if code >= 0 else 128 - code} if in_time else {}


def _ends(process: int, timeout_s: float) -> bool:
    """Whether the process ends in so many seconds."""
    import select

    watched = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(watched)


def _end_all() -> None:
    """End all processes but the first one of the sandbox and this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _tell(error: BaseException) -> None:
    """Print the traceback from the code's own frames on."""
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
    drawn = getattr(type(value), "_repr_png_", None)
    image = drawn(value) if callable(drawn) else None
    return image if isinstance(image, bytes) and image.startswith(PNG) else None


def _written(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def limit(options: dict[str, Any]) -> None:
    """Set the limits of this process, for good; the server's own work goes before it."""
    os.nice(10)
    for name, most in options["limits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))


def add_packages(options: dict[str, Any]) -> None:
    if options["packages"]:
        import site

        for folder in options["packages"]:
            site.addsitedir(folder)


def serve(line: int, options: dict[str, Any]) -> None:
    # A server that a script began in the background ignores the signal, and so would this process.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel = Kernel(options)
    _send(line, {"ready": True})
    while True:
        try:
            request = _received(line)
            try:
                answer = kernel.answer(request)
            except MemoryError:
                answer = {"error": "Out of memory"}
            _send(line, answer)
        except KeyboardInterrupt:
            # The server stopped a call that had just ended.
            continue


def begin_commands(options: dict[str, Any]) -> None:
    """Begin the process that runs commands, where there is to be one."""
    descriptors = options["commands"]
    for each in descriptors:
        os.set_inheritable(each, False)
    if descriptors and os.fork() == 0:
        limit(options)
        line, stdout, stderr = descriptors
        commander = Commander(options["folder"], stdout, stderr)
        while True:
            _send(line, commander.answer(_received(line)))
    for each in descriptors:
        os.close(each)


def _received(line: int) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(_read(line, int.from_bytes(_read(line, 4), "big")))
    return request


def _read(line: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = os.read(line, min(count - len(found), 1 << 20))
        if not piece:
            os._exit(0)
        found += piece
    return found


def _send(line: int, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    _write_all(line, len(body).to_bytes(4, "big") + body)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    _line, _options = int(sys.argv[1]), json.loads(sys.argv[2])
    sys.argv = [""]
    os.set_inheritable(_line, False)
    os.chdir(_options["folder"])
    begin_commands(_options)
    add_packages(_options)
    limit(_options)
    serve(_line, _options)
