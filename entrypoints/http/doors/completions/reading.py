"""Read a request for completions as the CreateResponses that stand for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from antiphon.application.input.from_request import LOGPROBS
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import DecodedRequest, decode_request_body
from antiphon.domain.requests.request import CreateResponse, RawPrompt
from antiphon.entrypoints.http.api.creation import IncomingRequest
from antiphon.entrypoints.http.doors.choices import Choices, ChoicesEncoder, UsageView, with_seed
from antiphon.entrypoints.http.doors.completions.completion import CompletionEncoder, CompletionView
from antiphon.entrypoints.http.doors.completions.request import MAX_ANSWERS, CompletionRequest
from antiphon.entrypoints.http.doors.places import Places
from antiphon.entrypoints.http.wire.bodies import reject_unknown_fields

MAX_TOKENS = 16
"""Of an answer, unless the request says another number: that is OpenAI's."""

FIELDS: Mapping[str, str] = {
    "include": "logprobs",
    "input": "prompt",
    "max_output_tokens": "max_tokens",
    "raw_prompt": "prompt",
    "top_logprobs": "logprobs",
}
"""Fields of Responses that have another name here."""

WITHOUT_EFFECT = ("chat_template_kwargs", "include_reasoning", "parallel_tool_calls")
"""Shared fields that mean something only where a template writes the prompt."""

DOOR = "completions"

_encode = msgspec.json.Encoder().encode


def read_completion(body: bytes, *, strict: bool) -> IncomingRequest:
    """Read the body of `POST /v1/completions`.

    Raises: RequestError, also for an unknown key if `strict`.
    """
    decoded = decode_request_body(body, CompletionRequest)
    if strict:
        reject_unknown_fields(decoded)
    sent = decoded.request
    each = sent.n or 1
    prompts = _prompts_of(sent)
    _check(sent, len(prompts) * each)
    first, *others = [
        with_seed(request, number)
        for request in (_request_of(sent, prompt) for prompt in prompts)
        for number in range(each)
    ]
    options = sent.stream_options
    view = CompletionView(
        echoes=sent.echo is True,
        to_prompt=each,
        usage=UsageView() if options is None else options.usage,
    )
    count = 1 + len(others)
    choices = Choices(count, to_prompt=each)
    encoder = ChoicesEncoder([CompletionEncoder(view, number, choices) for number in range(count)])
    return IncomingRequest(
        decoded=DecodedRequest(
            request=first,
            unknown=decoded.unknown,
            without_effect=(*decoded.without_effect, *_ignored(sent)),
        ),
        door=DOOR,
        encoder=encoder,
        job_body=lambda: _encode(first),
        name_of=Places(items=(), tools=(), fields=FIELDS).name_of,
        others=others,
        select=encoder.select,
    )


def _prompts_of(sent: CompletionRequest) -> list[RawPrompt]:
    """Return the prompts, each a text or tokens. Raises: RequestError."""
    prompt, echo = sent.prompt, sent.echo is True
    shown = RawPrompt(echo=echo, echo_only=echo and sent.max_tokens == 0)
    if isinstance(prompt, str):
        return [replace(shown, text=prompt)]
    if prompt and all(isinstance(each, int) for each in prompt):
        return [replace(shown, tokens=prompt)]
    prompts = []
    for place, each in enumerate(prompt):
        if isinstance(each, int):
            raise RequestError(
                "A list of prompts has texts and lists of tokens; a list of tokens has no texts.",
                param=f"prompt[{place}]",
                code="invalid_type",
            )
        is_text = isinstance(each, str)
        prompts.append(replace(shown, text=each) if is_text else replace(shown, tokens=each))
    return prompts


def _request_of(sent: CompletionRequest, prompt: RawPrompt) -> CreateResponse:
    max_tokens = MAX_TOKENS if sent.max_tokens is None else sent.max_tokens
    return CreateResponse(
        **{
            **sent.shared(),
            "stream_options": sent.stream_options and sent.stream_options.shared,
            **dict.fromkeys(WITHOUT_EFFECT),
            "store": False,
            "raw_prompt": prompt,
            "max_output_tokens": max(1, max_tokens),
            "generate": False if max_tokens == 0 and not prompt.echo else None,
            "include": None if sent.logprobs is None else (LOGPROBS,),
            "top_logprobs": sent.logprobs,
        }
    )


def _check(sent: CompletionRequest, answers: int) -> None:
    """Raises: RequestError for what this door cannot do."""
    if not 1 <= answers <= MAX_ANSWERS:
        raise RequestError(
            f"The prompts, times 'n', are {answers} answers; 1 to {MAX_ANSWERS} are allowed.",
            param="prompt",
            code="invalid_value",
        )
    if sent.suffix:
        raise RequestError(
            "'suffix' is not supported: no model here is told what follows the completion.",
            param="suffix",
            code="unsupported_value",
        )
    if sent.best_of not in (None, sent.n or 1):
        raise RequestError(
            "'best_of' is not supported, unless it is the same as 'n'.",
            param="best_of",
            code="unsupported_value",
        )


def _ignored(sent: CompletionRequest) -> Iterator[str]:
    yield from sent.unshared()
    names: Sequence[str] = ("store", *WITHOUT_EFFECT)
    yield from (name for name in names if getattr(sent, name))
    options = sent.stream_options
    if options is not None and options.include_obfuscation:
        yield "stream_options.include_obfuscation"
