"""Requests with programs, and what comes of them, for tests over HTTP."""

from __future__ import annotations

import json
from typing import Any

from tests.http.conftest import script

Json = dict[str, Any]

PROGRAMS = {"type": "programmatic_tool_calling"}
BOTH = ["direct", "programmatic"]
ODD = {
    "type": "mcp",
    "server_label": "odd",
    "require_approval": "never",
    "allowed_callers": ["programmatic"],
}


def function(name: str = "stock", callers: list[str] | None = None, **fields: Any) -> Json:
    return {
        "type": "function",
        "name": name,
        "parameters": {"type": "object", "properties": {"sku": {"type": "string"}}},
        "allowed_callers": ["programmatic"] if callers is None else callers,
        **fields,
    }


def program(code: str) -> Json:
    return {"call": "program", "args": {"code": code}}


def asked(code: str, *more: Any) -> Json:
    turns = more or ({"say": "Enough."},)
    return {"role": "user", "content": script(program(code), *turns)}


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def calls_of(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def output_of(response: Json) -> Json:
    [output] = [item for item in response["output"] if item["type"] == "program_output"]
    return dict(output)


def answers(response: Json, *outputs: Any) -> list[Json]:
    """Return outputs of the response's calls, in their order; what is no string is JSON."""
    return [
        {
            "type": "function_call_output",
            "call_id": call["call_id"],
            "output": output if isinstance(output, str) else json.dumps(output),
        }
        for call, output in zip(calls_of(response), outputs, strict=True)
    ]


SUM = """
const [a, b] = await Promise.all(["x", "y"].map((sku) => tools.stock({ sku })));
text(`${a.units + b.units} units`);
"""
