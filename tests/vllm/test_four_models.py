"""One server with four models side by side, each on a real engine of its own.

ANTIPHON_TEST_LLAMA is the Python of an environment with llama-cpp-python (`make test-upstreams`).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from openai import BadRequestError, InternalServerError, OpenAI
from tests.vllm.test_server import Server
from tests.vllm.vllm_servers import VllmServer, vllm_servers

pytestmark = [
    pytest.mark.upstreams,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

MODELS = ("in-process", "pool", "llama", "scripted")
SETTINGS = """\
store = "memory"
port = 0

[[models]]
name = "in-process"
engine = "vllm"
model = "{chat}"
options = ["--dtype", "float32", "--max-model-len", "4096", "--enforce-eager"]

[[models]]
name = "pool"
engine = "vllm_http"
urls = [{pool}]

[[models]]
name = "llama"
engine = "chat"
url = "{llama}/v1"
model = "tiny"
context_length = 8192

[[models]]
name = "scripted"
engine = "scripted"
"""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Tokyo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMAT: Any = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
LIMIT_S = 60
START_LIMIT_S = 200
LLAMA_PYTHON = os.environ.get("ANTIPHON_TEST_LLAMA", "")


class LlamaServer(Server):
    """llama.cpp's server, with a tiny model."""

    def __init__(self, python: str, model: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        options = ("--model_alias", "tiny", "--n_ctx", "8192", "--interrupt_requests", "False")
        super().__init__(
            [
                *(python, "-m", "llama_cpp.server", "--model", str(model)),
                *("--host", "127.0.0.1", "--port", str(port), *options),
            ]
        )
        self.wait_for("Application startup complete", timeout_s=60)


class FourModels(NamedTuple):
    """The server, and the model servers behind it."""

    url: str
    client: OpenAI
    pool: list[VllmServer]
    llama: LlamaServer
    make_llama: Any

    def states(self) -> dict[str, str]:
        states: dict[str, str] = httpx.get(f"{self.url}/readyz", timeout=10).json()["models"]
        return states

    def wait_for(self, states: dict[str, str], *, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while self.states() != states and time.monotonic() < deadline:
            time.sleep(0.2)
        assert self.states() == states

    def ask(self, model: str, **fields: Any) -> Any:
        return self.client.responses.create(
            model=model, input="Say hello.", max_output_tokens=16, **fields
        )


@pytest.fixture(scope="module")
def four(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourModels]:
    folder = tmp_path_factory.mktemp("four")
    python = LLAMA_PYTHON
    script = Path(__file__).with_name("tiny_gguf.py")
    gguf = folder / "tiny.gguf"
    subprocess.run([python, str(script), str(models_folder / "chat"), str(gguf)], check=True)
    with socket.socket() as free, ExitStack() as stack:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        llama = LlamaServer(python, gguf, port)
        stack.callback(llama.stop)
        pool = stack.enter_context(vllm_servers(models_folder / "chat", folder))
        file = folder / "antiphon.toml"
        urls = ", ".join(json.dumps(server.url) for server in pool.values())
        text = SETTINGS.format(chat=models_folder / "chat", pool=urls, llama=llama.url)
        file.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "antiphon.entrypoints.cli", "serve"]
        server = Server([*command, "--config", str(file), "--data-dir", str(folder)])
        stack.callback(server.stop)
        line = server.wait_for(" is ready; ", timeout_s=200)
        url = line.partition("; url: ")[2].partition("/v1")[0]
        client = stack.enter_context(
            OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)
        )
        four = FourModels(
            url, client, list(pool.values()), llama, lambda: LlamaServer(python, gguf, port)
        )
        four.wait_for(dict.fromkeys(MODELS, "ok"), limit_s=START_LIMIT_S)
        yield four


@pytest.mark.parametrize("model", MODELS)
def test_each_answers_whole_and_streamed_alike(four: FourModels, model: str) -> None:
    whole = four.ask(model, temperature=0)
    *_, last = four.ask(model, temperature=0, stream=True)
    assert whole.status in ("completed", "incomplete")
    assert last.response.output_text == whole.output_text
    assert last.type == f"response.{whole.status}"


@pytest.mark.parametrize("model", MODELS)
def test_each_continues_what_another_has_said(four: FourModels, model: str) -> None:
    first = four.ask(MODELS[MODELS.index(model) - 1])
    second = four.ask(model, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > 0


@pytest.mark.parametrize("model", ["in-process", "pool", "scripted"])
def test_each_writes_what_a_schema_demands(four: FourModels, model: str) -> None:
    answer = four.client.responses.create(
        model=model,
        input="Where?",
        text=FORMAT,
        reasoning={"effort": "none"},
        max_output_tokens=200,
    )
    assert json.loads(answer.output_text)["city"] in ("Paris", "Tokyo")


def test_a_schema_that_a_model_server_does_not_enforce_is_refused(four: FourModels) -> None:
    with pytest.raises(BadRequestError) as refused:
        four.client.responses.create(model="llama", input="Where?", text=FORMAT)
    assert refused.value.param == "text.format"


def test_the_servers_of_the_pool_keep_serving_when_one_is_killed(four: FourModels) -> None:
    four.pool[0].kill()
    for _ in range(4):
        assert four.ask("pool").status in ("completed", "incomplete")
    assert four.states()["pool"] == "ok"


def test_a_model_server_that_is_gone_is_missed_by_its_own_requests_only(
    four: FourModels,
) -> None:
    four.llama.stop()
    with pytest.raises(InternalServerError):
        four.ask("llama")
    for model in ("in-process", "pool", "scripted"):
        assert four.ask(model).status in ("completed", "incomplete")
    four.wait_for({**dict.fromkeys(MODELS, "ok"), "llama": "unavailable"})
    assert httpx.get(f"{four.url}/readyz", timeout=10).status_code == 200
    llama = four.make_llama()
    try:
        four.wait_for(dict.fromkeys(MODELS, "ok"))
        assert four.ask("llama").status in ("completed", "incomplete")
    finally:
        llama.stop()
