"""An image generator that makes what the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from antiphon.adapters.engines.scripted.images import ScriptedImageGenerator, draw_png
from antiphon.application.ports import ImageGenerator, ImageRequest, MadeImage

PNG = draw_png(b"a" * 32, 8, 4, tiles=2)
DRAFT = draw_png(b"a" * 32, 8, 4, tiles=1)


class FakeImageGenerator(ImageGenerator):
    """Yields what is in `makes`, raises the errors in it, and waits forever where it is None.

    Without it, draws as the scripted generator does.
    """

    def __init__(self) -> None:
        self.makes: Sequence[MadeImage | BaseException | None] | None = None
        self.asked: list[ImageRequest] = []
        self.left = 0

    async def generate(self, request: ImageRequest) -> AsyncGenerator[MadeImage]:
        self.asked.append(request)
        try:
            if self.makes is None:
                async for image in ScriptedImageGenerator().generate(request):
                    yield image
                return
            for each in self.makes:
                if isinstance(each, BaseException):
                    raise each
                if each is None:
                    await asyncio.Event().wait()
                else:
                    yield each
        finally:
            self.left += 1
