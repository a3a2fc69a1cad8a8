"""An engine that cannot start says in one sentence what to change."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from antiphon.adapters.engines.vllm_engine import VllmEngine
from antiphon.domain.errors import SettingsError

needs_vllm = [
    pytest.mark.vllm,
    pytest.mark.timeout(120),
    # vLLM and torch warn a lot, which we cannot fix. Our own warnings stay errors.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]


async def message_of(engine: VllmEngine) -> str:
    with pytest.raises(SettingsError) as caught:
        await engine.start()
    await engine.aclose()
    return str(caught.value)


async def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert "pip install" in await message_of(VllmEngine("some/model"))


async def test_a_missing_model_folder_is_named() -> None:
    assert await message_of(VllmEngine("/no/such/model")) == (
        "There is no model folder '/no/such/model'."
    )


class TestWithVllm:
    pytestmark = needs_vllm

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            (["--dtyp", "float32"], "--dtyp"),
            (["--max-model-len", "many"], "--max-model-len"),
            (["--model", "other"], "--model"),
            (["--lora-modules", "nameonly"], "name=path"),
            (["--lora-modules", "{name"], "not JSON"),
            (["--kv-transfer-config", "{"], "--kv-transfer-config"),
        ],
    )
    async def test_a_bad_option_is_named(
        self, models_folder: Path, options: list[str], named: str
    ) -> None:
        message = await message_of(VllmEngine(str(models_folder / "chat"), engine_args=options))
        assert named in message
        assert "\n" not in message

    async def test_options_that_do_not_fit_the_model_are_refused(self, models_folder: Path) -> None:
        options = ["--max-model-len", "9000000"]
        message = await message_of(VllmEngine(str(models_folder / "chat"), engine_args=options))
        assert message.startswith("vLLM cannot serve")
        assert "9000000" in message
        assert "\n" not in message

    async def test_a_folder_without_a_model_is_refused(self, tmp_path: Path) -> None:
        message = await message_of(VllmEngine(str(tmp_path)))
        assert message.startswith(f"vLLM cannot serve '{tmp_path}'")
        assert "\n" not in message

    async def test_a_missing_adapter_is_named(self, models_folder: Path) -> None:
        options = [
            *("--dtype", "float32"),
            *("--max-model-len", "512"),
            "--enforce-eager",
            *("--lora-modules", json.dumps({"name": "lost", "path": "/no/such/adapter"})),
        ]
        message = await message_of(VllmEngine(str(models_folder / "chat"), engine_args=options))
        assert "'lost'" in message
        assert "\n" not in message
