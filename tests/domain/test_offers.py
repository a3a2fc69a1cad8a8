"""Tools and tool_choice: what a model is offer, and what is refused_param."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.domain.errors import RequestError
from antiphon.domain.kinds.function import is_strict
from antiphon.domain.offers.offer import (
    MAX_SPECS,
    PREVIOUS_RESPONSE_PATH,
    Offer,
    ToolDefinition,
    make_offer,
    with_loaded_tools,
)
from antiphon.domain.requests.decoding import decode_tool
from antiphon.domain.tools import WEB_SEARCHES, ToolChoice

WEATHER = {"type": "function", "name": "get_weather"}
TIME = {"type": "function", "name": "get_time"}
CLOSED = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def offer(
    *tools: dict[str, Any], choice: Any = None, item_tools: Sequence[dict[str, Any]] = ()
) -> Offer:
    """Return the offer for a request with these tools and an item with `item_tools`."""
    request_definitions = [
        definition(tool, f"tools[{n}]", from_item=False) for n, tool in enumerate(tools)
    ]
    item_definitions = [
        definition(tool, f"input[0].tools[{n}]", from_item=True)
        for n, tool in enumerate(item_tools)
    ]
    return make_offer([*request_definitions, *item_definitions], choice)


def definition(tool: dict[str, Any], path: str, *, from_item: bool) -> ToolDefinition:
    return ToolDefinition(
        tool=decode_tool(json.dumps(tool).encode(), path), path=path, from_item=from_item
    )


def names(an_offer: Offer) -> list[str]:
    return [spec.name for spec in an_offer.specs]


def refused_param(*tools: dict[str, Any], choice: Any = None) -> str | None:
    """Return the param of the error that these tools cause."""
    with pytest.raises(RequestError) as caught:
        offer(*tools, choice=choice)
    return caught.value.param


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        (
            {"type": "function", "name": "get_time"},
            ToolChoice(mode="required", names=frozenset({"get_time"})),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [TIME]},
            ToolChoice(mode="auto", names=frozenset({"get_time"})),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [TIME, WEATHER]},
            ToolChoice(mode="required", names=frozenset({"get_time", "get_weather"})),
        ),
    ],
)
def test_every_form_of_tool_choice_has_one_normal_form(choice: Any, expected: ToolChoice) -> None:
    assert offer(WEATHER, TIME, choice=choice).choice == expected


@pytest.mark.parametrize(
    "choice",
    [
        "sometimes",
        {"type": "function", "name": "nope"},
        {"type": "function"},
        {"type": "nonsense"},
        {"type": "custom", "name": "get_time"},
        {"type": "web_search"},
        {"type": "allowed_tools", "mode": "sometimes", "tools": [TIME]},
        {"type": "allowed_tools", "mode": "required", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": "get_time"},
    ],
)
def test_a_tool_choice_that_cannot_be_honored_is_refused(choice: Any) -> None:
    assert refused_param(WEATHER, TIME, choice=choice) == "tool_choice"


def test_thousands_of_allowed_tools_are_found_fast() -> None:
    tools = [{"type": "function", "name": f"f{n}"} for n in range(3000)]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": tools}
    started = time.process_time()
    normal_form = offer(*tools, choice=choice).choice
    assert normal_form.names is not None
    assert len(normal_form.names) == len(tools)
    assert time.process_time() - started < 0.5


def test_thousands_of_properties_are_looked_up_fast() -> None:
    names = [f"p{n}" for n in range(20_000)]
    schema = {"type": "object", "properties": {name: {} for name in names}, "required": names[::-1]}
    started = time.process_time()
    assert is_strict({**schema, "additionalProperties": False})
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("in_namespace", [False, True])
def test_many_large_grammars_are_refused_before_they_are_parsed(in_namespace: bool) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "(?i)" + r"\w" * 16_000}
    tools: list[dict[str, Any]] = [
        {"type": "custom", "name": f"c{n}", "format": form} for n in range(200)
    ]
    if in_namespace:
        tools = [{"type": "namespace", "name": "n", "description": "", "tools": tools}]
    assert refused_param(*tools) == ("tools[0]" if in_namespace else "tools[1]")


def test_required_without_tools_is_refused() -> None:
    assert refused_param(choice="required") == "tool_choice"


def test_two_tools_with_the_same_name_are_refused() -> None:
    assert refused_param(WEATHER, WEATHER) == "tools[1]"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "mcp", "server_label": "s", "server_url": "https://example.org"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "shell", "environment": {"type": "container_auto"}},
    ],
)
def test_a_tool_that_the_server_cannot_run_is_not_offered(tool: dict[str, Any]) -> None:
    result = offer(WEATHER, tool)
    assert (names(result), result.ignored) == (["get_weather"], ("tools[1]",))
    assert refused_param(WEATHER, tool, choice={"type": tool["type"]}) == "tool_choice"
    assert refused_param(tool, choice="required") == "tool_choice"


def test_an_unknown_tool_is_reported_as_without_effect() -> None:
    result = offer(WEATHER, {"type": "acme:search"})
    assert result.ignored == ("tools[1]",)
    assert [spec.name for spec in result.specs] == ["get_weather"]
    assert msgspec.json.decode(result.echo[1]) == {"type": "acme:search"}


def test_a_namespace_is_flattened_for_the_model() -> None:
    crm = {"type": "namespace", "name": "crm", "description": "d", "tools": [WEATHER]}
    spec = offer(crm).specs[0]
    assert (spec.name, spec.namespace) == ("crm__get_weather", "crm")


EXEC = {"type": "custom", "name": "exec"}
FUNCTIONS = {"type": "namespace", "name": "functions", "description": "d", "tools": [EXEC]}


def test_the_namespace_functions_is_not_part_of_a_models_name() -> None:
    spec = offer(item_tools=[FUNCTIONS]).specs[0]
    assert (spec.name, spec.namespace, spec.client_name) == ("exec", "functions", "exec")


@pytest.mark.parametrize("tools", [[FUNCTIONS, EXEC], [EXEC, FUNCTIONS]])
def test_two_tools_of_the_same_name_are_told_apart_by_the_namespace(tools: list[Any]) -> None:
    specs = offer(*tools).specs
    assert {spec.namespace: spec.name for spec in specs} == {
        None: "exec",
        "functions": "functions__exec",
    }


def test_a_tool_of_the_namespace_functions_keeps_its_name_beside_a_built_in_tool() -> None:
    functions = {**FUNCTIONS, "tools": [{"type": "function", "name": "shell"}]}
    assert names(offer(SHELL, functions)) == ["shell_tool", "shell"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "name": "exec"},
        {"type": "custom", "name": "exec", "namespace": "functions"},
        {"type": "custom", "name": "functions__exec"},
    ],
)
def test_a_tool_of_the_namespace_functions_is_chosen_by_each_of_its_names(
    choice: dict[str, str],
) -> None:
    assert offer(FUNCTIONS, choice=choice).choice.names == {"exec"}


SHELL = {"type": "shell"}
PREVIEW = {
    "type": "computer_use_preview",
    "display_width": 1024,
    "display_height": 768,
    "environment": "browser",
}


@pytest.mark.parametrize(
    ("tool", "kind"),
    [
        (SHELL, "shell"),
        ({"type": "shell", "environment": {"type": "local"}}, "shell"),
        ({"type": "shell", "environment": None}, "shell"),
        ({"type": "local_shell"}, "local_shell"),
        ({"type": "apply_patch"}, "apply_patch"),
        ({"type": "computer"}, "computer"),
        ({"type": "computer_use"}, "computer"),
        (PREVIEW, "computer_use_preview"),
        ({"type": "tool_search", "execution": "client"}, "tool_search"),
    ],
)
def test_a_tool_that_the_client_runs_is_a_strict_function_that_can_be_forced(
    tool: dict[str, Any], kind: str
) -> None:
    result = offer(tool, WEATHER, choice={"type": tool["type"]})
    spec = result.specs[0]
    assert (spec.kind, spec.strict, result.ignored) == (kind, True, ())
    assert result.choice == ToolChoice(mode="required", names=frozenset({spec.name}))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": tool["type"]}]}
    assert offer(tool, WEATHER, choice=allowed).choice.names == {spec.name}


def test_the_model_is_told_the_size_of_the_screen() -> None:
    assert "1024x768" in offer(PREVIEW).specs[0].description


def test_a_built_in_tool_is_renamed_in_favor_of_a_clients_tool() -> None:
    function = {"type": "function", "name": "shell"}
    assert names(offer(SHELL, function)) == ["shell_tool", "shell"]
    custom = {"type": "custom", "name": "shell_tool"}
    assert names(offer(function, SHELL, custom)) == ["shell", "shell_tool_tool", "shell_tool"]
    forced = offer(function, SHELL, choice={"type": "shell"}).choice
    assert forced.names == frozenset({"shell_tool"})


def test_a_built_in_tool_must_not_be_defined_twice() -> None:
    assert refused_param(SHELL, WEATHER, SHELL) == "tools[2]"


def test_a_namespaced_name_that_is_already_used_is_refused() -> None:
    crm = {"type": "namespace", "name": "crm", "description": "d", "tools": [WEATHER]}
    assert refused_param({"type": "function", "name": "crm__get_weather"}, crm) == "tools[1]"


def test_a_name_that_is_too_long_with_its_namespace_is_shortened_and_stays_unique() -> None:
    long = [{"type": "function", "name": "find_" + "x" * 60 + last} for last in "ab"]
    crm = {"type": "namespace", "name": "crm", "description": "d", "tools": long}
    first, second = offer(crm).specs
    assert len(first.name) == len(second.name) == 64
    assert first.name != second.name
    assert (first.namespace, first.client_name) == ("crm", long[0]["name"])
    assert offer(crm).specs == (first, second)
    for choice in (
        {"type": "function", "name": f"crm__{long[0]['name']}"},
        {"type": "function", "name": long[0]["name"], "namespace": "crm"},
        {"type": "function", "name": first.name},
    ):
        assert offer(crm, choice=choice).choice.names == {first.name}


def test_tools_from_items_come_after_the_others_and_replace_tools_of_the_same_name() -> None:
    changed = {**WEATHER, "description": "newer"}
    result = offer(WEATHER, TIME, item_tools=[SHELL, changed])
    assert names(result) == ["get_weather", "get_time", "shell"]
    assert result.specs[0].description == "newer"
    assert len(result.echo) == 2
    assert offer(item_tools=[{"type": "acme:search"}]).ignored == ("input[0].tools[0]",)


def test_tools_of_an_earlier_request_are_reported_as_ignored_only_there() -> None:
    lookahead = {"type": "grammar", "syntax": "regex", "definition": "(?=a)a"}
    tools = [{"type": "acme:search"}, {"type": "custom", "name": "sql", "format": lookahead}]
    result = make_offer(
        [definition(tool, PREVIOUS_RESPONSE_PATH, from_item=True) for tool in tools], None
    )
    assert (names(result), result.ignored) == (["sql"], ())


HIDDEN = {**WEATHER, "description": "Tells the weather.", "defer_loading": True}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers and orders.",
    "tools": [
        {"type": "function", "name": "find_order", "defer_loading": True},
        {"type": "function", "name": "find_customer", "defer_loading": True},
    ],
}


@pytest.mark.parametrize("execution", ["server", "client", None])
def test_only_the_tool_search_mentions_deferred_tools(execution: str | None) -> None:
    search = {"type": "tool_search", "execution": execution}
    result = offer(HIDDEN, TIME, CRM, search)
    assert names(result) == ["get_time", "tool_search"]
    description = result.specs[1].description
    assert "- get_weather: Tells the weather.\n- crm: Customers and orders." in description
    assert "find_order" not in description


def test_deferred_tools_are_offered_immediately_if_nothing_can_load_them() -> None:
    assert names(offer(HIDDEN, TIME)) == ["get_weather", "get_time"]


def test_a_deferred_tool_that_is_forced_is_shown() -> None:
    forced = {"type": "function", "name": "get_weather"}
    result = offer(HIDDEN, CRM, {"type": "tool_search"}, choice=forced)
    assert names(result) == ["get_weather", "tool_search"]


def test_a_loaded_tool_is_offered_although_its_definition_says_deferred() -> None:
    loaded = {**CRM, "tools": [CRM["tools"][0]]}  # type: ignore[index]
    result = offer(HIDDEN, CRM, {"type": "tool_search"}, item_tools=[loaded])
    assert names(result) == ["crm__find_order", "tool_search"]
    assert "crm" in result.specs[1].description  # its other tool is not loaded yet


def test_a_search_with_nothing_left_to_find_is_not_offered() -> None:
    assert names(offer(HIDDEN, {"type": "tool_search"}, item_tools=[HIDDEN])) == ["get_weather"]


def test_a_tool_choice_no_longer_forces_a_call_after_a_search() -> None:
    before = offer(HIDDEN, TIME, {"type": "tool_search"}, choice={"type": "tool_search"})
    after = with_loaded_tools(before, [before.definitions[0].tool])
    assert (names(after), after.choice) == (["get_weather", "get_time"], ToolChoice())


def test_a_restriction_to_allowed_tools_still_applies_after_a_search() -> None:
    allowed_tools = [HIDDEN, {"type": "tool_search"}]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": allowed_tools}
    before = offer(HIDDEN, TIME, {"type": "tool_search"}, choice=allowed)
    after = with_loaded_tools(before, [before.definitions[0].tool])
    assert names(before) == ["get_time", "tool_search"]
    assert after.choice.mode == "auto"
    assert after.choice.allows("get_weather")
    assert not after.choice.allows("get_time")


def test_strict_is_derived_from_the_schema_if_omitted_and_echoed() -> None:
    strict = offer({**WEATHER, "parameters": CLOSED})
    loose = offer({**WEATHER, "parameters": {**CLOSED, "required": []}})
    assert strict.specs[0].strict
    assert msgspec.json.decode(strict.echo[0])["strict"] is True
    assert msgspec.json.decode(loose.echo[0])["strict"] is False


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (CLOSED, True),
        (None, False),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({**CLOSED, "properties": {"city": {"type": "object", "properties": {}}}}, False),
    ],
)
def test_a_strict_schema_closes_every_object(schema: Any, expected: bool) -> None:
    assert is_strict(schema) is expected


def test_a_grammar_needs_a_known_syntax_and_a_definition() -> None:
    tool = {"type": "custom", "name": "sql"}
    good = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    assert offer({**tool, "format": good}).specs[0].grammar == ("lark", 'start: "x"')
    assert refused_param({**tool, "format": {**good, "syntax": "bnf"}}) == "tools[0].format"
    assert refused_param({**tool, "format": {"type": "grammar", "syntax": "regex"}}) == (
        "tools[0].format.definition"
    )


def test_the_error_of_an_invalid_grammar_has_its_place() -> None:
    invalid = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" x'}
    sql = {"type": "custom", "name": "sql", "format": invalid}
    with pytest.raises(RequestError) as caught:
        offer({"type": "namespace", "name": "db", "description": "", "tools": [sql]})
    assert caught.value.param == "tools[0].tools[0].format.definition"
    assert caught.value.code == "invalid_value"
    assert "'x' is used but not defined, at line 1, column 12" in caught.value.message


def test_a_grammar_that_no_engine_enforces_is_shown_but_has_no_effect() -> None:
    lookahead = {"type": "grammar", "syntax": "regex", "definition": "(?=a)a"}
    tool = {"type": "custom", "name": "a", "format": lookahead}
    plain = {"type": "custom", "name": "b", "format": {**lookahead, "definition": "a"}}
    namespace = {"type": "namespace", "name": "n", "description": "", "tools": [tool]}
    result = offer(plain, tool, namespace)
    assert [spec.grammar for spec in result.specs] == [
        ("regex", "a"),
        ("regex", "(?=a)a"),
        ("regex", "(?=a)a"),
    ]
    assert result.ignored == ("tools[1].format", "tools[2].tools[0].format")


def hosted_offer(*tools: dict[str, Any], choice: Any = None) -> Offer:
    """Return the offer of a server that runs all of these tools that a server can run."""
    definitions = [definition(tool, f"tools[{n}]", from_item=False) for n, tool in enumerate(tools)]
    return make_offer(
        [msgspec.structs.replace(each, is_server_run=True) for each in definitions], choice
    )


WEB = ["web_search", "open_page", "find_in_page"]


@pytest.mark.parametrize("name", sorted(WEB_SEARCHES))
def test_a_web_search_is_three_tools_under_each_of_its_names(name: str) -> None:
    tool = {"type": name}
    assert names(hosted_offer(tool)) == WEB
    assert hosted_offer(tool, choice=tool).choice == ToolChoice(
        mode="required", names=frozenset(WEB)
    )
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [tool]}
    assert hosted_offer(WEATHER, tool, choice=allowed).choice == ToolChoice(names=frozenset(WEB))


def test_the_last_of_several_web_searches_applies_and_different_ones_are_reported() -> None:
    low, blocking = {"search_context_size": "low"}, {"filters": {"blocked_domains": ["a.org"]}}
    first, last = {"type": "web_search", **blocking}, {"type": "web_search_preview", **low}
    both = hosted_offer(first, {"type": "web_search", **low}, last)
    assert (names(both), both.ignored) == (WEB, ("tools[0]",))
    assert [msgspec.json.decode(each)["type"] for each in both.echo] == [
        "web_search",
        "web_search",
        "web_search_preview",
    ]


def test_a_web_search_is_renamed_in_favor_of_a_function() -> None:
    function = {"type": "function", "name": "open_page"}
    both = hosted_offer({"type": "web_search"}, function)
    assert names(both) == ["web_search", "open_page_tool", "find_in_page", "open_page"]


def test_a_search_for_images_is_reported_as_without_effect() -> None:
    search = {"type": "web_search", "search_content_types": ["image", "text"]}
    assert hosted_offer(search).ignored == ("tools[0].search_content_types",)
    assert hosted_offer({**search, "search_content_types": ["text"]}).ignored == ()


KEYS = st.sampled_from(
    ["type", "name", "tools", "mode", "properties", "required", "items", "anyOf", "$defs", "format"]
)
WORDS = st.sampled_from(["function", "custom", "object", "allowed_tools", "get_time", "mcp"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=400)
@given(st.dictionaries(KEYS, ANYTHING, max_size=4), st.dictionaries(KEYS, ANYTHING, max_size=4))
def test_any_schema_or_tool_choice_is_accepted_or_refused(
    parameters: dict[str, Any], choice: dict[str, Any]
) -> None:
    for tool in ({**WEATHER, "parameters": parameters}, {**TIME, "type": "custom", **choice}):
        try:
            offer(tool, choice=choice)
        except RequestError as error:
            assert error.message


def test_a_model_is_offered_a_limited_number_of_tools() -> None:
    functions = [{"type": "function", "name": f"f{number}"} for number in range(MAX_SPECS // 4)]
    spaces = [
        {"type": "namespace", "name": f"n{number}", "tools": functions} for number in range(5)
    ]
    assert len(offer(*spaces[:4]).specs) == MAX_SPECS
    with pytest.raises(RequestError) as raised:
        offer(*spaces)
    assert (raised.value.code, raised.value.param) == ("array_above_max_length", "tools[4]")
