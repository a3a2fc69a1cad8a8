"""The models: an engine, and the format that its model writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import (
    Engine,
    Format,
    Model,
)
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.model_names import names_of
from antiphon.entrypoints.settings import SCRIPTED_MODELS, Settings

HARMONY_MODEL = "scripted-harmony"
CHAT_MODELS = tuple(name for name in SCRIPTED_MODELS if name != HARMONY_MODEL)
SCRIPTED_IMAGE_TOKENS = 85


def scripted_models(settings: Settings) -> Sequence[Model]:
    """Return the scripted models: the one that was asked for, or both."""
    asked = settings.model
    models: list[Model] = []
    if asked is None or asked in CHAT_MODELS:
        names = settings.served_model_name or (CHAT_MODELS if asked is None else (asked,))
        models.append(_scripted_chat(settings, names))
    if asked is None or asked == HARMONY_MODEL:
        names = (settings.served_model_name if asked else ()) or (HARMONY_MODEL,)
        models.append(_scripted_harmony(settings, names))
    if not models:
        known = ", ".join(SCRIPTED_MODELS)
        raise SettingsError(f"There is no scripted model {asked!r}; there are {known}.")
    return models


def _scripted_chat(settings: Settings, names: Sequence[str]) -> Model:
    from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat

    return TokenModel(scripted_chat, _scripted_engine(settings, ScriptedMarkup(), names))


def _scripted_harmony(settings: Settings, names: Sequence[str]) -> Model:
    from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup

    harmony = HarmonyFormat(image_tokens=SCRIPTED_IMAGE_TOKENS)
    return TokenModel(lambda: harmony, _scripted_engine(settings, HarmonyMarkup(), names))


def _scripted_engine(settings: Settings, markup: Any, names: Sequence[str]) -> Engine:
    from antiphon.adapters.engines.scripted.engine import ScriptedEngine

    return ScriptedEngine(
        markup,
        models=names,
        context_length=settings.scripted.context_length,
        tokens_per_s=settings.scripted.tokens_per_s,
        step_tokens=settings.scripted.step_tokens,
    )


def vllm_models(settings: Settings) -> Sequence[Model]:
    """Return the model on vLLM. The adapters are imported here, only when they are chosen."""
    from antiphon.adapters.engines.vllm_engine import VllmEngine

    assert settings.model is not None
    engine = VllmEngine(
        settings.model,
        served_names=settings.served_model_name or names_of(settings.model),
        engine_args=settings.engine_options,
    )
    return [TokenModel(_format_of(settings, lambda: engine.tokenizer), engine)]


def _format_of(settings: Settings, tokenizer: Callable[[], Any]) -> Callable[[], Format]:
    """Return what makes the model's format, by its own folder or by the engine's tokenizer."""
    from antiphon.adapters.formats.chat_template import from_hf_tokenizer, load
    from antiphon.adapters.formats.harmony import HarmonyFormat
    from antiphon.adapters.formats.harmony.encoding import load_encoding

    folder = Path(settings.model or "")
    if settings.format == "harmony" or (settings.format == "auto" and _writes_harmony(folder)):
        load_encoding()  # now: the first request should not wait for the vocabulary
        return HarmonyFormat
    family = settings.format.removeprefix("chat:")
    if (folder / "tokenizer.json").is_file():
        format_of_folder = load(folder, family=family)  # now: before the engine takes its minute
        return lambda: format_of_folder
    return lambda: from_hf_tokenizer(tokenizer(), family=family)


def _writes_harmony(folder: Path) -> bool:
    import msgspec

    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return "gpt-oss" in folder.name
    return bool(config.get("model_type") == "gpt_oss")
