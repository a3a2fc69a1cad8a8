"""Offers of the same tools are made once for each tenant, and are the same as without memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from antiphon.application.tools.offers import MAX_CACHED_JSON_BYTES, OfferTools
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import Forbidden, RequestError
from antiphon.domain.history import conversation as c
from antiphon.domain.offers.offer import Offer
from antiphon.domain.requests.request import CreateResponse

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
        request_of({"type": "a_later_type"}, WEATHER),
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
