"""A plugin of vLLM: a constrained run goes on after tokens that were written before.

vLLM lets a constraint begin with the first token that it generates itself. But if the prompt ends
with the start of an answer, the constraint must begin where that start ends. vLLM loads its plugins
in each of its processes (entry point `vllm.general_plugins`).
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from vllm.v1.structured_output import StructuredOutputManager

WRITTEN = "antiphon_written_token_ids"
"""The extra argument of a run with the tokens at the end of its prompt that are output."""


def register() -> None:
    """Let new grammars accept first what was written; may be called again."""
    create: Any = StructuredOutputManager._create_grammar
    if is_registered():
        return

    @wraps(create)
    def create_and_advance(self: StructuredOutputManager, request: Any) -> Any:
        grammar = create(self, request)
        written = (request.sampling_params.extra_args or {}).get(WRITTEN)
        if written and not grammar.accept_tokens(request.request_id, written):
            raise ValueError("What was written before does not follow the constraint.")
        return grammar

    create_and_advance.advances = True  # type: ignore[attr-defined]
    StructuredOutputManager._create_grammar = create_and_advance


def is_registered() -> bool:
    """Whether vLLM has loaded this plugin: an operator may have limited its plugins."""
    return hasattr(StructuredOutputManager._create_grammar, "advances")
