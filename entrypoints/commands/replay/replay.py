"""Replay a bundle, and say where today's deltas, items and events differ from the recorded ones."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.adapters.ids import new_id
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.errors import RequestError
from antiphon.domain.items import AnyItem, Program
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.responses.traces import Bundle, TurnTrace, to_traced
from antiphon.domain.sequencer import Sequencer
from antiphon.domain.vocabulary.item import Agent
from antiphon.entrypoints.commands.replay.playback import can_play, play, recorded_deltas

IGNORED = frozenset({"metrics", "completed_at", "logprobs", "encrypted_content", "obfuscation"})
"""Fields that are not compared: times, made-up or sealed values, and what no replay has."""

IS_ID = re.compile(r"\b([a-z]+)_[0-9a-f]{32,}[\w-]*")

NO_TURNS = "The bundle has no turns to replay: its server kept no trace of the response."
SEALED = "sealed"


class Difference(Struct, frozen=True, kw_only=True):
    """Where today's code differs: `where` is a part of the bundle, `lines` a unified diff."""

    where: str
    lines: tuple[str, ...]


class Replay(Struct, frozen=True, kw_only=True):
    """The results of a replay. `notes` say what could not be played."""

    turns: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()


def replay(bundle: Bundle) -> Replay:
    """Play the bundle. Raises: RequestError if it has nothing to play, or cannot be read."""
    return asyncio.run(_replay(bundle))


async def _replay(bundle: Bundle) -> Replay:
    if not bundle.turns:
        raise RequestError(NO_TURNS)
    notes: list[str] = []
    differences: list[Difference] = []
    turns: list[Sequence[d.Delta]] = []
    for number, trace in enumerate(bundle.turns, 1):
        recorded = recorded_deltas(trace)
        if not can_play(trace):
            if trace.output is not None:
                notes.append(f"Turn {number} ({trace.kind}, {trace.format}): its deltas are played")
            turns.append(recorded)
            continue
        played = await play(trace)
        turns.append(played)
        if "batches" not in trace.cut:
            differences += _compare(
                f"deltas of turn {number}", map(_show, recorded), map(_show, played)
            )
    recorded_response = msgspec.json.decode(bundle.response, type=Response)
    response, events = _sequence(bundle, recorded_response, turns)
    differences += _compare(
        "output items", _json_lines(recorded_response.output), _json_lines(response.output)
    )
    if bundle.events:
        before = [msgspec.json.decode(timed.event) for timed in bundle.events]
        differences += _compare("events", _json_lines(before), _json_lines(events))
    return Replay(turns=len(turns), differences=tuple(differences), notes=tuple(notes))


def _agent_of(recorded: Response) -> Agent | None:
    """Return the agent whose response it is, None if it has no sub-agents."""
    name = "" if isinstance(recorded.metrics, UnsetType) else recorded.metrics.agent
    return Agent(agent_name=name) if name else None


def _sequence(
    bundle: Bundle, recorded: Response, turns: Sequence[Sequence[d.Delta]]
) -> tuple[Response, list[e.Event]]:
    """Return the response and the events that today's sequencer makes of the deltas."""
    request = bundle.request or {}
    seals = "reasoning.encrypted_content" in (request.get("include") or ())
    sequencer = Sequencer(
        _initial(recorded),
        new_id=new_id,
        now=lambda: recorded.created_at,
        seal=(lambda _: SEALED) if seals else None,
        agent=_agent_of(recorded),
    )
    events = [*sequencer.open(), *sequencer.start()]
    hides_reasoning = request.get("include_reasoning") is False
    hidden = (d.ReasoningDelta, d.SummaryDelta) if hides_reasoning else ()
    for turn in turns:
        ids = _ids_of_programs(recorded.output, sequencer.output)
        for delta in turn:
            if not isinstance(delta, hidden):
                events += sequencer.feed(_rename_program(delta, ids) if ids else delta)
    events += _end(sequencer, recorded, bundle.turns[-1])
    return sequencer.response, events


def _ids_of_programs(recorded: Sequence[AnyItem], played: Sequence[AnyItem]) -> Mapping[str, str]:
    """Return the call_id that each program has now, by the one that it had."""
    before, now = (
        [each.call_id for each in items if isinstance(each, Program)]
        for items in (recorded, played)
    )
    return dict(zip(before, now, strict=False))


def _rename_program(delta: d.Delta, ids: Mapping[str, str]) -> d.Delta:
    """Return what a program did, with the program's id of today."""

    def renamed(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
        return {**fields, name: ids.get(fields[name], fields[name])}

    match delta:
        case d.CallStart(caller=dict() as caller):
            return replace(delta, caller=renamed(caller, "caller_id"))
        case d.ToolStart(kind="program_output", fields=fields):
            return replace(delta, fields=renamed(fields, "call_id"))
        case d.ToolStart(fields={"caller": dict() as caller} as fields):
            return replace(delta, fields={**fields, "caller": renamed(caller, "caller_id")})
    return delta


def _initial(recorded: Response) -> Response:
    return replace(
        recorded,
        status="queued" if recorded.background else "in_progress",
        output=(),
        usage=None,
        usage_per_turn=UNSET,
        error=None,
        incomplete_details=None,
        completed_at=None,
        metrics=UNSET,
        preview=UNSET,
        input_messages=UNSET,
        output_messages=UNSET,
    )


def _end(sequencer: Sequencer, recorded: Response, last: TurnTrace) -> list[e.Event]:  # noqa: ARG001
    match recorded.status:
        case "completed":
            return sequencer.complete()
        case "incomplete" if recorded.incomplete_details is not None:
            return sequencer.end_incomplete(recorded.incomplete_details.reason)
        case "failed":
            return sequencer.fail(recorded.error or Failure(code="server_error", message=""))
    return sequencer.cancel()


# --- comparing ------------------------------------------------------------------------------------


def _compare(where: str, recorded: Iterator[str], played: Iterator[str]) -> Iterator[Difference]:
    before, after = _with_short_ids(recorded), _with_short_ids(played)
    if before != after:
        diff = difflib.unified_diff(before, after, "recorded", "today", lineterm="", n=1)
        yield Difference(where=where, lines=tuple(diff))


def _with_short_ids(lines: Iterator[str]) -> list[str]:
    """Return the lines with ids numbered in their order: two runs have different ids."""
    numbers: dict[str, str] = {}

    def shorten(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"{found[1]}_{len(numbers) + 1}")

    return [IS_ID.sub(shorten, line) for line in lines]


def _show(delta: d.Delta) -> str:
    name, fields = to_traced(delta)
    return f"{name} {_to_json(fields)}"


def _json_lines(values: Sequence[Any]) -> Iterator[str]:
    return map(_to_json, values)


def _to_json(value: Any) -> str:
    plain = _without_ignored(msgspec.json.decode(msgspec.json.encode(value)))
    return msgspec.json.encode(plain, order="sorted").decode()


def _without_ignored(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ignored(each) for each in value]
    if isinstance(value, dict):
        usage = {"usage", "usage_per_turn"} if value.get("object") == "response" else set()
        return {
            name: _without_ignored(each)
            for name, each in value.items()
            if name not in IGNORED and name not in usage
        }
    return value
