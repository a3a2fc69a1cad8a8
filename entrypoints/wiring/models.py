"""Build the models: each from its table in the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.adapters.engines.pooled.options import SOURCES
from antiphon.adapters.upstreams.options import UpstreamOptions
from antiphon.application.model.fallback import FallbackModel
from antiphon.application.model.models import Models
from antiphon.application.model.stalls import TokenDeadlines
from antiphon.application.model.supervision import RestartPolicy, SupervisedModel
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Engine, Format, Model
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import SCRIPTED_MODELS, ModelTable, Settings
from antiphon.entrypoints.settings.sections import Scripted
from antiphon.entrypoints.wiring.fetching import egress
from antiphon.entrypoints.wiring.model_names import names_of
from antiphon.entrypoints.wiring.own_classes import (
    check_port,
    convert_options,
    load_instance,
    load_value,
)

if TYPE_CHECKING:
    from antiphon.adapters.formats.chat_template.families import Family

U = TypeVar("U", bound=UpstreamOptions)

HARMONY_MODEL = "scripted-harmony"
HARMONY_MODEL_TYPE = "gpt_oss"
CHAT_MODELS = tuple(name for name in SCRIPTED_MODELS if name != HARMONY_MODEL)
SCRIPTED_IMAGE_TOKENS = 85
TOKENIZER_FILES = ("tokenizer.json", "tekken.json")


class VllmOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `engine = "vllm"`."""

    model: Annotated[
        str,
        Meta(min_length=1, description="A folder with the model's weights, or a name of a hub."),
    ]
    options: Annotated[
        tuple[str, ...], Meta(description="Options for vLLM, as vLLM spells them.")
    ] = ()


def build_models(settings: Settings) -> Sequence[SupervisedModel]:
    """Return the models that the settings name, not started. Raises: SettingsError."""
    policy = RestartPolicy(max_failures=settings.engine_restarts)
    tables = settings.models or tables_of_a_single_model(settings)
    return [SupervisedModel(_build(table, settings), policy) for table in tables]


def offer_models(models: Sequence[Model], settings: Settings) -> Models:
    """Return the models as requests see them: each with those that it falls back on."""
    owners = {name: model for model in models for name in model.names}
    fallbacks = [[owners[name] for name in table.fallback] for table in settings.models]
    return Models(
        [
            FallbackModel([model, *others]) if others else model
            for model, others in zip_longest(models, fallbacks)
        ]
    )


def _build(table: ModelTable, settings: Settings) -> Model:
    build = BUILDERS.get(table.engine, _build_own)
    try:
        return build(table, settings)
    except SettingsError as error:
        if not settings.models:
            raise
        raise SettingsError(f"The model {table.name[0]!r} is invalid: {error}") from error


def tables_of_a_single_model(settings: Settings) -> Sequence[ModelTable]:
    """Return the table that `antiphon serve MODEL` and its options stand for."""
    if settings.engine == "scripted":
        return _scripted_tables(settings)
    assert settings.model is not None
    options: dict[str, Any] = {"model": settings.model}
    if settings.engine == "vllm":
        options["options"] = settings.engine_options
    return [
        ModelTable(
            name=tuple(settings.served_model_name or names_of(settings.model)),
            engine=settings.engine,
            format=settings.format,
            chat_template=settings.chat_template,
            options=options,
        )
    ]


def runs_a_file(table: ModelTable) -> bool:
    """Return whether llama.cpp runs the model of the table in a process of ours."""
    return table.engine == "llama" and not table.options.keys() & {*SOURCES}


def _scripted_tables(settings: Settings) -> Sequence[ModelTable]:
    """Return the table of the scripted model that the settings name, or those of both."""
    model, served_names = settings.model, settings.served_model_name
    tables: list[ModelTable] = []
    if model is None or model in CHAT_MODELS:
        is_harmony = settings.format in ("auto", "harmony")
        chat_format = "chat:scripted" if is_harmony else settings.format
        family = chat_format.removeprefix("chat:")
        is_known = family != "scripted" and isinstance(family_of(chat_format), str)
        family_names = (f"scripted-{family}",) if is_known else ()
        names = served_names or (*(CHAT_MODELS if model is None else (model,)), *family_names)
        tables.append(ModelTable(name=names, engine="scripted", format=chat_format))
    if model is None or model == HARMONY_MODEL:
        names = (served_names if model else ()) or (HARMONY_MODEL,)
        tables.append(ModelTable(name=names, engine="scripted", format="harmony"))
    if not tables:
        choices = ", ".join(SCRIPTED_MODELS)
        raise SettingsError(f"There is no scripted model {model!r}. Choose one of {choices}.")
    return tables


