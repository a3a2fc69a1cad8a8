"""The whole server with the real vLLM: the same requests to both kinds of model, over HTTP.

The weights are random, so the tests only check what the server and the constraints guarantee.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from tokenizers import Tokenizer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ENGINE_OPTIONS = ["--dtype", "float32", "--max-model-len", "4096", "--enforce-eager"]
MODEL = "tiny"
NO_REASONING: Any = {"effort": "none"}
ENDLESS = {"ignore_eos": True}
HAS_SANDBOX = shutil.which("bwrap") is not None
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAADs="

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Tokyo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
    },
    "required": ["city", "days", "exact", "code"],
    "additionalProperties": False,
}
CLOCK = {
    "type": "object",
    "properties": {"zone": {"enum": ["UTC", "CET"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}
TOOLS: Any = [
    {"type": "function", "name": name, "parameters": schema, "strict": True}
    for name, schema in SCHEMAS.items()
]


class Server:
    """A server process, its log so far, and a client once the server is ready."""

    url: str
    client: OpenAI

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert self.process.stdout is not None
        self._output = self.process.stdout
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="log reader")
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            with self._more:
                self.lines.append(line)
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def log(self) -> str:
        return "".join(self.lines)

    def wait_for(self, text: str, *, timeout_s: float) -> str:
        """Return the first line with `text`, which may already be there."""

        def found() -> str | None:
            return next((line for line in self.lines if text in line), None)

        with self._more:
            self._more.wait_for(lambda: found() or self._ended, timeout=timeout_s)
            line = found()
        assert line is not None, f"no {text!r} in the log:\n{self.log()}"
        return line

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self._reader.join()
            self._output.close()

    def children(self) -> dict[int, str]:
        """Return the command lines of the server's descendants, by process id."""
        parents, names = {}, {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                names[int(process.name)] = (process / "cmdline").read_text(errors="replace")
                stat = (process / "stat").read_text(errors="replace")
            except OSError:  # it ended while we looked
                continue
            parents[int(process.name)] = int(stat.rpartition(")")[2].split()[1])
        family = {self.process.pid}
        while more := {child for child, parent in parents.items() if parent in family} - family:
            family |= more
        return {pid: names[pid] for pid in family - {self.process.pid}}

    def create(self, **fields: Any) -> Response:
        """Ask for a response with the settings that make a random model predictable."""
        return self.client.responses.create(
            **{
                "model": MODEL,
                "input": "What is the weather in Paris?",
                "temperature": 0,
                "reasoning": NO_REASONING,
                "max_output_tokens": 400,
                **fields,
            }
        )


@contextmanager
def running(model: Path, data_dir: Path, *options: str) -> Iterator[Server]:
    command = [
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", str(model)),
        *("--engine", "vllm", "--host", "127.0.0.1", "--port", "0", "--log-level", "debug"),
        *("--data-dir", str(data_dir), "--served-model-name", MODEL, *options),
        *("--", *ENGINE_OPTIONS),
    ]
    server = Server(command)
    try:
        ready = server.wait_for(" is ready; ", timeout_s=240)
        server.url = ready.split("url: ")[1].split("/v1")[0]
        with OpenAI(
            base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0
        ) as server.client:
            yield server
    finally:
        server.stop()


@pytest.fixture(scope="module", params=["chat", "gpt_oss"])
def server(
    request: pytest.FixtureRequest, models_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = models_folder / request.param
    pages = tmp_path_factory.mktemp("pages")
    (pages / "choirs.md").write_text("# Choirs\n\nAn antiphon is sung by two choirs.")
    options = ["--metrics", "--web-search", "corpus", "--web-folder", str(pages)]
    if HAS_SANDBOX:
        options += ["--code-interpreter", "--shell", "--code-cgroup", "off"]
    with running(folder, tmp_path_factory.mktemp(request.param), *options) as server:
        yield server


REASONING_BIASES = {
    "chat": {"<think>": 6.0, "</think>": 5.0},
    "gpt_oss": {"<|channel|>": 30.0, "<|end|>": 9.5},
}
END_BIASES = {
    "chat": {'"': 6.0, "}": 6.0, "]": 6.0, "<|im_end|>": 6.0},
    "gpt_oss": {'"': 16.0, "}": 16.0, '"]': 16.0, "<|call|>": 12.0, "<|return|>": 12.0},
}


def bias(request: pytest.FixtureRequest, folder: Path, biases: Any) -> dict[str, float]:
    model = request.node.callspec.params["server"]
    tokenizer = Tokenizer.from_file(str(folder / model / "tokenizer.json"))
    return {str(tokenizer.token_to_id(mark)): by for mark, by in biases[model].items()}


@pytest.fixture
def likely_reasoning(request: pytest.FixtureRequest, models_folder: Path) -> dict[str, float]:
    """A bias with which a random model may well start with some twenty tokens of reasoning."""
    return bias(request, models_folder, REASONING_BIASES)


@pytest.fixture
def likely_end(request: pytest.FixtureRequest, models_folder: Path) -> dict[str, float]:
    """A bias with which a random model soon ends the texts, objects and calls that it starts."""
    return bias(request, models_folder, END_BIASES)


# --- text -----------------------------------------------------------------------------------------


def test_it_is_ready_and_lists_its_model(server: Server) -> None:
    assert httpx.get(f"{server.url}/health/ready").status_code == 200
    assert [model.id for model in server.client.models.list()] == [MODEL]


def test_a_response_ends_incomplete_at_its_limit(server: Server) -> None:
    response = server.create(max_output_tokens=24, extra_body=ENDLESS)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.usage is not None
    assert response.usage.output_tokens == 24
    assert response.usage.input_tokens > 10


def test_a_stream_has_the_text_of_its_final_response(server: Server) -> None:
    with server.client.responses.stream(
        model=MODEL,
        input="Hello!",
        temperature=0,
        reasoning=NO_REASONING,
        max_output_tokens=24,
        extra_body=ENDLESS,
    ) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 5
    response = events[-1].response
    assert "".join(deltas) == response.output_text
    assert server.client.responses.retrieve(response.id).output_text == response.output_text


def test_an_unconstrained_reasoning_model_ends_completed_or_incomplete(server: Server) -> None:
    response = server.create(reasoning=None, temperature=1.0, max_output_tokens=200)
    assert response.status in ("completed", "incomplete")
    assert response.usage is not None
    assert 0 < response.usage.output_tokens <= 200


def test_a_text_only_model_names_the_image_that_it_cannot_read(server: Server) -> None:
    content = [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": PIXEL}]
    with pytest.raises(openai.BadRequestError) as raised:
        server.create(input=[{"role": "user", "content": content}])
    assert raised.value.param == "input[0].content[1]"


def test_logprobs_belong_to_the_text(server: Server) -> None:
    response = server.create(
        max_output_tokens=24,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body=ENDLESS,
    )
    [message] = [item for item in response.output if item.type == "message"]
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs
    spelled = b"".join(bytes(entry.bytes) for entry in part.logprobs)
    assert spelled.decode("utf-8", errors="replace") == part.text
    for entry in part.logprobs:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob <= entry.top_logprobs[0].logprob
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


# --- forced calls and formats ---------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("tool_choice", "allowed"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "name": "get_weather"}, {"get_weather"}),
        ({"type": "function", "name": "get_time"}, {"get_time"}),
    ],
    ids=["required", "get_weather", "get_time"],
)
def test_a_forced_call_has_valid_arguments(
    server: Server, tool_choice: Any, allowed: set[str], temperature: int
) -> None:
    response = server.create(
        tools=TOOLS,
        tool_choice=tool_choice,
        parallel_tool_calls=False,
        temperature=temperature,
        extra_body={"seed": 11},
    )
    assert response.status == "completed", response
    [call] = response.output
    assert call.type == "function_call"
    assert call.name in allowed
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_a_forced_call_streams_its_arguments(server: Server) -> None:
    with server.client.responses.stream(
        model=MODEL,
        input="What time is it?",
        temperature=0,
        reasoning=NO_REASONING,
        max_output_tokens=400,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:
        events = list(stream)
    deltas = [
        event.delta for event in events if event.type == "response.function_call_arguments.delta"
    ]
    response = events[-1].response
    [call] = response.output
    assert call.type == "function_call"
    assert "".join(deltas) == call.arguments
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_json_schema_holds(server: Server, temperature: int) -> None:
    response = server.create(
        text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}},
        temperature=temperature,
        extra_body={"seed": 12},
    )
    assert response.status == "completed", response
    jsonschema.validate(json.loads(response.output_text), WEATHER)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"text": {"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}},
    ],
    ids=["call", "json_schema"],
)
def test_constraints_still_hold_after_reasoning(
    server: Server, likely_reasoning: dict[str, float], fields: Any
) -> None:
    kinds = set()
    for seed in range(1, 5):  # some of them reason, in one item or in several
        response = server.create(
            reasoning={"effort": "low"},
            temperature=1,
            max_output_tokens=2000,  # the prompt has the date: each day, other tokens are drawn
            extra_body={"seed": seed, "logit_bias": likely_reasoning},
            **fields,
        )
        assert response.status == "completed", response
        kinds |= {item.type for item in response.output}
        last = response.output[-1]
        if "tools" in fields:
            assert last.type == "function_call"
            jsonschema.validate(json.loads(last.arguments), SCHEMAS[last.name])
        else:
            jsonschema.validate(json.loads(response.output_text), WEATHER)
    assert "reasoning" in kinds


