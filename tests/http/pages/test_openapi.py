"""The OpenAPI document: complete, and what a server answers is what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from tests.http.conftest import create, script, wait_until

OPERATIONS = 80
METHODS = frozenset({"get", "post", "delete"})
ERROR = {"$ref": "#/components/schemas/ErrorResponse"}
MESSAGES_ERROR = {"$ref": "#/components/schemas/MessagesError"}
PUBLIC = frozenset({"/livez", "/readyz", "/health", "/health/live", "/health/ready"})

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document(server: Any) -> Json:
    found: Json = httpx.get(f"{server.url}/schema/openapi.json").json()
    return found


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert method in METHODS
            yield method, path, operation


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for each in node.values():
            yield from references(each)
    if isinstance(node, list):
        for each in node:
            yield from references(each)


def test_each_operation_has_a_summary_bodies_errors_and_security(document: Json) -> None:
    found = list(operations(document))
    assert len(found) == OPERATIONS
    for method, path, operation in found:
        where = f"{method} {path}"
        assert operation["summary"], where
        answer = operation["responses"]["200"]
        assert answer["description"], where
        assert all(body["schema"] for body in answer["content"].values()), where
        assert answer["content"], where
        for status in ("4XX", "5XX"):
            content = operation["responses"][status]["content"]
            assert content == {"application/json": {"schema": error_of(path)}}, where
        assert operation["security"] == ([] if path in PUBLIC else [{"bearer": []}]), where


def error_of(path: str) -> Json:
    """Return the schema of an operation's errors."""
    if path.startswith("/v1/messages"):
        return MESSAGES_ERROR
    return {"oneOf": [ERROR, MESSAGES_ERROR]} if path.startswith("/v1/models") else ERROR


def test_operations_have_names_of_their_own(document: Json) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_a_key_is_sent_as_a_bearer(document: Json) -> None:
    scheme = document["components"]["securitySchemes"]["bearer"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")


def test_each_reference_leads_to_a_schema(document: Json) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_each_post_that_reads_a_body_says_which(document: Json) -> None:
    bare = {"/v1/responses/{response_id}/cancel"}
    bare |= {path for path in document["paths"] if path.endswith("/{batch_id}/cancel")}
    for method, path, operation in operations(document):
        assert ("requestBody" in operation) == (method == "post" and path not in bare), path


# --- what is answered -----------------------------------------------------------------------------


class Asked:
    """A client that holds every JSON answer against the schema of its operation."""

    def __init__(self, http: httpx.Client, document: Json) -> None:
        self._http = http
        self._document = document
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, method: str, path: str, *, expects: int = 200, **given: Any) -> Any:
        """`path` is as the document has it; what stands in its braces is among `given`."""
        names = [name for name in given if f"{{{name}}}" in path]
        target = path.format(**{name: given.pop(name) for name in names})
        answer = self._http.request(method, target, **given)
        assert answer.status_code == expects, answer.text
        responses = self._document["paths"][path][method.lower()]["responses"]
        content = responses[str(expects) if expects == 200 else f"{expects // 100}XX"]["content"]
        self.seen.add((method.lower(), path))
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in content
        if kind != "application/json":
            return answer.content
        schema = {**content[kind]["schema"], "components": self._document["components"]}
        Draft202012Validator(schema).validate(answer.json())
        return answer.json()


@pytest.fixture
def asked(server: Any, document: Json) -> Iterator[Asked]:
    with httpx.Client(base_url=server.url, timeout=30) as http:
        yield Asked(http, document)


FUNCTION = {"type": "function", "name": "add"}


