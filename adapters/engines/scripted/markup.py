"""What the scripted engine needs of a format, without knowing any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from antiphon.domain.tools import ToolSpec


class Markup(Protocol):
    """Reads a prompt of its format, and writes what a model of that format would."""

    def read(self, token_ids: Sequence[int]) -> list[tuple[str, str]]:
        """Return the messages of a rendered prompt, in order, as (role, text).

        Roles: `system`, `developer`, `user`, `assistant` (a visible message in a turn that makes
        no call), `preamble` (visible text in an assistant turn that also calls), `call` (the text
        is the tool's name as the model wrote it), `tool` (a tool's output) and `reasoning`. Text
        is bare of markup. Never raises: what it cannot read is left out.
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

        Fields of a part that are not named here are the engine's own and are passed over. What
        joins two parts belongs to the second's list. The last list is what ends the turn: at least
        its end-of-turn token, whose text is "" where the format's clients never see it. After a
        `raw` part that ended the turn by itself it is empty.
        """

    def offers(self, part: Mapping[str, Any], *, tools: Sequence[ToolSpec]) -> bool:
        """Whether the tool that a part calls is one of these; True for a part that calls none."""

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens, special tokens included."""
