"""The profile of one llama-server: its model, and what it would sample with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.adapters.engines.pooled.profile import ServerProfile, ask_first
from antiphon.adapters.upstreams.client import UpstreamAnswer, UpstreamClient
from antiphon.domain.bounds import MAX_CONTEXT_LENGTH, TokenId, count_of
from antiphon.domain.errors import SettingsError

COMPLETION_PATH = "/completion"
DIGITS = 6
"""Of the 32-bit floats in which it keeps its defaults."""


SAMPLING_NAMES: Mapping[str, str] = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repetition_penalty": "repeat_penalty",
}
"""By our name of a sampling parameter, llama.cpp's."""


class LlamaProfile(ServerProfile, frozen=True, kw_only=True):
    """One server. `model_path` is that of its file, on its machine; `slots` is the number of runs
    at a time. `end_ids` are the tokens that end a run there. `sampling` are its defaults.
    """

    model_path: str
    slots: int
    end_ids: frozenset[int]
    sampling: Mapping[str, float]


Shape = TypeVar("Shape", bound=Struct)


class _Generation(Struct, frozen=True):
    n_ctx: Any = None
    params: dict[str, object] = {}


class _Properties(Struct, frozen=True):
    default_generation_settings: _Generation = _Generation()
    total_slots: int = 1
    model_path: str = ""


class _Bias(Struct, frozen=True):
    token: TokenId


class _Settings(Struct, frozen=True):
    logit_bias: Sequence[_Bias] = ()


class _Run(Struct, frozen=True):
    generation_settings: _Settings = _Settings()


class _Tokenized(Struct, frozen=True):
    tokens: list[int]


async def read_profile(client: UpstreamClient, *, timeout_s: float) -> LlamaProfile:
    """Return the server's profile. Raises: SettingsError if settings must change; EngineError."""
    answer = await ask_first(client, "/props", timeout_s=timeout_s)
    properties = _convert(answer, _Properties, client)
    generation = properties.default_generation_settings
    context_length = count_of(generation.n_ctx, least=1, most=MAX_CONTEXT_LENGTH)
    if context_length is None:
        raise SettingsError(
            f"The server at {client.url!r} does not tell its context length. Is it a llama-server?"
        )
    values = {ours: generation.params.get(theirs) for ours, theirs in SAMPLING_NAMES.items()}
    return LlamaProfile(
        model_name=PurePath(properties.model_path.replace("\\", "/")).name,
        context_length=context_length,
        model_path=properties.model_path,
        slots=properties.total_slots,
        end_ids=await _find_ends(client, timeout_s=timeout_s),
        sampling={
            name: round(each, 6) for name, each in values.items() if isinstance(each, int | float)
        },
    )


async def _find_ends(client: UpstreamClient, *, timeout_s: float) -> frozenset[int]:
    """Return the tokens that end a run. A server names them only as those that it does not write
    while it ignores ends."""
    body = {"prompt": [0], "n_predict": 1, "ignore_eos": True, "cache_prompt": False}
    answer = await client.post(COMPLETION_PATH, msgspec.json.encode(body), timeout_s=timeout_s)
    run = _convert(answer, _Run, client)
    return frozenset(each.token for each in run.generation_settings.logit_bias)


async def tokenize(client: UpstreamClient, text: str, *, timeout_s: float) -> list[int]:
    """Return the server's tokens of a text, with markers as special tokens. Raises: EngineError."""
    body = msgspec.json.encode({"content": text, "add_special": False, "parse_special": True})
    answer = await client.post("/tokenize", body, timeout_s=timeout_s)
    return _convert(answer, _Tokenized, client).tokens


def _convert(answer: UpstreamAnswer, shape: type[Shape], client: UpstreamClient) -> Shape:
    try:
        return msgspec.convert(answer.json(), shape)
    except msgspec.ValidationError:
        raise SettingsError(f"The server at {client.url!r} is no llama-server.") from None
