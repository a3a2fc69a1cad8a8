"""The conversation: the items that a request adds, and the items that a model is shown
(docs/reference/api.md#what-the-model-is-shown).

Every item is kept twice: decoded, for the rules, and raw, so that a client gets back whatever it
sent.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from antiphon.domain import items as i
from antiphon.domain.content import InputImage, InputText, OutputText, Part
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.history.nested_calls import nested_calls
from antiphon.domain.requests.decoding import check_values, decode_item
from antiphon.domain.requests.request import AnyFormat, Effort
from antiphon.domain.tools import redact_secrets
from antiphon.domain.vocabulary.shown import View
from antiphon.domain.vocabulary.tool import ToolSpec

NewId = Callable[[str], str]

INSTRUCTORS = ("system", "developer")
"""The roles whose messages instruct the model."""

_OWN_ID = re.compile(r"[a-z]+_[0-9a-f]{48}")
"""An id that a server like this one has made."""

_NAMED_BY_ID = (i.McpApprovalRequest, i.LocalShellCall)
"""Items that others name by their ids."""

UNFINISHED = ("incomplete", "in_progress")
"""The statuses of a call that the model did not finish writing."""


class Conversation(Struct, frozen=True, kw_only=True):
    """The conversation object of the API; its items are listed separately."""

    id: str
    object: str = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


_STRINGS: frozenset[type] = frozenset({str})
_MESSAGES: frozenset[type[i.Item]] = frozenset({i.Message})


def only_messages(items: Iterable[i.Item]) -> bool:
    """Whether all items are messages: then no rule about calls, reasoning or settings applies."""
    return _MESSAGES.issuperset(map(type, items))


def only_texts(items: Sequence[i.Item]) -> bool:
    """Whether all items are messages with a string: a model is shown them as they are."""
    if not only_messages(items):
        return False
    messages = cast("Sequence[i.Message]", items)
    return _STRINGS.issuperset([type(message.content) for message in messages])


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """An item of the conversation, with its original JSON.

    `is_reference`: the client has sent its id alone.
    """

    item: i.AnyItem
    raw: Raw
    is_reference: bool = False


def entry(item: i.AnyItem) -> Entry:
    """Return an entry for an item that this server made."""
    return Entry(item=item, raw=Raw(_encode(item)))


def raw_items(request_input: str | Sequence[Raw] | None) -> Sequence[Raw]:
    """Return a request's `input` as items; a string becomes a user message."""
    if isinstance(request_input, str):
        return (entry(i.Message(role="user", content=request_input)).raw,)
    return request_input or ()


def entries(request_input: str | Sequence[Raw] | None, path: str = "input") -> list[Entry]:
    """Return the entries for a request's input at `path`.

    Raises: RequestError with the path of an invalid item.
    """
    if request_input is None:
        return []
    if isinstance(request_input, str):
        return [entry(i.Message(role="user", content=request_input))]
    return [_entry_at(raw, f"{path}[{position}]") for position, raw in enumerate(request_input)]


def _entry_at(raw: Raw, path: str) -> Entry:
    check_values(raw, path)
    return Entry(item=decode_item(raw, path), raw=raw)


def check_input(new_entries: Sequence[Entry], path: str = "input") -> None:
    """Check the rules for new items that do not depend on the history. Raises: RequestError."""
    for position, new_entry in enumerate(new_entries):
        item, item_path = new_entry.item, f"{path}[{position}]"
        if isinstance(item, i.FunctionCallOutput) and not item.call_id and not item.name:
            raise missing_parameter(f"{item_path}.call_id")
        if isinstance(item, i.CompactionTrigger) and position < len(new_entries) - 1:
            raise RequestError(
                "A 'compaction_trigger' must be the last item of the input.",
                param=item_path,
                code="invalid_value",
            )


def check_ids(
    history: Iterable[str | UnsetType | None], new_items: Iterable[i.Item], path: str = "input"
) -> None:
    """Check that no new item has the id of another item, or one in `history`.

    Raises: RequestError.
    """
    used_ids = set(history)
    for item in new_items:
        if not item.id or isinstance(item, i.LocalShellCallOutput):  # it has its call's id
            continue
        if item.id in used_ids:
            raise _duplicate(item, path)
        used_ids.add(item.id)


