"""What every store must do with responses, conversations and their items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from antiphon.application.ports import (
    EventChunk,
    Lease,
    NewRun,
    StorageUsage,
    Store,
    StoredItem,
    StoredResponse,
)
from antiphon.domain import items as i
from antiphon.domain.content import (
    Logprob,
    OutputText,
    ReasoningText,
    Refusal,
    SummaryText,
    TopLogprob,
    UrlCitation,
)
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import ConversationLocked, NotFound, StoreError
from antiphon.domain.request import PromptParam
from antiphon.domain.response import (
    TERMINAL,
    ConversationRef,
    Failure,
    IncompleteDetails,
    ReasoningConfig,
    Response,
    TextConfig,
)
from antiphon.domain.usage import TurnUsage, per_turn, total
from antiphon.testing.store_fixtures import StoreFixtures

US, THEM = "us", "them"
RUNNING = ("queued", "in_progress")

FAR_FUTURE = 4e9
"""Seconds since the epoch, far from now."""

OWNER = "srv_a"
"""The server that runs what these tests create, where they say nothing else."""

TURNS = (TurnUsage(input=3, output=2), TurnUsage(input=6, cached=5, output=1))

EVERY_FIELD: dict[str, Any] = {
    "created_at": 1_790_000_000,
    "completed_at": 1_790_000_001,
    "background": True,
    "error": Failure(code="server_error", message="Ünlucky \u2028 🍀"),
    "incomplete_details": IncompleteDetails(reason="max_output_tokens"),
    "instructions": 'Be "brief".\n',
    "max_output_tokens": 16,
    "max_tool_calls": 3,
    "model": "m",
    "reasoning": ReasoningConfig(effort="low"),
    "temperature": 0.1,
    "text": TextConfig(format={"type": "json_schema", "schema": {"b": 1e-7, "a": [None]}}),
    "tool_choice": {"type": "function", "name": "f"},
    "tools": (Raw(b'{"type":"function","name":"f","x":1.50}'), Raw(b'{"type":"new"}')),
    "top_p": 1.0,
    "usage": total(TURNS),
    "usage_per_turn": per_turn(TURNS),
    "metadata": {"z": "1", "a": ""},
    "prompt": PromptParam(id="p", version="1", variables={"v": Raw(b'{"type":"x","y":1.50}')}),
    "request_id": "req_1",
}

EVERY_KIND_OF_OUTPUT: tuple[i.AnyItem, ...] = (
    i.Reasoning(
        id="rs_1",
        summary=(SummaryText(text="s"),),
        content=(ReasoningText(text="hm"),),
        encrypted_content="gAAA",
    ),
    i.Message(
        id="msg_1",
        role="assistant",
        status="completed",
        phase="final_answer",
        content=(
            OutputText(
                text="Hé\u2028llo",
                annotations=(UrlCitation(start_index=0, end_index=1, url="u", title="t"),),
                logprobs=(
                    Logprob(
                        token="H",
                        logprob=-0.25,
                        bytes=(72,),
                        top_logprobs=(TopLogprob(token="h", logprob=-1e-9),),
                    ),
                ),
            ),
            Refusal(refusal="no"),
        ),
    ),
    i.FunctionCall(id="fc_1", call_id="call_1", name="f", arguments='{"a": 1.0}'),
    i.CustomToolCall(id="ctc_1", call_id="call_2", name="c", input="free\ttext", namespace="n"),
    i.McpListTools(id="mcpl_1", server_label="s", tools=({"name": "x", "input_schema": {}},)),
    i.McpCall(id="mcp_1", server_label="s", name="x", arguments="{}", error={"code": 1}),
    i.McpApprovalRequest(id="mcpr_1", server_label="s", name="x", arguments="{}"),
    i.WebSearchCall(id="ws_1", status="completed", action={"type": "search", "queries": ["q"]}),
    i.CodeInterpreterCall(id="ci_1", container_id="cntr_1", code="1", outputs=({"logs": "1"},)),
    i.ShellCall(id="sh_1", call_id="call_3", action={"commands": ["ls"], "timeout_ms": None}),
    i.ToolSearchCall(id="tsc_1", arguments={"q": [1, 2.5]}),
    i.Compaction(id="cmp_1", encrypted_content="gBBB"),
)


def item(name: str, *, raw: bytes | None = None) -> StoredItem:
    """An item whose id starts with `msg_`."""
    text = raw or b'{"type":"message","id":"msg_%b","role":"user","content":"hi"}' % name.encode()
    return StoredItem(id=f"msg_{name}", raw=Raw(text))


def running(
    name: str,
    *input_items: StoredItem,
    after: str | None = None,
    within: str | None = None,
    run: NewRun = NewRun(owner=OWNER),  # noqa: B008 -- frozen
    expires_at: float | None = None,
    **fields: Any,
) -> StoredResponse:
    """A new response `resp_…`; without items its input is one, `msg_…_in`."""
    response = Response(
        **{
            "id": f"resp_{name}",
            "created_at": 0,
            "model": "m",
            "previous_response_id": None if after is None else f"resp_{after}",
            "conversation": None if within is None else ConversationRef(id=f"conv_{within}"),
            **fields,
        }
    )
    return StoredResponse(
        response=response,
        input=input_items or (item(f"{name}_in"),),
        expires_at=expires_at,
        run=run,
    )


def finished(
    name: str, *, after: str | None = None, within: str | None = None, **fields: Any
) -> Response:
    """The same response, finished; its output is one item, `msg_…_out`."""
    answer = i.Message(id=f"msg_{name}_out", role="assistant", content="hello")
    fields = {"status": "completed", "output": (answer,), **fields}
    return running(name, after=after, within=within, **fields).response


async def end(store: Store, response: Response, tenant: str = US) -> bool:
    """Finish it as its first owner."""
    return await store.finish(Lease(tenant=tenant, response_id=response.id), response)


async def keep(store: Store, name: str, *, after: str | None = None, tenant: str = US) -> None:
    """Create and finish a response with one item in, one out."""
    await store.create(tenant, running(name, after=after))
    assert await end(store, finished(name, after=after), tenant)


async def alive(store: Store, *owners: str, ttl_s: float = 60) -> None:
    for owner in owners:
        await asyncio.to_thread(store.beat, owner, ttl_s)


async def claim(
    store: Store, conversation: str, name: str, *, tenant: str = US, owner: str = OWNER
) -> None:
    """Claim a conversation for a response of an owner that is alive."""
    await alive(store, owner)
    await store.claim(tenant, f"conv_{conversation}", f"resp_{name}", owner=owner)


async def until(condition: Callable[[], Awaitable[object]], limit_s: float = 10) -> None:
    """Return once it holds."""
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 -- another process may bring it about
            await asyncio.sleep(0.01)


async def begin(store: Store, conversation: str, name: str, tenant: str = US) -> None:
    """Claim a conversation and create a response in it."""
    await claim(store, conversation, name, tenant=tenant)
    await store.create(tenant, running(name, within=conversation))


async def say(store: Store, conversation: str, name: str, tenant: str = US) -> None:
    """Run a response in a conversation to its end."""
    await begin(store, conversation, name, tenant)
    assert await end(store, finished(name, within=conversation), tenant)


async def converse(store: Store, name: str, *items: str, tenant: str = US) -> None:
    """Create the conversation `conv_…`."""
    conversation = Conversation(id=f"conv_{name}", created_at=7, metadata={"k": "é"})
    await store.create_conversation(tenant, conversation, [item(one) for one in items])


def ids(items: Sequence[StoredItem]) -> list[str]:
    return [one.id.removeprefix("msg_") for one in items]


def turns(*names: str) -> list[str]:
    return [f"{name}_{way}" for name in names for way in ("in", "out")]


async def input_of(store: Store, name: str) -> list[str]:
    return ids(await store.input_items(US, f"resp_{name}"))


async def context_of(store: Store, name: str) -> list[str]:
    return ids(await store.context(US, f"resp_{name}"))


async def items_of(store: Store, conversation: str, tenant: str = US) -> list[str]:
    return ids(await store.conversation_items(tenant, f"conv_{conversation}"))


async def is_locked(call: Awaitable[object]) -> bool:
    try:
        await call
    except ConversationLocked:
        return True
    return False


async def unknown(lookup: Awaitable[object]) -> bool:
    try:
        await lookup
    except NotFound:
        return True
    return False


async def is_gone(store: Store, name: str, *, tenant: str = US) -> bool:
    """Whether every method says so."""
    response_id = f"resp_{name}"
    return all(
        [
            await unknown(store.get(tenant, response_id)),
            await unknown(store.input_items(tenant, response_id)),
            await unknown(store.context(tenant, response_id)),
            await unknown(store.delete(tenant, response_id)),
            not await end(store, finished(name), tenant),
            response_id not in [lease.response_id for lease in await store.held_leases(OWNER)],
        ]
    )


async def sweep(store: Store, *, keep_events_s: float = 3600) -> int:
    """Sweep until nothing is left."""
    total_count = 0
    while count := await store.sweep(keep_events_s=keep_events_s):
        total_count += count
    return total_count


def as_json(response: Response) -> bytes:
    return msgspec.json.encode(response)


@pytest.mark.asyncio
class ResponseStoreContract(StoreFixtures):
    """What StoreContract says of responses, conversations and items."""

    # --- one response -----------------------------------------------------------------------------

    async def test_a_new_response_is_read_as_it_was_written(self, store: Store) -> None:
        new = running("a", **EVERY_FIELD)
        await store.create(US, new)
        assert as_json(await store.get(US, "resp_a")) == as_json(new.response)

    async def test_a_finished_response_is_read_as_it_was_written(self, store: Store) -> None:
        await store.create(US, running("a"))
        done = finished("a", **EVERY_FIELD, output=EVERY_KIND_OF_OUTPUT)
        assert await end(store, done)
        assert as_json(await store.get(US, "resp_a")) == as_json(done)

    async def test_what_was_put_out_can_be_put_in_again(self, store: Store) -> None:
        await store.create(US, running("a"))
        await end(store, finished("a", output=EVERY_KIND_OF_OUTPUT))
        found = (await store.context(US, "resp_a"))[1:]
        assert [one.id for one in found] == [one.id for one in EVERY_KIND_OF_OUTPUT]
        assert [bytes(one.raw) for one in found] == [
            msgspec.json.encode(one) for one in EVERY_KIND_OF_OUTPUT
        ]

    async def test_a_response_may_have_no_items_at_all(self, store: Store) -> None:
        bare = StoredResponse(response=running("a").response, run=NewRun(owner=OWNER))
        await store.create(US, bare)
        assert await end(store, finished("a", output=()))
        assert await store.context(US, "resp_a") == []
        assert (await store.get(US, "resp_a")).output == ()

    async def test_finishing_replaces_what_was_put_out_so_far(self, store: Store) -> None:
        early = i.Message(id="msg_early", role="assistant", content="h", status="in_progress")
        new = running("a", output=(early, *EVERY_KIND_OF_OUTPUT))
        await store.create(US, new)
        assert as_json(await store.get(US, "resp_a")) == as_json(new.response)
        assert await end(store, finished("a"))
        assert await store.get(US, "resp_a") == finished("a")
        assert await context_of(store, "a") == ["a_in", "a_out"]
        assert await unknown(store.item(US, "msg_early"))

    @pytest.mark.parametrize("status", RUNNING)
    @pytest.mark.parametrize("last", sorted(TERMINAL))
    async def test_a_response_is_finished_once(self, store: Store, status: str, last: str) -> None:
        await store.create(US, running("a", status=status))
        first = finished("a", status=last)
        assert await end(store, first)
        for later in sorted(TERMINAL):
            assert not await end(store, finished("a", status=later, output=()))
        assert await store.get(US, "resp_a") == first
        assert await context_of(store, "a") == turns("a")

    async def test_what_was_never_created_cannot_be_finished(self, store: Store) -> None:
        assert not await end(store, finished("a"))
        assert await is_gone(store, "a")

    async def test_an_id_is_given_once(self, store: Store) -> None:
        await store.create(US, running("a"))
        with pytest.raises(StoreError):
            await store.create(US, running("a", item("other")))
        assert await input_of(store, "a") == ["a_in"]
        assert await unknown(store.item(US, "msg_other"))

    async def test_what_was_never_written_is_unknown(self, store: Store) -> None:
        assert await is_gone(store, "a")
        assert await unknown(store.item(US, "msg_a"))

    # --- items ------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "raw",
        [
            b'{"id":"msg_x","role":"user","unknown":[1.50,1e2,-0.0],"content":"\\u00e9\\/"}',
            b'{ "type" : "from_the_future",\n\t"huge": 123456789012345678901234567890 }',
            '{"type":"message","content":"é 🍀 \u2028","a":1,"a":2}'.encode(),
            b'{"type":"message","content":"%b"}' % (b"A" * 3_000_000),
        ],
        ids=["unknown fields", "unknown type", "not ASCII", "large"],
    )
    async def test_an_input_item_is_kept_byte_for_byte(self, store: Store, raw: bytes) -> None:
        await store.create(US, running("a", item("x", raw=raw)))
        [listed] = await store.input_items(US, "resp_a")
        assert bytes(listed.raw) == raw
        assert bytes((await store.item(US, "msg_x")).raw) == raw

    async def test_input_and_output_items_are_found_by_id(self, store: Store) -> None:
        await keep(store, "a")
        found = await store.item(US, "msg_a_out")
        assert found.id == "msg_a_out"
        assert bytes(found.raw) == msgspec.json.encode(finished("a").output[0])
        assert (await store.item(US, "msg_a_in")) == item("a_in")

    async def test_of_several_items_of_one_id_the_newest_is_found(self, store: Store) -> None:
        for name in ("z", "a", "m"):
            again = item("again", raw=b'{"content":"%b"}' % name.encode())
            await store.create(US, running(name, again))
        assert bytes((await store.item(US, "msg_again")).raw) == b'{"content":"m"}'
        await store.delete(US, "resp_m")
        assert bytes((await store.item(US, "msg_again")).raw) == b'{"content":"a"}'

    async def test_an_item_may_come_twice_in_one_input(self, store: Store) -> None:
        await store.create(US, running("a", item("x"), item("x")))
        assert await input_of(store, "a") == ["x", "x"]

    # --- chains -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("length", [1, 3, 30])
    async def test_a_chain_is_read_in_the_order_of_the_conversation(
        self, store: Store, length: int
    ) -> None:
        names = [str(n) for n in range(length)]
        for name, before in zip(names, [None, *names], strict=False):
            await store.create(
                US, running(name, item(f"{name}_1"), item(f"{name}_2"), after=before)
            )
            assert await end(store, finished(name, after=before))
        each = [[f"{name}_1", f"{name}_2", f"{name}_out"] for name in names]
        whole = [name for one in each for name in one]
        assert await context_of(store, names[-1]) == whole
        assert await input_of(store, names[-1]) == whole[:-1]
        assert await context_of(store, names[0]) == each[0]

    async def test_many_items_keep_their_order(self, store: Store) -> None:
        many = [item(f"{n}") for n in range(120)]
        await store.create(US, running("a", *many))
        assert await input_of(store, "a") == ids(many)

    async def test_forks_share_what_is_before_them(self, store: Store) -> None:
        await keep(store, "root")
        await keep(store, "left", after="root")
        await keep(store, "right", after="root")
        await keep(store, "leaf", after="left")
        assert await context_of(store, "leaf") == turns("root", "left", "leaf")
        assert await context_of(store, "right") == turns("root", "right")

    async def test_a_running_response_has_an_input_already(self, store: Store) -> None:
        await keep(store, "a")
        await store.create(US, running("b", after="a"))
        assert await input_of(store, "b") == [*turns("a"), "b_in"]
        assert await context_of(store, "b") == [*turns("a"), "b_in"]

    async def test_a_response_that_names_itself_continues_nothing(self, store: Store) -> None:
        await keep(store, "a", after="a")
        assert await context_of(store, "a") == turns("a")
        await store.delete(US, "resp_a")
        assert (await store.usage(US)) == StorageUsage()

    async def test_a_parent_that_is_unknown_deleted_or_foreign_is_no_parent(
        self, store: Store
    ) -> None:
        await keep(store, "foreign", tenant=THEM)
        await keep(store, "deleted")
        await keep(store, "holds_deleted", after="deleted")
        await store.delete(US, "resp_deleted")
        for parent in ("foreign", "deleted", "unknown"):
            await keep(store, f"after_{parent}", after=parent)
            assert await context_of(store, f"after_{parent}") == turns(f"after_{parent}")

    # --- deleting ---------------------------------------------------------------------------------

    async def test_a_deleted_response_is_unknown(self, store: Store) -> None:
        await keep(store, "a")
        await store.delete(US, "resp_a")
        assert await is_gone(store, "a")
        assert await unknown(store.item(US, "msg_a_in"))
        assert await unknown(store.item(US, "msg_a_out"))

    async def test_a_running_response_can_be_deleted_and_not_finished(self, store: Store) -> None:
        await store.create(US, running("a"))
        await store.delete(US, "resp_a")
        assert await is_gone(store, "a")
        assert await unknown(store.item(US, "msg_a_out"))

    @pytest.mark.parametrize("name", ["root", "middle", "leaf"])
    async def test_who_continues_a_deleted_response_keeps_its_items(
        self, store: Store, name: str
    ) -> None:
        chain = ["root", "middle", "leaf"]
        for one, before in zip(chain, [None, *chain], strict=False):
            await keep(store, one, after=before)
        await store.delete(US, f"resp_{name}")
        assert await is_gone(store, name)
        for one in chain:
            if one != name:
                up_to_it = chain[: chain.index(one) + 1]
                assert await context_of(store, one) == turns(*up_to_it)

    async def test_items_go_with_the_last_response_that_continues_them(self, store: Store) -> None:
        for one, before in (("a", None), ("b", "a"), ("c", "b"), ("d", "b")):
            await keep(store, one, after=before)
        await store.delete(US, "resp_a")
        await store.delete(US, "resp_b")
        await store.delete(US, "resp_c")
        assert await context_of(store, "d") == turns("a", "b", "d")
        assert (await store.item(US, "msg_a_in")).id == "msg_a_in"
        assert await unknown(store.item(US, "msg_c_in"))
        await store.delete(US, "resp_d")
        for name in turns("a", "b", "c", "d"):
            assert await unknown(store.item(US, f"msg_{name}"))

    async def test_what_is_before_a_deleted_response_stays(self, store: Store) -> None:
        await keep(store, "a")
        await keep(store, "b", after="a")
        await store.delete(US, "resp_b")
        assert await context_of(store, "a") == turns("a")
        await keep(store, "c", after="a")
        assert await context_of(store, "c") == turns("a", "c")

    async def test_others_under_the_same_names_are_not_deleted(self, store: Store) -> None:
        for tenant in (US, THEM):
            await keep(store, "a", tenant=tenant)
        await store.delete(THEM, "resp_a")
        assert await context_of(store, "a") == turns("a")
        assert (await store.item(US, "msg_a_in")).id == "msg_a_in"

    # --- conversations ----------------------------------------------------------------------------

    async def test_a_conversation_is_read_as_it_was_written(self, store: Store) -> None:
        await converse(store, "a", "x", "y")
        found = await store.conversation(US, "conv_a")
        assert found == Conversation(id="conv_a", created_at=7, metadata={"k": "é"})
        assert await store.conversation_items(US, "conv_a") == [item("x"), item("y")]
        assert (await store.item(US, "msg_y")) == item("y")

    async def test_metadata_is_replaced(self, store: Store) -> None:
        await converse(store, "a", "x")
        updated = await store.update_conversation(US, "conv_a", {"z": "1"})
        assert updated == Conversation(id="conv_a", created_at=7, metadata={"z": "1"})
        assert await store.conversation(US, "conv_a") == updated
        assert await items_of(store, "a") == ["x"]

    async def test_a_conversation_id_is_given_once(self, store: Store) -> None:
        await converse(store, "a", "x")
        with pytest.raises(StoreError):
            await converse(store, "a", "y")
        assert await items_of(store, "a") == ["x"]

    async def test_items_are_added_at_the_end_and_kept_byte_for_byte(self, store: Store) -> None:
        await converse(store, "a", "x")
        odd = item("odd", raw=b'{ "type":"new", "unknown": [1.50] }')
        await store.add_items(US, "conv_a", [odd, item("y")])
        await store.add_items(US, "conv_a", [])
        await store.add_items(US, "conv_a", [item("z")])
        assert await items_of(store, "a") == ["x", "odd", "y", "z"]
        assert (await store.conversation_items(US, "conv_a"))[1] == odd

    async def test_an_item_is_removed_from_one_conversation(self, store: Store) -> None:
        for name in "ab":
            await converse(store, name, "x", "y", "x")
        await store.remove_item(US, "conv_a", "msg_x")
        assert await items_of(store, "a") == ["y"]
        assert await items_of(store, "b") == ["x", "y", "x"]
        assert await unknown(store.remove_item(US, "conv_a", "msg_x"))
        await store.add_items(US, "conv_a", [item("z")])
        assert await items_of(store, "a") == ["y", "z"]

    async def test_a_deleted_conversation_is_unknown(self, store: Store) -> None:
        await converse(store, "a", "x")
        await store.delete_conversation(US, "conv_a")
        assert await self.no_conversation(store, US, "a")
        assert await unknown(store.item(US, "msg_x"))

    async def no_conversation(self, store: Store, tenant: str, name: str) -> bool:
        known, conversation_id = store, f"conv_{name}"
        return all(
            [
                await unknown(known.conversation(tenant, conversation_id)),
                await unknown(known.update_conversation(tenant, conversation_id, {})),
                await unknown(known.conversation_items(tenant, conversation_id)),
                await unknown(known.add_items(tenant, conversation_id, [item("new")])),
                await unknown(known.remove_item(tenant, conversation_id, "msg_x")),
                await unknown(claim(store, name, "new", tenant=tenant)),
                await unknown(known.delete_conversation(tenant, conversation_id)),
            ]
        )

    async def test_a_response_leaves_its_items_in_its_conversation(self, store: Store) -> None:
        await converse(store, "a", "x")
        await begin(store, "a", "one")
        assert await items_of(store, "a") == ["x"]
        assert await end(store, finished("one", within="a"))
        await say(store, "a", "two")
        assert await items_of(store, "a") == ["x", *turns("one", "two")]
        await claim(store, "a", "three")

    async def test_what_a_response_was_given_is_what_its_conversation_had_then(
        self, store: Store
    ) -> None:
        await converse(store, "a", "x")
        for name in ("one", "two"):
            await say(store, "a", name)
        await store.add_items(US, "conv_a", [item("later")])
        assert await input_of(store, "one") == ["x", "one_in"]
        assert await input_of(store, "two") == ["x", *turns("one"), "two_in"]
        assert await context_of(store, "two") == ["x", *turns("one", "two")]
        await keep(store, "next", after="two")
        assert await context_of(store, "next") == ["x", *turns("one", "two", "next")]

    async def test_what_comes_after_a_removed_item_was_not_given_before(self, store: Store) -> None:
        await converse(store, "a", "x", "y")
        await say(store, "a", "one")
        for name in ("y", "one_in", "one_out"):
            await store.remove_item(US, "conv_a", f"msg_{name}")
        await store.add_items(US, "conv_a", [item("later")])
        assert await items_of(store, "a") == ["x", "later"]
        assert await input_of(store, "one") == ["x", "one_in"]

    @pytest.mark.parametrize("last", sorted(TERMINAL))
    async def test_only_a_failed_response_leaves_nothing(self, store: Store, last: str) -> None:
        await converse(store, "a")
        await begin(store, "a", "one")
        assert await end(store, finished("one", within="a", status=last))
        assert await items_of(store, "a") == ([] if last == "failed" else turns("one"))
        await claim(store, "a", "two")

    async def test_a_response_that_is_not_kept_leaves_its_items_too(self, store: Store) -> None:
        await converse(store, "a", "x")
        await claim(store, "a", "one")
        await store.release(US, "conv_a", "resp_one", [item("in"), item("out")])
        assert await items_of(store, "a") == ["x", "in", "out"]
        assert (await store.item(US, "msg_out")).id == "msg_out"
        await say(store, "a", "two")
        assert await input_of(store, "two") == ["x", "in", "out", "two_in"]

    async def test_a_conversation_runs_one_response_at_a_time(self, store: Store) -> None:
        await converse(store, "a", "x")
        await claim(store, "a", "one")
        assert await is_locked(claim(store, "a", "two"))
        assert await is_locked(store.add_items(US, "conv_a", [item("y")]))
        await store.release(US, "conv_a", "resp_two", [item("z")])
        assert await is_locked(claim(store, "a", "two"))
        await store.release(US, "conv_a", "resp_one")
        await store.release(US, "conv_a", "resp_one", [item("again")])
        assert await items_of(store, "a") == ["x"]
        await claim(store, "a", "two")

    async def test_of_many_that_claim_a_conversation_one_succeeds(
        self, store: Store, another: Store
    ) -> None:
        await converse(store, "a")
        names = [str(number) for number in range(20)]
        stores = [store, another] * 10
        claims = [claim(one, "a", name) for one, name in zip(stores, names, strict=True)]
        refused = await asyncio.gather(*map(is_locked, claims))
        assert refused.count(False) == 1
        holder = names[refused.index(False)]
        await store.release(US, "conv_a", f"resp_{holder}", [item("left")])
        assert await items_of(store, "a") == ["left"]

    async def test_a_claimed_conversation_can_be_deleted(self, store: Store) -> None:
        await converse(store, "a", "x")
        await begin(store, "a", "one")
        await store.delete_conversation(US, "conv_a")
        assert await end(store, finished("one", within="a"))
        await store.release(US, "conv_a", "resp_one", [item("z")])
        assert await self.no_conversation(store, US, "a")
        assert await context_of(store, "one") == turns("one")
        assert await unknown(store.item(US, "msg_z"))

    async def test_deleting_a_response_that_runs_frees_its_conversation(self, store: Store) -> None:
        await converse(store, "a", "x")
        await begin(store, "a", "one")
        await store.delete(US, "resp_one")
        await claim(store, "a", "two")
        assert not await end(store, finished("one", within="a"))
        assert await items_of(store, "a") == ["x"]

    async def test_items_outlive_their_response_in_their_conversation(self, store: Store) -> None:
        await converse(store, "a")
        await say(store, "a", "one")
        await say(store, "a", "two")
        await store.delete(US, "resp_one")
        assert await items_of(store, "a") == turns("one", "two")
        assert await input_of(store, "two") == [*turns("one"), "two_in"]
        assert (await store.item(US, "msg_one_in")).id == "msg_one_in"
        await store.remove_item(US, "conv_a", "msg_one_in")
        assert await unknown(store.item(US, "msg_one_in"))
        await store.delete_conversation(US, "conv_a")
        assert await unknown(store.item(US, "msg_one_out"))

    async def test_items_outlive_their_conversation_in_their_response(self, store: Store) -> None:
        await converse(store, "a", "x")
        await say(store, "a", "one")
        await store.remove_item(US, "conv_a", "msg_one_in")
        await store.delete_conversation(US, "conv_a")
        assert await context_of(store, "one") == turns("one")
        assert (await store.item(US, "msg_one_in")).id == "msg_one_in"
        await store.delete(US, "resp_one")
        for name in turns("one"):
            assert await unknown(store.item(US, f"msg_{name}"))

    async def test_the_conversations_of_another_tenant_are_unknown(self, store: Store) -> None:
        await converse(store, "a", "x")
        await claim(store, "a", "one")
        assert await self.no_conversation(store, THEM, "a")
        await store.release(THEM, "conv_a", "resp_one")
        assert await is_locked(claim(store, "a", "two"))
        await converse(store, "a", "y", tenant=THEM)
        await say(store, "a", "one", tenant=THEM)
        assert await items_of(store, "a") == ["x"]
        assert await items_of(store, "a", THEM) == ["y", *turns("one")]
        await store.delete_conversation(THEM, "conv_a")
        assert await items_of(store, "a") == ["x"]

    async def test_a_claim_of_the_dead_for_what_is_not_stored_counts_no_more(
        self, store: Store, another: Store
    ) -> None:
        await converse(store, "a")
        await claim(store, "a", "one")
        await store.leave(OWNER)
        await another.add_items(US, "conv_a", [item("x")])
        await claim(another, "a", "two", owner="srv_b")
        assert await is_locked(store.add_items(US, "conv_a", [item("y")]))
        await store.release(US, "conv_a", "resp_one", [item("too_late")])
        assert await is_locked(claim(store, "a", "three", owner="srv_c"))
        assert await items_of(store, "a") == ["x"]

    async def test_an_owner_that_beats_no_more_loses_its_claims(self, store: Store) -> None:
        await converse(store, "a")
        await alive(store, OWNER, ttl_s=0.1)
        await store.claim(US, "conv_a", "resp_one", owner=OWNER)

        async def is_free() -> bool:
            return not await is_locked(claim(store, "a", "two", owner="srv_b"))

        await until(is_free)

    async def test_a_claim_of_the_dead_counts_while_its_response_is_unfinished(
        self, store: Store, another: Store
    ) -> None:
        await converse(store, "a", "x")
        await begin(store, "a", "one")
        await store.leave(OWNER)
        assert await is_locked(claim(another, "a", "two", owner="srv_b"))
        assert await is_locked(another.add_items(US, "conv_a", [item("y")]))
        [taken] = await another.lease_runs("srv_b", limit=1)
        assert await another.finish(taken.lease, finished("one", within="a"))
        assert await items_of(store, "a") == ["x", *turns("one")]
        await claim(another, "a", "two", owner="srv_b")

    # --- what is past its time --------------------------------------------------------------------

    async def test_a_response_is_swept_once_it_has_expired(self, store: Store) -> None:
        ends = {"past": 1.0, "future": FAR_FUTURE, "never": None}
        for name, expires_at in ends.items():
            await store.create(US, running(name, expires_at=expires_at))
            assert await end(store, finished(name))
        assert await sweep(store) >= 1
        assert await is_gone(store, "past")
        assert await unknown(store.item(US, "msg_past_in"))
        assert await context_of(store, "future") == turns("future")
        assert await context_of(store, "never") == turns("never")
        assert await sweep(store) == 0

    async def test_what_continues_a_swept_response_keeps_its_items(self, store: Store) -> None:
        await store.create(US, running("a", expires_at=1.0))
        assert await end(store, finished("a"))
        await keep(store, "b", after="a")
        await sweep(store)
        assert await is_gone(store, "a")
        assert await context_of(store, "b") == turns("a", "b")

    async def test_what_runs_or_was_made_in_a_conversation_is_never_swept(
        self, store: Store
    ) -> None:
        await converse(store, "a")
        await claim(store, "a", "within")
        await store.create(US, running("within", within="a", expires_at=1.0))
        assert await end(store, finished("within", within="a"))
        await store.create(US, running("runs", expires_at=1.0))
        await store.create(US, running("waits", expires_at=1.0, run=NewRun()))
        await sweep(store)
        for name in ("within", "runs", "waits"):
            assert await input_of(store, name) == [f"{name}_in"]
        assert await end(store, finished("runs"))
        await sweep(store)
        assert await is_gone(store, "runs")

    async def test_no_more_is_swept_at_once_than_asked_for(self, store: Store) -> None:
        for number in range(7):
            await store.create(US, running(str(number), expires_at=1.0))
            assert await end(store, finished(str(number)))
        swept = []
        while count := await store.sweep(keep_events_s=60, limit=3):
            swept.append(count)
            gone = [await unknown(store.get(US, f"resp_{number}")) for number in range(7)]
            assert gone.count(True) == sum(swept)
        assert swept == [3, 3, 1]

    # --- what a tenant has ------------------------------------------------------------------------

    async def test_nothing_is_used_at_first(self, store: Store) -> None:
        assert await store.usage(US) == StorageUsage()

    async def test_the_responses_of_a_tenant_are_counted(self, store: Store) -> None:
        await keep(store, "done")
        await store.create(US, running("runs"))
        await store.create(US, running("waits", run=NewRun()))
        await keep(store, "foreign", tenant=THEM)
        use = await store.usage(US)
        assert (use.responses, use.waiting) == (3, 1)
        await store.delete(US, "resp_waits")
        await store.delete(US, "resp_done")
        use = await store.usage(US)
        assert (use.responses, use.waiting) == (1, 0)

    async def test_a_run_waits_until_it_is_taken_and_when_it_is_given_back(
        self, store: Store
    ) -> None:
        await store.create(US, running("a", run=NewRun()))
        [taken] = await store.lease_runs(OWNER, limit=1)
        assert (await store.usage(US)).waiting == 0
        assert await store.give_back(taken.lease)
        assert (await store.usage(US)).waiting == 1

    async def test_the_bytes_of_items_bodies_and_logs_are_counted(self, store: Store) -> None:
        async def used() -> int:
            return (await store.usage(US)).bytes

        await converse(store, "other")
        at_first, size = await used(), 100_000
        large = b"x" * size
        events = EventChunk(first=0, count=1, body=large)
        run = NewRun(owner=OWNER, events=events)
        await store.create(
            US, running("a", item("a", raw=b'"%b"' % large), instructions="y" * size, run=run)
        )
        assert 2.9 * size < await used() - at_first < 4 * size
        lease = Lease(tenant=US, response_id="resp_a")
        assert await store.append(lease, EventChunk(first=1, count=1, body=large))
        assert 3.9 * size < await used() - at_first < 5 * size
        answer = i.Message(id="msg_a_out", role="assistant", content="z" * size)
        done = finished("a", output=(answer,), instructions="y" * size)
        assert await store.finish(lease, done, events=EventChunk(first=2, count=1, body=large))
        assert 5.9 * size < await used() - at_first < 7 * size
        await sweep(store, keep_events_s=0)
        assert 2.9 * size < await used() - at_first < 4 * size
        await store.delete(US, "resp_a")
        assert abs(await used() - at_first) < 1_000
        await store.add_items(US, "conv_other", [item("b", raw=b'"%b"' % large)])
        assert 0.9 * size < await used() - at_first < 2 * size
        await store.delete_conversation(US, "conv_other")
        assert await used() <= at_first

    # --- tenants ----------------------------------------------------------------------------------

    async def test_what_another_tenant_has_is_unknown(self, store: Store) -> None:
        await keep(store, "done")
        await store.create(US, running("running"))
        assert await unknown(store.get(THEM, "resp_done"))
        assert await unknown(store.input_items(THEM, "resp_done"))
        assert await unknown(store.context(THEM, "resp_done"))
        assert await unknown(store.item(THEM, "msg_done_in"))
        assert await unknown(store.item(THEM, "msg_done_out"))
        assert await unknown(store.delete(THEM, "resp_done"))
        assert not await end(store, finished("running"), THEM)
        assert (await store.get(US, "resp_done")).status == "completed"
        assert (await store.get(US, "resp_running")).status == "in_progress"

    async def test_tenants_may_use_the_same_ids(self, store: Store) -> None:
        await store.create(US, running("a", item("x", raw=b'{"of":"us"}'), model="ours"))
        await store.create(THEM, running("a", item("x", raw=b'{"of":"them"}'), model="theirs"))
        assert (await store.get(US, "resp_a")).model == "ours"
        assert (await store.get(THEM, "resp_a")).model == "theirs"
        assert bytes((await store.item(US, "msg_x")).raw) == b'{"of":"us"}'

    async def test_chains_of_the_same_ids_do_not_mix(self, store: Store) -> None:
        await keep(store, "a", tenant=THEM)
        await store.create(US, running("a", item("ours")))
        for tenant in (US, THEM):
            await keep(store, "b", after="a", tenant=tenant)
        assert await context_of(store, "b") == ["ours", *turns("b")]
        assert ids(await store.context(THEM, "resp_b")) == turns("a", "b")

    @pytest.mark.parametrize("name", ["' OR 1=1 --", "%", "", "\x00", "é🍀", "*"])
    async def test_an_id_is_taken_literally(self, store: Store, name: str) -> None:
        await keep(store, "a")
        for lookup in (store.get, store.input_items, store.context, store.item, store.delete):
            call: Callable[[str, str], Awaitable[object]] = lookup
            assert await unknown(call(US, name))
            assert await unknown(call(name, "resp_a"))
        assert await context_of(store, "a") == turns("a")

    # --- at the same time -------------------------------------------------------------------------

    async def test_many_write_and_read_their_own_at_the_same_time(self, store: Store) -> None:
        await keep(store, "root")

        async def client(name: str) -> None:
            await store.create(US, running(name, after="root"))
            assert (await store.get(US, f"resp_{name}")).status == "in_progress"
            assert await end(store, finished(name, after="root"))
            assert (await store.get(US, f"resp_{name}")).status == "completed"
            assert await context_of(store, name) == turns("root", name)

        await asyncio.gather(*[client(str(n)) for n in range(50)])
        assert await store.held_leases(OWNER) == []

    async def test_of_many_that_finish_a_response_one_succeeds(self, store: Store) -> None:
        await store.create(US, running("a"))
        done = [finished("a", model=f"m{n}") for n in range(20)]
        won = await asyncio.gather(*[end(store, one) for one in done])
        assert won.count(True) == 1
        assert await store.get(US, "resp_a") == done[won.index(True)]

    async def test_a_write_that_fails_takes_no_other_with_it(self, store: Store) -> None:
        await store.create(US, running("taken"))
        names = [str(n) for n in range(10)]
        writes = [store.create(US, running(name)) for name in names]
        writes.insert(5, store.create(US, running("taken", item("lost"))))
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [StoreError]
        for name in names:
            assert await input_of(store, name) == [f"{name}_in"]
        assert await unknown(store.item(US, "msg_lost"))

    async def test_a_caller_that_leaves_disturbs_nobody(self, store: Store) -> None:
        leaving = asyncio.create_task(store.create(US, running("leaving")))
        staying = asyncio.create_task(store.create(US, running("staying")))
        await asyncio.sleep(0)
        leaving.cancel()
        await staying
        assert await input_of(store, "staying") == ["staying_in"]
