"""Contract tests for a store that can search for what was said in responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from antiphon.application.ports import Store, StoredItem, StorePageQuery
from antiphon.application.responses.search import SearchResponses
from antiphon.domain.errors import NotInList
from antiphon.domain.items import FunctionCall, Message
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.text_search import TextSearch, search_of
from antiphon.testing.samples import (
    EVERY_KIND_OF_OUTPUT,
    FAR_FUTURE,
    THEM,
    US,
    finished_response,
    item,
    new_response,
)
from antiphon.testing.stores.calls import (
    create_and_finish,
    create_conversation,
    finish,
    run_in_conversation,
)
from antiphon.testing.stores.fixtures import StoreFixtures

SAID = (
    ("The invoice of Zanzibar", "zanzibar"),
    ("The invoice of Zanzibar", "INVOICE the"),
    ("The invoice of Zanzibar", "nzib"),
    ('it\'s 100% off; a_b, c\\d "quoted" NEAR(x y)', 'NEAR(x "quoted" 100% a_b c\\d it\'s'),
    ("<script>alert(1)</script> & more", "<script>alert(1)</script> &"),
    ("path/to/file.py\nline\ttwo", "path/to/file.py two"),
    ("Straße, MÜLLER, naïve", "müller straße"),
    ("ПРИВЕТ, мир", "привет"),
    ("приВЕТ, мир", "Привет МИР"),
    ("η οδός, ΟΔΟΣ", "οδός"),
    ("世界你好吗", "你好"),
    ("مرحبا بالعالم", "بالعالم"),
    ("שלום עולם", "שלום"),
    ("well done 👍🏽 🎉", "🎉"),
    ("a\x00b", "a\x00b"),
    ("user", "user"),
    ("the status of a message", "status message"),
    ("x" * 100_000 + " needle", "needle"),
)
"""Texts, and searches that find them."""

NOT_SAID = (
    *("invoices", "invoice paid", "user", "input_text", "resp_a", "msg_in", "ß", "z" * 10_000),
    *("%", "_", "*", '"', "hel*", "\\", "' OR 1=1 --", "NEAR(", "\x00", "$1", "?1", "{}", "%p"),
)
"""Searches that do not find "hello, the invoice is due". None has a syntax."""


def said(name: str, text: str, *, escapes: bool = False) -> StoredItem:
    """Return a user's message, as a client sends it that escapes what is not ASCII, or does not."""
    part = {"type": "input_text", "text": text}
    message = {"type": "message", "id": f"msg_{name}", "role": "user", "status": "completed"}
    raw = json.dumps(
        {**message, "content": [part]}, ensure_ascii=escapes, separators=(",", ":")
    ).encode()
    return item(name, raw=raw)


async def found(store: Store, text: str, tenant: str = US, **query: Any) -> list[str]:
    """Return the names of the responses that a search finds, with all that it has to read."""
    search = search_of(text) or TextSearch(())

    async def show(page: Sequence[ResponseSummary]) -> Sequence[ResponseSummary]:
        return page

    page = await SearchResponses(store)(
        tenant,
        search,
        StorePageQuery(**{"limit": 100, "is_descending": True, **query}),
        show=show,
        matches=lambda _: True,
    )
    return [each.id.removeprefix("resp_") for each in page.items]


