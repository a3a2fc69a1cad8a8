"""What a client sees is the same in events and in responses."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.history.include_filter import INCLUDABLE_FIELDS, IncludeFilter
from antiphon.domain.requests.request import INCLUDABLE
from antiphon.domain.responses.response import Response

CALL = i.CodeInterpreterCall(
    id="ci_1", status="completed", code="1", container_id="cntr_1", outputs=({"logs": "1"},)
)
RESPONSE = Response(id="resp_1", created_at=1, model="m", status="completed", output=(CALL,))


def test_a_streamed_item_is_shown_as_in_the_final_response() -> None:
    events = IncludeFilter().events(
        [e.ItemDone(output_index=0, item=CALL), e.Completed(response=RESPONSE)]
    )
    call_without_outputs = replace(CALL, outputs=None)
    assert events[0] == e.ItemDone(output_index=0, item=call_without_outputs)
    assert events[1] == e.Completed(response=replace(RESPONSE, output=(call_without_outputs,)))


def test_an_included_field_is_shown() -> None:
    include_filter = IncludeFilter(["code_interpreter_call.outputs"])
    assert include_filter.response(RESPONSE) == RESPONSE


def test_a_response_that_is_not_stored_hides_nothing() -> None:
    unstored = replace(RESPONSE, store=False)
    assert IncludeFilter().response(unstored) == unstored


def test_deltas_pass_untouched() -> None:
    delta = e.TextDelta(item_id="msg_1", output_index=0, content_index=0, delta="a")
    assert IncludeFilter().events([delta])[0] is delta


def test_only_values_of_the_api_are_in_the_table() -> None:
    assert set(INCLUDABLE_FIELDS) <= set(INCLUDABLE.__args__)