def settle_ids(
    history: Iterable[str | UnsetType | None], new_entries: Sequence[Entry], path: str = "input"
) -> Sequence[Entry]:
    """Return the new entries with no id twice, neither among them nor with those in `history`.

    A reference to an item that is there anyway adds nothing: it is left out. Clients number the
    items that they write, and a later one with the same id gets another.
    Raises: RequestError for an item of this server's that comes twice.
    """
    used_ids = set(history)
    given = {each.item.id for each in new_entries if not each.is_reference}
    settled: list[Entry] = []
    for each in new_entries:
        item = each.item
        if not item.id or isinstance(item, i.LocalShellCallOutput):  # it has its call's id
            settled.append(each)
            continue
        is_repeated = item.id in used_ids
        if each.is_reference and (is_repeated or item.id in given):
            continue
        used_ids.add(item.id)
        settled.append(_without_id(each, path) if is_repeated else each)
    return settled


def _without_id(each: Entry, path: str) -> Entry:
    """Return the entry to get a new id. Raises: RequestError if the id means something here."""
    if isinstance(each.item, _NAMED_BY_ID) or _OWN_ID.fullmatch(str(each.item.id)):
        raise _duplicate(each.item, path)
    fields = _decode_fields(each.raw)
    del fields["id"]
    return Entry(item=replace(each.item, id=UNSET), raw=Raw(_encode(fields)))


def _duplicate(item: i.Item, path: str) -> RequestError:
    return RequestError(
        f"Duplicate item found with id {str(item.id)[:100]}. Send each item once; do not "
        "send items again that are already part of the conversation.",
        param=path,
    )


def tools_in_items(conversation: Sequence[Entry]) -> Iterator[tuple[int, int, Raw]]:
    """Yield the tools that items define, as (item's position, tool's position, JSON)."""
    for position, each in enumerate(conversation):
        if isinstance(each.item, i.AdditionalTools | i.ToolSearchOutput):
            for number, tool in enumerate(each.item.tools):
                yield position, number, Raw(msgspec.json.encode(tool))


def check_call_output_pairs(conversation: Iterable[i.Item]) -> None:
    """Check that every output answers a call and every complete call has its output.

    The order does not matter (docs/reference/api.md#calls-and-their-outputs).
    Raises: RequestError.
    """
    items = list(conversation)
    pairs = pair_outputs_with_calls(items)
    answered = set(pairs.values())
    for position, item in enumerate(items):
        call_ids = _call_ids_of(item)
        if call_ids and position not in answered and not _may_stay_open(item):
            raise RequestError(
                f"No tool output found for function call {call_ids[0]}.", param="input"
            )
    for position, item in enumerate(items):
        call_id = i.answered_call_id(item)
        if call_id is not None and position not in pairs:
            raise RequestError(
                f"No tool call found for function call output with call_id {call_id}.",
                param="input",
            )


def pair_outputs_with_calls(conversation: Iterable[i.Item]) -> Mapping[int, int]:
    """Return the position of the call that each output answers, by the output's position.

    Call ids are the clients', who may use one again. An output belongs to the nearest earlier
    unanswered call with its id. Without one, it is a further output of the nearest earlier call,
    or comes before its call.
    """
    pairs: dict[int, int] = {}
    answered: set[int] = set()
    calls: dict[str, int] = {}
    open_calls: dict[str, list[int]] = {}
    early_outputs: dict[str, deque[int]] = {}
    for position, item in enumerate(conversation):
        for call_id in _call_ids_of(item):
            calls[call_id] = position
            if early := early_outputs.get(call_id):
                pairs[early.popleft()] = position
                answered.add(position)
            else:
                open_calls.setdefault(call_id, []).append(position)
        answered_id = i.answered_call_id(item)
        if answered_id is None:
            continue
        waiting = open_calls.get(answered_id, [])
        while waiting and waiting[-1] in answered:  # by its other id
            waiting.pop()
        if waiting or answered_id in calls:
            pairs[position] = waiting.pop() if waiting else calls[answered_id]
            answered.add(pairs[position])
        else:
            early_outputs.setdefault(answered_id, deque()).append(position)
    further = ((output, calls.get(each)) for each, rest in early_outputs.items() for output in rest)
    return pairs | {output: call for output, call in further if call is not None}


