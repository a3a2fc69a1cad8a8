"""Offers of the same tools are made once for each tenant, and are the same as without memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from antiphon.application.ports import ToolServers
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.offers import MAX_CACHED_JSON_BYTES, OfferTools
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import Forbidden, RequestError
from antiphon.domain.history import conversation as c
from antiphon.domain.offers.offer import Offer
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.tools import McpTool

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
TIME = {"type": "function", "name": "get_time", "parameters": {"type": "object"}}
MCP = {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example/mcp"}
FOUND = {"type": "tool_search_output", "call_id": "call_1", "tools": [TIME]}


def request_of(*tools: Mapping[str, Any], **fields: Any) -> CreateResponse:
    body = {"model": "m", "input": "Hi", "tools": list(tools), **fields}
    return msgspec.json.decode(json.dumps(body), type=CreateResponse)


def offer_of(
    offer_tools: OfferTools,
    request: CreateResponse,
    *,
    tenant: str = "a",
    policy: KeyPolicy = FULL_ACCESS,
    items: list[Mapping[str, Any]] | None = None,
) -> Offer:
    raw = [msgspec.Raw(json.dumps(item).encode()) for item in items or []]
    known = offer_tools.recall(request, tenant)
    return offer_tools(request, [], c.entries(raw), tenant=tenant, policy=policy, known=known)


def names(offer: Offer) -> list[str]:
    return [spec.name for spec in offer.specs]


@pytest.mark.parametrize(
    "request_",
    [
        request_of(WEATHER),
        request_of(WEATHER, TIME),
        request_of(WEATHER, TIME, tool_choice="required"),
        request_of(WEATHER, TIME, tool_choice={"type": "function", "name": "get_time"}),
        request_of({"type": "web_search"}, WEATHER),
        request_of({"type": "custom", "name": "sql", "format": {"type": "text"}}),
        request_of({"type": "image_generation"}, WEATHER),
        request_of(),
    ],
)
def test_an_offer_from_memory_equals_a_new_one(request_: CreateResponse) -> None:
    offer_tools = OfferTools()
    first = offer_of(offer_tools, request_)
    assert offer_of(offer_tools, request_) is first
    assert offer_of(OfferTools(), request_) == first


def test_another_choice_is_another_offer() -> None:
    offer_tools = OfferTools()
    plain = offer_of(offer_tools, request_of(WEATHER))
    required = offer_of(offer_tools, request_of(WEATHER, tool_choice="required"))
    assert (plain.choice.mode, required.choice.mode) == ("auto", "required")


def test_the_order_of_tools_and_of_their_fields_is_the_clients() -> None:
    offer_tools = OfferTools()
    assert names(offer_of(offer_tools, request_of(WEATHER, TIME))) == ["get_weather", "get_time"]
    assert names(offer_of(offer_tools, request_of(TIME, WEATHER))) == ["get_time", "get_weather"]


def test_tenants_share_no_memory() -> None:
    offer_tools = OfferTools()
    offer_of(offer_tools, request_of(WEATHER), tenant="a")
    assert offer_tools.recall(request_of(WEATHER), "a") is not None
    assert offer_tools.recall(request_of(WEATHER), "b") is None


def test_a_key_that_may_not_use_a_tool_is_refused_from_memory_too() -> None:
    offer_tools = OfferTools()
    request = request_of({"type": "web_search"})
    offer_of(offer_tools, request)
    with pytest.raises(Forbidden) as refused:
        offer_of(offer_tools, request, policy=KeyPolicy(tools=("function",)))
    assert refused.value.param == "tools[0]"


def test_tools_in_items_are_offered_with_those_in_memory() -> None:
    offer_tools = OfferTools()
    offer_of(offer_tools, request_of(WEATHER))
    both = offer_of(offer_tools, request_of(WEATHER), items=[FOUND])
    assert names(both) == ["get_weather", "get_time"]
    assert names(offer_of(offer_tools, request_of(WEATHER))) == ["get_weather"]


def test_mcp_servers_are_not_remembered() -> None:
    offer_tools = OfferTools()
    offer_of(offer_tools, request_of(MCP))
    assert offer_tools.recall(request_of(MCP), "a") is None


def test_what_is_refused_is_not_remembered() -> None:
    offer_tools = OfferTools()
    request = request_of(WEATHER, WEATHER)
    for _ in range(2):
        with pytest.raises(RequestError, match="Two tools have the name"):
            offer_of(offer_tools, request)
        assert offer_tools.recall(request, "a") is None


def test_tools_of_megabytes_are_not_remembered() -> None:
    offer_tools = OfferTools()
    parameters = {"type": "object", "description": "x" * MAX_CACHED_JSON_BYTES}
    request = request_of({**WEATHER, "parameters": parameters})
    assert names(offer_of(offer_tools, request)) == ["get_weather"]
    assert offer_tools.recall(request, "a") is None


UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "web_serch"}, "type", "'web_search'"),
    ({"type": ""}, "type", "'web_search'"),
    ({"type": "mcp", "server_label": "lenghts"}, "server_label", "none"),
    ({"type": "mcp", "server_label": "lenghts", "server_url": ""}, "server_label", "none"),
]


@pytest.mark.parametrize(("tool", "field", "known"), UNKNOWN)
def test_what_nobody_knows_is_refused_with_what_there_is(
    tool: dict[str, Any], field: str, known: str
) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    for request, items, path in [
        (request_of(WEATHER, tool), [], "tools[1]"),
        (request_of(WEATHER), [item], "input[0].tools[0]"),
    ]:
        with pytest.raises(RequestError) as refusal:
            offer_of(OfferTools(), request, items=items)
        assert refusal.value.param == f"{path}.{field}"
        assert known in refusal.value.message


def test_what_nobody_knows_of_an_earlier_request_is_left_out() -> None:
    tools = [UNKNOWN[0][0], UNKNOWN[2][0], TIME]
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    history = c.entries([msgspec.Raw(json.dumps(item).encode())])
    offer = OfferTools()(request_of(), history, [], tenant="a", policy=FULL_ACCESS)
    assert (names(offer), offer.ignored) == (["get_time"], ())


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "image_generation"},
        {"type": "programmatic_tool_calling"},
        {"type": "mcp", "server_label": "mail", "connector_id": "connector_gmail"},
        {"type": "mcp", "server_label": "mail", "tunnel_id": "tunnel_1"},
        {"type": "mcp", "server_label": "code_interpreter"},  # a tool that is not enabled
        MCP,
    ],
)
def test_what_the_api_knows_and_this_server_cannot_run_is_named(tool: dict[str, Any]) -> None:
    assert offer_of(OfferTools(), request_of(tool)).ignored == ("tools[0]",)


RESTRICTED = [
    {**WEATHER, "allowed_callers": ["programmatic"]},
    {"type": "custom", "name": "sql", "allowed_callers": ["programmatic"]},
    {"type": "shell", "allowed_callers": ["programmatic"]},
    {"type": "apply_patch", "allowed_callers": ["programmatic"]},
    {"type": "code_interpreter", "container": "c", "allowed_callers": ["programmatic"]},
    {**MCP, "allowed_callers": ["programmatic"]},
    {**WEATHER, "allowed_callers": []},
    {**WEATHER, "allowed_callers": ["programmatic"], "defer_loading": True},
]


class _RunsAll(ToolProvider):
    """Claims to run every tool."""

    tool_types = ()

    def handles(self, tool: Any) -> bool:
        return True

    async def callers(self, *_: Any, **__: Any) -> Any:
        return {}


class _CallsAll(ToolServers):
    """Claims to reach every MCP server."""

    labels = ()

    def resolve(self, server: McpTool, path: str) -> McpTool:
        return server

    def session(self, server: McpTool) -> Any:
        raise NotImplementedError

    async def aclose(self) -> None:
        return


@pytest.mark.parametrize("tool", RESTRICTED)
@pytest.mark.parametrize("offer_tools", [OfferTools(), OfferTools(_CallsAll(), [_RunsAll()])])
def test_a_tool_for_programs_alone_is_offered_to_no_model_and_named(
    offer_tools: OfferTools, tool: dict[str, Any]
) -> None:
    search = {"type": "tool_search"}
    offer = offer_of(offer_tools, request_of(TIME, tool, search))
    assert "get_time" in names(offer)
    assert len(names(offer)) <= 2
    assert offer.ignored == ("tools[1]",)
    assert [each.is_server_run for each in offer.definitions][1] is False
    assert "get_weather" not in str([spec.description for spec in offer.specs])


def test_a_function_for_programs_alone_is_left_out_of_its_namespace() -> None:
    inner = [TIME, {**WEATHER, "allowed_callers": ["programmatic"]}]
    tool = {"type": "namespace", "name": "crm", "description": "d", "tools": inner}
    offer = offer_of(OfferTools(), request_of(tool))
    assert (names(offer), offer.ignored) == (["crm__get_time"], ("tools[0].tools[1]",))


@pytest.mark.parametrize(
    ("field", "value", "harmless"),
    [
        ("allowed_callers", ["direct", "programmatic"], ["direct"]),
        ("async", True, False),
        ("output_schema", {"type": "object"}, None),
    ],
)
def test_a_field_of_a_tool_without_effect_is_named(
    field: str, value: object, harmless: object
) -> None:
    namespace = {"type": "namespace", "name": "crm", "description": "d"}
    for asked, expected in [(value, True), (harmless, False), (None, False)]:
        tool = {**TIME, field: asked}
        request = request_of({**tool, "name": "f"}, {**namespace, "tools": [tool]})
        paths = (f"tools[0].{field}", f"tools[1].tools[0].{field}")
        assert offer_of(OfferTools(), request).ignored == (paths if expected else ())
