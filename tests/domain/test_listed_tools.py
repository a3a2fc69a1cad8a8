"""What a hostile MCP server lists does not reach a prompt, and reading it takes linear time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from antiphon.domain.offers.mcp import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_LISTED_TOOL_CHARS,
    MAX_LISTED_TOOLS,
    Listing,
    tool_specs_of,
)
from antiphon.domain.tools import McpTool

SERVER = McpTool(server_label="s", require_approval="never")


def _names_of(*tools: dict[str, Any]) -> list[str]:
    return [spec.client_name for spec in tool_specs_of(SERVER, Listing(tools))]


def _schema(text: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"description": text}}}


@pytest.mark.parametrize("letter", ["\n", "a", "!", " "], ids=repr)
def test_a_long_run_in_a_description_makes_a_tool_invalid(letter: str) -> None:
    run = letter * 2000
    hostile = [
        {"name": "a", "description": run},
        {"name": "b", "input_schema": _schema(run)},
        {"name": "c", "input_schema": {"properties": {run: {}}}},
    ]
    assert _names_of(*hostile, {"name": "d", "description": "Reads."}) == ["d"]


def test_a_tool_with_a_book_as_its_description_is_invalid() -> None:
    text = "some words " * (MAX_LISTED_TOOL_CHARS // 11 + 1)
    assert _names_of({"name": "a", "input_schema": _schema(text)}, {"name": "b"}) == ["b"]


def test_a_server_offers_a_limited_number_of_tools() -> None:
    tools = [{"name": f"tool_{number}"} for number in range(MAX_LISTED_TOOLS + 5)]
    assert len(_names_of(*tools)) == MAX_LISTED_TOOLS


@pytest.mark.parametrize("text", ["\n", "ab! ", "a\n", "é", "a" * 1000 + " "])
def test_reading_a_listing_takes_linear_time(text: str) -> None:
    started = time.process_time()
    _names_of({"name": "a", "input_schema": _schema(text * (5_000_000 // len(text)))})
    assert time.process_time() - started < 5


TWO_TOOLS = ({"name": "find", "description": "Finds."}, {"name": "change"})


def _descriptions(instructions: str, **fields: Any) -> list[str]:
    server = McpTool(server_label="crm", **fields)
    return [spec.description for spec in tool_specs_of(server, Listing(TWO_TOOLS, instructions))]


def test_what_a_server_says_of_all_its_tools_stands_with_the_first_one_offered() -> None:
    said = "About all tools of crm: Find before you change."
    assert _descriptions("Find before you change.") == [f"Finds.\n\n{said}", ""]
    assert _descriptions("Find before you change.", allowed_tools=("change",)) == [said]
    assert _descriptions("") == ["Finds.", ""]


def test_the_requests_own_description_of_a_server_stands_there_too() -> None:
    first, _ = _descriptions("Find first.", server_description="Our customers.")
    assert first == "Finds.\n\nAbout all tools of crm: Our customers.\nFind first."


def test_what_a_server_says_is_cut_off_and_left_out_if_no_tokenizer_should_see_it() -> None:
    first, _ = _descriptions("word " * MAX_INSTRUCTIONS_CHARS)
    assert len(first) < MAX_INSTRUCTIONS_CHARS + 100
    assert _descriptions("x" * MAX_INSTRUCTIONS_CHARS) == ["Finds.", ""]
