"""Ask a server what it is: its kind, the model's context length, whether it reads images."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.upstreams.client import UpstreamClient, UpstreamRefused
from antiphon.domain.bounds import MAX_CONTEXT_LENGTH, count_of
from antiphon.domain.errors import EngineDead, EngineError, SettingsError

PROBE_S = 10.0

KINDS: Mapping[str, str] = {
    "library": "ollama",
    "organization_owner": "lmstudio",
}
"""The `owned_by` of a server's models, where it does not name the server itself."""

CONTEXT_KEYS = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio
    "context_length",
    "context_window",
    "max_context_length",
)


class ServerInfo(Struct, frozen=True, kw_only=True):
    """`kind` is `vllm`, `sglang`, `llamacpp`, `ollama`, `lmstudio`… or "" if it is unknown.

    What a server does not tell is None. `is_listed`: its list of models has the model, or it has no
    list.
    """

    kind: str = ""
    context_length: int | None = None
    reads_images: bool | None = None
    is_listed: bool = True


async def ask_server(client: UpstreamClient, model: str) -> ServerInfo:
    """Return what the server tells about itself and the model; no tokens are generated.

    Raises: EngineDead if it cannot be reached; SettingsError if it refuses the key, or if
    the URL lacks the `/v1` of its API.
    """
    listed = await list_models(client)
    if not listed:
        await _check_path(client)
    names = (model, f"{model}:latest")  # Ollama's name of a model without a tag
    entry = next((each for each in listed if each.get("id") in names), None)
    first = entry or (listed[0] if listed else {})
    owner = str(first.get("owned_by") or "")
    info = ServerInfo(
        kind=KINDS.get(owner, owner),
        context_length=_context_length(entry or {}),
        reads_images=_reads_images(entry or {}),
        is_listed=entry is not None or not listed,
    )
    if info.kind not in DETAILS and info.context_length is not None:
        return info
    for kind in [info.kind] if info.kind in DETAILS else DETAILS:
        with suppress(EngineError, AttributeError, LookupError, TypeError, ValueError):
            return replace(await DETAILS[kind](client, model, info), kind=kind)
    return info


async def _check_path(client: UpstreamClient) -> None:
    """Raises: SettingsError if the API is not at the URL, but at `/v1` there."""
    if client.url.endswith("/v1"):
        return
    try:
        answer = await client.get("/v1/models", timeout_s=PROBE_S)
        has_models = "data" in answer.json()
    except (EngineError, TypeError):
        return
    if has_models:
        raise SettingsError(
            f"There is no model server at {client.url}, but at {client.url}/v1. "
            f'Did you mean `url = "{client.url}/v1"`?'
        )


async def list_models(client: UpstreamClient) -> list[dict[str, Any]]:
    """Return the entries of the server's list of models, [] if it has none.

    Raises: EngineDead if it cannot be reached; SettingsError if it refuses the key.
    """
    try:
        answer = await client.get("/models", timeout_s=PROBE_S)
        value = answer.json()
    except UpstreamRefused as error:
        if error.status in (401, 403):
            raise SettingsError(
                f"The model server at {client.url} refuses the API key (status {error.status}): "
                "set `key_env` or `key_file` to one that it takes."
            ) from None
        if error.status >= 500:
            raise EngineDead(
                f"The model server is not available (status {error.status})."
            ) from None
        return []
    except EngineDead:
        raise
    except EngineError as error:
        raise EngineDead(str(error)) from None
    entries = value.get("data") if isinstance(value, dict) else value
    return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []


def _context_length(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    found = [entry.get(key) for key in CONTEXT_KEYS]
    if isinstance(meta, dict):
        found += [meta.get("n_ctx"), meta.get("n_ctx_train")]
    return _first_size(found)


def _first_size(values: Sequence[Any]) -> int | None:
    sizes = (count_of(each, least=1, most=MAX_CONTEXT_LENGTH) for each in values)
    return next((size for size in sizes if size is not None), None)


def _reads_images(entry: Mapping[str, Any]) -> bool | None:
    architecture, capabilities = entry.get("architecture"), entry.get("capabilities")
    if isinstance(architecture, dict) and isinstance(architecture.get("input_modalities"), list):
        return "image" in architecture["input_modalities"]
    vision = capabilities.get("vision") if isinstance(capabilities, dict) else None
    return vision if isinstance(vision, bool) else None


async def _llama_cpp(client: UpstreamClient, _: str, info: ServerInfo) -> ServerInfo:
    answer = await client.get("/props", timeout_s=PROBE_S, at_root=True)
    props = answer.json()
    slot_size = props["default_generation_settings"].get("n_ctx")
    vision = props.get("modalities", {}).get("vision")
    return replace(
        info,
        context_length=_first_size([slot_size, info.context_length]),
        reads_images=vision if isinstance(vision, bool) else info.reads_images,
    )


async def _ollama(client: UpstreamClient, model: str, info: ServerInfo) -> ServerInfo:
    body = msgspec.json.encode({"model": model})
    answer = await client.post("/api/show", body, timeout_s=PROBE_S, at_root=True)
    shown = answer.json()
    sizes = [
        *_parameter_sizes(str(shown.get("parameters", ""))),
        *(size for key, size in shown["model_info"].items() if key.endswith(".context_length")),
    ]
    capabilities = shown.get("capabilities")
    return replace(
        info,
        context_length=_first_size([*sizes, info.context_length]),
        reads_images="vision" in capabilities if isinstance(capabilities, list) else None,
    )


def _parameter_sizes(parameters: str) -> Iterator[int]:
    """Yield the context length in a model file's parameters, lines of a name and a value."""
    for line in parameters.splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "num_ctx" and value.strip().isdecimal():
            yield int(value)


async def _lm_studio(client: UpstreamClient, model: str, info: ServerInfo) -> ServerInfo:
    answer = await client.get("/api/v0/models", timeout_s=PROBE_S, at_root=True)
    [entry] = [each for each in answer.json()["data"] if each.get("id") == model]
    return replace(
        info,
        context_length=_first_size([_context_length(entry), info.context_length]),
        reads_images=entry.get("type") == "vlm",
    )


DETAILS: Mapping[str, Callable[[UpstreamClient, str, ServerInfo], Awaitable[ServerInfo]]] = {
    "llamacpp": _llama_cpp,
    "ollama": _ollama,
    "lmstudio": _lm_studio,
}
"""By kind of server, what asks it for more than its list of models has; others fail at it."""
