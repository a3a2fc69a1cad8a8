"""Our constraints as llama.cpp's grammars (GBNF), which cover a run from its first token on.

rules.py      rules by name, quoting, and EBNF with its rules renamed
free_text.py  text in which something does not occur, or ends it
schemas.py    JSON of a schema
numbers.py    integers and numbers within bounds
tags.py       a constraint: structural tags, schemas, expressions, choices
remaining.py  what a grammar still allows after a text
"""

from __future__ import annotations

from antiphon.adapters.engines.llama.grammar.remaining import DoesNotMatch, TooComplex, remaining_of
from antiphon.adapters.engines.llama.grammar.tags import gbnf_of

__all__ = ["DoesNotMatch", "TooComplex", "gbnf_of", "remaining_of"]