OWN_TOOLS: Any = {
    "web_search": {},
    "file_search": {},
    "code_interpreter": {"container": {"type": "auto"}},
    "shell": {"environment": {"type": "container_auto"}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", OWN_TOOLS)
def test_a_forced_call_of_the_servers_own_tool_is_made_and_answered(
    server: Server, likely_end: dict[str, float], kind: str, stream: bool
) -> None:
    if kind in ("code_interpreter", "shell") and not HAS_SANDBOX:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    tool = {"type": kind, **OWN_TOOLS[kind]}
    if kind == "file_search":
        tool["vector_store_ids"] = [server.client.vector_stores.create().id]
    fields: Any = {
        "tools": [tool],
        "tool_choice": {"type": kind},
        "parallel_tool_calls": False,
        "max_output_tokens": 150,
        "temperature": 1,
        "stream": stream,
        "extra_body": {"seed": 2, "logit_bias": likely_end},
    }
    answer: Any = server.create(**fields)
    response = list(answer)[-1].response if stream else answer
    assert response.status in ("completed", "incomplete"), response
    first = response.output[0]
    assert first.type == f"{kind}_call"
    # A nonsense call may fail; the model then gets an error and continues.
    assert first.status in ("completed", "failed"), response
    assert response.usage.output_tokens_details.tool_output_tokens > 0
    assert response.usage.output_tokens <= 150


def test_a_forced_search_without_an_end_is_incomplete(server: Server) -> None:
    response = server.create(
        tools=[{"type": "web_search"}], tool_choice={"type": "web_search"}, max_output_tokens=60
    )
    assert response.status == "incomplete"
    [call] = response.output
    assert (call.type, call.status) == ("web_search_call", "incomplete")


# --- conversations --------------------------------------------------------------------------------


def test_a_conversation_continues_a_previous_response(server: Server) -> None:
    instructions = "Answer in one short sentence, and be friendly about it. " * 20
    first = server.create(instructions=instructions, max_output_tokens=16, extra_body=ENDLESS)
    second = server.create(
        instructions=instructions,
        previous_response_id=first.id,
        input="And in Tokyo?",
        max_output_tokens=16,
        extra_body=ENDLESS,
    )
    assert second.previous_response_id == first.id
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0


def test_a_tool_result_goes_back_to_the_model(server: Server) -> None:
    call_response = server.create(
        tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_output_tokens=400
    )
    [call] = call_response.output
    assert call.type == "function_call"
    answer = server.create(
        previous_response_id=call_response.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}],
        tools=TOOLS,
        tool_choice="none",
        max_output_tokens=16,
        extra_body=ENDLESS,
    )
    assert answer.usage is not None
    assert answer.usage.output_tokens == 16
    assert all(item.type != "function_call" for item in answer.output)


