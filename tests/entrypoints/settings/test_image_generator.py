"""The image generator that the settings choose."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.adapters.engines.scripted.images import ScriptedImageGenerator
from antiphon.adapters.stores.files.store import MemoryFileStore
from antiphon.adapters.upstreams.images_api import HttpImageGenerator
from antiphon.domain.errors import ImageError, SettingsError
from antiphon.entrypoints.settings import Settings, load
from antiphon.entrypoints.wiring.images import image_generator, image_tools
from antiphon.testing.images import an_image_request, make_images

OWN = "tests.entrypoints.own_adapters:Tiles"


def settings_of(**options: str) -> Settings:
    return load(None, {}, {name.replace("__", "."): value for name, value in options.items()})


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, None),
        ({"images__model": "m"}, None),
        ({"images__url": "http://127.0.0.1:1/v1"}, HttpImageGenerator),
        ({"images__url": "https://images.example.org/v1"}, HttpImageGenerator),
        ({"image_generator": "scripted"}, ScriptedImageGenerator),
        ({"image_generator": "scripted", "images__url": "http://a.b"}, ScriptedImageGenerator),
    ],
)
def test_there_is_a_generator_if_there_is_a_server_or_another_is_chosen(
    options: dict[str, str], kind: Any
) -> None:
    settings = settings_of(**options)
    generator = image_generator(settings)
    assert (kind is None) == (generator is None)
    assert kind is None or isinstance(generator, kind)
    providers = image_tools(settings, generator, MemoryFileStore())
    types = [name for each in providers for name in each.tool_types]
    assert types == ([] if kind is None else ["image_generation"])


def test_a_class_of_the_operators_own_need_not_know_the_limits() -> None:
    settings = settings_of(
        image_generator=OWN, images__model="big", images__timeout_s="1", images__max_bytes="9"
    )
    generator: Any = image_generator(settings)
    assert generator.model == "big"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"images\.url cannot be used"):
        image_generator(settings_of(images__url="http://a.example:99999/v1"))


async def test_the_metadata_of_a_cloud_is_no_server_of_images() -> None:
    generator = image_generator(settings_of(images__url="http://169.254.169.254/v1"))
    assert generator is not None
    with pytest.raises(ImageError, match="not available"):
        await make_images(generator, an_image_request())


def test_the_key_is_not_shown_with_the_settings() -> None:
    settings = settings_of(images__url="http://127.0.0.1:1", images__api_key="s3cret")
    assert "s3cret" not in repr(settings)
