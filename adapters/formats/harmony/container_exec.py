"""gpt-oss's own shell, `container.exec`: a program and its arguments, in place of commands.

It knows no list of commands and no length of output: a call that has these is written in our own
words, which are read as well.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.domain.client_tools import item_fields_of
from antiphon.domain.tools import CONTAINER

EXEC = "container.exec"

ABOUT = "Utilities for interacting with a container that has no network; files are in /mnt/data."
ABOUT_EXEC = "Runs a command in the container and returns what it prints."
PARAMETERS: dict[str, Any] = {
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
_SCRIPT = ("-c", "-lc")


class Exec(Struct, frozen=True, kw_only=True):
    """What the model writes; sessions and users, which it may name, there are none."""

    cmd: tuple[str, ...]
    workdir: str | None = None
    env: dict[str, str] | None = None
    timeout: int | None = None


class ExecReader:
    """Arguments of `container.exec` in, those of a shell call out, when all have come."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> str:
        self._text += text
        return ""

    def end(self) -> tuple[str, str]:
        return commands_of(self._text), ""


def commands_of(arguments: str) -> str:
    """Return the arguments of a shell call that does the same; what is no such call is unchanged.

    >>> commands_of('{"cmd": ["bash", "-lc", "ls | wc -l"], "timeout": 9}')
    '{"commands": ["ls | wc -l"], "timeout_ms": 9000}'
    >>> commands_of('{"cmd": ["ls", "a b"], "workdir": "/tmp"}')
    '{"commands": ["cd /tmp || exit\\\\nls \\'a b\\'"]}'
    """
    try:
        asked = msgspec.json.decode(arguments, type=Exec)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
    if not asked.cmd:
        return arguments
    lines = [f"cd {shlex.quote(asked.workdir)} || exit"] if asked.workdir else []
    lines += [
        f"export {shlex.quote(name)}={shlex.quote(value)}"
        for name, value in (asked.env or {}).items()
    ]
    fields: dict[str, Any] = {"commands": ["\n".join([*lines, _command(asked.cmd)])]}
    if asked.timeout:
        fields["timeout_ms"] = asked.timeout * 1000
    return json.dumps(fields, ensure_ascii=False)


def to_exec_arguments(arguments: str) -> str:
    """Return the arguments of `container.exec` for those of a shell call, where it has words for
    them.

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
    said: dict[str, Any] = {"cmd": ["bash", "-lc", action["commands"][0]]}
    if timeout_ms:
        said["timeout"] = timeout_ms // 1000
    return json.dumps(said, ensure_ascii=False)


def _command(words: Sequence[str]) -> str:
    if len(words) == 3 and words[0] in _SHELLS and words[1] in _SCRIPT:
        return words[2]
    return shlex.join(words)
