"""The golden flows in the markup of the families: their items are those of the scripted model.

A family that cannot write reasoning, or text before a call, leaves it out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers
from tests.conftest import Running, settings_for
from tests.http.conftest import frames
from tests.support import fake_mcp_server

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template import scripted_family
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.scripted.family_markup import tokenizer_of
from antiphon.adapters.formats.chat_template.scripted.family_turns import FamilyTurns
from antiphon.application.model.supervision import SupervisedModel
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Model
from antiphon.entrypoints.container import Container
from antiphon.testing.server import serving_in_thread

from .test_golden_flows import FLOWS, FLOWS_AT, STEP_TOKENS, Playing, played, servers, streamed

Json = dict[str, Any]

WITH_CALLS = sorted(name for name, family in FAMILIES.items() if family.call_form)
OF_EACH_KIND = ("hermes", "pythonic", "qwen3_coder")
"""A family that writes JSON, one without a marker before its calls, and one that writes XML."""

LOOPS = ("mcp_thought_and_preamble", "mcp_beside_a_clients_call")
"""What every family plays."""
OWN_MARKUP = {
    "mcp_arguments_malformed",
    "mcp_cut_in_a_call",
    "program_cut_while_written",
    "shell_arguments_malformed",
}
"""What is left of a call that is malformed or cut depends on its markup."""

PLAYED = [
    (name, family)
    for family in WITH_CALLS
    for name in (FLOWS if family in OF_EACH_KIND else LOOPS)
    if name not in OWN_MARKUP
]


def family_models() -> Sequence[SupervisedModel]:
    """Return a model for each family, `scripted-FAMILY`."""
    return [SupervisedModel(family_model(name)) for name in WITH_CALLS]


def family_model(name: str) -> Model:
    turn_format, markup = scripted_family(name)
    engine = ScriptedEngine(markup, (f"scripted-{name}",), step_tokens=STEP_TOKENS)
    return TokenModel(lambda: turn_format, engine)


@contextmanager
def serving(folder: Path, **given: Any) -> Iterator[Running]:
    container = Container(settings=settings_for(folder, **given))
    container.supervised_models.override(providers.Object(family_models()))
    with serving_in_thread(container) as served:
        yield Running(url=served.url, container=container, app=served.app)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Playing]]:
    with fake_mcp_server.site() as site, servers(serving, site, tmp_path_factory) as playing:
        yield playing


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family"), PLAYED)
def test_a_flow_has_the_same_items_in_each_family(
    play: Mapping[str, Playing], name: str, family: str
) -> None:
    responses, _ = played(play, name, f"scripted-{family}", streamed)
    for number, response in enumerate(responses, 1):
        recorded = frames((FLOWS_AT / f"{name}.scripted-chat.{number}.sse").read_text())
        wanted = writable(family, recorded[-1]["response"]["output"])
        assert plain(response["output"]) == plain(wanted)


def writable(family: str, items: Sequence[Json]) -> list[Json]:
    """Return the items that a family can write."""
    row = FAMILIES[family]
    turns = FamilyTurns(row, tokenizer_of(row))
    kept = []
    for number, item in enumerate(items):
        is_preamble = item["type"] == "message" and number + 1 < len(items)
        if item["type"] == "reasoning" and row.think is None:
            continue
        if not is_preamble or turns.writes_text_before_calls:
            kept.append(item)
    return kept


def plain(value: Any) -> Any:
    """Return a value without the numbers of ids, and with arguments as what they mean."""
    match value:
        case list():
            return list(map(plain, value))
        case dict():
            return {
                key: meaning(each) if key == "arguments" else plain(each)
                for key, each in value.items()
            }
        case str():
            return re.sub(r"\b([a-z]+)[_-]\d+\b", r"\1", value)
    return value


def meaning(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
