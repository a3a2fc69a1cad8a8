"""The fenced blocks of a page, and what the page says about each of them.

An HTML comment right before a block says how it is tested:

- `<!-- not run: WHY -->`: it is not run;
- `<!-- file: PATH -->`: it is the content of this file, for the blocks that follow;
- `<!-- answer -->`, `<!-- answer: 400 -->`: it is in the JSON answer to the last request;
- `<!-- output -->`: it is what the last block printed.

A comment that begins with `<!-- first: LANGUAGE` is a block that readers do not see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w+-]*)[^`]*$")
_DIRECTIVE = re.compile(r"^ *<!-- (?P<name>not run|file|answer|output)(: (?P<argument>.+?))? -->$")
_HIDDEN = re.compile(r"^<!-- first: (?P<language>\w+)$")
_PROMPT = "$ "


class Block(NamedTuple):
    """One fenced block. `line` is where it begins, counted from 1."""

    line: int
    language: str
    text: str
    directive: str = ""
    argument: str = ""


class Command(NamedTuple):
    """A command of a console block, and the output that the page shows."""

    text: str
    output: str


def blocks_of(page: Path) -> list[Block]:
    return list(_blocks(page.read_text(encoding="utf-8").splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    directive = argument = ""
    number = 0
    while number < len(lines):
        line = lines[number]
        start = number + 1
        number += 1
        if found := _DIRECTIVE.match(line):
            directive, argument = found["name"], found["argument"] or ""
        elif (found := _HIDDEN.match(line)) or (found := _FENCE.match(line)):
            closing = found.groupdict().get("fence") or "-->"
            end = next(n for n in range(number, len(lines)) if lines[n].strip() == closing)
            text = dedent("\n".join(lines[number:end]))
            yield Block(start, found["language"], text, directive, argument)
            directive = argument = ""
            number = end + 1
        elif line.strip():
            directive = argument = ""


def commands_of(text: str) -> Iterator[Command]:
    """Yield the commands of a console block: what follows a prompt, and what is shown after it.

    >>> list(commands_of("$ echo a \\\\\\n  b\\na b\\n$ true"))
    [Command(text='echo a \\\\\\n  b', output='a b'), Command(text='true', output='')]
    """
    lines = text.splitlines()
    while lines:
        first = lines.pop(0)
        assert first.startswith(_PROMPT), f"a console block shows output of no command: {first!r}"
        command = first.removeprefix(_PROMPT)
        while not _is_whole(command):
            command += "\n" + lines.pop(0)
        output = []
        while lines and not lines[0].startswith(_PROMPT):
            output.append(lines.pop(0))
        yield Command(command, "\n".join(output))


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return not command.endswith("\\")
