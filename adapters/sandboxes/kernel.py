"""The Python that runs inside a sandbox: one namespace, one call after another.

It is handed to its interpreter as text, so it imports the standard library alone and nothing of
ours. Requests come, and answers go, over one descriptor, each as four bytes of length and JSON;
bytes are base64. What code prints goes to descriptors 1 and 2, which the server reads.

Nothing here keeps code from anything: code may change all of it. The walls are outside.
"""

from __future__ import annotations

import ast
import base64
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
        self._most_file_bytes: int = options["file_bytes"]
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
            "get": self._get,
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
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(os.path.join(self._folder, request["name"]), flags, 0o644)
            try:
                _write_all(descriptor, base64.b64decode(request["content"]))
            finally:
                os.close(descriptor)
        except OSError as error:
            return {"error": error.strerror}
        return {}

    def _files(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        found: list[tuple[str, int]] = []
        for entry in os.scandir(self._folder):
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                found.append((entry.name, about.st_size))
        return {"files": [each for each in sorted(found) if _is_utf8(each[0])][:1000]}

    def _get(self, request: dict[str, Any]) -> dict[str, Any]:
        # A link leads nowhere and a pipe does not wait: both are no files.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(os.path.join(self._folder, request["name"]), flags)
        except OSError as error:
            return {"error": error.strerror}
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                return {"error": "Not a file"}
            if about.st_size > self._most_file_bytes:
                return {"error": "File too large"}
            content = os.pread(descriptor, self._most_file_bytes, 0)
        finally:
            os.close(descriptor)
        return {"content": _written(content)}


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
            request = json.loads(_read(line, int.from_bytes(_read(line, 4), "big")))
            try:
                answer = kernel.answer(request)
            except MemoryError:
                answer = {"error": "Out of memory"}
            _send(line, answer)
        except KeyboardInterrupt:
            # The server stopped a call that had just ended.
            continue


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
    add_packages(_options)
    limit(_options)
    serve(_line, _options)