@pytest.mark.asyncio
class SearchContract(StoreFixtures):
    """For a store with `search_responses`; no part of StoreContract, as not every store has it."""

    async def test_words_are_found_in_any_language_and_case(self, store: Store) -> None:
        for number, (text, _) in enumerate(SAID):
            raw, escaped = (said("in", text, escapes=escapes) for escapes in (False, True))
            await store.create_response(US, new_response(f"raw_{number}", raw))
            await store.create_response(US, new_response(f"escaped_{number}", escaped))
            answer = Message(id="msg_out", role="assistant", content=text)
            await store.create_response(US, new_response(f"out_{number}"))
            assert await finish(store, finished_response(f"out_{number}", output=(answer,)))
        await store.create_response(US, new_response("other"))
        for number, (_, search) in enumerate(SAID):
            expected = {f"{where}_{number}" for where in ("raw", "escaped", "out")}
            names = await found(store, search)
            assert expected <= set(names), search
            assert "other" not in names, search

    async def test_what_was_not_said_is_not_found(self, store: Store) -> None:
        await store.create_response(US, new_response("a", said("in", "hello, the invoice is due")))
        for search in NOT_SAID:
            assert await found(store, search) == [], search

    async def test_words_may_be_in_several_items(self, store: Store) -> None:
        new = new_response("a", said("one", "first"), said("two", "second"))
        await store.create_response(US, new)
        call = FunctionCall(
            id="fc_1", call_id="call_1", name="get_weather", arguments='{"q":"Oslo"}'
        )
        assert await finish(store, finished_response("a", output=(call,)))
        assert await found(store, "first second get_weather oslo") == ["a"]
        assert await found(store, "first third") == []

    async def test_every_kind_of_output_can_be_searched(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        assert await finish(store, finished_response("a", output=EVERY_KIND_OF_OUTPUT))
        assert await found(store, "llo ls") == ["a"]
        assert await found(store, "gAAA") == []  # encrypted

    async def test_items_with_odd_bytes_are_searched(self, store: Store) -> None:
        odd = rb'{"type":"message","role":"user","content":"spoken","x":"\ud800 half"}'
        await store.create_response(US, new_response("a", item("in", raw=odd)))
        assert await found(store, "spoken") == ["a"]
        assert await found(store, "half") == ["a"]

    async def test_only_own_items_count(self, store: Store) -> None:
        await store.create_response(US, new_response("a", said("in", "zanzibar")))
        assert await finish(store, finished_response("a"))
        await store.create_response(US, new_response("b", after="a"))
        assert await found(store, "zanzibar") == ["a"]

    async def test_the_responses_of_a_conversation_are_found(self, store: Store) -> None:
        await create_conversation(store, "c")
        for name in "ab":
            await run_in_conversation(store, "c", name)
        assert await found(store, "hello") == ["b", "a"]
        await store.delete_conversation(US, "conv_c")
        assert await found(store, "hello") == ["b", "a"]

    async def test_a_running_response_is_found(self, store: Store) -> None:
        await store.create_response(US, new_response("a", said("in", "zanzibar")))
        assert await found(store, "zanzibar") == ["a"]

    async def test_a_tenant_finds_only_its_own(self, store: Store, another: Store) -> None:
        await store.create_response(US, new_response("a", said("in", "zanzibar")))
        await store.create_response(THEM, new_response("a", said("in", "zanzibar too")))
        assert await found(another, "zanzibar") == ["a"]
        assert await found(another, "too") == []
        assert await found(another, "too", THEM) == ["a"]

    async def test_what_is_deleted_is_not_found(self, store: Store) -> None:
        await create_and_finish(store, "a")
        await create_and_finish(store, "b", after="a")  # which keeps the items of "a"
        await store.delete_response(US, "resp_a")
        assert await found(store, "hello") == ["b"]
        await store.delete_response(US, "resp_b")
        assert await found(store, "hello") == []

    async def test_what_has_expired_is_not_found(self, store: Store) -> None:
        for name, expires_at in (("a", 1.0), ("b", FAR_FUTURE)):
            new = new_response(name, said(name, "zanzibar"), expires_at=expires_at)
            await store.create_response(US, new)
            assert await finish(store, finished_response(name))
        assert await store.sweep(keep_events_s=600) == 1
        assert await found(store, "zanzibar") == ["b"]

    async def test_pages_are_in_order_without_gaps(self, store: Store) -> None:
        for number in range(30):
            text = "even" if number % 2 == 0 else "odd"
            await store.create_response(US, new_response(f"{number}", said(f"{number}", text)))
        names = [str(number) for number in range(28, -1, -2)]
        assert await found(store, "even") == names
        assert await found(store, "even", is_descending=False) == names[::-1]
        pages: list[str] = []
        while page := await found(
            store, "even", limit=4, after=f"resp_{pages[-1]}" if pages else None
        ):
            assert len(page) <= 4
            pages += page
        assert pages == names

    async def test_a_page_may_begin_after_any_response(self, store: Store) -> None:
        for name, text in (("a", "zanzibar"), ("b", "no"), ("c", "zanzibar")):
            await store.create_response(US, new_response(name, said(name, text)))
        assert await found(store, "zanzibar", after="resp_b") == ["a"]
        with pytest.raises(NotInList):
            await found(store, "zanzibar", after="resp_x")

    async def test_a_tenant_without_responses_finds_none(self, store: Store) -> None:
        assert await found(store, "hello") == []

    async def test_long_items_do_not_hide_others(self, store: Store) -> None:
        image = Raw(b'{"type":"message","role":"user","content":"%b"}' % (b"A" * 3_000_000))
        for number in range(5):
            long = StoredItem(id=f"msg_{number}", raw=image)
            await store.create_response(US, new_response(f"{number}", long, said("x", "zanzibar")))
        assert await found(store, "zanzibar") == ["4", "3", "2", "1", "0"]
