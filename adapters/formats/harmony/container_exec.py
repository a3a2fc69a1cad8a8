"""Converts shell calls to and from `container.exec`, gpt-oss's own shell.

`container.exec` takes a program and its arguments, not commands. It has no list of commands and no
limit of the output. A call that has these keeps the arguments of the shell tool, which are accepted
as well.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.domain.offers.client_tools import item_fields_of
from antiphon.domain.tools import CONTAINER

EXEC = "container.exec"

NAMESPACE_DESCRIPTION = (
    "Utilities for interacting with a container that has no network; files are in /mnt/data."
)
EXEC_DESCRIPTION = "Runs a command in the container and returns what it prints."
EXEC_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "cmd": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "workdir": {"type": ["string", "null"]},
        "env": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
        "timeout": {"type": ["integer", "null"], "description": "in seconds"},
    },
    "required": ["cmd"],
    "additionalProperties": False,
}

_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
_SCRIPT_OPTIONS = ("-c", "-lc")


class Exec(Struct, frozen=True, kw_only=True):
    """The arguments that the model writes; a session or a user that it names has no effect."""

    cmd: tuple[str, ...]
    workdir: str | None = None
    env: dict[str, str] | None = None
    timeout: int | None = None


class ExecReader:
    """Converts complete arguments of `container.exec` to those of a shell call."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> str:
        self._text += text
        return ""

    def end(self) -> tuple[str, str]:
        return to_shell_arguments(self._text), ""


def to_shell_arguments(arguments: str) -> str:
    """Return the arguments of an equivalent shell call; return anything else unchanged.

    >>> to_shell_arguments('{"cmd": ["bash", "-lc", "ls | wc -l"], "timeout": 9}')
    '{"commands": ["ls | wc -l"], "timeout_ms": 9000}'
    >>> to_shell_arguments('{"cmd": ["ls", "a b"], "workdir": "/tmp"}')
    '{"commands": ["cd /tmp || exit\\\\nls \\'a b\\'"]}'
    """
    try:
        exec_call = msgspec.json.decode(arguments, type=Exec)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
    if not exec_call.cmd:
        return arguments
    lines = [f"cd {shlex.quote(exec_call.workdir)} || exit"] if exec_call.workdir else []
    lines += [
        f"export {shlex.quote(name)}={shlex.quote(value)}"
        for name, value in (exec_call.env or {}).items()
    ]
    fields: dict[str, Any] = {"commands": ["\n".join([*lines, _command(exec_call.cmd)])]}
    if exec_call.timeout:
        fields["timeout_ms"] = exec_call.timeout * 1000
    return json.dumps(fields, ensure_ascii=False)


def to_exec_arguments(arguments: str) -> str:
    """Return the arguments of `container.exec` for those of a shell call, if it can express them.

    >>> to_exec_arguments('{"commands": ["ls | wc -l"]}')
    '{"cmd": ["bash", "-lc", "ls | wc -l"]}'
    """
    fields = item_fields_of(CONTAINER, arguments)
    if fields is None:
        return arguments
    action = fields["action"]
    timeout_ms = action["timeout_ms"] or 0
    if len(action["commands"]) != 1 or action["max_output_length"] is not None or timeout_ms % 1000:
        return arguments
    exec_arguments: dict[str, Any] = {"cmd": ["bash", "-lc", action["commands"][0]]}
    if timeout_ms:
        exec_arguments["timeout"] = timeout_ms // 1000
    return json.dumps(exec_arguments, ensure_ascii=False)


def _command(words: Sequence[str]) -> str:
    if len(words) == 3 and words[0] in _SHELLS and words[1] in _SCRIPT_OPTIONS:
        return words[2]
    return shlex.join(words)
