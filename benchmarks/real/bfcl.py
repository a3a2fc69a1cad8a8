"""Cases and checker of the Berkeley Function-Calling Leaderboard, from the package `bfcl-eval`."""

from __future__ import annotations

import copy
import importlib
import json
import sys
import types
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.real.weights import CACHE, fetch_wheel

DISTRIBUTION = "bfcl-eval==2026.3.23"
CATEGORIES = ("simple_python", "multiple", "parallel", "irrelevance")
CHECKED_AS = "any-model"
"""The checker asks of a model only whether it writes `_` for `.` in names."""

TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""JSON Schema's names of the leaderboard's types."""

Call = tuple[str, Any]
"""The name and the arguments of a call."""


class Case(Struct, frozen=True, kw_only=True):
    category: str
    name: str
    messages: Sequence[Mapping[str, str]]
    functions: Sequence[Mapping[str, Any]]
    """As the leaderboard has them: the checker needs these."""

    truth: Sequence[Any]

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the functions as JSON Schema has them, with names that every server takes."""
        return [
            {
                "name": function["name"].replace(".", "_"),
                "description": function["description"],
                "parameters": _schema_of(function["parameters"]),
            }
            for function in self.functions
        ]

    def is_right(self, calls: Sequence[Call]) -> bool:
        """Tell whether these calls are what the leaderboard accepts."""
        if self.category == "irrelevance":
            return not calls
        checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
        language = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
        try:
            verdict = checker.ast_checker(
                copy.deepcopy(list(self.functions)),
                [{name: arguments} for name, arguments in calls],
                copy.deepcopy(list(self.truth)),
                language,
                self.category,
                CHECKED_AS,
            )
        except Exception:  # the checker trips over calls of odd types
            return False
        return bool(verdict["valid"])


def load_cases(count: int, cache: Path = CACHE) -> Sequence[Case]:
    """Return the first cases of each category. The package is fetched once, imported in part."""
    folder = cache / "bfcl"
    if not folder.is_dir():
        with zipfile.ZipFile(fetch_wheel(DISTRIBUTION, cache)) as archive:
            archive.extractall(folder)
    sys.path.insert(0, str(folder))
    _stand_in_for_models()
    data = folder / "bfcl_eval" / "data"
    return [case for category in CATEGORIES for case in _cases(data, category, count)]


def _cases(data: Path, category: str, count: int) -> Sequence[Case]:
    name = f"BFCL_v4_{category}.json"
    questions = [json.loads(line) for line in (data / name).read_text().splitlines()[:count]]
    answers, truths = data / "possible_answer" / name, {}
    if answers.is_file():
        rows = map(json.loads, answers.read_text().splitlines())
        truths = {row["id"]: row["ground_truth"] for row in rows}
    return [
        Case(
            category=category,
            name=question["id"],
            messages=question["question"][0],
            functions=question["function"],
            truth=truths.get(question["id"], []),
        )
        for question in questions
    ]


def _stand_in_for_models() -> None:
    """Spare the import of every vendor's SDK."""
    module: Any = types.ModuleType("bfcl_eval.constants.model_config")
    module.MODEL_CONFIG_MAPPING = defaultdict(lambda: types.SimpleNamespace(underscore_to_dot=True))
    sys.modules[module.__name__] = module


def _schema_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_schema_of(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _schema_of(value) for key, value in schema.items()}
    if isinstance(changed.get("type"), str):
        changed["type"] = TYPES.get(changed["type"], changed["type"])
    return changed
