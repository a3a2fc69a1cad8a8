"""The weights of a real model, which `make test-real` installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.adapters.engines.llama.small_model import find_small_model


@pytest.fixture(scope="session")
def weights() -> Path:
    file = find_small_model()
    if file is None:
        pytest.skip("the small model is not installed: make test-real")
    return file
