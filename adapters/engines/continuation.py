"""Go on after tokens that were generated before, in an engine that continues any prompt."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.application.ports import EngineRequest


def continuation_of(request: EngineRequest) -> EngineRequest:
    """Return the request with what was `written` at the end of its prompt, and the limits left.

    A prompt with images keeps its `prepared` form, which is the engine's own.
    """
    if not request.written:
        return request
    prompt, sampling = request.prompt, request.sampling
    if sampling.max_tokens is not None:
        sampling = replace(sampling, max_tokens=sampling.max_tokens - len(request.written))
    return replace(
        request,
        prompt=replace(prompt, token_ids=[*prompt.token_ids, *request.written]),
        sampling=sampling,
    )
