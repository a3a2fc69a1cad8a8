"""A run as a request on either of vLLM's wires, and the wires' events as steps.

`/inference/v1/generate` takes tokens, sends tokens, and knows that our constraints begin with the
first token. `/v1/completions` is what every vLLM server has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.adapters.engines.continuation import continuation_of
from antiphon.adapters.engines.pooled.refusals import (
    Outcome,
    VllmError,
    outcome_of,
    to_request_error,
)
from antiphon.adapters.engines.pooled.runs import (
    RunFailed,
    StepReader,
    WireRequest,
    constrained_param,
)
from antiphon.adapters.engines.pooled.text import RunText, Vocabulary
from antiphon.adapters.engines.token_decoder import TokenDecoder
from antiphon.adapters.engines.vllm_http.image_tokens import ImagePrompt
from antiphon.adapters.engines.vllm_http.profile import GENERATE_PATH, Profile
from antiphon.adapters.engines.vllm_names import (
    FAILURE_MESSAGES,
    FINISH_REASONS,
    answer_fields,
    constrained_field,
    extra_arguments,
    remaining_tokens,
    sampling_fields,
    structured_outputs,
)
from antiphon.application.ports import EngineRequest, Step
from antiphon.domain.bounds import TokenId, count_of
from antiphon.domain.content import MIN_LOGPROB, Logprob, TopLogprob
from antiphon.domain.errors import EngineError, RequestError

COMPLETIONS_PATH = "/v1/completions"
MAX_LOGPROBS = 20
"""The most that vLLM gives by default, and the API's limit."""

TOKEN_PREFIX = "token_id:"
HARMONY_MODEL_TYPE = "gpt_oss"


def to_wire(
    request: EngineRequest,
    profile: Profile,
    *,
    defaults: Mapping[str, Any],
    context_length: int,
    vocabulary: Vocabulary | None,
    model_type: str = "",
) -> WireRequest:
    """Return the run as a request to a server. Raises: RequestError."""
    request = continuation_of(request)
    room = remaining_tokens(len(request.prompt.token_ids), context_length)
    fields = sampling_fields(
        request.sampling,
        defaults=defaults,
        remaining_tokens=room,
        detokenize=request.detokenize,
    )
    if request.sampling.logprobs is not None:
        # One more than asked for: the list begins with the sampled token, which may be none of
        # the likeliest.
        fields["logprobs"] = min(request.sampling.logprobs + 1, MAX_LOGPROBS)
    if request.sampling.answer_tokens:
        fields |= answer_fields(request.sampling.answer_tokens, most=MAX_LOGPROBS)
    fields["stream_interval"] = min(request.sampling.step_tokens, fields["max_tokens"])
    if request.sampling.constraint is not None:
        fields["structured_outputs"] = structured_outputs(
            request.sampling.constraint, field=constrained_field(request.turn)
        )
    is_exact = vocabulary is not None or (profile.has_text and request.sampling.logprobs is None)
    if profile.has_generate and (is_exact or not fields["detokenize"]):
        return _to_generate(request, profile, fields)
    if request.prompt.prepared is not None:
        raise EngineError("The model server reads no images.")
    if not profile.has_text:
        raise EngineError("The model server sends no text, and its tokenizer is not known here.")
    return _to_completions(request, profile, fields, model_type)


def _to_generate(request: EngineRequest, profile: Profile, fields: dict[str, Any]) -> WireRequest:
    wants_text = fields["detokenize"]
    # With text, logprobs come as texts, which say less than the tokens do.
    sends_text = wants_text and profile.has_text and request.sampling.logprobs is None
    if not profile.has_text:
        fields["detokenize"] = False  # decoded here
    fields["extra_args"] = extra_arguments(request.sampling.extra)
    body = {
        **_common_fields(request, profile),
        **_prompt_fields(request),
        "sampling_params": _without_none(fields),
        "output_mode": "text" if sends_text else "tokens",
        # Our constraints also cover the reasoning, so they apply from the first token on.
        "reasoning_ended": True if "structured_outputs" in fields else None,
    }
    return WireRequest(
        path=GENERATE_PATH, body=_encode(body), decodes_text=wants_text and not sends_text
    )


def _prompt_fields(request: EngineRequest) -> dict[str, Any]:
    prompt = request.prompt
    if isinstance(prompt.prepared, ImagePrompt):
        images = prompt.prepared
        token_ids = [*images.token_ids, *request.written]
        return {"token_ids": token_ids, "content_parts": images.content_parts()}
    return {"token_ids": list(prompt.token_ids)}


