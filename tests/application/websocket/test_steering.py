"""A client gets each steer back, with the reason."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from antiphon.application.websocket.steering import MAX_ENDED_RESPONSES, Steering
from antiphon.domain.errors import RequestError

RUNNING, ENDED = "resp_running", "resp_ended"


@pytest.fixture
def steering() -> Steering:
    steering = Steering()
    steering.track(ENDED, None)
    steering.untrack(ENDED)
    steering.track(RUNNING, "main")
    return steering


def answer(steering: Steering, target: Any, steer_input: Any) -> dict[str, Any]:
    message = {"type": "response.steer", "previous_response_id": target, "input": steer_input}
    encoded = msgspec.json.encode(steering.answer(json.dumps(message).encode()))
    decoded: dict[str, Any] = json.loads(encoded)
    return decoded


USER = {"role": "user", "content": "Shorter, please."}


@pytest.mark.parametrize(
    ("target", "steer_input", "code"),
    [
        (RUNNING, "Shorter, please.", "steering_not_supported"),
        (RUNNING, [USER, {**USER, "type": "message"}], "steering_not_supported"),
        (
            RUNNING,
            [{**USER, "content": [{"type": "input_text", "text": "x"}]}],
            "steering_not_supported",
        ),
        (RUNNING, "", "invalid_input"),
        (RUNNING, [], "invalid_input"),
        (RUNNING, [{**USER, "role": "system"}], "invalid_input"),
        (RUNNING, [{**USER, "id": "msg_1"}], "invalid_input"),
        (RUNNING, [{**USER, "content": [{"type": "output_text"}]}], "invalid_input"),
        (
            RUNNING,
            [{"type": "function_call_output", "call_id": "c", "output": ""}],
            "invalid_input",
        ),
        (RUNNING, 5, "invalid_input"),
        (ENDED, "x", "response_already_completed"),
        ("resp_none", "x", "response_not_found"),
    ],
)
def test_the_input_comes_back_with_the_reason(
    steering: Steering, target: str, steer_input: Any, code: str
) -> None:
    failed = answer(steering, target, steer_input)
    assert failed["type"] == "response.steer.failed"
    assert failed["steer"] == {"previous_response_id": target, "input": steer_input}
    assert failed["error"]["code"] == code
    assert failed["error"]["type"] == "invalid_request_error"
    assert failed.get("stream_id") == ("main" if target == RUNNING else None)


@pytest.mark.parametrize("message", [b"{}", b'{"previous_response_id": "x"}', b'{"input": "x"}'])
def test_a_steer_without_target_or_input_is_refused(steering: Steering, message: bytes) -> None:
    with pytest.raises(RequestError) as refused:
        steering.answer(message)
    assert refused.value.code == "missing_required_parameter"


def test_responses_that_ended_long_ago_are_not_found(steering: Steering) -> None:
    for number in range(MAX_ENDED_RESPONSES):
        steering.track(f"resp_{number}", None)
        steering.untrack(f"resp_{number}")
    assert answer(steering, ENDED, "x")["error"]["code"] == "response_not_found"
    assert answer(steering, "resp_0", "x")["error"]["code"] == "response_already_completed"
