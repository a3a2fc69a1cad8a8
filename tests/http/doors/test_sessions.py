"""Sessions: what clients of every API do is one conversation, which any of them goes on with."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import httpx
import pytest
from msgspec import Struct
from tests.http.conftest import script, text_of, wait_until

Json = dict[str, Any]
SYSTEM = "Be brief."
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
SESSION, CONVERSATION = "x-antiphon-session", "x-antiphon-conversation"
KEY = "antiphon_session"
CODE_SESSION = "x-claude-code-session-id"


@pytest.fixture(scope="module")
def http(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("sessions")
    given = {"store": "sqlite", "keep_traces": "all", "session_header": [CODE_SESSION]}
    with (
        serve_from(folder, **given) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


class Answer(Struct, frozen=True):
    id: str
    text: str
    call: str
    session: str
    conversation: str


class Door:
    """A client of one API, with the history that it has."""

    path = "/responses"
    key = "input"
    fields: ClassVar[Json] = {
        "instructions": SYSTEM,
        "tools": [{"type": "function", **ADD, "strict": False}],
    }

    def __init__(self, http: httpx.Client, model: str = "scripted-chat") -> None:
        self.http, self.model = http, model
        self.history: list[Json] = []

    def ask(self, *turns: Any, session: str, text: str = "", **body: Any) -> Answer:
        return self.send({"role": "user", "content": text + script(*turns)}, session, **body)

    def send(self, message: Json, session: str, **body: Any) -> Answer:
        self.history.append(message)
        sent = {"model": self.model, **self.fields, self.key: self.history, **body}
        answer = self.http.post(self.path, json=sent, headers={SESSION: session})
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        text, call = self.read(found)
        headers = answer.headers
        place = (headers.get(SESSION, ""), headers.get(CONVERSATION, ""))
        return Answer(f"resp_{found['id'].split('_')[-1].split('-')[-1]}", text, call, *place)

    def read(self, found: Json) -> tuple[str, str]:
        """Keep what was answered as this client does, and return its text and its call."""
        self.history += found["output"]
        calls = [item["call_id"] for item in found["output"] if item["type"] == "function_call"]
        return text_of(found), "".join(calls)

    def output_of(self, call: str, text: str) -> Json:
        return {"type": "function_call_output", "call_id": call, "output": text}


class New(Door):
    """A client of Responses that sends what is new alone."""

    def read(self, found: Json) -> tuple[str, str]:
        read = super().read(found)
        self.history = []
        return read


class Chat(Door):
    path = "/chat/completions"
    key = "messages"
    fields: ClassVar[Json] = {"tools": [{"type": "function", "function": ADD}]}

    def __init__(self, http: httpx.Client, model: str = "scripted-chat") -> None:
        super().__init__(http, model)
        self.history.append({"role": "system", "content": SYSTEM})

    def read(self, found: Json) -> tuple[str, str]:
        message = found["choices"][0]["message"]
        self.history.append({name: message.get(name) for name in ("role", "content", "tool_calls")})
        calls = message.get("tool_calls") or ()
        return message["content"] or "", "".join(call["id"] for call in calls)

    def output_of(self, call: str, text: str) -> Json:
        return {"role": "tool", "tool_call_id": call, "content": text}


class Code(Door):
    """A client of Messages."""

    path = "/messages"
    key = "messages"
    fields: ClassVar[Json] = {
        "max_tokens": 1000,
        "system": SYSTEM,
        "tools": [
            {"name": "add", "description": "Adds.", "input_schema": ADD["parameters"]},
        ],
    }

    def read(self, found: Json) -> tuple[str, str]:
        self.history.append({"role": "assistant", "content": found["content"]})
        blocks = found["content"]
        text = "".join(each["text"] for each in blocks if each["type"] == "text")
        return text, "".join(each["id"] for each in blocks if each["type"] == "tool_use")

    def output_of(self, call: str, text: str) -> Json:
        block = {"type": "tool_result", "tool_use_id": call, "content": text}
        return {"role": "user", "content": [block]}


DOORS: Sequence[type[Door]] = (Door, New, Chat, Code)


@pytest.fixture
def name() -> str:
    return f"session {uuid.uuid4().hex}"


def prompt_of(http: httpx.Client, answer: Answer) -> list[int]:
    found = http.get(f"/responses/{answer.id}/explain").json()
    tokens: list[int] = found["turns"][0]["prompt_token_ids"]
    assert tokens
    return tokens


def items_of(http: httpx.Client, conversation: str) -> list[Json]:
    page = http.get(f"/conversations/{conversation}/items", params={"order": "asc", "limit": 100})
    assert page.status_code == 200, page.text
    found: list[Json] = page.json()["data"]
    return found


def test_the_same_conversation_through_any_door_gives_the_same_prompts(
    http: httpx.Client, model: str, name: str
) -> None:
    prompts, kinds = [], []
    for door in DOORS:
        client = door(http, model)
        own = f"{name} {door.__name__}"
        call = {"call": "add", "args": {"a": 1, "b": [2]}}
        turns = [[{"think": "Hm."}, {"say": "I add."}, call], [{"think": "So."}, {"say": "Done."}]]
        answers = [client.ask(*turns, session=own)]
        answers.append(client.send(client.output_of(answers[0].call, "3"), own))
        answers.append(client.ask([{"think": "So."}, {"say": " It is 3. "}], session=own))
        answers.append(client.ask({"say": "Bye."}, session=own))
        assert [each.session for each in answers] == ["begun", *["continued"] * 3]
        assert len({each.conversation for each in answers}) == 1
        prompts.append([prompt_of(http, each) for each in answers])
        kinds.append([item["type"] for item in items_of(http, answers[0].conversation)])
    assert all(each == prompts[0] for each in prompts)
    assert all(each == kinds[0] for each in kinds)


def test_any_client_goes_on_where_another_one_was(http: httpx.Client, name: str) -> None:
    code, codex, chat = Code(http), New(http), Chat(http)
    begun = code.ask({"say": "one"}, session=name)
    codex.ask({"say": "two"}, session=name)
    seen = chat.ask({"say": "three"}, session=f"{name}; join")
    assert seen.session == "continued"
    texts = [
        part["text"] for item in items_of(http, begun.conversation) for part in item["content"]
    ]
    assert [each for each in texts if len(each) < 6] == ["one", "two", "three"]
    # By its id, as a conversation like any other, and in the lists that the console shows.
    sent = {"model": "scripted-chat", "input": script({"say": "four"})}
    found = http.post("/responses", json={**sent, "conversation": begun.conversation}).json()
    assert found["conversation"] == {"id": begun.conversation}
    listed = http.get("/responses", params={"conversation": begun.conversation}).json()["data"]
    assert len(listed) == 4
    named = http.get("/conversations", params={"metadata[antiphon_session]": name}).json()["data"]
    assert [each["id"] for each in named] == [begun.conversation]


@pytest.mark.parametrize("door", [Chat, Code])
def test_a_history_that_differs_runs_as_it_is_and_stays_aside(
    http: httpx.Client, name: str, door: type[Door]
) -> None:
    client = door(http)
    begun = client.ask({"say": "one"}, session=name)
    client.ask({"say": "two"}, session=name)
    before = items_of(http, begun.conversation)
    edited, alone = door(http), door(http)
    edited.history += client.history[len(edited.history) : -4]
    for each, session in ((edited, name), (alone, f"{name} alone")):
        if each is alone:
            each.history = edited.history[:-2]
        answer = each.ask({"say": "other"}, text="edited ", session=session)
        assert answer.text == "other"
        assert (answer.session == "aside") == (each is edited)
        stored = http.get(f"/responses/{answer.id}").json()
        assert (stored["conversation"] is None) == (each is edited)
        prompts = prompt_of(http, answer)
        if each is edited:
            expected = prompts
    assert prompts == expected
    assert items_of(http, begun.conversation) == before


def test_a_session_is_named_in_whatever_way_a_client_can(http: httpx.Client, name: str) -> None:
    messages = [{"role": "user", "content": script({"say": "one"})}]
    chat = {"model": "scripted-chat", "messages": messages}
    joined = f"{name}; join"
    named: Json = {"metadata": {KEY: joined}}
    ways: list[tuple[str, Json, Json]] = [
        ("/chat/completions", {**chat, **named}, {}),
        ("/messages", {**chat, **named, "max_tokens": 99}, {}),
        ("/responses", {"model": "scripted-chat", "input": messages, **named}, {}),
        ("/messages", {**chat, "max_tokens": 99}, {CODE_SESSION: joined}),
    ]
    found = set()
    for path, body, headers in ways:
        answer = http.post(path, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        found.add(answer.headers[CONVERSATION])
    assert len(found) == 1
    assert CONVERSATION not in http.post("/chat/completions", json=chat).headers


@pytest.mark.parametrize("wrong", ["", "a;b", "a; joins", "x" * 257, "\u00e9"])
def test_a_name_that_cannot_be_one_is_refused(http: httpx.Client, wrong: str) -> None:
    body = {"model": "scripted-chat", "messages": [{"role": "user", "content": "hi"}]}
    in_header = {SESSION: wrong.encode("latin-1")}
    for answer, place in (
        (http.post("/chat/completions", json=body, headers=in_header), SESSION),
        (
            http.post("/chat/completions", json={**body, "metadata": {KEY: wrong}}),
            f"metadata.{KEY}",
        ),
    ):
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == place


def test_what_cannot_be_of_a_session_is_aside_or_refused(http: httpx.Client, name: str) -> None:
    ask = {"role": "user", "content": script({"say": '{"title": "Adding"}'})}
    title: Json = {"messages": [ask], "response_format": {"type": "json_object"}}
    chat = Chat(http)
    body: Json = {"model": "scripted-chat", **title}
    aside = http.post("/chat/completions", json=body, headers={SESSION: name})
    assert (aside.headers[SESSION], CONVERSATION in aside.headers) == ("aside", False)
    assert chat.ask({"say": "one"}, session=name).session == "begun"
    several = http.post("/chat/completions", json={**body, "n": 2}, headers={SESSION: name})
    assert (several.status_code, several.json()["error"]["param"]) == (400, "n")
    before = http.post("/responses", json={"model": "scripted-chat", "input": "hi"}).json()["id"]
    goes_on = {"model": "scripted-chat", "input": "hi", "previous_response_id": before}
    assert (
        http.post("/responses", json=goes_on, headers={SESSION: name}).headers[SESSION] == "aside"
    )


def test_of_several_first_requests_at_once_one_is_the_conversation(
    http: httpx.Client, name: str
) -> None:
    def ask(number: int) -> Answer:
        return Chat(http).ask({"say": f"one of {number}"}, session=name)

    with ThreadPoolExecutor(6) as clients:
        answers = [*clients.map(ask, range(6))]
    assert [each.text for each in answers] == [f"one of {number}" for number in range(6)]
    (begun,) = {each.conversation for each in answers if each.session == "begun"}
    items = items_of(http, begun)
    assert [item["role"] for item in items] == ["user", "assistant"]
    assert items[0]["content"][0]["text"] == script({"say": items[1]["content"][0]["text"]})


def test_an_error_names_what_the_client_sent(http: httpx.Client, name: str) -> None:
    for door, path in ((Chat, "messages[3].content[1]"), (Code, "messages[2].content[1].source")):
        client, session = door(http), f"{name} {door.__name__}"
        client.ask({"say": "one"}, session=session)
        image: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        if door is Code:
            source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
            image = {"type": "image", "source": source}
        content = [{"type": "text", "text": "Look."}, image]
        sent = {
            "model": "scripted-chat",
            **client.fields,
            client.key: [*client.history, {"role": "user", "content": content}],
        }
        answer = http.post(client.path, json=sent, headers={SESSION: session})
        assert answer.status_code == 400, answer.text
        assert path in answer.text


def test_a_prompt_is_counted_as_it_is_in_the_session(http: httpx.Client, name: str) -> None:
    code = Code(http)
    New(http).ask([{"think": "Hm."}, {"say": "unseen"}], session=name)
    sent = {"model": "scripted-chat", **code.fields}
    sent["messages"] = [{"role": "user", "content": script({"say": "one"})}]
    joined = {SESSION: f"{name}; join"}
    counted = http.post("/messages/count_tokens", json=sent, headers=joined).json()
    created = http.post("/messages", json=sent, headers=joined).json()
    usage = created["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


SLOW = {"say": "word ", "repeat": 400, "tick": 0.01}


@pytest.mark.parametrize("door", [Chat, Code])
def test_a_client_may_take_back_its_last_question_or_the_answer(
    http: httpx.Client, name: str, door: type[Door]
) -> None:
    client = door(http)
    begun = client.ask({"say": "one"}, session=name)
    kept = len(client.history)
    side = door(http)
    side.history = [*client.history]
    assert side.ask({"say": "a suggestion"}, session=name).session == "continued"
    asked = script({"say": "two"})
    for _ in range(2):  # the second time, the same question again
        del client.history[kept:]
        answer = client.send({"role": "user", "content": asked}, name)
        assert (answer.session, answer.text) == ("continued", "two")
    alone = door(http)
    alone.history = client.history[:kept]
    prompt = prompt_of(http, alone.send({"role": "user", "content": asked}, f"{name} alone"))
    assert prompt_of(http, answer) == prompt
    said = [item["content"][0]["text"] for item in items_of(http, begun.conversation)]
    assert said[1::2] == ["one", "two"]
    # Neither more than that, nor what another client has said.
    client.ask({"say": "three"}, session=name)
    assert side.ask({"say": "more"}, session=name).session == "aside"
    New(http).ask({"say": "four"}, session=name)
    assert client.ask({"say": "five"}, session=name).session == "aside"
    assert len(items_of(http, begun.conversation)) == 8
    assert client.ask({"say": "six"}, session=f"{name}; join").session == "continued"


@pytest.mark.parametrize("door", [Chat, Code])
def test_a_session_goes_on_after_an_answer_that_was_cut_off(
    http: httpx.Client, name: str, door: type[Door]
) -> None:
    client = door(http)
    begun = client.ask({"say": "one"}, session=name)
    client.history.append({"role": "user", "content": script(SLOW)})
    sent = {"model": "scripted-chat", **client.fields, client.key: client.history, "stream": True}
    with http.stream("POST", client.path, json=sent, headers={SESSION: name}) as stream:
        pieces = stream.iter_text()  # held: without it, the stream would be closed
        assert any("word" in piece for piece in pieces)
        # Another request at the same time has an end, too.
        busy = {"model": "scripted-chat", "input": "hi"}
        locked = http.post("/responses", json=busy, headers={SESSION: name})
        assert locked.json()["error"]["code"] == "conversation_locked"
        meanwhile = door(http)
        meanwhile.history = client.history[:-1]
        assert meanwhile.ask({"say": "two"}, session=name).session == "aside"
    wait_until(lambda: len(items_of(http, begun.conversation)) == 4)
    if door is Chat:  # it keeps what it has, or nothing
        client.history.append({"role": "assistant", "content": "wor"})
    answer = client.ask({"say": "three"}, session=name)
    assert answer.session == "continued"
    said = [item["content"][0]["text"] for item in items_of(http, begun.conversation)]
    assert said[3:-2] == (["wor"] if door is Chat else [])
    assert said[-1] == "three"
