"""A reader who does what a page says, from its first block to its last.

Commands run in a folder of the reader's own, which is also the home directory, with this project's
environment on the path. `antiphon serve` starts a server on a free port instead of the one that the
page names; all later blocks of the page reach that server at the address that they know.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.docs.blocks import Block, Command, commands_of
from tests.docs.matching import is_shown, is_within

ROOT = Path(__file__).parents[2]
PACKAGES = Path(__file__).with_name("packages")
LIMIT_S = 50
DEFAULT_PORT = "8000"

_SERVE = re.compile(
    r"^(?P<before>(\w+=\S* )*)(\.venv/bin/)?antiphon serve\b(?P<rest>.*)$", re.DOTALL
)
_MAKE = re.compile(r"^make (?P<verb>[\w-]+)( ARGS=\"(?P<arguments>.*)\")?")
_PORT = re.compile(r"--port (\d+)")
_READY = re.compile(r"is ready;.* url: http://127\.0\.0\.1:(?P<port>\d+)/v1")
_NEEDS_SANDBOX = ("--code-interpreter", "--shell")
_NEEDS_MARK = re.compile(r"(\S*/)?(apt-get|docker|git|npm|pip|vllm)\b")
_FAILED = "antiphon: "

_INTERPRETER = """
import contextlib, io, json, sys, traceback
namespace = {"__name__": "__main__"}
for line in sys.stdin:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "<page>", "exec"), namespace)
        error = None
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps({"printed": printed.getvalue(), "error": error}), flush=True)
"""


class Reader:
    """Close it in any case: it ends the processes that its page started."""

    def __init__(self, folder: Path, port: int) -> None:
        """`port` is that of the server that a page reaches before it starts one."""
        self._folder = folder
        self._ports = {DEFAULT_PORT: str(port)}
        self._servers: dict[str, Server] = {}
        self._interpreter: subprocess.Popen[str] | None = None
        self._answer: Any = None
        self._output = ""
        (folder / "examples").symlink_to(ROOT / "examples")
        (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
        (folder / ".curlrc").write_text("silent\nshow-error\nfail-with-body\n")
        (folder / ".exports").write_text("")

    def read(self, blocks: Sequence[Block]) -> None:
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            expects_error = after is not None and after.directive == "answer" and after.argument
            try:
                self._do(block, status=int(expects_error or 200))
            except AssertionError as error:
                raise AssertionError(f"line {block.line}: {error}") from None
        self._wait_for_servers()

    def close(self) -> None:
        if self._interpreter is not None:
            self._interpreter.kill()
            self._interpreter.communicate(timeout=LIMIT_S)
        for server in self._servers.values():
            server.close()

    def _do(self, block: Block, *, status: int) -> None:
        match block:
            case Block(directive="not run"):
                pass
            case Block(directive="file"):
                file = self._folder / block.argument
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(self._here(block.text) + "\n")
            case Block(directive="answer"):
                shown = json.loads(block.text)
                assert is_within(shown, self._answer), f"the answer is {_pretty(self._answer)}"
            case Block(directive="output"):
                assert is_shown(block.text, self._output), f"it printed {self._output!r}"
            case Block(language="console"):
                for command in commands_of(block.text):
                    self._run(command, status=status)
            case Block(language="python"):
                self._execute(block.text)
            case Block(language="toml"):
                tomllib.loads(block.text)
            case Block(language="json"):
                value = json.loads(block.text)
                if isinstance(value, dict) and ("input" in value or "prompt" in value):
                    self._ask(value, status=status)

    # --- commands ---------------------------------------------------------------------------------

    def _run(self, command: Command, *, status: int) -> None:
        text = command.text
        if make := _MAKE.match(text):
            assert f"\n{make['verb']}:" in (ROOT / "Makefile").read_text(), text
            if make["verb"] != "serve":
                return  # it has run already, or is what runs this
            text = f"antiphon serve {make['arguments'] or ''}"
        serve = _SERVE.match(text)
        if serve is not None and not command.output:
            self._serve(serve["before"], serve["rest"].removesuffix("&"))
            return
        assert not _NEEDS_MARK.match(command.text), f"`not run` must stand before {command.text}"
        self._wait_for_servers()
        ran = subprocess.run(
            [
                "bash",
                "-c",
                f". ./.exports\nset -e\n{self._here(command.text)}\nexport -p > ./.exports",
            ],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        self._output = ran.stdout
        may_fail = status != 200 or command.output.startswith(_FAILED)
        assert ran.returncode == 0 or may_fail, f"{command.text}\nsays {ran.stdout}"
        assert is_shown(command.output, ran.stdout), f"{command.text}\nprinted {ran.stdout}"
        try:
            self._answer = json.loads(ran.stdout)
        except ValueError:
            self._answer = None

    def _serve(self, before: str, rest: str) -> None:
        if any(option in rest for option in _NEEDS_SANDBOX) and shutil.which("bwrap") is None:
            pytest.skip("there is no bwrap here: apt-get install bubblewrap")
        named = _PORT.search(rest)
        port = named[1] if named else DEFAULT_PORT
        real = "0"
        if port in self._servers:  # as a reader would stop it, to start the next one
            self._wait_for_servers()
            self._servers.pop(port).close()
            real = self._ports[port]  # clients that the page has made still know it
        elif port == DEFAULT_PORT:
            assert self._interpreter is None, "the page must start a server before it makes clients"
        options = _PORT.sub("", self._here(rest)) + f" --port {real}"
        self._servers[port] = Server(
            f". ./.exports\n{before} exec antiphon serve {options}",
            self._folder,
            self._environment(),
        )

    def _wait_for_servers(self) -> None:
        self._ports |= {port: server.port() for port, server in self._servers.items()}

    def _environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self._folder),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONPATH": os.pathsep.join((str(PACKAGES), str(ROOT))),
        }

    def _here(self, text: str) -> str:
        """Return the text with the real ports of this page's servers."""
        for port, real in self._ports.items():
            text = re.sub(rf"(127\.0\.0\.1|localhost):{port}\b", rf"127.0.0.1:{real}", text)
        return text

    # --- Python and requests ----------------------------------------------------------------------

    def _execute(self, code: str) -> None:
        self._wait_for_servers()
        if self._interpreter is None:
            self._interpreter = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER],
                cwd=self._folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._interpreter.stdin is not None
        assert self._interpreter.stdout is not None
        self._interpreter.stdin.write(json.dumps(self._here(code)) + "\n")
        self._interpreter.stdin.flush()
        result = json.loads(self._interpreter.stdout.readline())
        assert result["error"] is None, result["error"]
        self._output = result["printed"]

    def _ask(self, body: dict[str, Any], *, status: int) -> None:
        self._wait_for_servers()
        if body.get("model") == "…":
            body["model"] = "scripted"
        url = f"http://127.0.0.1:{self._ports[DEFAULT_PORT]}/v1/responses"
        answer = httpx.post(url, json=body, timeout=LIMIT_S)
        assert answer.status_code == status, answer.text
        self._answer = answer.json()


class Server:
    """`antiphon serve` as a page starts it, on a free port."""

    def __init__(self, script: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._port: str | None = None
        self._process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def port(self) -> str:
        """Return the port once the server is ready."""
        if self._port is None:
            said = []
            assert self._process.stderr is not None
            for line in self._process.stderr:
                said.append(line)
                if ready := _READY.search(line):
                    self._port = ready["port"]
                    break
            assert self._port is not None, f"the server did not start: {''.join(said)}"
        return self._port

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=LIMIT_S)
        finally:
            self._process.kill()


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
