"""Every image generator passes the contract: the scripted one, and a server of the images API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.images_server import FakeImages, drawing

from antiphon.adapters.engines.scripted.images import ScriptedImageGenerator
from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.upstreams.images_api import HttpImageGenerator
from antiphon.application.ports import ImageGenerator
from antiphon.entrypoints.wiring.webhooks import operator_policy
from antiphon.testing.images import ImageGeneratorContract


class TestScriptedImageGenerator(ImageGeneratorContract):
    @pytest.fixture
    def generator(self) -> ImageGenerator:
        return ScriptedImageGenerator()


class TestHttpImageGenerator(ImageGeneratorContract):
    @pytest.fixture
    def server(self) -> Iterator[FakeImages]:
        with drawing() as fake:
            yield fake

    @pytest.fixture
    def generator(self, server: FakeImages) -> ImageGenerator:
        pools = GuardedPools(operator_policy([server.url]))
        return HttpImageGenerator(server.url, model="m", pools=pools, max_bytes=1_000_000)


class TestAServerThatMakesNoDrafts(TestHttpImageGenerator):
    @pytest.fixture
    def server(self) -> Iterator[FakeImages]:
        with drawing() as fake:
            fake.refused = {"stream", "partial_images", "response_format"}
            yield fake
