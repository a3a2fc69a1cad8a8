"""Image generation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

from msgspec import Struct


class SourceImage(Struct, frozen=True, kw_only=True):
    """An image to edit, or a mask: the bytes of a PNG, JPEG, GIF or WebP file."""

    content: bytes
    media_type: str


class ImageRequest(Struct, frozen=True, kw_only=True):
    """An image to make.

    An `edit` has the `images` to change, at least one, the most important first; `mask`, if any, is
    of the first one. What is None is the generator's choice: `size` is `WIDTHxHEIGHT` in pixels,
    `output_format` is `png`, `jpeg` or `webp`, `output_compression` a percentage, and `quality`,
    `background`, `moderation` and `input_fidelity` are words of OpenAI's images API.
    `partial_images` is the most drafts that anybody wants to see, 0 to 3.
    """

    prompt: str
    tenant: str
    action: Literal["generate", "edit"] = "generate"
    images: Sequence[SourceImage] = ()
    mask: SourceImage | None = None
    size: str | None = None
    quality: str | None = None
    background: str | None = None
    output_format: str | None = None
    output_compression: int | None = None
    moderation: str | None = None
    input_fidelity: str | None = None
    partial_images: int = 0


class MadeImage(Struct, frozen=True, kw_only=True):
    """An image file, or a draft of one (`is_partial`).

    `revised_prompt` is the prompt that was used, if the generator has changed it. `quality` and
    `background` are those that were used, if it says so.
    """

    content: bytes
    is_partial: bool = False
    revised_prompt: str | None = None
    quality: str | None = None
    background: str | None = None


class ImageGenerator(Protocol):
    """Makes images, and edits them.

    Requests may run concurrently; cancelling one affects no other. Raises: ImageError, from
    `generate`, with a sentence for the model. The server checks what comes and how long it takes.
    """

    async def start(self) -> None:
        """Open. Does nothing by default. Raises: SettingsError."""
        return

    async def aclose(self) -> None:
        """Release all resources, if it was started. Does nothing by default."""
        return

    @abstractmethod
    def generate(self, request: ImageRequest) -> AsyncGenerator[MadeImage]:
        """Yield drafts, if the request wants some and there are any, and then the image.

        Drafts are of one image, each closer to it than the one before. What follows the image is
        not read. Leaving the iterator stops the work.
        """
