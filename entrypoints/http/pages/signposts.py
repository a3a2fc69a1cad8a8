"""Error messages for unknown paths and methods, with hints to the right ones."""

from __future__ import annotations

RESOURCES = frozenset(
    {
        "responses",
        "chat",
        "completions",
        "messages",
        "conversations",
        "decisions",
        "embeddings",
        "files",
        "containers",
        "vector_stores",
        "models",
        "moderations",
    }
)
DOCS = frozenset({"docs", "doc", "redoc", "swagger", "swagger-ui", "openapi.json", "openapi.yaml"})
MAX_PATH_LENGTH = 200

DOCUMENTED = "GET /schema documents the API, GET /schema/openapi.json is the OpenAPI document."


START = (
    "This is the Responses API: POST /v1/responses creates a response, GET /v1/models "
    f"lists the models. {DOCUMENTED}"
)


def not_found(method: str, path: str, *, host: str) -> str:
    """Return the message for an unknown path, with a hint to the path that was probably meant.

    >>> not_found("POST", "/responses", host="a")
    'Invalid URL (POST /responses). Paths begin with /v1: set the base URL to http://a/v1.'
    """
    return f"Invalid URL ({method} {path[:MAX_PATH_LENGTH]}). {_hint(path, host)}"


def not_allowed(method: str, path: str) -> str:
    """Return the message for a method that the path does not support."""
    return f"Invalid method for this URL ({method} {path[:MAX_PATH_LENGTH]}). {DOCUMENTED}"


def _hint(path: str, host: str) -> str:
    parts = [part for part in path.split("/") if part]
    if parts in ([], ["v1"]):
        return START
    if parts[-1] in DOCS:
        return DOCUMENTED
    if parts[:2] == ["v1", "v1"]:
        return "The path has /v1 twice: remove it from either the base URL or the path."
    if parts[0] != "v1" and not RESOURCES.isdisjoint(parts):
        return f"Paths begin with /v1: set the base URL to {_base_url(host)}."
    return DOCUMENTED


def _base_url(host: str) -> str:
    return f"http://{host}/v1" if host else "http://HOST:PORT/v1"