def test_responses_are_as_the_document_says(asked: Asked, model: str) -> None:
    asking = script([{"think": "hm"}, {"say": "a"}, {"call": "add"}])
    body = {"model": model, "input": asking, "tools": [FUNCTION]}
    made = asked("POST", "/v1/responses", json=body)
    where = {"response_id": made["id"]}
    asked("POST", "/v1/responses", json={**body, "stream": True})
    asked("POST", "/v1/responses/input_tokens", json=body)
    asked("POST", "/v1/responses/compact", json={"model": model, "input": "Hi"})
    asked("GET", "/v1/responses/{response_id}", **where)
    asked("GET", "/v1/responses/{response_id}/input_items", **where)
    asked("POST", "/v1/responses/{response_id}/cancel", expects=400, **where)
    running = asked("POST", "/v1/responses", json={**body, "background": True})
    asked("POST", "/v1/responses/{response_id}/cancel", response_id=running["id"])
    asked("DELETE", "/v1/responses/{response_id}", **where)
    asked("GET", "/v1/responses/{response_id}", expects=404, **where)
    asked("POST", "/v1/responses", expects=400, json={"model": "nope", "input": "x"})


def test_chat_completions_are_as_the_document_says(asked: Asked, model: str) -> None:
    asking = script([{"think": "hm"}, {"say": "a"}, {"call": "add"}])
    tool = {"type": "function", "function": {"name": "add"}}
    body = {"model": model, "messages": [{"role": "user", "content": asking}], "tools": [tool]}
    asked("POST", "/v1/chat/completions", json={**body, "logprobs": True})
    asked("POST", "/v1/chat/completions", json={**body, "stream": True})
    asked("POST", "/v1/chat/completions", expects=400, json={**body, "model": "nope"})


def test_messages_are_as_the_document_says(asked: Asked, model: str) -> None:
    asking = script([{"think": "hm"}, {"say": "a"}, {"call": "add"}])
    tool = {"name": "add", "input_schema": {"type": "object"}}
    messages = [{"role": "user", "content": asking}]
    body = {"model": model, "messages": messages, "tools": [tool], "max_tokens": 99}
    asked("POST", "/v1/messages", json=body)
    asked("POST", "/v1/messages", json={**body, "stream": True})
    asked("POST", "/v1/messages/count_tokens", json=body)
    version = {"anthropic-version": "2023-06-01"}
    asked("GET", "/v1/models", headers=version)
    asked("GET", "/v1/models/{name}", name=model, headers=version)
    asked("POST", "/v1/messages", expects=400, json={**body, "model": "nope"})


def test_conversations_are_as_the_document_says(asked: Asked) -> None:
    made = asked("POST", "/v1/conversations", json={"items": [{"role": "user", "content": "Hi"}]})
    where = {"conversation_id": made["id"]}
    asked("POST", "/v1/conversations/{conversation_id}", json={"metadata": {"a": "b"}}, **where)
    asked("GET", "/v1/conversations/{conversation_id}", **where)
    items = "/v1/conversations/{conversation_id}/items"
    added = asked("POST", items, json={"items": [{"role": "user", "content": "Oh"}]}, **where)
    asked("GET", items, **where)
    item = {**where, "item_id": added["data"][0]["id"]}
    asked("GET", f"{items}/{{item_id}}", **item)
    asked("DELETE", f"{items}/{{item_id}}", **item)
    asked("DELETE", "/v1/conversations/{conversation_id}", **where)


def test_files_and_vector_stores_are_as_the_document_says(asked: Asked) -> None:
    sent = {"file": ("a.md", b"Psalms are sung.")}
    file = asked("POST", "/v1/files", files=sent, data={"purpose": "user_data"})
    asked("GET", "/v1/files")
    asked("GET", "/v1/files/{file_id}", file_id=file["id"])
    asked("GET", "/v1/files/{file_id}/content", file_id=file["id"])
    stores, store = "/v1/vector_stores", "/v1/vector_stores/{vector_store_id}"
    where = {"vector_store_id": asked("POST", stores, json={"name": "a"})["id"]}
    asked("GET", stores)
    asked("GET", store, **where)
    asked("POST", store, json={"metadata": {"a": "b"}}, **where)
    asked("POST", f"{store}/files", json={"file_id": file["id"]}, **where)
    asked("GET", f"{store}/files", **where)
    in_it = {**where, "file_id": file["id"]}
    asked("GET", f"{store}/files/{{file_id}}", **in_it)
    asked("POST", f"{store}/files/{{file_id}}", json={"attributes": {"a": 1}}, **in_it)
    asked("GET", f"{store}/files/{{file_id}}/content", **in_it)
    asked("POST", f"{store}/search", json={"query": "psalms"}, **where)
    batch = asked("POST", f"{store}/file_batches", json={"file_ids": [file["id"]]}, **where)
    of_batch = {**where, "batch_id": batch["id"]}
    asked("GET", f"{store}/file_batches/{{batch_id}}", **of_batch)
    asked("GET", f"{store}/file_batches/{{batch_id}}/files", **of_batch)
    asked("POST", f"{store}/file_batches/{{batch_id}}/cancel", **of_batch)
    asked("DELETE", f"{store}/files/{{file_id}}", **in_it)
    asked("DELETE", store, **where)
    asked("DELETE", "/v1/files/{file_id}", file_id=file["id"])


