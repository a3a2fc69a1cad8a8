"""Several workers with one vLLM, which all of them use and none of them has."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from openai import InternalServerError, OpenAI
from tests.vllm.test_server import NO_REASONING, SCHEMAS, TOOLS, Server, running
from tests.vllm.vllm_servers import named_vllm

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

WORKERS = 2
AGAIN_S = 240


@pytest.fixture(scope="module")
def server(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        named = tmp_path_factory.mktemp("named")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(named_vllm(named)), *sys.path]))
        folder = tmp_path_factory.mktemp("workers")
        with running(models_folder / "chat", folder, "--workers", str(WORKERS)) as server:
            yield server


def engines(server: Server) -> list[int]:
    """Return the processes that have a model in memory: vLLM names them."""
    found = server.children()
    return [pid for pid, command in found.items() if command.startswith("VLLM::EngineCore")]


def test_all_workers_use_one_vllm_and_its_grammars(server: Server) -> None:
    assert len(engines(server)) == 1
    for _ in range(2 * WORKERS):
        # A connection of its own, so that each worker gets some.
        with OpenAI(base_url=server.client.base_url, api_key="none", max_retries=0) as client:
            response = client.responses.create(
                model="tiny",
                input="What is the weather in Paris?",
                tools=TOOLS,
                tool_choice="required",
                temperature=0,
                reasoning=NO_REASONING,
                max_output_tokens=400,
            )
        [call] = [item for item in response.output if item.type == "function_call"]
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_a_vllm_that_dies_is_started_again_and_its_model_is_unavailable_meanwhile(
    server: Server,
) -> None:
    [engine] = engines(server)
    os.kill(engine, signal.SIGKILL)
    was_unavailable = is_back = False
    deadline = time.monotonic() + AGAIN_S
    while not is_back:
        assert time.monotonic() < deadline, server.log()[-3000:]
        try:
            response = server.create(max_output_tokens=16)
            is_back = was_unavailable and response.status == "incomplete"
        except InternalServerError as error:
            # A request that came as it died fails; later ones are told that it is not there.
            was_unavailable |= error.status_code == 503
        assert server.client.models.list().data[0].id == "tiny", "the workers go on"
    assert len(engines(server)) == 1
