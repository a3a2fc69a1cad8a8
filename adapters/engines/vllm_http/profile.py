"""The profile of one vLLM server: its model, and the wires on which it serves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.adapters.engines.pooled.profile import ServerProfile, ask_first
from antiphon.adapters.engines.vllm_http.image_tokens import (
    PROBE_IMAGE,
    RENDER_PATH,
    read_images,
    render_request,
)
from antiphon.adapters.upstreams.client import UpstreamClient, UpstreamRefused
from antiphon.domain.bounds import MAX_CONTEXT_LENGTH, count_of
from antiphon.domain.errors import EngineError, SettingsError

GENERATE_PATH = "/inference/v1/generate"
INVALID = frozenset({400, 422})


class Profile(ServerProfile, frozen=True, kw_only=True):
    """One server: the model it is asked for, and what it can do.

    `has_generate`: it offers `GENERATE_PATH`. `has_text`: it has a tokenizer, so that it can send
    text. `reads_images`: it expands images before the run.
    """

    root: str
    has_generate: bool
    has_text: bool


class _Model(Struct, frozen=True, kw_only=True):
    id: str
    root: str | None = None
    max_model_len: Any = None


class _ModelList(Struct, frozen=True, kw_only=True):
    data: Sequence[_Model] = ()


async def read_profile(
    client: UpstreamClient, *, model_name: str | None, timeout_s: float
) -> Profile:
    """Return the server's profile; `model_name` is that to ask for, None for its first.

    Raises: SettingsError if its settings or ours must change; EngineError.
    """
    model = _find_model(await _list_models(client, timeout_s=timeout_s), model_name)
    context_length = count_of(model.max_model_len, least=2, most=MAX_CONTEXT_LENGTH)
    if context_length is None:
        raise SettingsError(
            f"The server at {client.url!r} does not tell the model's context length (max_model_len "
            "in /v1/models). Is it a vLLM server?"
        )
    has_generate = await _accepts(client, GENERATE_PATH, {}, timeout_s=timeout_s)
    # Only a server that offers tokens in and out may run without a tokenizer (--tokens-only).
    has_text = not has_generate or await _accepts(
        client, "/detokenize", {"model": model.id, "tokens": [0]}, timeout_s=timeout_s
    )
    reads_images = has_generate and await _renders_images(client, model.id, timeout_s=timeout_s)
    return Profile(
        model_name=model.id,
        root=model.root or "",
        context_length=context_length,
        has_generate=has_generate,
        has_text=has_text,
        reads_images=reads_images,
    )


async def _list_models(client: UpstreamClient, *, timeout_s: float) -> Sequence[_Model]:
    answer = await ask_first(client, "/v1/models", timeout_s=timeout_s)
    try:
        return msgspec.convert(answer.json(), _ModelList).data
    except msgspec.ValidationError:
        raise SettingsError(f"The server at {client.url!r} does not list its models.") from None


def _find_model(models: Sequence[_Model], name: str | None) -> _Model:
    for model in models:
        if name in (None, model.id):
            return model
    served = ", ".join(repr(model.id) for model in models) or "none"
    raise SettingsError(f"A model server does not serve {name!r} (model_name), but {served}.")


async def _accepts(
    client: UpstreamClient, path: str, body: dict[str, object], *, timeout_s: float
) -> bool:
    """Return whether the route is there: one that is validates the body, or answers."""
    try:
        await client.post(path, msgspec.json.encode(body), timeout_s=timeout_s)
    except UpstreamRefused as error:
        return error.status in INVALID and path == GENERATE_PATH
    return True


async def _renders_images(client: UpstreamClient, model_name: str, *, timeout_s: float) -> bool:
    body = render_request(model_name, [PROBE_IMAGE])
    try:
        answer = await client.post(RENDER_PATH, body, timeout_s=timeout_s)
    except UpstreamRefused:  # a model of text, or a server without its tokenizer
        return False
    try:
        return len(read_images(answer)) == 1
    except EngineError:  # a gateway or another version, which serves text all the same
        return False