def _build_scripted(table: ModelTable, settings: Settings) -> Model:
    from antiphon.adapters.engines.scripted.engine import ScriptedEngine

    _refuse_fields(table, "chat_template", "tokenizer")
    options = convert_options(table.options, Scripted) if table.options else settings.scripted
    markup, make_format = _scripted_format(table.format)
    engine = ScriptedEngine(
        markup,
        models=table.name,
        context_length=options.context_length,
        tokens_per_s=options.tokens_per_s,
        step_tokens=options.step_tokens,
        slots=options.slots,
    )
    return _make_token_model(make_format, engine, table, settings)


def _scripted_format(name: str) -> tuple[Any, Callable[[], Format]]:
    """Return the scripted markup in which a model of this format writes, with the format."""
    if name == "harmony":
        from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup

        harmony = HarmonyFormat(image_tokens=SCRIPTED_IMAGE_TOKENS)
        return HarmonyMarkup(), lambda: harmony
    from antiphon.adapters.formats.chat_template import (
        ScriptedMarkup,
        scripted_chat,
        scripted_family,
    )

    if name in ("auto", "chat:scripted"):
        return ScriptedMarkup(), scripted_chat
    family_format, markup = scripted_family(family_of(name))
    return markup, lambda: family_format


def _build_vllm(table: ModelTable, settings: Settings) -> Model:
    """Return the model on vLLM in this process, whose adapters are imported only now."""
    from antiphon.adapters.engines.vllm_engine import VllmEngine

    options = convert_options(table.options, VllmOptions)
    engine_args = options.options
    if table.tokenizer is not None:
        engine_args = ("--tokenizer", str(table.tokenizer), *engine_args)
    engine = VllmEngine(options.model, served_names=table.name, engine_args=engine_args)
    return _token_model(engine, table, settings, folder=Path(options.model))


def _build_vllm_http(table: ModelTable, settings: Settings) -> Model:
    """Return the model on a pool of vLLM servers; the adapters are imported only now."""
    from antiphon.adapters.engines.vllm_http import VllmHttpEngine, VllmHttpOptions

    options = _upstream_options(table, settings, VllmHttpOptions)
    folder = None if options.model is None else Path(options.model).expanduser()
    return _token_model(VllmHttpEngine(table.name, options), table, settings, folder=folder)


def _build_llama(table: ModelTable, settings: Settings) -> Model:
    """Return the model in llama.cpp; the adapters are imported only now."""
    from antiphon.adapters.engines.llama import LlamaEngine, LlamaOptions

    options = _upstream_options(table, settings, LlamaOptions)
    engine = LlamaEngine(table.name, options, tokenizer=table.tokenizer)
    return _token_model(engine, table, settings)


def _build_chat(table: ModelTable, settings: Settings) -> Model:
    """Return the model on a Chat Completions server; its HTTP client is imported at its start."""
    from antiphon.adapters.models.chat_completions import ChatCompletionsModel, ChatOptions

    _refuse_fields(table, "format", "chat_template", "tokenizer")
    options = _upstream_options(table, settings, ChatOptions)
    return ChatCompletionsModel(
        table.name,
        options,
        deadlines=_deadlines(settings),
        unmarked_calls=table.unmarked_calls,
    )


def _upstream_options(table: ModelTable, settings: Settings, kind: type[U]) -> U:
    """Return the options of a model on another server, with the certificate of all connections if
    the table names none. Raises: SettingsError."""
    options: U = convert_options(table.options, kind)
    certificate = egress(settings).certificate
    if certificate is None or options.certificate is not None:
        return options
    cert, key = str(certificate.cert), str(certificate.key)
    return replace(options, client_cert=cert, client_key=key)


def _build_own(table: ModelTable, settings: Settings) -> Model:
    """Return the operator's own Model, or a model on the operator's own Engine."""
    own: Any = load_instance(
        table.engine, what="The engine", options=table.options, names=table.name
    )
    what = f"The engine {table.engine!r}"
    model: Model
    if hasattr(own, "start_turn"):
        check_port(own, Model, what=what)
        _refuse_fields(table, "format", "chat_template", "tokenizer", "unmarked_calls")
        model = own
    elif hasattr(own, "generate"):
        check_port(own, Engine, what=what)
        model = _token_model(own, table, settings)
    else:
        raise SettingsError(f"{what} is neither an Engine nor a Model.")
    if tuple(model.names) != table.name:
        raise SettingsError(
            f"{what} serves {', '.join(model.names)}, and not the names of its table: let its "
            "constructor take `names`."
        )
    return model


