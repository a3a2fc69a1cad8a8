"""Custom tools with a grammar, as clients see them (docs/reference/api.md#custom-tools)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.http.conftest import create

PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: delete_hunk | update_hunk
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_line+
filename: /(.+)/
change_line: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""


def a_tool(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "edit", "format": form}


@pytest.mark.parametrize(
    ("syntax", "definition", "text"),
    [
        ("lark", PATCH, "*** Begin Patch\n*** Delete File: a\n*** End Patch"),
        ("lark", 'start: "\\"" X+ "\\\\"\nX: /[^a-z]/', '"0\\'),
        ("regex", r'say "\w{3}"\n', 'say "aaa"\n'),
    ],
)
def test_an_unscripted_model_calls_with_a_sentence_of_the_grammar(
    http: httpx.Client, model: str, syntax: str, definition: str, text: str
) -> None:
    tool = a_tool(syntax, definition)
    choice = {"type": "custom", "name": "edit"}
    response = create(http, model=model, input="Go", tools=[tool], tool_choice=choice)
    call = response["output"][-1]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "edit", text)
    assert response["tools"][0]["format"] == tool["format"]


@pytest.mark.parametrize(
    ("syntax", "definition", "place"),
    [
        ("lark", 'start: "a" rest', "line 1, column 12"),
        ("lark", 'start: "a"\nrest: (', "line 2, column 8"),
        ("regex", "[a-", "line 1, column 1"),
    ],
)
def test_a_definition_that_is_no_grammar_is_refused_with_its_place(
    http: httpx.Client, model: str, syntax: str, definition: str, place: str
) -> None:
    tools = [{"type": "custom", "name": "plain"}, a_tool(syntax, definition)]
    answer = http.post("/responses", json={"model": model, "input": "Go", "tools": tools})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("tools[1].format.definition", "invalid_value")
    assert place in error["message"]


def test_a_grammar_that_cannot_be_enforced_is_named_as_without_effect(
    http: httpx.Client, model: str
) -> None:
    body = {"model": model, "input": "Go", "tools": [a_tool("regex", "a(?=b)b")]}
    answer = http.post("/responses", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-antiphon-ignored"] == "tools[0].format"
    assert answer.json()["output"][-1]["input"] == "ab"
    body["tools"] = [a_tool("regex", "ab")]
    assert "x-antiphon-ignored" not in http.post("/responses", json=body).headers
