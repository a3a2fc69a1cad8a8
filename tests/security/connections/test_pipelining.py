"""Requests that a client sends before the first is answered wait at the client, not here."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.http.conftest import script, wait_until
from tests.security.support.raw_clients import HANGING, connect, post, read_answer, reset

from antiphon.entrypoints.http.wire.protocol import MAX_PIPELINED

BODY = {"model": "scripted-chat", "input": "hi", "store": False, "metadata": {"long": "x" * 500}}


def test_a_client_waits_that_asks_faster_than_it_is_answered(server: Any) -> None:
    # Twenty fit into what is read at once, so there are never too many.
    request = post({**BODY, "instructions": "x" * 12_000})
    count = 3 * MAX_PIPELINED
    with connect(server) as connection:
        sending = threading.Thread(target=connection.sendall, args=(request * count,))
        sending.start()
        received = b""
        while received.count(b"HTTP/1.1 ") < count:
            part = connection.recv(65536)
            assert part, received[-500:]
            received += part
        sending.join()
    assert received.count(b"HTTP/1.1 200 ") == count


def test_an_answer_is_not_cut_by_the_deadline_of_the_next_request(serve: Any) -> None:
    slow = {**BODY, "input": script([{"hang": 0.6}, {"say": "late"}])}
    with serve(arrival_s=0.2) as server, connect(server) as connection:
        second = post(BODY)
        connection.sendall(post(slow) + second[:40])
        head, body = read_answer(connection)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert json.loads(body)["status"] == "completed"
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_response_ends_whose_client_leaves_with_another_request_waiting(server: Any) -> None:
    engine = server.engine("scripted-chat")
    aborted = engine.aborted
    endless = {**HANGING, "input": script([{"say": "word " * 1000, "repeat": 1000}])}
    with connect(server) as connection:
        connection.sendall(post(endless) + post(BODY))
        assert connection.recv(10) == b"HTTP/1.1 2"
        reset(connection)
    wait_until(lambda: engine.aborted == aborted + 1)
