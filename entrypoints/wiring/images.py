"""Build the image generation that the settings choose."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.adapters.engines.scripted.images import ScriptedImageGenerator
from antiphon.application.ports import FileStore, ImageGenerator
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.image_generation import ImageGenerationProvider, ImageLimits
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.settings import ImageServer, Settings
from antiphon.entrypoints.settings.options import is_own_class
from antiphon.entrypoints.wiring.fetching import egress
from antiphon.entrypoints.wiring.own_classes import Section
from antiphon.entrypoints.wiring.own_ports import load_port
from antiphon.entrypoints.wiring.webhooks import operator_policy


def image_generator(settings: Settings) -> ImageGenerator | None:
    """Return the image generator, or None if there is none. Raises: SettingsError."""
    options = settings.images
    if is_own_class(settings.image_generator):
        # The limits are the server's own: a class need not know them.
        server = ImageServer(url=options.url, model=options.model, api_key=options.api_key)
        section = Section("images", server)
        own: ImageGenerator = load_port(
            settings, "image_generator", ImageGenerator, section=section
        )
        return own
    if settings.image_generator == "scripted":
        return ScriptedImageGenerator()
    if options.url is None:
        return None
    try:
        policy = operator_policy([options.url])
    except FetchRefused as error:
        raise SettingsError(f"The images API at images.url cannot be used: {error}") from None
    # Imported here: a server without it does without the HTTP client.
    from antiphon.adapters.fetching import GuardedPools
    from antiphon.adapters.upstreams.images_api import HttpImageGenerator

    return HttpImageGenerator(
        options.url,
        model=options.model,
        pools=GuardedPools(policy, egress=egress(settings)),
        api_key=options.api_key,
        max_bytes=options.max_bytes,
    )


def image_tools(
    settings: Settings, generator: ImageGenerator | None, files: FileStore
) -> Sequence[ToolProvider]:
    """Return what provides image generation, if there is a generator."""
    if generator is None:
        return ()
    limits = ImageLimits(
        timeout_s=settings.images.timeout_s,
        max_bytes=settings.images.max_bytes,
        max_pixels=settings.max_image_pixels,
    )
    return (ImageGenerationProvider(generator, files, limits=limits),)
