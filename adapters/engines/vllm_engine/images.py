"""Prompts with images: decoded, processed, each placeholder grown to the tokens that it stands for.

vLLM would do the same while it admits a run; done before, the tokens can be counted, checked
against the context and shortened like any others, and what was counted is what runs.
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

MARKERS = ("image_token_id", "image_token_index", "media_placeholder_token_id")
"""How the configurations of models call the token that stands for an image."""


class Images:
    """The images of one started AsyncLLM's prompts."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._renderer = llm.renderer
        processor = self._renderer.mm_processor
        limits = processor.info.allowed_mm_limits if processor is not None else {}
        self.are_read: bool = limits.get("image", 0) != 0
        config = llm.model_config.hf_config
        known = (getattr(config, name, None) for name in MARKERS)
        self._markers = frozenset(token for token in known if isinstance(token, int))
        configured = llm.model_config.multimodal_config
        options = (configured.media_io_kwargs or {}) if configured is not None else {}
        self._reader = ImageMediaIO(**options.get("image", {}))

    async def prepare(self, prompt: Prompt) -> Prompt:
        """Raises: RequestError for what this model cannot be given."""
        self._check_markers(prompt)
        if not prompt.image_urls:
            return prompt
        images = await asyncio.to_thread(self._decoded, prompt.image_urls)
        tokens = TokensPrompt(
            prompt_token_ids=list(prompt.token_ids), multi_modal_data={"image": images}
        )
        try:
            # Without the cache that vLLM shares with the engine's process: it takes what it has
            # processed as sent, and a prompt that is only counted never is.
            prepared: Any = await self._renderer.process_for_engine_async(
                tokens, time.time(), skip_mm_cache=True
            )
        except VLLMClientError as error:
            raise RequestError(str(error.args[0]), param="input") from error
        except Exception as error:
            # The processors of models raise what they please: for a picture one pixel high, say.
            raise RequestError(
                "The model cannot take the images of this request: one has a shape that it does "
                "not know.",
                param="input",
                code="invalid_image",
            ) from error
        return replace(prompt, token_ids=prepared["prompt_token_ids"], prepared=prepared)

    def _check_markers(self, prompt: Prompt) -> None:
        # A text may spell the marker: then images would stand in the wrong place, and some models
        # end their engine over a marker without an image.
        if not self._markers:
            return
        found = sum(prompt.token_ids.count(marker) for marker in self._markers)
        if found > len(prompt.image_urls):
            raise RequestError(
                "A text of the input spells this model's own marker for images; leave it out.",
                param="input",
                code="invalid_prompt",
            )

    def _decoded(self, urls: Sequence[str]) -> list[Any]:
        return [self._image(number, url) for number, url in enumerate(urls, start=1)]

    def _image(self, number: int, url: str) -> Any:
        try:
            return self._reader.load_bytes(base64.b64decode(url.partition(",")[2]))
        except Exception as error:
            # Its text is not repeated: it names objects of this process.
            raise RequestError(
                f"Image {number} of the conversation cannot be decoded.",
                param="input",
                code="image_parse_error",
            ) from error
