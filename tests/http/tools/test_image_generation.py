"""The tool image_generation over HTTP: a model writes a prompt, an image model makes the image.

What a generator may do wrong is in tests/application/tools/test_image_generation.py, and what a
server of the images API may answer in tests/adapters/fetching/test_images_api.py.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.access.test_limits import Keys, error_of
from tests.http.conftest import create, frames, script, text_of, wait_until
from tests.support.images_server import FakeImages, drawing, image_for

Json = dict[str, Any]

TOOL = {"type": "image_generation"}
STEPS = ("in_progress", "generating")
USER_IMAGE = image_for("of the user")


@pytest.fixture(scope="module")
def drawing_server(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that draws."""
    with serve_from(tmp_path_factory.mktemp("drawn"), image_generator="scripted") as served:
        yield served


@pytest.fixture
def artist(drawing_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=drawing_server.api, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def images() -> Iterator[FakeImages]:
    """A server of the images API."""
    with drawing() as fake:
        yield fake


@pytest.fixture(scope="module")
def images_server(
    images: FakeImages, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A server whose images come from there."""
    given = {"images.url": images.url, "images.model": "small", "images.timeout_s": 0.5}
    with serve_from(tmp_path_factory.mktemp("images"), **given) as served:
        yield served


@pytest.fixture
def painter(images_server: Any, images: FakeImages) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=images_server.api, timeout=30) as client:
        yield client
    images.answer, images.streams = None, True
    images.go_on.set()
    images.asked.clear()
    images.files.clear()


def draw(prompt: str, **arguments: Any) -> Json:
    return {"call": "image_generation", "args": {"prompt": prompt, **arguments}}


def calls_in(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "image_generation_call"]


def url_of(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def user(*turns: Any, image: bytes | None = None) -> Json:
    parts: list[Json] = [{"type": "input_text", "text": script(*turns)}]
    if image is not None:
        parts.append({"type": "input_image", "image_url": url_of(image)})
    return {"role": "user", "content": parts}


def without_ids(output: list[Json]) -> list[Json]:
    passing = ("id", "encrypted_content")
    return [{key: item[key] for key in item if key not in passing} for item in output]


# --- items and events ---

TURNS: tuple[Any, ...] = (
    [{"think": "A cat, then."}, draw("A cat.")],
    [{"say": "Bluer:"}, draw("A bluer cat.", action="edit"), draw("@@fail Too blue.")],
    {"say": "Here."},
)


def test_a_model_makes_edits_and_is_told_of_failures(artist: httpx.Client, model: str) -> None:
    tool = {**TOOL, "size": "32x16", "quality": "high"}
    response = create(artist, model=model, input=script(*TURNS), tools=[tool])
    cat, bluer, failed = calls_in(response)
    assert response["output"][-1]["content"][0]["text"] == "Here."
    assert cat.pop("id").startswith("ig_")
    content = base64.b64decode(cat.pop("result"), validate=True)
    assert content.startswith(b"\x89PNG")
    assert cat == {
        "type": "image_generation_call",
        "status": "completed",
        "action": "generate",
        "revised_prompt": "A cat.",
        "size": "32x16",
        "output_format": "png",
        "quality": "high",
        "background": "opaque",
    }
    assert (bluer["status"], bluer["action"]) == ("completed", "edit")
    assert (failed["status"], failed["result"]) == ("failed", None)
    assert failed["error"] == {
        "type": "image_generation_error",
        "code": "moderation_blocked",
        "message": "Too blue.",
    }
    assert response["usage_per_turn"][1]["tool_output_tokens"] > 0


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_a_stream_tells_each_step_with_drafts(
    artist: httpx.Client, model: str, drafts: int
) -> None:
    body = {"model": model, "input": script(*TURNS), "stream": True}
    tool = {**TOOL, "partial_images": drafts}
    events = frames(artist.post("/responses", json={**body, "tools": [tool]}).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    steps = [
        event["type"].removeprefix("response.image_generation_call.")
        for event in events
        if "image_generation" in event["type"]
    ]
    made = [*STEPS, *["partial_image"] * drafts, "completed"]
    assert steps == [*made, *made, *STEPS]
    shown = [event for event in events if event["type"].endswith("partial_image")]
    assert [each["partial_image_index"] for each in shown] == [*range(drafts)] * 2
    for each in shown:
        assert base64.b64decode(each["partial_image_b64"]).startswith(b"\x89PNG")
        assert (each["size"], each["output_format"]) == ("64x64", "png")
    added = [event["item"] for event in events if event["type"].endswith("output_item.added")]
    images = [item for item in added if item["type"] == "image_generation_call"]
    assert {(item["status"], item["result"]) for item in images} == {("in_progress", None)}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_streamed_read_again_or_in_the_background_it_is_the_same(
    artist: httpx.Client, model: str
) -> None:
    body = {"model": model, "input": script(*TURNS), "tools": [{**TOOL, "partial_images": 2}]}
    plain = create(artist, **body)
    events = frames(artist.post("/responses", json={**body, "stream": True}).text)
    final = events[-1]["response"]
    path = f"/responses/{final['id']}"
    assert artist.get(path).json() == final
    assert without_ids(final["output"]) == without_ids(plain["output"])
    for after in range(-1, len(events)):
        query: Json = {"stream": "true", "starting_after": after}
        assert frames(artist.get(path, params=query).text) == events[after + 1 :]
    background = f"/responses/{create(artist, **body, background=True)['id']}"
    wait_until(lambda: artist.get(background).json()["status"] == "completed")
    later = artist.get(background).json()
    assert without_ids(later["output"]) == without_ids(plain["output"])


# --- tool_choice, keys and servers without a generator ---


@pytest.mark.parametrize(
    "choice",
    [TOOL, {"type": "allowed_tools", "mode": "required", "tools": [TOOL]}, "required"],
)
def test_it_can_be_forced(artist: httpx.Client, model: str, choice: Any) -> None:
    body = {"model": model, "input": "A cat!", "tools": [TOOL], "tool_choice": choice}
    answer = artist.post("/responses", json=body)
    assert "x-antiphon-ignored" not in answer.headers
    [call] = calls_in(answer.json())
    assert call["status"] == "completed"
    assert text_of(answer.json()) == "Echo: A cat!"


def test_a_client_may_have_a_function_of_this_name(artist: httpx.Client, model: str) -> None:
    function = {"type": "function", "name": "image_generation", "parameters": {"type": "object"}}
    response = create(artist, model=model, input=script(draw("A cat.")), tools=[TOOL, function])
    assert [item["type"] for item in response["output"]] == ["function_call"]


def test_fields_without_effect_are_named(artist: httpx.Client, model: str) -> None:
    others = {"model": "gpt-image-2", "svg": {"model": "m"}, "frame_count": 3}
    body = {"model": model, "input": "Hi", "tools": [{**TOOL, **others}]}
    ignored = artist.post("/responses", json=body).headers["x-antiphon-ignored"]
    assert ignored == "tools[0].model, tools[0].frame_count, tools[0].svg"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "huge"}, "tools[0].size"),
        ({"partial_images": 4}, "tools[0].partial_images"),
        ({"output_compression": 101}, "tools[0].output_compression"),
        ({"input_image_mask": {"file_id": "file_1"}}, "tools[0].input_image_mask.file_id"),
        ({"input_image_mask": "mask"}, "tools[0].input_image_mask"),
    ],
)
def test_what_cannot_be_had_is_refused_by_its_path(
    artist: httpx.Client, fields: Json, param: str
) -> None:
    body = {"model": "scripted-chat", "input": "Hi", "tools": [{**TOOL, **fields}]}
    for path in ("/responses", "/responses/input_tokens"):
        error = error_of(artist.post(path, json=body), 400)
        assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_a_key_needs_the_right_to_it(serve: Callable[..., Any], tmp_path: Any, model: str) -> None:
    file = tmp_path / "keys.toml"
    file.touch()
    with serve(auth="on", keys_file=file, image_generator="scripted") as server:
        keys = Keys(file, server)
        body = {"model": model, "input": script(draw("A cat."), {"say": "ok"}), "tools": [TOOL]}
        with keys.client(tools=("web_search",)) as client:
            error = error_of(client.post("/responses", json=body), 403)
            assert (error["param"], error["code"]) == ("tools[0]", "insufficient_permissions")
        with keys.client(tools=("image_generation",)) as client:
            assert calls_in(create(client, **body))[0]["status"] == "completed"


def test_without_a_generator_it_is_named_as_ignored_or_refused_with_advice(
    http: httpx.Client, model: str
) -> None:
    body = {"model": model, "input": "Hi", "tools": [TOOL]}
    answer = http.post("/responses", json=body)
    assert (answer.status_code, answer.headers["x-antiphon-ignored"]) == (200, "tools[0]")
    error = error_of(http.post("/responses", json={**body, "tool_choice": TOOL}), 400)
    assert error["param"] == "tool_choice"
    assert "the setting images.url turns it on" in error["message"]


def test_a_model_with_it_says_so(artist: httpx.Client, http: httpx.Client) -> None:
    def tools(client: httpx.Client) -> list[str]:
        [found] = [
            each for each in client.get("/models").json()["data"] if each["id"] == "scripted"
        ]
        return list(found["hosted_tools"])

    assert "image_generation" in tools(artist)
    assert "image_generation" not in tools(http)


# --- images in the history ---


@pytest.mark.parametrize("way", ["previous_response_id", "conversation", "item", "id", "no result"])
def test_a_later_response_edits_what_was_made(artist: httpx.Client, model: str, way: str) -> None:
    conversation: Json = {}
    if way == "conversation":
        conversation = {"conversation": artist.post("/conversations", json={}).json()["id"]}
    turns = draw("A cat."), {"say": "Here."}
    first = create(artist, model=model, input=script(*turns), tools=[TOOL], **conversation)
    [image] = calls_in(first)
    given = {
        "item": image,
        "id": {"type": image["type"], "id": image["id"]},
        "no result": {**image, "result": None},
    }
    asked = user(draw("Bluer.", action="edit"), {"say": "Bluer."})
    more = conversation or {"previous_response_id": first["id"]}
    history: list[Any] = []
    if way in given:
        more, history = {}, [given[way]]
    second = create(artist, model=model, input=[*history, asked], tools=[TOOL], **more)
    [edited] = calls_in(second)
    assert (edited["status"], edited["action"]) == ("completed", "edit")
    if history:  # the model is shown the same image
        counted = [
            artist.post(
                "/responses/input_tokens", json={"model": model, "input": [each, asked]}
            ).json()["input_tokens"]
            for each in (history[0], image)
        ]
        assert counted[0] == counted[1]
        listed = artist.get(f"/responses/{second['id']}/input_items?order=asc").json()["data"]
        assert listed[0]["result"] == image["result"]


def test_an_id_beside_the_history_that_has_its_image_adds_nothing(
    artist: httpx.Client, model: str
) -> None:
    turns = draw("A cat."), {"say": "Here."}
    first = create(artist, model=model, input=script(*turns), tools=[TOOL])
    reference = {"type": "image_generation_call", "id": calls_in(first)[0]["id"]}
    asked = user(draw("Bluer.", action="edit"), {"say": "Bluer."})
    body = {"model": model, "tools": [TOOL], "previous_response_id": first["id"]}
    second = create(artist, **body, input=[reference, asked])
    assert calls_in(second)[0]["status"] == "completed"


def test_an_image_that_nobody_knows_is_refused_and_a_lost_one_is_not(
    artist: httpx.Client, model: str
) -> None:
    unknown = {"type": "image_generation_call", "id": "ig_unknown"}
    body = {"model": model, "input": [unknown, user({"say": "ok"})]}
    error = error_of(artist.post("/responses", json=body), 400)
    assert "'ig_unknown' not found" in error["message"]
    lost = {**unknown, "status": "completed", "result": None}
    answer = create(artist, model=model, input=[lost, user({"say": "ok"})], store=False)
    assert text_of(answer) == "ok"


@pytest.mark.parametrize(
    ("result", "code"),
    [("iVBORw0KGgo", "invalid_base64_image"), ("iVBORw0KGgo=", "invalid_image_format")],
)
def test_an_image_in_the_input_that_cannot_be_read_is_refused_by_its_path(
    artist: httpx.Client, model: str, result: str, code: str
) -> None:
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": result}
    body = {"model": model, "input": [image, user({"say": "ok"})]}
    error = error_of(artist.post("/responses", json=body), 400)
    assert (error["param"], error["code"]) == ("input[0].result", code)


def test_an_image_of_a_type_that_no_model_reads_is_told_in_words(
    artist: httpx.Client, model: str
) -> None:
    svg = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode()
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": svg}
    assert text_of(create(artist, model=model, input=[image, user({"say": "ok"})])) == "ok"


# --- a server of the images API ---


def test_images_and_edits_come_from_the_images_api(
    painter: httpx.Client, images: FakeImages, model: str
) -> None:
    tool = {**TOOL, "partial_images": 1, "input_image_mask": {"image_url": url_of(USER_IMAGE)}}
    asked = user(
        draw("A cat.", action="generate"),
        draw("A hat.", action="edit"),
        {"say": "Here."},
        image=USER_IMAGE,
    )
    response = create(painter, model=model, input=[asked], tools=[tool])
    cat, hat = calls_in(response)
    assert [base64.b64decode(call["result"]) for call in (cat, hat)] == [
        image_for("A cat."),
        image_for("A hat."),
    ]
    assert (cat["quality"], cat["background"]) == ("medium", "opaque")
    assert [path for path, _ in images.asked] == ["/v1/images/generations", "/v1/images/edits"]
    assert {fields["model"] for _, fields in images.asked} == {"small"}
    made = base64.b64decode(cat["result"])
    assert [(name, content) for name, _, content in images.files[1]] == [
        ("image[]", made),
        ("image[]", USER_IMAGE),
        ("mask", USER_IMAGE),
    ]


def test_a_server_of_images_that_fails_is_told_to_the_model(
    painter: httpx.Client, images: FakeImages, model: str
) -> None:
    images.answer = (500, {}, b"oops")
    body = {"model": model, "input": script(draw("A cat."), {"say": "Sorry."}), "tools": [TOOL]}
    response = create(painter, **body)
    [call] = calls_in(response)
    assert (call["status"], call["error"]["code"]) == ("failed", "unavailable")
    assert (response["status"], text_of(response)) == ("completed", "Sorry.")
    events = frames(painter.post("/responses", json={**body, "stream": True}).text)
    kinds = [event["type"] for event in events if "image_generation" in event["type"]]
    assert kinds == [f"response.image_generation_call.{step}" for step in STEPS]


def test_a_server_of_images_that_hangs_is_left(
    painter: httpx.Client, images: FakeImages, model: str
) -> None:
    images.go_on.clear()
    turns = draw("A cat."), {"say": "Sorry."}
    response = create(painter, model=model, input=script(*turns), tools=[TOOL])
    [call] = calls_in(response)
    assert (call["status"], call["error"]["code"]) == ("failed", "timeout")
    assert text_of(response) == "Sorry."


def test_a_cancelled_response_ends_in_a_call(
    painter: httpx.Client, images: FakeImages, model: str
) -> None:
    images.go_on.clear()
    body = {"model": model, "input": script(draw("A cat."), {"say": "late"}), "tools": [TOOL]}
    path = f"/responses/{create(painter, **body, background=True)['id']}"
    wait_until(lambda: bool(images.asked))
    cancelled = painter.post(f"{path}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert calls_in(cancelled)[0]["result"] is None
    events = frames(painter.get(path, params={"stream": "true"}).text)
    assert events[-1]["response"]["output"] == cancelled["output"]


# --- OpenAI's client ---


def test_the_official_client_reads_images_streamed_or_not_and_resumed(
    drawing_server: Any, model: str
) -> None:
    asked = script(*TURNS)
    tool: Any = {"type": "image_generation", "partial_images": 2, "output_format": "png"}
    with OpenAI(base_url=drawing_server.api, api_key="none") as client:
        plain = client.responses.create(model=model, input=asked, tools=[tool])
        images = [item for item in plain.output if item.type == "image_generation_call"]
        assert [image.status for image in images] == ["completed", "completed", "failed"]
        assert images[0].result is not None
        assert base64.b64decode(images[0].result).startswith(b"\x89PNG")
        assert images[2].error is not None
        assert images[2].error.message == "Too blue."
        with client.responses.stream(model=model, input=asked, tools=[tool]) as stream:
            events = [*stream]
            final = stream.get_final_response()
        drafts = [e for e in events if e.type == "response.image_generation_call.partial_image"]
        assert [each.partial_image_index for each in drafts] == [0, 1, 0, 1]
        assert [item.type for item in final.output] == [item.type for item in plain.output]
        for after in (0, 6, len(events) - 2):
            resumed = client.responses.retrieve(final.id, stream=True, starting_after=after)
            numbers = [event.sequence_number for event in resumed]
            assert numbers == list(range(after + 1, len(events)))
        kept = client.responses.retrieve(final.id)
        assert [item.to_dict() for item in kept.output if item.type == "image_generation_call"] == [
            item.to_dict() for item in final.output if item.type == "image_generation_call"
        ]
        again = client.responses.create(
            model=model,
            input=[
                {"type": "image_generation_call", "id": images[0].id},  # type: ignore[list-item, misc]
                {"role": "user", "content": script(draw("Bluer.", action="edit"), {"say": "ok"})},
            ],
            tools=[tool],
        )
        assert again.output[0].type == "image_generation_call"
        assert again.output[0].status == "completed"
