"""Fixtures for tests with the real vLLM: tiny models, and a vLLM configured for a small CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SMALL_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Otherwise the sampler compiles C++ at the first request, which takes 15 s.
    "TORCH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="session", autouse=True)
def small_cpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL_CPU.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `chat`, `sees` and `gpt_oss`, made in another process to unload torch."""
    folder = tmp_path_factory.mktemp("models")
    script = Path(__file__).with_name("tiny_models.py")
    subprocess.run([sys.executable, script, folder], check=True)
    return folder
