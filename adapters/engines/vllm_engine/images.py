"""Prepares prompts with images: decodes them and expands each placeholder to the image's tokens.

vLLM would do the same when it admits a run. Done before that, the tokens can be counted, checked
against the context and truncated like any others, and the run uses exactly the counted tokens.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.multimodal.media.image import ImageMediaIO
from vllm.v1.engine.async_llm import AsyncLLM

from antiphon.application.ports import Prompt
from antiphon.domain.errors import RequestError

IMAGE_TOKEN_FIELDS = ("image_token_id", "image_token_index", "media_placeholder_token_id")
"""Names that models' configurations have for the token that stands for an image."""


class Images:
    """Prepares the images in prompts for a started AsyncLLM."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._renderer = llm.renderer
        processor = self._renderer.mm_processor
        limits = processor.info.allowed_mm_limits if processor is not None else {}
        self.are_supported: bool = limits.get("image", 0) != 0
        config = llm.model_config.hf_config
        tokens = (getattr(config, name, None) for name in IMAGE_TOKEN_FIELDS)
        self._image_tokens = frozenset(token for token in tokens if isinstance(token, int))
        multimodal = llm.model_config.multimodal_config
        options = (multimodal.media_io_kwargs or {}) if multimodal is not None else {}
        self._reader = ImageMediaIO(**options.get("image", {}))

    async def prepare(self, prompt: Prompt) -> Prompt:
        """Return the prompt with its images expanded. Raises: RequestError for invalid images."""
        self._check_image_tokens(prompt)
        if not prompt.image_urls:
            return prompt
        images = await asyncio.to_thread(self._decode_all, prompt.image_urls)
        tokens = TokensPrompt(
            prompt_token_ids=list(prompt.token_ids), multi_modal_data={"image": images}
        )
        try:
            # Without the cache that vLLM shares with the engine's process: it assumes that all
            # processed images are sent, but those of a prompt that is only counted never are.
            prepared: Any = await self._renderer.process_for_engine_async(
                tokens, time.time(), skip_mm_cache=True
            )
        except VLLMClientError as error:
            raise RequestError(str(error.args[0]), param="input") from error
        except Exception as error:
            # Models' processors raise any kind of error, for example for an image one pixel high.
            raise RequestError(
                "The model cannot process the images of this request: one has a wrong shape.",
                param="input",
                code="invalid_image",
            ) from error
        return replace(prompt, token_ids=prepared["prompt_token_ids"], prepared=prepared)

    def _check_image_tokens(self, prompt: Prompt) -> None:
        # If a text spells the image token, images end up in the wrong places, and some models end
        # their engine over a token without an image.
        if not self._image_tokens:
            return
        count = sum(prompt.token_ids.count(token) for token in self._image_tokens)
        if count > len(prompt.image_urls):
            raise RequestError(
                "A text in the input spells this model's image token; remove it.",
                param="input",
                code="invalid_prompt",
            )

    def _decode_all(self, urls: Sequence[str]) -> list[Any]:
        return [self._decode(number, url) for number, url in enumerate(urls, start=1)]

    def _decode(self, number: int, url: str) -> Any:
        try:
            return self._reader.load_bytes(base64.b64decode(url.partition(",")[2]))
        except Exception as error:
            # The error's text is left out: it contains names of objects in this process.
            raise RequestError(
                f"Image {number} of the conversation cannot be decoded.",
                param="input",
                code="image_parse_error",
            ) from error
