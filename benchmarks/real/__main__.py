"""Ask servers with real weights the same questions, at temperature 0, and print a table.

    make bench-real                                   # this server and llama-server, on llama.cpp
    make bench-real ARGS="--cases 100 --peers 'antiphon, llama.cpp'"
    make bench-real ARGS="--vllm-folder FOLDER"       # also on vLLM, in an environment that has it

Answers are compared, so a busy machine changes the times alone. Results go to results/real.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.real.asking import Answer, Question, ask
from benchmarks.real.bfcl import CATEGORIES, Case, load_cases
from benchmarks.real.loop import cached_share, run_loop
from benchmarks.real.schemas import SchemaCase, schema_cases
from benchmarks.real.servers import Target, peers, run_peer
from benchmarks.real.weights import WEIGHTS, fetch

RESULTS = Path(__file__).resolve().parents[1] / "results" / "real.json"
PARTS = ("calls", "strict", "schemas", "required", "loop")

Row = Mapping[str, str]


def main() -> None:
    options = _options()
    weights = options.model_file or fetch(options.weights)
    names = peers(weights, options.vllm_folder, options.threads)
    cases, chosen = load_cases(options.cases), options.peers or list(names)
    rows: list[Row] = []
    for name in chosen:
        if name not in names:
            sys.exit(f"There is no server {name!r}: {', '.join(names)}.")
        with tempfile.TemporaryDirectory() as folder, run_peer(names[name], Path(folder)) as target:
            for row in _measure(target, cases, options):
                rows.append({"server": name, **row})
                print(json.dumps(rows[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print("\n".join(table(rows)))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table of Markdown, with a column for all that any row has."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row.get(column, '') for column in columns)} |"


def _measure(target: Target, cases: Sequence[Case], options: argparse.Namespace) -> Iterator[Row]:
    measured: Mapping[str, Callable[[], Iterator[Row]]] = {
        "calls": lambda: _calls(target, cases, options, is_strict=False),
        "strict": lambda: _calls(target, cases, options, is_strict=True),
        "schemas": lambda: _schemas(target, options, _format_question, _value_of_text),
        "required": lambda: _schemas(target, options, _call_question, _value_of_call),
        "loop": lambda: _loop(target),
    }
    for part in options.parts:
        for row in measured[part]():
            yield {"part": part, **row}


def _calls(
    target: Target, cases: Sequence[Case], options: argparse.Namespace, *, is_strict: bool
) -> Iterator[Row]:
    for category in CATEGORIES:
        asked = [case for case in cases if case.category == category]
        answers = [
            ask(
                target,
                Question(items=case.messages, tools=case.tools(), is_strict=is_strict),
                stream=not options.whole,
            )
            for case in asked
        ]
        right = sum(
            case.is_right(_dotted(case, answer)) and not answer.error
            for case, answer in zip(asked, answers, strict=True)
        )
        called = sum(bool(answer.calls) for answer in answers)
        yield {"of": category, "called": f"{called}", "right": f"{right}", **_costs(answers)}


def _dotted(case: Case, answer: Answer) -> Sequence[tuple[str, Any]]:
    """Return the calls by the leaderboard's own names, and no arguments of a call without JSON."""
    names = {function["name"].replace(".", "_"): function["name"] for function in case.functions}
    return [(names.get(name, name).replace(".", "_"), values) for name, values in answer.calls]


def _schemas(
    target: Target,
    options: argparse.Namespace,
    question_of: Callable[[SchemaCase], Question],
    value_of: Callable[[Answer], Any],
) -> Iterator[Row]:
    cases = schema_cases()[: options.cases]
    answers = [ask(target, question_of(case), stream=not options.whole) for case in cases]
    pairs = list(zip(cases, answers, strict=True))
    ended = [(case, answer) for case, answer in pairs if not answer.is_cut and not answer.error]
    valid = sum(case.is_valid(value_of(answer)) for case, answer in ended)
    for case, answer in pairs:
        if answer.error or answer.is_cut or not case.is_valid(value_of(answer)):
            why = answer.error or ("cut" if answer.is_cut else f"{answer.text} {answer.calls}")
            print(f"{case.kind}: {case.question} {why[:300]}", file=sys.stderr, flush=True)
    cut = sum(answer.is_cut for answer in answers)
    yield {"of": f"{len(cases)}", "valid": f"{valid}", "cut": f"{cut}", **_costs(answers)}


def _format_question(case: SchemaCase) -> Question:
    items = [{"role": "user", "content": case.question}]
    return Question(items=items, schema=case.schema, is_strict=True)


def _call_question(case: SchemaCase) -> Question:
    tool = {"name": "answer", "description": "Answers the user.", "parameters": _root(case)}
    items = [{"role": "user", "content": case.question}]
    return Question(items=items, tools=[tool], tool_choice="required", is_strict=True)


def _root(case: SchemaCase) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {"value": case.schema},
        "required": ["value"],
        "additionalProperties": False,
    } | ({"$defs": case.schema["$defs"]} if "$defs" in case.schema else {})


def _value_of_text(answer: Answer) -> Any:
    try:
        return json.loads(answer.text)
    except ValueError:
        return None


def _value_of_call(answer: Answer) -> Any:
    values = answer.calls[0][1] if answer.calls else None
    return values.get("value") if isinstance(values, dict) else None


def _loop(target: Target) -> Iterator[Row]:
    answers = run_loop(target)
    called = sum(bool(answer.calls) for answer in answers)
    share = f"{100 * cached_share(answers):.1f} %"
    yield {"of": f"{len(answers)}", "called": f"{called}", "cached": share, **_costs(answers)}


def _costs(answers: Sequence[Answer]) -> Row:
    good = [answer for answer in answers if not answer.error]
    if not good:
        return {"errors": f"{len(answers)}: {answers[0].error}"[:200]}
    computed = sum(answer.prompt_tokens - answer.cached_tokens for answer in good)
    tokens, seconds = sum(each.tokens for each in good), sum(each.total_s for each in good)
    return {
        "errors": f"{len(answers) - len(good)}",
        "prompt computed": f"{computed}",
        "tokens": f"{tokens}",
        "first s": f"{statistics.median(answer.first_s for answer in good):.2f}",
        "tokens a second": f"{tokens / seconds:.1f}",
        "CPU s": f"{sum(answer.cpu_s for answer in good):.1f}",
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", choices=list(WEIGHTS), default="qwen2.5-coder-0.5b")
    parser.add_argument("--model-file", type=Path, help="a GGUF file instead of those")
    parser.add_argument("--vllm-folder", type=Path, help="the same weights for vLLM")
    parser.add_argument("--cases", type=int, default=25, help="of each category, and schemas")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--peers", nargs="+", help="all by default")
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--whole", action="store_true", help="ask without streams")
    return parser.parse_args()


if __name__ == "__main__":
    main()
