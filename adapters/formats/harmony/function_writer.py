"""Writes a function as gpt-oss knows it: a comment, and a type in TypeScript.

The library writes the type. It writes and encodes a whole section in one call, which holds the
interpreter's lock, and takes quadratic time for a long run of blanks or letters. So it gets one
function at a time, without its texts: a stand-in takes the place of each long one, and the text
itself is put into what the library has written. The renderer then encodes that in portions.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

SECTION_START = "# Tools\n\n## functions\n\nnamespace functions {\n\n"
SECTION_END = "} // namespace functions"

MAX_VERBATIM_CHARS = 48
"""A stand-in is not much shorter than a text of this length."""

MAX_FUNCTION_CHARS = 100_000
"""In the keys and short texts of a function's parameters. The library takes some 50 ms for them."""

NODE_CHARS = 8
"""What the library writes around each value: a name's colon, a comma, the indent."""

_STAND_IN = f"text{secrets.token_hex(4)}n"


class FunctionWriter:
    """Writes functions with the library of `encoding`."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def write(self, name: str, description: str, parameters: Json | None) -> str:
        """Return the function's comment and type.

        Raises: RequestError for parameters that are too large; ValueError or RecursionError for
        those that the library cannot write.
        """
        shortener = _Shortener(name)
        short = None if parameters is None else shortener.shorten_schema(parameters)
        written = self._write_type(name, short)
        return comment(description) + shortener.restore(written)

    def _write_type(self, name: str, parameters: Any) -> str:
        from openai_harmony import (  # type: ignore[import-untyped]
            DeveloperContent,
            ToolDescription,
        )

        tool = ToolDescription.new(name, "", parameters)
        content = DeveloperContent.new().with_function_tools([tool])
        section = self._encoding.text(self._encoding.render_tools(content))
        return section.removeprefix(SECTION_START).removesuffix(SECTION_END)


def comment(description: str) -> str:
    """Return the description as lines of a comment, each with its end.

    >>> comment("Reads a file.\\nFast.")
    '// Reads a file.\\n// Fast.\\n'
    """
    if not description:
        return ""
    # A list of all lines would take long to make and to free, with the interpreter's lock held.
    text = description.removesuffix("\n").removesuffix("\r").replace("\r\n", "\n")
    return "// " + text.replace("\n", "\n// ") + "\n"


class _Shortener:
    """Replaces the long texts of one function's parameters, and puts them back."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._stand_ins: dict[str, str] = {}
        self._texts: list[str] = []
        self._free_chars = MAX_FUNCTION_CHARS

    def shorten_schema(self, schema: Any) -> Any:
        return self._shorten(schema, is_encoded=False)

    def restore(self, written: str) -> str:
        return _find_stand_ins(lambda match: self._texts[int(match["number"])], written)

    def _shorten(self, value: Any, *, is_encoded: bool) -> Any:
        """Return the value with stand-ins; the library writes it as JSON if `is_encoded`."""
        if isinstance(value, str):
            return self._shorten_text(value, is_encoded=is_encoded)
        self._spend(NODE_CHARS)
        if isinstance(value, list | tuple):
            return [self._shorten(each, is_encoded=is_encoded) for each in value]
        if isinstance(value, Mapping):
            return {
                self._shorten_text(key, is_encoded=is_encoded): self._shorten(
                    each, is_encoded=is_encoded or (key == "default" and not isinstance(each, str))
                )
                for key, each in value.items()
            }
        return value

    def _shorten_text(self, text: str, *, is_encoded: bool) -> str:
        self._spend(min(len(text), MAX_VERBATIM_CHARS))
        if len(text) <= MAX_VERBATIM_CHARS:
            return text
        written = json.dumps(text, ensure_ascii=False)[1:-1] if is_encoded else text
        if written not in self._stand_ins:
            # The library looks for this word in what it has written of an alternative.
            null = "null" if "null" in text else ""
            self._stand_ins[written] = f"{_STAND_IN}{len(self._texts)}{null}x"
            self._texts.append(written)
        return self._stand_ins[written]

    def _spend(self, chars: int) -> None:
        self._free_chars -= chars
        if self._free_chars < 0:
            raise RequestError(
                f"The parameters of the function {self._function[:100]!r} are too large: without "
                f"their descriptions they have more than {MAX_FUNCTION_CHARS} characters.",
                param="tools",
                code="invalid_function_parameters",
            )


_find_stand_ins = re.compile(rf"{_STAND_IN}(?P<number>\d+)(?:null)?x").sub