BUILDERS: Mapping[str, Callable[[ModelTable, Settings], Model]] = {
    "scripted": _build_scripted,
    "vllm": _build_vllm,
    "vllm_http": _build_vllm_http,
    "llama": _build_llama,
    "chat": _build_chat,
}
"""What builds the model of a table, by its `engine`; any other engine is a class."""


def _refuse_fields(table: ModelTable, *fields: str) -> None:
    """Raises: SettingsError for one of these fields, which has no effect on this engine."""
    for field in fields:
        if getattr(table, field) not in (None, "auto", True):
            raise SettingsError(
                f"{field} has no effect on the engine {table.engine!r}: remove it from the table."
            )


def _deadlines(settings: Settings) -> TokenDeadlines:
    return TokenDeadlines(
        first_token_s=settings.first_token_s, between_tokens_s=settings.between_tokens_s
    )


def _token_model(
    engine: Engine, table: ModelTable, settings: Settings, *, folder: Path | None = None
) -> TokenModel:
    """Return the model on an engine. The `tokenizer` of the table comes before the `folder` that
    the engine's options name, and both before what the started engine says.

    Raises: SettingsError for a `tokenizer` that is none.
    """
    if table.tokenizer is not None and not _has_tokenizer(table.tokenizer):
        raise SettingsError(
            f"tokenizer must be a folder with {' or '.join(TOKENIZER_FILES)}; "
            f"{str(table.tokenizer)!r} has neither."
        )
    make_format = _format_factory(engine, table, table.tokenizer or folder)
    return _make_token_model(make_format, engine, table, settings)


def _make_token_model(
    make_format: Callable[[], Format], engine: Engine, table: ModelTable, settings: Settings
) -> TokenModel:
    from antiphon.adapters.formats.unmarked_calls import with_unmarked_calls

    return TokenModel(
        make_format,
        engine,
        deadlines=_deadlines(settings),
        extend_parser=with_unmarked_calls if table.unmarked_calls else None,
    )


def _format_factory(engine: Engine, table: ModelTable, folder: Path | None) -> Callable[[], Format]:
    """Return a factory of the model's format, from the folder or from the started engine."""
    from antiphon.adapters.formats.chat_template import from_hf_tokenizer, load
    from antiphon.adapters.formats.harmony import HarmonyFormat
    from antiphon.adapters.formats.harmony.encoding import load_encoding

    is_harmony = folder is not None and _writes_harmony(folder)
    if table.format == "harmony" or (table.format == "auto" and is_harmony):
        load_encoding()  # early, so that the first request does not wait for the vocabulary
        return HarmonyFormat
    family, file = family_of(table.format), table.chat_template
    if folder is not None and _has_tokenizer(folder):
        # Early: the engine takes a minute to start.
        folder_format = load(folder, family=family, template_file=file)
        return lambda: folder_format

    def make_format() -> Format:
        if family == "auto" and engine.model_type == HARMONY_MODEL_TYPE:
            return HarmonyFormat()
        found = engine.model_folder
        if found is not None:
            if family == "auto" and _writes_harmony(found):
                return HarmonyFormat()
            return load(found, family=family, template_file=file)
        if engine.tokenizer is None:
            raise SettingsError(
                f"The tokenizer of {table.name[0]!r} is not known: set `tokenizer` in its table "
                "[[models]] to a folder with its tokenizer.json."
            )
        return from_hf_tokenizer(
            engine.tokenizer, family=family, template_file=file, model_type=engine.model_type
        )

    return make_format


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def family_of(format_name: str) -> str | Family:
    """Return the name of a family of ours, or the operator's own family."""
    from antiphon.adapters.formats.chat_template.families.own import check_family, read_family

    if format_name.endswith(".toml"):
        return read_family(Path(format_name))
    name = format_name.removeprefix("chat:")
    if ":" in name:
        return check_family(load_value(name, what="The format"), name=name)
    return name


def _writes_harmony(folder: Path) -> bool:
    import msgspec

    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return "gpt-oss" in folder.name
    return bool(config.get("model_type") == HARMONY_MODEL_TYPE)
