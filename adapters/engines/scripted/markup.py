"""The interface of a format to the scripted engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from antiphon.domain.tools import ToolSpec


class Markup(Protocol):
    """Reads prompts of a format, and writes the tokens that a model of that format would write."""

    def read(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return the messages of a rendered prompt, in order, as (role, text).

        Roles: `system`, `developer`, `user`, `assistant` (a visible message in a turn that makes
        no call), `preamble` (visible text in an assistant turn that also calls), `call` (the text
        is the tool's name as the model wrote it), `tool` (a tool's output) and `reasoning`. Text
        contains no markup. Never raises: it skips what it cannot read.
        """

    def write(
        self, parts: Sequence[Mapping[str, Any]], *, tools: Sequence[ToolSpec], thinking: bool
    ) -> list[list[tuple[int, str]]]:
        """Return the tokens of one whole model turn: a list for each part, then one for its end.

        A token is (id, text); joined, the texts are what a client would read with special tokens
        left in. The tokens follow the rendered prompt as a model's would. Kinds of parts:

        - `{"say": text, "repeat": n, "phase": "commentary" | "final_answer"}`: a message, its text
          written n times (once without `repeat`);
        - `{"think": text}`: reasoning; an empty list where `thinking` is False;
        - `{"call": name, "args": {…} | text}`: a function call; text is written as it is; without
          `args`, `{}`;
        - `{"custom": name, "input": text}`: a call of a free-form tool;
        - `{"mcp": name, "args": {…} | text, "server": label}`: a call of an MCP server's tool;
        - `{"python": code}`: a call of the code interpreter;
        - `{"refuse": text}`: a refusal;
        - `{"raw": text}`: exactly this markup, special tokens as special tokens;
        - `fail`, `die` and `hang`, which write nothing: an empty list.

        All other fields of a part are for the engine: ignore them. Tokens that join two parts
        belong to the second part's list. The last list ends the turn: it has at least the
        end-of-turn token, with the text "" if the format's clients never see it. It is empty after
        a `raw` part that has already ended the turn.
        """

    def offers(self, part: Mapping[str, Any], *, tools: Sequence[ToolSpec]) -> bool:
        """Return whether `tools` contains the tool that a part calls. True for other parts."""

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens, special tokens included."""
