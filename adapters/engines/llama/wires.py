"""A run as a request to llama-server's `/completion`, and its events as steps (no I/O).

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from math import log
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.adapters.engines.continuation import continuation_of
from antiphon.adapters.engines.llama.grammar import DoesNotMatch, TooComplex, gbnf_of, remaining_of
from antiphon.adapters.engines.llama.grammar.schemas import CannotExpress
from antiphon.adapters.engines.llama.lost_tokens import find_lost
from antiphon.adapters.engines.llama.profile import COMPLETION_PATH, SAMPLING_NAMES, LlamaProfile
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
from antiphon.adapters.engines.vllm_names import (
    FAILURE_MESSAGES,
    first_set,
    remaining_tokens,
)
from antiphon.application.ports import EngineRequest, Sampling, Step
from antiphon.domain.bounds import TokenId, count_of
from antiphon.domain.content import MIN_LOGPROB, Logprob, TopLogprob
from antiphon.domain.errors import CannotResume, EngineError, RequestError

FINISH_REASONS = {"eos": "stop", "word": "stop", "limit": "length"}
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SEEDS = 2**32
ANSWER_BIAS = 100.0
"""More than logits differ, and little enough for floats of 32 bits: they still tell 0.00001."""


def to_wire(
    request: EngineRequest,
    vocabulary: Vocabulary,
    decoder: TokenDecoder,
    *,
    defaults: Mapping[str, Any],
    context_length: int,
    keeps_cache: bool,
) -> WireRequest:
    """Return the run as a request to a server. Raises: RequestError, CannotResume."""
    sampling = request.sampling
    grammar = _grammar_of(request, vocabulary, decoder)
    written = len(request.written)
    request = continuation_of(request)
    room = remaining_tokens(len(request.prompt.token_ids), context_length)
    named = {
        theirs: first_set(getattr(sampling, ours), defaults.get(ours))
        for ours, theirs in SAMPLING_NAMES.items()
    }
    fields = {name: value for name, value in named.items() if value is not None}
    if any(SAMPLING_NAMES[name] in fields for name in PENALTIES):
        fields["repeat_last_n"] = context_length  # by default, only the last 64 tokens count
    most = defaults.get("max_tokens")
    if most is not None:
        most = max(1, most - written)
    if sampling.seed is not None:
        fields["seed"] = sampling.seed % SEEDS
    if sampling.logprobs is not None:
        fields["n_probs"] = max(sampling.logprobs, 1)
    if grammar is not None:
        fields["grammar"] = grammar
    body = {
        "prompt": list(request.prompt.token_ids),
        "n_predict": int(min(room, first_set(request.sampling.max_tokens, most, room))),
        "stream": True,
        "return_tokens": True,
        "return_progress": True,  # which says what was cached, also of a run that is left
        "cache_prompt": keeps_cache,
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": _biases(sampling, vocabulary),
        **fields,
        **(_answer_fields(sampling.answer_tokens) if sampling.answer_tokens else {}),
    }
    return WireRequest(path=COMPLETION_PATH, body=msgspec.json.encode(body), decodes_text=True)


def _grammar_of(
    request: EngineRequest, vocabulary: Vocabulary, decoder: TokenDecoder
) -> str | None:
    """Return the grammar of what the server writes, which is the rest of a run that has begun."""
    if request.sampling.constraint is None:
        return None
    try:
        grammar = gbnf_of(request.sampling.constraint, vocabulary.convert_ids_to_tokens)
        if request.written:
            grammar = remaining_of(grammar, _texts_of(request.written, decoder))
        return grammar
    except (DoesNotMatch, TooComplex, UnicodeDecodeError) as error:
        raise CannotResume(f"The constraint cannot go on: {error}") from None
    except (CannotExpress, RecursionError) as error:
        reason = error if isinstance(error, CannotExpress) else "it is too deep"
        raise RequestError(
            f"This model's engine cannot enforce what was asked for: {reason}.",
            param=constrained_param(request),
            code="unsupported_parameter",
        ) from None


def _texts_of(tokens: Sequence[TokenId], decoder: TokenDecoder) -> Iterator[tuple[TokenId, str]]:
    """Yield tokens with the characters that they end. Raises: UnicodeDecodeError."""
    characters = codecs.getincrementaldecoder("utf-8")()
    for token in tokens:
        _, token_bytes = decoder.decode_token(token)
        yield token, characters.decode(bytes(token_bytes))
    characters.decode(b"", final=True)


def _answer_fields(tokens: Sequence[int]) -> Mapping[str, Any]:
    """Return the fields of a run that writes one of these tokens and tells how likely each is.

    The server tells it of the likeliest tokens alone. So these are made likelier, all by the same
    factor, and no other sampler changes anything.
    """
    return {
        "samplers": [],
        "logit_bias": [(token, ANSWER_BIAS) for token in tokens],
        "n_probs": len(tokens),
        "post_sampling_probs": True,
    }


def _biases(sampling: Sampling, vocabulary: Vocabulary) -> list[tuple[int, float]]:
    biases = [(int(token), bias) for token, bias in sampling.logit_bias.items()]
    for token, _ in biases:
        if vocabulary.convert_ids_to_tokens(token) is None:
            raise RequestError(f"The model has no token {token}.", param="logit_bias")
    return biases


# --- events ---------------------------------------------------------------------------------------


class _Chance(Struct):
    """`prob` takes the place of `logprob` where samplers have changed the probabilities."""

    id: TokenId
    logprob: float | None = None
    prob: float | None = None


class _Position(_Chance):
    top_logprobs: Sequence[_Chance] = ()
    top_probs: Sequence[_Chance] = ()


class _Progress(Struct):
    cache: Any = None


class _Timings(Struct):
    cache_n: Any = None


class _Event(Struct):
    content: str = ""
    tokens: Sequence[TokenId] = ()
    tokens_predicted: int = 0
    tokens_evaluated: Any = None
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: Sequence[_Position] = ()
    prompt_progress: _Progress | None = None
    timings: _Timings | None = None
    error: VllmError | None = None


_decoder = msgspec.json.Decoder(_Event)


class LlamaStepReader(StepReader):
    """Reads the events of a run."""

    cached_tokens: int | None = None
    prompt_tokens: int | None = None
    is_cut = False

    def __init__(
        self,
        request: EngineRequest,
        profile: LlamaProfile,
        vocabulary: Vocabulary,
        decoder: TokenDecoder,
    ) -> None:
        self._request = request
        self._vocabulary = vocabulary
        self._decoder = decoder
        self._stops = frozenset(request.sampling.stop_token_ids)
        # Neither an end nor a stop token is a part of the text.
        ends = frozenset() if request.sampling.ignore_eos else profile.end_ids
        self._without_text = ends | self._stops
        self._text: RunText | None = None
        if request.detokenize:
            prompt = continuation_of(request).prompt
            self._text = RunText(vocabulary, request.sampling, prompt.token_ids)
        self._seen = 0

    def read(self, data: bytes) -> Step | None:
        try:
            return self._to_step(_decoder.decode(data))
        except (msgspec.DecodeError, ValueError):  # a ValueError for text that is not UTF-8
            raise EngineError("The model server sent an event that cannot be read.") from None

    def _to_step(self, event: _Event) -> Step | None:
        if event.error is not None:
            raise self._to_error(event.error)
        self.prompt_tokens = first_set(count_of(event.tokens_evaluated), self.prompt_tokens)
        if event.prompt_progress is not None:
            self.cached_tokens = count_of(event.prompt_progress.cache)
            return None  # its token is none
        if event.timings is not None:
            self.cached_tokens = first_set(count_of(event.timings.cache_n), self.cached_tokens)
        if event.stop:
            return self._to_last(event)
        return self._to_tokens(event) if event.tokens else None

    def _to_last(self, event: _Event) -> Step:
        finish = FINISH_REASONS.get(event.stop_type)
        if finish is None:
            raise EngineError(FAILURE_MESSAGES["error"])
        logprobs = None if self._request.sampling.logprobs is None else ()
        return Step(text="", token_ids=[], logprobs=logprobs, finish=finish)

    def _to_tokens(self, event: _Event) -> Step:
        tokens = [*self._lost_tokens(event), *event.tokens]
        self._seen = event.tokens_predicted
        finish = None
        if self._stops.intersection(tokens):
            finish, self.is_cut = "stop", True
        text = ""
        if self._text is not None:
            shown = [token for token in tokens if token not in self._without_text]
            text = self._text.feed(shown)
        return Step(
            text=text, token_ids=tokens, logprobs=self._to_logprobs(event, tokens), finish=finish
        )

    def _lost_tokens(self, event: _Event) -> list[int]:
        count = event.tokens_predicted - self._seen - len(event.tokens)
        if count <= 0:
            return []
        last = event.tokens[-1]
        _, last_bytes = self._decoder.decode_token(last)
        tokenizer = self._vocabulary.tokenizer
        return find_lost(tokenizer, event.content, last, count, bytes(last_bytes))

    def _to_error(self, details: VllmError) -> Exception:
        if outcome_of(details.code) is Outcome.INVALID:
            return to_request_error(details, default_param=constrained_param(self._request))
        return RunFailed(FAILURE_MESSAGES["error"])

    def _to_logprobs(self, event: _Event, tokens: Sequence[int]) -> tuple[Logprob, ...] | None:
        count = self._request.sampling.logprobs
        if count is None:
            return None
        positions = event.completion_probabilities
        # Of lost tokens, the server does not tell how likely they were.
        lost = [_Position(id=token) for token in tokens[: len(tokens) - len(positions)]]
        return tuple(
            Logprob(
                **self._chance(each),
                top_logprobs=tuple(
                    TopLogprob(**self._chance(top)) for top in self._alternatives(each)[:count]
                ),
            )
            for each in [*lost, *positions]
        )

    def _alternatives(self, position: _Position) -> Sequence[_Chance]:
        answer_tokens = self._request.sampling.answer_tokens
        if not answer_tokens:
            return position.top_logprobs
        by_id = {each.id: each for each in position.top_probs}
        chances = [by_id[token] for token in answer_tokens if token in by_id]
        return [
            _Chance(id=each.id, logprob=log(each.prob) if each.prob else None) for each in chances
        ]

    def _chance(self, chance: _Chance) -> Mapping[str, Any]:
        text, token_bytes = self._decoder.decode_token(chance.id)
        logprob = MIN_LOGPROB if chance.logprob is None else max(chance.logprob, MIN_LOGPROB)
        return {"token": text, "bytes": token_bytes, "logprob": min(logprob, 0.0)}
