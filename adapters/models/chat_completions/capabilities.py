"""The limits of a server: found out by asking it once, and named to clients."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import get_args

from msgspec import Struct

from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import Effort

logger = logging.getLogger("antiphon.chat_completions")


SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
"""Fields of Sampling that have the same names in the body."""


class Feature(Struct, frozen=True, kw_only=True):
    """A part of a request that some servers refuse.

    `words` are those by which a refusal names it. `path` is the request's field that has no effect
    without it, None if nothing is lost. A `binding` one is never left out silently: the answer
    would break a promise, so the request is refused.
    """

    words: tuple[str, ...]
    path: str | None = None
    binding: bool = False


def _plain(name: str) -> tuple[str, Feature]:
    return name, Feature(words=(name,), path=name)


FEATURES: Mapping[str, Feature] = {
    "stream_options": Feature(words=("stream_options", "include_usage")),
    "parallel_tool_calls": Feature(words=("parallel_tool_calls",)),  # the reader drops the others
    "max_tokens": Feature(words=("max_tokens",)),  # has another name there
    "cache_salt": Feature(words=("cache_salt",)),
    "reasoning_content": Feature(words=("reasoning_content", "reasoning")),
    "role_order": Feature(
        words=("system message", "system role", "must alternate", "user query", "last role")
    ),
    "long_call_ids": Feature(words=("tool call id", "tool_call_id", "length of 9")),
    "images": Feature(words=()),  # no field: a refusal of them is the client's error
    "strict": Feature(words=("strict",), path="tools.strict"),
    "logprobs": Feature(words=("logprobs", "top_logprobs"), path="top_logprobs"),
    "reasoning_effort": Feature(words=("reasoning_effort",), path="reasoning.effort"),
    **{
        f"reasoning_effort {value}": Feature(words=(), path="reasoning.effort")
        for value in get_args(Effort)
    },
    "response_format": Feature(
        words=("response_format", "json_schema"), path="text.format", binding=True
    ),
    "tool_choice": Feature(words=("tool_choice",), path="tool_choice", binding=True),
    "tools": Feature(
        words=("tools", "enable-auto-tool-choice", "tool use"), path="tools", binding=True
    ),
    "structured_outputs": Feature(
        words=("structured_outputs",), path="structured_outputs", binding=True
    ),
    **dict(
        map(
            _plain,
            (
                *SAMPLING_FIELDS,
                "logit_bias",
                "stop_token_ids",
                "ignore_eos",
                "priority",
                "chat_template_kwargs",
                "vllm_xargs",
                "kv_transfer_params",
                "ec_transfer_params",
            ),
        )
    ),
}
"""By the name of the field in the body, or a name of ours for what is no field of it."""

SYNONYMS: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "top_logprobs": "logprobs",
    "random_seed": "seed",
    "repeat_penalty": "repetition_penalty",
}
"""Other names of fields in the body."""

KNOWN_GAPS: Mapping[str, frozenset[str]] = {
    "ollama": frozenset(
        {
            "tool_choice",
            "parallel_tool_calls",
            "strict",
            "logit_bias",
            "top_k",
            "min_p",
            "repetition_penalty",
            "stop_token_ids",
            "ignore_eos",
            "priority",
            "chat_template_kwargs",
        }
    ),
}
"""By kind of server, what it does nothing with and does not refuse, so that asking is no help."""

UNSUPPORTED = re.compile(
    r"unsupported|not support|n[o']t (allowed|permitted|implemented|available|enabled)"
    r"|unrecogni[sz]ed|unknown|unexpected|extra (inputs|fields|forbidden)|additional propert"
    r"|invalid (parameter|argument|field)|only the default|must be at the beginning|must alternate"
    r"|requires --|length of 9|input should be 'text'",
    re.IGNORECASE,
)
"""The words by which servers reject a field that they do not know, rather than its value."""

WRONG_VALUE = re.compile(r"(unsupported|invalid)[ _]value(?!.*only the default)", re.IGNORECASE)
"""The words by which servers reject a value of a field that they know: another one may work."""

CHOICE = re.compile(r"input should be|must be one of|supported values", re.IGNORECASE)


class MissingCapabilities:
    """The limits of one server, as far as they are known.

    `missing` may be given by the settings; the rest is learned from refusals.
    """

    def __init__(self, missing: Collection[str], *, model: str) -> None:
        self._missing = {SYNONYMS.get(name, name) for name in missing}
        self._model = model

    @property
    def missing(self) -> frozenset[str]:
        return frozenset(self._missing)

    def know(self, kind: str) -> None:
        """Add the gaps that every server of this kind has."""
        self._missing |= KNOWN_GAPS.get(kind, frozenset())

    def learn(self, names: Collection[str]) -> None:
        """Remember that the server takes requests without these, and refused one with them."""
        if new := sorted(set(names) - self._missing):
            self._missing |= set(new)
            logger.warning(
                "model %r: its server refuses %s; from now on requests go without",
                self._model,
                ", ".join(new),
            )


def refused_feature(message: str, used: Collection[str]) -> str | None:
    """Return the feature, one of those `used`, that a server's refusal says it does not support.

    >>> refused_feature("Unsupported parameter: 'seed'", {"seed", "top_k"})
    'seed'
    >>> refused_feature("seed must be an integer", {"seed"}) is None
    True
    >>> refused_feature("reasoning_effort: Input should be 'low'", {"reasoning_effort max"})
    'reasoning_effort max'
    """
    if "reasoning_effort" in message and (WRONG_VALUE.search(message) or CHOICE.search(message)):
        # Which efforts there are depends on the server and on the model.
        return next((name for name in used if name.startswith("reasoning_effort ")), None)
    if not UNSUPPORTED.search(message) or WRONG_VALUE.search(message):
        return None
    named = [
        (match.start(), -len(word), name)
        for name in used
        for word in FEATURES[name].words
        if (match := re.search(rf"(?<![\w-]){re.escape(word)}(?!\w)", message, re.IGNORECASE))
    ]
    return min(named)[2] if named else None


def check_binding(names: Collection[str]) -> None:
    """Raises: RequestError for what must not be left out; it names the request's field."""
    for name in sorted(names):
        feature = FEATURES.get(name)
        if feature is not None and feature.binding:
            raise RequestError(
                f"Unsupported parameter: {feature.path!r} is not supported by the server that runs "
                "this model.",
                param=feature.path,
                code="unsupported_parameter",
            )
