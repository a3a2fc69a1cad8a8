"""The parts of a server with several workers.

`tests/faults/servers/test_workers.py` has whole servers.
"""

from __future__ import annotations

import asyncio
import pickle
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.adapters.telemetry.merged import merge
from antiphon.adapters.telemetry.prometheus import PrometheusMeter
from antiphon.application.telemetry import instruments as i
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.workers.child import FIRST_PAUSE_S, MAX_PAUSE_S, Pauses
from antiphon.entrypoints.workers.connection_counts import ConnectionCounts
from antiphon.entrypoints.workers.engines import share_engines
from antiphon.entrypoints.workers.fork_server import (
    PRELOAD,
    PRELOAD_HARMONY,
    modules_for,
    start_context,
)
from antiphon.testing.server import serve_scripted


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"store": "memory"}, "the memory store belongs to one process: set store to sqlite"),
    ],
)
def test_what_one_process_keeps_for_itself_is_refused(
    settings: dict[str, Any], advice: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(None, {}, {"workers": 2, **settings})
    assert str(refused.value).startswith("workers is 2, but the ")
    assert advice in str(refused.value)
    assert load(None, {}, {"workers": 1, **settings}).workers == 1


def test_a_server_in_a_thread_has_no_workers(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="set workers to 1"),
        serve_scripted(tmp_path, workers=2, store="sqlite"),
    ):
        pass


def test_a_connection_is_for_a_worker_with_the_fewest(tmp_path: Path) -> None:
    first, second = (ConnectionCounts(tmp_path, count=3) for _ in range(2))
    assert first.is_least_busy(1, 5), "nobody else accepts connections yet"
    assert second.is_least_busy(2, 4)
    assert not first.is_least_busy(1, 5)
    assert first.is_least_busy(1, 4), "of two with as many, both may"
    second.leave(2)
    assert first.is_least_busy(1, 9)


@pytest.mark.parametrize(
    ("settings", "is_loaded"),
    [
        ({}, True),
        ({"model": "scripted-chat"}, False),
        ({"model": "scripted-harmony"}, True),
        ({"model": "openai/gpt-oss-20b", "engine": "vllm"}, True),
        ({"model": "Qwen/Qwen3-8B", "engine": "vllm"}, False),
        ({"model": "mine", "engine": "vllm", "format": "harmony"}, True),
    ],
)
def test_the_vocabulary_of_harmony_is_loaded_once_where_a_model_needs_it(
    settings: dict[str, Any], is_loaded: bool
) -> None:
    modules = modules_for(load(None, {}, {"workers": 2, "store": "sqlite", **settings}))
    assert (modules[0] == PRELOAD_HARMONY) == is_loaded
    assert modules[-1] == PRELOAD


def test_workers_are_started_anew_where_the_path_of_a_socket_would_be_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = load(None, {}, {"workers": 2, "store": "sqlite"})
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "long" * 30)
    assert start_context(settings).get_start_method() == "spawn"


async def test_workers_ask_each_other_and_do_without_those_that_do_not_answer(
    tmp_path: Path,
) -> None:
    workers = [Peers(tmp_path, number=number, count=4) for number in (1, 2, 3)]

    def offer(worker: Peers, answer: bytes | None) -> None:
        async def read() -> bytes:
            if answer is None:
                await asyncio.Event().wait()
            return answer or b""

        worker.offer("numbers", read)

    for worker, answer in zip(workers, (b"one", b"two" * 100_000, None), strict=True):
        offer(worker, answer)
        await worker.start()
    started_at = time.monotonic()
    answers = await workers[0].ask_all("numbers")
    assert dict(answers) == {1: b"one", 2: b"two" * 100_000}
    assert time.monotonic() - started_at < 20
    for worker in workers:
        await worker.aclose()


async def test_a_page_of_metrics_has_each_worker_with_its_own_numbers() -> None:
    exported = {}
    for number in (1, 2):
        meter = PrometheusMeter()
        meter.add(i.RESPONSES, number, ("m", "completed", ""))
        meter.observe(i.RESPONSE_SECONDS, 0.5 * number, ("m",))
        exported[number] = await meter.export()
    text, content_type = merge(exported, "text/plain")
    assert content_type.startswith("text/plain")
    families = {each.name: each for each in text_string_to_metric_families(text.decode())}
    responses = families["antiphon_responses"].samples
    assert {each.labels["worker"]: each.value for each in responses} == {"1": 1, "2": 2}
    durations = families["antiphon_response_duration_seconds"].samples
    sums = {each.labels["worker"]: each.value for each in durations if each.name.endswith("_sum")}
    assert sums == {"1": 0.5, "2": 1.0}


def test_pauses_grow_up_to_a_limit() -> None:
    pauses = Pauses()
    pauses.started()
    found = [pauses.next_s() for _ in range(9)]
    assert found[:3] == [FIRST_PAUSE_S, FIRST_PAUSE_S * 2, FIRST_PAUSE_S * 4]
    assert found[-1] == MAX_PAUSE_S


@pytest.fixture
def table_of_models(tmp_path: Path) -> Path:
    file = tmp_path / "antiphon.toml"
    file.write_text('[[models]]\nname = "a"\nengine = "scripted"\n')
    return file


def test_workers_get_the_settings_as_they_are(table_of_models: Path) -> None:
    for config in (None, table_of_models):
        settings = load(config, {}, {"workers": 2})
        assert pickle.loads(pickle.dumps(settings)) == settings


def test_models_on_other_engines_are_left_as_they_are(
    tmp_path: Path, table_of_models: Path
) -> None:
    for config in (None, table_of_models):
        settings = load(config, {}, {"workers": 2})
        with ExitStack() as stack:
            assert share_engines(settings, tmp_path, stack) == (settings, [])