def test_batches_are_as_the_document_says(asked: Asked) -> None:
    file = asked("POST", "/v1/files", files={"file": ("a", b"{}")}, data={"purpose": "batch"})
    body = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    made = asked("POST", "/v1/batches", json=body)
    asked("GET", "/v1/batches")
    asked("GET", "/v1/batches/{batch_id}", batch_id=made["id"])
    asked("GET", "/v1/batches/{batch_id}", expects=404, batch_id="batch_none")
    asked("POST", "/v1/batches/{batch_id}/cancel", expects=404, batch_id="batch_none")
    other = asked("POST", "/v1/batches", json=body)
    asked("POST", "/v1/batches", expects=400, json={**body, "endpoint": "/v1/models"})

    def has_failed() -> bool:
        batch = asked("GET", "/v1/batches/{batch_id}", batch_id=other["id"])
        return bool(batch["status"] == "failed")

    wait_until(has_failed)


def test_skills_are_as_the_document_says(asked: Asked) -> None:
    files = {"files": ("SKILL.md", b"---\nname: ours\ndescription: Ours.\n---\n")}
    skill, version = "/v1/skills/{skill_id}", "/v1/skills/{skill_id}/versions/{version}"
    where = {"skill_id": asked("POST", "/v1/skills", files=files)["id"]}
    asked("GET", "/v1/skills")
    asked("GET", skill, **where)
    asked("GET", f"{skill}/content", **where)
    asked("POST", f"{skill}/versions", files=files, data={"default": "false"}, **where)
    asked("GET", f"{skill}/versions", **where)
    asked("POST", skill, json={"default_version": "2"}, **where)
    asked("GET", version, version="2", **where)
    asked("GET", f"{version}/content", version="2", **where)
    asked("DELETE", version, expects=400, version="2", **where)
    asked("DELETE", version, version="1", **where)
    asked("DELETE", skill, **where)
    asked("GET", skill, expects=404, **where)


def test_models_and_health_are_as_the_document_says(asked: Asked) -> None:
    asked("GET", "/v1/models")
    asked("GET", "/v1/models", params={"client_version": "0.169.0"})
    asked("GET", "/v1/models/{name}", name="scripted")
    for path in PUBLIC:
        asked("GET", path)


def test_containers_are_as_the_document_says(container_server: Any, document: Json) -> None:
    with httpx.Client(base_url=container_server.url, timeout=30) as http:
        asked = Asked(http, document)
        containers, container = "/v1/containers", "/v1/containers/{container_id}"
        where = {"container_id": asked("POST", containers, json={"name": "a"})["id"]}
        asked("GET", containers)
        asked("GET", container, **where)
        file = asked("POST", f"{container}/files", files={"file": ("a", b"b")}, **where)
        asked("GET", f"{container}/files", **where)
        in_it = {**where, "file_id": file["id"]}
        asked("GET", f"{container}/files/{{file_id}}", **in_it)
        asked("GET", f"{container}/files/{{file_id}}/content", **in_it)
        asked("DELETE", f"{container}/files/{{file_id}}", **in_it)
        asked("DELETE", container, **where)


def test_a_response_that_was_created_is_described_with_all_its_fields(
    http: httpx.Client, document: Json
) -> None:
    response = create(http, model="scripted", input="Hi")
    assert response.keys() <= document["components"]["schemas"]["Response"]["properties"].keys()