def calls_by_output(conversation: Iterable[i.Item]) -> Mapping[int, i.Item]:
    """Return the call that each output answers, by the `id()` of the output."""
    items = list(conversation)
    pairs = pair_outputs_with_calls(items)
    answered_calls = {id(items[output]): items[call] for output, call in pairs.items()}
    # Tool searches that the server runs have no call_id; outputs come in the order of the calls.
    searches = (item for item in items if isinstance(item, i.ToolSearchCall) and not item.call_id)
    outputs = (item for item in items if isinstance(item, i.ToolSearchOutput) and not item.call_id)
    search_pairs = zip(searches, outputs, strict=False)
    return answered_calls | {id(output): call for call, output in search_pairs}


def view_of(conversation: Sequence[i.Item], tools: Sequence[ToolSpec]) -> View:
    """Return what the kinds need to show the conversation to a model with these tools."""
    if only_messages(conversation):
        return View(tools=tools)
    counts: Counter[type[i.Item]] = Counter()
    numbers: dict[int, int] = {}
    for item in conversation:
        numbers[id(item)] = counts[type(item)]
        counts[type(item)] += 1
    return View(tools=tools, calls=calls_by_output(conversation), numbers=numbers)


def _call_ids_of(item: i.Item) -> tuple[str, ...]:
    """Return the ids by which an output may name this call; none if it is not a client's call."""
    call_id = i.call_id_of(item)
    if call_id is None:
        return ()
    if isinstance(item, i.LocalShellCall) and item.id:
        return call_id, str(item.id)  # its output has no call_id, and some clients send the item id
    return (call_id,)


def items_for_model(
    conversation: Sequence[i.AnyItem],
    *,
    all_reasoning: bool = False,
    only_answers_end_turns: bool = False,
) -> list[i.AnyItem]:
    """Return the items that a model is shown.

    These are the items from the last compaction on, without calls that were cut off, without those
    that programs make and, unless `all_reasoning`, without the reasoning of finished turns. A final
    answer finishes a turn and, unless `only_answers_end_turns`, a user message.
    """
    start = _last_position(conversation, lambda item: isinstance(item, i.Compaction), default=0)
    items = conversation[start:]
    ends_turn = _is_answer if only_answers_end_turns else _is_answer_or_question
    turn_start = 0 if all_reasoning else _last_position(items, ends_turn, default=-1) + 1
    pairs = pair_outputs_with_calls(items)
    nested = nested_calls(items)
    answered = {*pairs.values(), *_waiting_programs(items, nested)}
    return [
        item
        for position, item in enumerate(items)
        if not (isinstance(item, i.Reasoning) and position < turn_start)
        and not (_may_be_left_out(item) and position not in answered)
        and not isinstance(item, i.CompactionTrigger)
        and position not in nested
        and pairs.get(position) not in nested
    ]


def _waiting_programs(items: Sequence[i.AnyItem], nested: Mapping[int, str]) -> Iterator[int]:
    """Yield the positions of programs that have made calls: this response goes on with them."""
    callers = set(nested.values())
    for position, item in enumerate(items) if callers else ():
        if isinstance(item, i.Program) and item.call_id in callers:
            yield position


class ActiveConfiguration(Struct, frozen=True, kw_only=True):
    """The settings of `configuration_update` items; None if no item sets them."""

    effort: Effort | None = None
    format: AnyFormat | None = None


def active_configuration(conversation: Iterable[i.Item]) -> ActiveConfiguration:
    """Return the newest value of each setting."""
    effort: Effort | None = None
    text_format: AnyFormat | None = None
    for item in conversation:
        if isinstance(item, i.ConfigurationUpdate):
            effort = (item.reasoning.effort if item.reasoning else None) or effort
            text_format = (item.text.format if item.text else None) or text_format
    return ActiveConfiguration(effort=effort, format=text_format)


def droppable_groups(conversation: Sequence[i.Item]) -> list[frozenset[int]]:
    """Return the items that may be dropped to make room, oldest first, as groups of positions.

    A call and its outputs form one group. A user's message goes with the answers to it, after the
    calls that led to them, so no conversation begins with an answer. Instructions, the last message
    of a user and the newest item are in no group.
    """
    pairs = pair_outputs_with_calls(conversation)
    positions_by_call = {n: {n} for n, item in enumerate(conversation) if i.call_id_of(item)}
    for output, call in pairs.items():
        positions_by_call.setdefault(call, {call}).add(output)
    questions = [n for n, item in enumerate(conversation) if _is_of_user(item)]
    last_question = questions[-1] if questions else -1
    kept = {len(conversation) - 1, last_question}
    groups: list[frozenset[int]] = []
    grouped_positions: set[int] = set()
    exchange: set[int] = set()
    for position, item in enumerate(conversation):
        if _is_of_user(item):
            groups.append(frozenset(exchange))
            exchange = set()
        positions = positions_by_call.get(pairs.get(position, position))
        group = frozenset(positions or {position})
        if group & kept or group <= grouped_positions or _is_instruction(item):
            continue
        grouped_positions |= group
        if positions or position > last_question:
            groups.append(group)
        else:
            exchange |= group
    return [group for group in (*groups, frozenset(exchange)) if group]


