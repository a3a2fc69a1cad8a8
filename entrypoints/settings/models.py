"""The models of a server with several: the tables `[[models]]` of the settings file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.options import OWN_CLASS

ENGINE = rf"^(scripted|vllm|vllm_http|llama|chat|{OWN_CLASS})\Z"

Name = Annotated[str, Meta(min_length=1)]


class ModelTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[[models]]`. All fields that are not named here are `options` of its engine."""

    name: Annotated[
        tuple[Name, ...],
        Meta(
            description="The names that requests use. The first is shown.",
            extra={"allowed": "a string or a list of strings"},
            min_length=1,
        ),
    ]
    engine: Annotated[
        str,
        Meta(
            description="What runs the model: vllm (in this process), vllm_http (your vLLM "
            "servers), llama (a GGUF file, or your llama-servers), chat (a Chat Completions API), "
            "scripted, or your own Engine or Model, package.module:Class.",
            pattern=ENGINE,
            extra={"allowed": "vllm, vllm_http, llama, chat, scripted or package.module:Class"},
        ),
    ]
    fallback: Annotated[
        tuple[Name, ...],
        Meta(
            description="Names of other models that are tried in this order if this one fails "
            "before it has shown anything of its answer."
        ),
    ] = ()
    format: Annotated[
        str,
        Meta(
            description="The output format of the model, for an engine that works with tokens.",
            extra={"allowed": "auto, harmony, chat:FAMILY, FILE.toml or package.module:NAME"},
        ),
    ] = "auto"
    chat_template: Annotated[
        Path | None,
        Meta(description="A file with the Jinja chat template to use instead of the model's own."),
    ] = None
    tokenizer: Annotated[
        Path | None,
        Meta(
            description="The folder with the tokenizer and the chat template, for an engine that "
            "works with tokens. By default, the engine says where they are."
        ),
    ] = None
    unmarked_calls: Annotated[
        bool,
        Meta(
            description="Whether JSON that calls an offered tool is a call although the model left "
            "its markers out: a whole message, or a fence, a tag or lines with nothing else."
        ),
    ] = True
    options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"ModelTable({self.name!r}, {self.engine!r})"  # the options may be secret


COMMON_FIELDS = tuple(each for each in ModelTable.__struct_fields__ if each != "options")


def convert_models(tables: Any, file: Path | None) -> list[ModelTable]:
    """Return the models in the file. Errors contain no values, which may be secret."""
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise SettingsError(f"models in {file} must be tables: [[models]].")
    models: list[ModelTable] = []
    for position, table in enumerate(tables):
        try:
            models.append(_convert(table))
        except msgspec.ValidationError as error:
            raise SettingsError(f"models[{position}] in {file} is invalid: {error}.") from None
    _check_names(models, file)
    return models


def _convert(table: Mapping[str, Any]) -> ModelTable:
    common = {key: value for key, value in table.items() if key in COMMON_FIELDS}
    if isinstance(common.get("name"), str):
        common["name"] = [common["name"]]
    options = {key: value for key, value in table.items() if key not in COMMON_FIELDS}
    return msgspec.convert({**common, "options": options}, ModelTable, dec_hook=_to_path)


def _to_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str) and value:
        return Path(value).expanduser()
    raise ValueError("not a path")


def _check_names(models: Sequence[ModelTable], file: Path | None) -> None:
    """Raises: SettingsError for a name of two models, or a fallback that is no other model."""
    owners: dict[str, int] = {}
    for position, model in enumerate(models):
        for name in model.name:
            if name in owners:
                raise SettingsError(
                    f"models[{position}] in {file} has the name {name!r} of "
                    f"models[{owners[name]}]: each name belongs to one model."
                )
            owners[name] = position
    for position, model in enumerate(models):
        for name in model.fallback:
            if owners.get(name, position) == position:
                raise SettingsError(
                    f"models[{position}].fallback in {file} must name other models, not {name!r}."
                )