def _to_completions(
    request: EngineRequest, profile: Profile, fields: dict[str, Any], model_type: str
) -> WireRequest:
    if model_type == HARMONY_MODEL_TYPE and "structured_outputs" in fields:
        # For gpt-oss, vLLM applies a constraint after the reasoning, and this wire cannot say that
        # ours covers the reasoning, too.
        raise RequestError(
            "This model's servers cannot enforce tool choices and schemas: start them with "
            "--enable-scale-out.",
            param=constrained_field(request.turn),
            code="unsupported_parameter",
        )
    extra_arguments(request.sampling.extra)  # for its errors
    del fields["detokenize"]
    body = {
        **_common_fields(request, profile),
        **fields,
        **request.sampling.extra,
        "prompt": list(request.prompt.token_ids),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return WireRequest(path=COMPLETIONS_PATH, body=_encode(body))


def _common_fields(request: EngineRequest, profile: Profile) -> dict[str, Any]:
    return {
        "model": profile.model_name,
        "request_id": request.request_id,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": request.cache_salt,
        "priority": request.priority or None,
    }


def _encode(body: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(_without_none(body))


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# --- events ---------------------------------------------------------------------------------------


class _TokenLogprob(Struct):
    token_id: TokenId
    logprob: float


class _Position(_TokenLogprob):
    top_logprobs: list[_TokenLogprob] = []


class _Logprobs(Struct):
    """`content` is that of the generate wire, the rest that of completions."""

    content: list[_Position] | None = None
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None

    def positions(self) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
        """Yield each token, its logprob and those of the likeliest, in the server's order."""
        if self.content is not None:
            for each in self.content:
                tops = each.top_logprobs[: MAX_LOGPROBS + 1]
                likeliest = [(top.token_id, top.logprob) for top in tops]
                yield each.token_id, each.logprob, likeliest
            return
        by_name = self.top_logprobs or [None] * len(self.tokens)
        for token, logprob, top in zip(self.tokens, self.token_logprobs, by_name, strict=True):
            named = islice((top or {}).items(), MAX_LOGPROBS + 1)
            likeliest = [(_token_id(name), value) for name, value in named]
            yield _token_id(token), MIN_LOGPROB if logprob is None else logprob, likeliest


class _Choice(Struct):
    text: str | None = None
    token_ids: list[TokenId] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: Any = None


class _Usage(Struct):
    prompt_tokens: Any = None
    prompt_tokens_details: _Details | None = None


class _Event(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: VllmError | None = None


_decoder = msgspec.json.Decoder(_Event)


class VllmStepReader(StepReader):
    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    is_cut = False

    def __init__(
        self, request: EngineRequest, text: RunText | None, decoder: TokenDecoder | None
    ) -> None:
        self._request = request
        self._text = text
        self._decoder = decoder

    def read(self, data: bytes) -> Step | None:
        try:
            return self._to_step(_decoder.decode(data))
        # A ValueError is of text that is not UTF-8, an OverflowError of a token that is none.
        except (msgspec.DecodeError, ValueError, OverflowError):
            raise EngineError("The model server sent an event that cannot be read.") from None

    def _to_step(self, event: _Event) -> Step | None:
        if event.error is not None:
            raise self._to_error(event.error)
        if event.usage is not None:
            self.prompt_tokens = count_of(event.usage.prompt_tokens)
            if event.usage.prompt_tokens_details is not None:
                self.cached_tokens = count_of(event.usage.prompt_tokens_details.cached_tokens)
        return self._to_tokens(event.choices[0]) if event.choices else None

    def _to_tokens(self, choice: _Choice) -> Step | None:
        token_ids, finish = choice.token_ids, choice.finish_reason
        if finish is not None:
            if finish not in FINISH_REASONS:
                default = FAILURE_MESSAGES["error"]
                raise EngineError(FAILURE_MESSAGES.get(finish, default))
            finish = FINISH_REASONS[finish]
        if not token_ids:
            if choice.text and token_ids is None:
                raise EngineError("The model server sends no token ids; it needs vLLM 0.12.")
            if finish is None and not choice.text:
                return None
            token_ids = []
        text = choice.text or ""
        if self._text is not None:
            text = self._text.feed(token_ids)
        return Step(
            text=text,
            token_ids=token_ids,
            logprobs=self._to_logprobs(choice.logprobs, tokens=len(token_ids)),
            finish=finish,
        )

    def _to_error(self, details: VllmError) -> Exception:
        if outcome_of(details.code) is Outcome.INVALID:
            return to_request_error(details, default_param=constrained_param(self._request))
        return RunFailed(FAILURE_MESSAGES["error"])

    def _to_logprobs(
        self, logprobs: _Logprobs | None, *, tokens: int
    ) -> tuple[Logprob, ...] | None:
        count, decoder = self._request.sampling.logprobs, self._decoder
        if count is None or decoder is None:
            return None
        return tuple(
            Logprob(
                **_token_fields(decoder, token_id, logprob),
                top_logprobs=tuple(
                    TopLogprob(**_token_fields(decoder, *each))
                    for each in in_order(tops, self._request.sampling.answer_tokens)[:count]
                ),
            )
            for token_id, logprob, tops in islice(logprobs.positions() if logprobs else (), tokens)
        )


def in_order(
    tops: Sequence[tuple[int, float]], answer_tokens: Sequence[int]
) -> Sequence[tuple[int, float]]:
    """Return the alternatives in the order of the answers, if these were asked for, or else the
    likeliest first."""
    if not answer_tokens:
        return sorted(tops, key=lambda each: -each[1])
    found = dict(tops)
    return [(token, found[token]) for token in answer_tokens if token in found]


def _token_fields(decoder: TokenDecoder, token_id: int, logprob: float) -> dict[str, Any]:
    text, token_bytes = decoder.decode_token(token_id)
    return {"token": text, "bytes": token_bytes, "logprob": logprob}


def _token_id(name: str) -> int:
    """Raises: ValueError for what is no token's name."""
    token_id = count_of(int(name.removeprefix(TOKEN_PREFIX)), most=2**63 - 1)
    if token_id is None:
        raise ValueError("not a token")
    return token_id