def leading_instructions(
    conversation: Sequence[i.Item],
) -> tuple[list[i.Message], Sequence[i.Item]]:
    """Return the system and developer messages at the start of the conversation, and the rest."""
    leading: list[i.Message] = []
    for item in conversation:
        if not _is_instruction(item):
            break
        leading.append(item)
    return leading, conversation[len(leading) :]


def to_resource(source: Entry, new_id: NewId) -> tuple[str, Raw]:
    """Return the item's id and its JSON as lists show it
    (docs/reference/api.md#items-in-lists).

    All fields of the original JSON are kept. The fields that every item in a list has are added:
    type, id, status, and content as parts.
    """
    item = source.item
    fields = _decode_fields(source.raw)
    item_id = item.id or new_id(i.ID_PREFIXES[type(item)])
    kind = str(type(item).__struct_config__.tag)
    shown_first = {"type": kind, "id": item_id}  # whatever the item says of them, or does not
    resource: dict[str, Any] = shown_first | fields | shown_first
    if not getattr(item, "status", "has none"):
        resource["status"] = "completed"
    if isinstance(item, i.Message):
        resource["content"] = _to_parts(item, fields["content"])
    if isinstance(item, i.AdditionalTools | i.ToolSearchOutput):
        resource["tools"] = [redact_secrets(tool) for tool in item.tools]
    return item_id, Raw(_encode(resource))


# Texts stay raw: only the JSON around them is decoded and encoded again.
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_parts = msgspec.json.Decoder(tuple[dict[str, Raw], ...]).decode
_encode = msgspec.json.Encoder().encode
_NULL = Raw(b"null")

_PART_DEFAULTS: Mapping[type[Part], Mapping[str, Any]] = {
    OutputText: {"annotations": [], "logprobs": []},
    InputImage: {"detail": "auto"},
}


def _to_parts(message: i.Message, content: Raw) -> list[Mapping[str, Any]]:
    if isinstance(message.content, str):
        kind = OutputText if message.role == "assistant" else InputText
        tag = kind.__struct_config__.tag
        return [{"type": tag, "text": content, **_PART_DEFAULTS.get(kind, {})}]
    parts = message.content or ()
    raw_parts = _decode_parts(content) if parts else ()
    return [
        {
            **_PART_DEFAULTS.get(type(part), {}),
            **{name: value for name, value in fields.items() if value != _NULL},
        }
        for part, fields in zip(parts, raw_parts, strict=True)
    ]


def _may_stay_open(call: i.Item) -> bool:
    return _may_be_left_out(call) or getattr(call, "async_", UNSET) is True


def _may_be_left_out(call: i.Item) -> bool:
    return _is_unfinished(call) or i.is_server_run_call(call)


def _is_unfinished(item: i.Item) -> bool:
    # A client that left in the middle of a stream may send back a partial call.
    return type(item) in i.ANSWERED_BY and getattr(item, "status", None) in UNFINISHED


def _is_answer_or_question(item: i.Item) -> bool:
    return _is_answer(item) or (isinstance(item, i.Message) and item.role == "user")


def _is_answer(item: i.Item) -> bool:
    if not isinstance(item, i.Message):
        return False
    return item.role == "assistant" and item.phase == "final_answer"


def _is_of_user(item: i.Item) -> bool:
    return isinstance(item, i.Message) and item.role == "user"


def _is_instruction(item: i.Item) -> TypeGuard[i.Message]:
    return isinstance(item, i.Message) and item.role in INSTRUCTORS


def _last_position(
    conversation: Sequence[i.Item], matches: Callable[[i.Item], bool], *, default: int
) -> int:
    positions = reversed(range(len(conversation)))
    return next((position for position in positions if matches(conversation[position])), default)
