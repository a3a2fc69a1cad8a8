"""Print what a bundle says of its response, and what a replay has found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from antiphon.entrypoints.commands.replay.replay import Replay
from antiphon.entrypoints.commands.terminal import printable

Json = Mapping[str, Any]

SLOW_STORE_S = 0.1
"""What all writes of a response together may take unnoticed."""


def print_summary(bundle: bytes) -> None:
    _print(_summary(msgspec.json.decode(bundle)))


def print_replay(replayed: Replay) -> None:
    _print(_replay_lines(replayed))


def _print(lines: Iterator[str]) -> None:
    text = "\n".join(printable(line).replace("\n", "\\n") for line in lines)
    Console(highlight=False, soft_wrap=True).print(Text(text))


def _summary(bundle: Json) -> Iterator[str]:
    response = bundle["response"]
    metrics = response.get("metrics") or {}
    yield f"{bundle['response_id']}  {_ending(response)}"
    yield from _facts(response, metrics)
    traces = bundle["turns"]
    yield from _turns(metrics)
    yield from _programs(metrics)
    yield from _agents(metrics)
    yield from _tool_errors(response.get("output") or ())
    if traces:
        yield f"trace: {len(traces)} turns, {len(bundle['events'])} events"
    if prefix := bundle.get("prefix"):
        yield _prefix(prefix)
    if comparison := metrics.get("prompt_comparison"):
        yield _comparison(comparison)
    for reason in bundle["missing"]:
        yield f"missing: {reason}"


def _ending(response: Json) -> str:
    """Return why the response ended, in one sentence."""
    error, incomplete = response.get("error"), response.get("incomplete_details")
    if error:
        return f"failed: {error['code']}: {error['message']}"
    if incomplete and incomplete["reason"] == "steered":
        return "incomplete: the client steered it, and its successor goes on."
    if incomplete:
        return f"incomplete: {incomplete['reason']} was reached."
    return str(response["status"])


def _facts(response: Json, metrics: Json) -> Iterator[str]:
    yield f"model: {response['model']}"
    received = metrics.get("received_at")
    if metrics.get("key_name"):
        yield f"key: {metrics['key_name']}"
    if metrics.get("request_id"):
        yield f"request: {metrics['request_id']}"
    times = [
        f"{name} after {metrics[field] - received:.3f} s"
        for name, field in (
            ("admitted", "admitted_at"),
            ("started", "started_at"),
            ("ended", "ended_at"),
        )
        if received is not None and metrics.get(field) is not None
    ]
    if times:
        yield f"times: {', '.join(times)}"
    if metrics.get("epoch", 1) > 1:
        yield f"servers: {metrics['epoch']} ran it, {metrics.get('server', '')} was the last"
    if metrics.get("store_seconds", 0) >= SLOW_STORE_S:
        yield f"store: SLOW: its writes took {metrics['store_seconds']:.3f} s"
    if metrics.get("store_failures"):
        yield f"store: {metrics['store_failures']} writes failed and were repeated"
    for each in metrics.get("guards") or ():
        if each["verdict"] != "pass":
            how_often = "once" if each["count"] == 1 else f"{each['count']} times"
            yield f"guard: {each['guard']}: {each['verdict']} at {each['place']}, {how_often}"
    if metrics.get("ignored"):
        yield f"ignored: {', '.join(metrics['ignored'])}"


def _turns(metrics: Json) -> Iterator[str]:
    for number, turn in enumerate(metrics.get("turns") or (), 1):
        yield f"turn {number}: {', '.join(_turn_parts(turn))}"
        for call in turn.get("tool_calls") or ():
            name = f"{call['server']}/{call['name']}" if call.get("server") else call["name"]
            result = call.get("result") or "running"
            yield f"  {call['type']} {name}: {result} after {call.get('seconds', 0):.3f} s"


def _programs(metrics: Json) -> Iterator[str]:
    for program in metrics.get("programs") or ():
        yield f"program: {program['result']} after {program['calls']} calls"


def _agents(metrics: Json) -> Iterator[str]:
    """Yield where the response stands in its tree of agents, and those that it has started."""
    if parent := metrics.get("parent_response_id"):
        yield f"agent: {metrics['agent']}, started by {parent}"
    for agent in metrics.get("agents") or ():
        tokens = f"{agent.get('input_tokens', 0)} tokens in, {agent.get('output_tokens', 0)} out"
        yield f"sub-agent: {agent['name']}: {agent['status']}, {tokens}, {agent['response_id']}"


def _tool_errors(output: Iterable[Json]) -> Iterator[str]:
    """Yield what each call, or listing of tools, that failed has told the client."""
    for item in output:
        if error := item.get("error"):
            name = "/".join(filter(None, (item.get("server_label"), item.get("name"))))
            message = error["message"] if isinstance(error, Mapping) else error
            yield f"tool error: {name}: {message}"


def _turn_parts(turn: Json) -> Iterator[str]:
    yield turn.get("kind", "answer")
    if turn.get("model"):
        yield turn["model"]
    if turn.get("engine"):
        yield f"on {turn['engine']}"
    if turn.get("output_tokens"):
        cached = turn.get("cached_tokens", 0)
        yield f"{turn.get('input_tokens', 0)} tokens in ({cached} cached)"
        yield f"{turn['output_tokens']} out"
    if turn.get("first_token_at"):
        yield f"first token after {turn['first_token_at'] - turn['started_at']:.3f} s"
    if turn.get("ended_at"):
        yield f"{turn['ended_at'] - turn['started_at']:.3f} s in all"
    yield f"ended by {turn['reason']}" if turn.get("reason") else "did not end well"
    if turn.get("attempts", 1) > 1:
        yield f"{turn['attempts']} attempts"
    if turn.get("resumed_tokens"):
        yield f"went on after {turn['resumed_tokens']} tokens of a server that was lost"
    if turn.get("fittings"):
        yield f"the conversation was fitted to the template: {', '.join(turn['fittings'])}"
    if turn.get("unmarked_calls"):
        yield f"{turn['unmarked_calls']} calls were JSON in the text, without the model's markers"
    if turn.get("is_repaired"):
        names = f" ({', '.join(turn['repairs'])})" if turn.get("repairs") else ""
        yield f"REPAIRED: the model's markup was malformed{names}"


def _prefix(prefix: Json) -> str:
    shared = f"{prefix['shared_tokens']} of {prefix['parent_tokens']} tokens"
    if prefix["differs_at"] is None:
        return f"prefix: the prompt continues {prefix['previous_response_id']}: {shared} are shared"
    return (
        f"prefix: the prompt differs from {prefix['previous_response_id']} at token "
        f"{prefix['differs_at']}: {shared} are shared"
    )


def _comparison(comparison: Json) -> str:
    """Return what the prompt cache could have from the response that the client named."""
    response_id, shared = comparison["response_id"], comparison.get("shared_tokens", 0)
    match comparison["result"]:
        case "cache_hit":
            found = f"{comparison['compared_tokens']} tokens: {shared} are shared"
            return f"prompt cache: hit: the prompt continues {response_id}, which has {found}"
        case "cache_miss":
            return (
                f"prompt cache: miss: {comparison['reason']}: {comparison['part']} differs from "
                f"{response_id} at token {comparison['differs_at']} of "
                f"{comparison['prompt_tokens']}"
            )
        case "comparison_response_not_found":
            return f"prompt cache: there is no response {response_id} to compare"
    return f"prompt cache: not compared with {response_id}: {comparison['unavailable']}"


def _replay_lines(replayed: Replay) -> Iterator[str]:
    yield from replayed.notes
    for difference in replayed.differences:
        yield f"DIFFERENT: {difference.where}"
        yield from difference.lines
    if not replayed.differences:
        yield f"Nothing differs: {replayed.turns} turns were replayed."