# --- disconnects and errors -----------------------------------------------------------------------


@pytest.mark.parametrize("store", [True, False])
def test_a_client_that_disconnects_frees_the_engine(server: Server, store: bool) -> None:
    stream = server.client.responses.create(
        model=MODEL,
        input=f"Tell me a long story, store {store}.",
        temperature=0,
        reasoning=NO_REASONING,
        store=store,
        stream=True,
        extra_body=ENDLESS,
    )
    response_id = ""
    for event in stream:
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            break
    stream.close()
    line = server.wait_for(f"run {response_id}", timeout_s=10)
    assert line.partition(" [")[0].endswith("aborted")


def test_an_input_longer_than_the_context_is_refused(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.create(input="word and number 17, " * 3000)
    assert caught.value.code == "context_length_exceeded"


def test_an_invalid_schema_is_refused_before_the_stream_starts(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        server.create(
            text={"format": {"type": "json_schema", "name": "n", "schema": schema}}, stream=True
        )
    assert caught.value.param is not None
    assert caught.value.param.startswith("text.format")


# --- the end of a server --------------------------------------------------------------------------


def test_a_dead_engine_fails_its_runs_and_the_server_says_so(
    models_folder: Path, tmp_path: Path
) -> None:
    with running(models_folder / "chat", tmp_path) as server:
        stream = server.client.responses.create(
            model=MODEL, input="Go on.", stream=True, temperature=0, extra_body=ENDLESS
        )
        events = iter(stream)
        while next(events).type != "response.in_progress":
            pass
        [core] = [pid for pid, name in server.children().items() if "EngineCore" in name]
        os.kill(core, signal.SIGKILL)
        last = list(events)[-1]
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.code == "server_error"
        assert httpx.get(f"{server.url}/health/ready").status_code == 503
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        with pytest.raises(openai.InternalServerError) as caught:
            server.create()
        assert caught.value.status_code == 503
        stored = server.client.responses.retrieve(last.response.id)
        assert stored.status == "failed"


def test_a_stopped_server_leaves_no_processes(models_folder: Path, tmp_path: Path) -> None:
    with running(models_folder / "chat", tmp_path) as server:
        watched = [os.pidfd_open(pid) for pid in server.children()]
    assert len(watched) >= 2
    assert server.process.returncode == 0
    for process in watched:  # readable once the process has ended
        assert select.select([process], [], [], 10)[0]
        os.close(process)
    assert "Traceback" not in server.log()


def test_a_model_that_cannot_be_served_ends_the_server_with_one_sentence(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", str(tmp_path / "nothing")),
        *("--engine", "vllm", "--port", "0", "--data-dir", str(tmp_path)),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "nothing" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_metrics_of_vllm_come_along_under_their_own_names(server: Server) -> None:
    server.create(max_output_tokens=16)
    text = httpx.get(f"{server.url}/metrics").text
    counted = [line for line in text.splitlines() if line.startswith("antiphon_responses_total{")]
    assert any(f'model="{MODEL}"' in line for line in counted)
    assert "vllm:num_requests_running" in text
    assert "vllm:generation_tokens_total" in text
