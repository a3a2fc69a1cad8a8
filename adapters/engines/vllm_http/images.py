"""Prepares prompts with images on the pool: their tokens are known before the run."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from antiphon.adapters.engines.pooled.pool import Member, Pool
from antiphon.adapters.engines.pooled.refusals import (
    Outcome,
    outcome_of,
    read_details,
    to_request_error,
)
from antiphon.adapters.engines.vllm_http.image_tokens import (
    RENDER_PATH,
    ImagePrompt,
    expand,
    find_placeholder,
    read_images,
    render_request,
    spelled_token,
)
from antiphon.adapters.upstreams.client import UpstreamRefused
from antiphon.application.ports import EngineRequest, Prompt
from antiphon.domain.errors import EngineDead, EngineError, RequestError, ServerOverloaded

RENDER_S = 60.0
"""A server has so long to decode the images of a request."""

MAX_CACHED_TOKENS = 1_000_000
MAX_IDS = 10_000
MAX_FAILURES = 3

INTERNAL_ERROR = 500
"""Models' processors raise any kind of error for an image that they cannot process, and vLLM
answers with this status."""

Images = Sequence[Sequence[int]]
"""The tokens of each image."""


class PoolImages:
    """Expands the images in prompts, with what any server of the pool says about them.

    `placeholders` are tokens that the model's configuration names for an image.
    """

    def __init__(self, pool: Pool, *, placeholders: Collection[int] = ()) -> None:
        self._pool = pool
        self._placeholders = placeholders
        self._cache = _ImageCache()
        self._ids: OrderedDict[bytes, str] = OrderedDict()

    @property
    def are_supported(self) -> bool:
        """Whether every server reads images: a run may get any of them."""
        profiles = self._pool.profiles
        return bool(profiles) and all(each.reads_images for each in profiles)

    async def prepare(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its images expanded.

        Raises: RequestError for images that are not read; ServerOverloaded; EngineError.
        """
        if not prompt.image_urls:
            self._check_text(prompt.token_ids)
            return prompt
        if not self.are_supported:
            raise RequestError("This model does not read images.", param="input")
        digests = await asyncio.to_thread(_digests, prompt.image_urls)
        images = await self._expand_images(prompt.image_urls, b"".join(digests))
        placeholder = find_placeholder(prompt.token_ids, images, named=self._placeholders)
        return replace(
            prompt,
            token_ids=expand(prompt.token_ids, placeholder, images),
            prepared=ImagePrompt(
                token_ids=prompt.token_ids,
                image_urls=prompt.image_urls,
                image_ids=[self._ids.get(digest) for digest in digests],
            ),
        )

    def _check_text(self, token_ids: Sequence[int]) -> None:
        # Some models end their engine over an image's token without an image.
        if self.are_supported and any(map(token_ids.count, self._placeholders)):
            raise spelled_token()

    def renew(self, request: EngineRequest) -> EngineRequest | None:
        """Return the request with other ids for its images, which later prompts have, too; None if
        it has no images.

        If vLLM refuses a run after it has read an image, it takes the image for one that its engine
        has. From then on, each run with that image fails there, until the image has another id.
        """
        images = request.prompt.prepared
        if not isinstance(images, ImagePrompt):
            return None
        digests = _digests(images.image_urls)
        for digest in digests:
            self._ids[digest] = secrets.token_hex(16)
            self._ids.move_to_end(digest)
        ids = [self._ids[digest] for digest in digests]
        while len(self._ids) > MAX_IDS:
            self._ids.popitem(last=False)
        renewed = replace(images, image_ids=ids)
        return replace(request, prompt=replace(request.prompt, prepared=renewed))

    async def _expand_images(self, urls: Sequence[str], key: bytes) -> Images:
        # All together, as in the run: for some models, an image's tokens depend on their number.
        images = self._cache.get(key)
        if images is None:
            images = await self._render(urls)
            self._cache.put(key, images)
        return images

    async def _render(self, urls: Sequence[str]) -> Images:
        """Return what the least loaded server that answers says.

        Raises: RequestError, ServerOverloaded, EngineError.
        """
        tried: list[Member] = []
        error: EngineError | ServerOverloaded = EngineDead("No model server is available.")
        while len(tried) < MAX_FAILURES and (member := self._pool.idlest(tried=tried)):
            tried.append(member)
            try:
                return await _render_on(member, urls)
            except UpstreamRefused as refused:
                error = _to_error(refused)
            except EngineError as lost:
                self._pool.report_doubt()
                error = lost
        raise error


async def _render_on(member: Member, urls: Sequence[str]) -> Images:
    """Raises: UpstreamRefused, EngineError."""
    assert member.profile is not None
    body = render_request(member.profile.model_name, urls)
    answer = await member.client.post(RENDER_PATH, body, timeout_s=RENDER_S)
    images = [array("Q", tokens) for tokens in read_images(answer)]
    if len(images) != len(urls):
        raise EngineError("The model server does not say which tokens the images have.")
    return images


def _to_error(refused: UpstreamRefused) -> EngineError | ServerOverloaded:
    """Return why another server should be asked. Raises: RequestError if none should."""
    if refused.status == INTERNAL_ERROR:
        raise RequestError(
            "The model cannot process the images of this request: one has a wrong shape.",
            param="input",
            code="invalid_image",
        ) from refused
    match outcome_of(refused.status):
        case Outcome.INVALID:
            error = to_request_error(read_details(refused.body))
            # vLLM names what it read, an `image`, or a field of ours.
            raise RequestError(error.message, param="input", code=error.code) from refused
        case Outcome.BUSY:
            return ServerOverloaded("The model servers are overloaded. Please retry later.")
        case Outcome.FAILED:
            return refused


def _digests(urls: Sequence[str]) -> list[bytes]:
    return [hashlib.sha256(url.encode()).digest() for url in urls]


class _ImageCache:
    """The tokens of the images of prompts, by their digest: at most `MAX_CACHED_TOKENS`."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, Images] = OrderedDict()
        self._tokens = 0

    def get(self, key: bytes) -> Images | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: bytes, images: Images) -> None:
        if key in self._entries:
            return
        self._entries[key] = images
        self._tokens += sum(map(len, images))
        while self._tokens > MAX_CACHED_TOKENS:
            _, oldest = self._entries.popitem(last=False)
            self._tokens -= sum(map(len, oldest))
