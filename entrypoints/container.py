"""The composition root: which adapters the settings choose, and who is given what.

It only builds objects; `server.py` starts and closes the chosen ones. dependency-injector appears
nowhere else. Tests build a container of their own and override providers.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import ipaddress
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dependency_injector import containers, providers

from antiphon.adapters.fetching import Checked, Guard, HttpFetcher, NoFetcher
from antiphon.adapters.ids import new_id
from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.sealing import Sealer
from antiphon.adapters.stores.files import FolderFileStore, MemoryFileStore
from antiphon.adapters.stores.memory import MemoryEventLog, MemoryResponseStore
from antiphon.application.compact_conversation import CompactConversation
from antiphon.application.conversations import (
    AddItems,
    CreateConversation,
    DeleteConversation,
    GetConversation,
    GetItem,
    ListItems,
    RemoveItem,
    UpdateConversation,
)
from antiphon.application.count_tokens import CountTokens
from antiphon.application.create_response import CreateResponseService
from antiphon.application.expand_prompt import ExpandPrompt
from antiphon.application.files import (
    AddFile,
    DeleteFile,
    FileLimits,
    GetFile,
    ListFiles,
    ReadFile,
)
from antiphon.application.follow_response import FollowResponse
from antiphon.application.hold_conversation import HoldConversation
from antiphon.application.lanes import LaneLimits
from antiphon.application.load_history import LoadHistory
from antiphon.application.media import MediaLimits, ShowMedia
from antiphon.application.models import Models
from antiphon.application.ports import (
    Engine,
    Fetcher,
    Format,
    Model,
    PromptTemplates,
    ResponseStore,
    ToolServers,
)
from antiphon.application.prepare_turn import PrepareTurn
from antiphon.application.read_items import ReadItems
from antiphon.application.run_response import RunResponse
from antiphon.application.runs import Runs
from antiphon.application.show_items import ShowItems
from antiphon.application.stored_responses import (
    CancelResponse,
    DeleteResponse,
    GetResponse,
    ListInputItems,
    RecoverResponses,
)
from antiphon.application.token_model import TokenModel
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.http.bodies import BodyLimits
from antiphon.entrypoints.http.conversations import ConversationServices
from antiphon.entrypoints.http.dialects import DIALECTS
from antiphon.entrypoints.http.files import FileServices
from antiphon.entrypoints.http.heartbeat import Heartbeat
from antiphon.entrypoints.http.responses import HttpOptions, Services
from antiphon.entrypoints.settings import SCRIPTED_MODELS, Settings

HARMONY_MODEL = "scripted-harmony"
CHAT_MODELS = tuple(name for name in SCRIPTED_MODELS if name != HARMONY_MODEL)
SCRIPTED_IMAGE_TOKENS = 85


def sqlite_store(settings: Settings) -> ResponseStore:
    from antiphon.adapters.stores.sqlite import SqliteResponseStore

    assert settings.sqlite_file is not None
    return SqliteResponseStore(settings.sqlite_file)


def named_store(settings: Settings) -> ResponseStore:
    """Return an instance of the class that `package.module:Class` names."""
    module_name, _, class_name = settings.store.partition(":")
    try:
        store: ResponseStore = getattr(importlib.import_module(module_name), class_name)()
    except (ImportError, AttributeError) as exc:
        raise SettingsError(f"The store {settings.store!r} cannot be loaded: {exc}.") from None
    return store


def prompt_templates(folder: Path | None) -> PromptTemplates | None:
    from antiphon.adapters.prompts.folder import FolderPromptTemplates

    return None if folder is None else FolderPromptTemplates(folder)


def store_kind(settings: Settings) -> str:
    if settings.store == "memory":
        return "memory"
    return "sqlite" if settings.sqlite_file else "named"


def file_store_kind(settings: Settings) -> str:
    return "memory" if settings.store == "memory" else "folder"


def fetcher(settings: Settings) -> Fetcher:
    """Return the way out, or what stands in its place where there is none."""
    fetch = settings.fetch
    if not fetch.urls:
        return NoFetcher()
    return HttpFetcher(
        _guard(settings),
        max_bytes=fetch.max_bytes,
        timeout_s=fetch.timeout_s,
        max_redirects=fetch.redirects,
    )


def _guard(settings: Settings) -> Guard:
    fetch = settings.fetch
    return Guard(hosts=fetch.hosts, private=tuple(map(ipaddress.ip_network, fetch.private)))


def tool_servers(settings: Settings) -> ToolServers | None:
    """Return what calls MCP servers, None where the extra `mcp` is not installed."""
    from antiphon.adapters.tool_servers.mcp import McpServers

    if importlib.util.find_spec("mcp") is None:
        return None
    return McpServers(
        Checked(_guard(settings)) if settings.fetch.urls else None,
        timeout_s=settings.tools.timeout_s,
        max_bytes=settings.tools.max_bytes,
    )


def runs_tools(servers: ToolServers | None) -> bool:
    return servers is not None


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
        served_names=settings.served_model_name or (settings.model,),
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


class Container(containers.DeclarativeContainer):
    """Give it `settings`; ask it for what `server.py` starts and serves."""

    settings: providers.Dependency[Settings] = providers.Dependency(instance_of=Settings)

    store: providers.Provider[ResponseStore] = providers.Selector(
        providers.Callable(store_kind, settings),
        memory=providers.Singleton(MemoryResponseStore, keep=settings.provided.keep_responses),
        sqlite=providers.Singleton(sqlite_store, settings),
        named=providers.Singleton(named_store, settings),
    )
    files = providers.Selector(
        providers.Callable(file_store_kind, settings),
        memory=providers.Singleton(MemoryFileStore),
        folder=providers.Singleton(FolderFileStore, settings.provided.files_folder),
    )
    log = providers.Singleton(
        MemoryEventLog,
        keep_events=settings.provided.keep_events,
        keep_s=settings.provided.keep_events_s,
    )
    models = providers.Singleton(
        Models,
        providers.Selector(
            settings.provided.engine,
            scripted=providers.Singleton(scripted_models, settings),
            vllm=providers.Singleton(vllm_models, settings),
        ),
    )
    sealer = providers.Singleton(Sealer, settings.provided.seal_key_path)
    runs = providers.Singleton(Runs)
    run_response = providers.Singleton(
        RunResponse, log, store, log_outputs=settings.provided.log_outputs
    )
    prompts: providers.Provider[PromptTemplates | None] = providers.Singleton(
        prompt_templates, settings.provided.prompts_dir
    )
    expand_prompt = providers.Singleton(ExpandPrompt, prompts)
    read_items = providers.Singleton(ReadItems, store)
    load_history = providers.Singleton(LoadHistory, store)
    show_media = providers.Singleton(
        ShowMedia,
        files,
        providers.Singleton(fetcher, settings),
        providers.Singleton(PdfReader),
        limits=providers.Singleton(
            MediaLimits,
            count=settings.provided.max_media,
            max_bytes=settings.provided.max_media_bytes,
            max_pixels=settings.provided.max_image_pixels,
        ),
    )
    show_items = providers.Singleton(ShowItems, show_media, unseal=sealer.provided.unseal)
    tool_servers: providers.Provider[ToolServers | None] = providers.Singleton(
        tool_servers, settings
    )
    prepare_turn = providers.Singleton(
        PrepareTurn,
        models,
        read_items,
        load_history,
        show_items,
        runs_tools=providers.Callable(runs_tools, tool_servers),
    )
    create_response = providers.Singleton(
        CreateResponseService,
        expand_prompt,
        providers.Singleton(HoldConversation, store),
        prepare_turn,
        show_items,
        store,
        log,
        runs,
        run_response,
        tool_servers,
        new_id=providers.Object(new_id),
        now=providers.Object(time.time),
        seal=sealer.provided.seal,
    )
    stopping = providers.Singleton(asyncio.Event)
    recover = providers.Singleton(RecoverResponses, store)
    http_options = providers.Singleton(
        HttpOptions,
        limits=providers.Singleton(
            BodyLimits,
            max_bytes=settings.provided.max_body_bytes,
            max_depth=settings.provided.max_depth,
            max_nodes=settings.provided.max_json_nodes,
        ),
        dialect=providers.Callable(DIALECTS.__getitem__, settings.provided.dialect),
        strict_unknown_fields=settings.provided.strict_unknown_fields,
        log_requests=settings.provided.log_requests,
        error_stacks=settings.provided.error_stacks,
        websocket_s=settings.provided.websocket_s,
        lanes=providers.Singleton(LaneLimits),
    )
    services = providers.Singleton(
        Services,
        create=create_response,
        count=providers.Singleton(CountTokens, expand_prompt, prepare_turn),
        compact=providers.Singleton(
            CompactConversation, create_response, new_id=providers.Object(new_id)
        ),
        get=providers.Singleton(GetResponse, store),
        seal=sealer.provided.seal,
        follow=providers.Singleton(FollowResponse, log, store),
        delete=providers.Singleton(DeleteResponse, store, log, runs),
        cancel=providers.Singleton(CancelResponse, store, runs),
        input_items=providers.Singleton(ListInputItems, store),
        heartbeat=providers.Singleton(Heartbeat, settings.provided.keepalive_s),
        stopping=stopping,
        options=http_options,
    )
    conversations = providers.Singleton(
        ConversationServices,
        create=providers.Singleton(
            CreateConversation,
            store,
            read_items,
            new_id=providers.Object(new_id),
            now=providers.Object(time.time),
        ),
        get=providers.Singleton(GetConversation, store),
        update=providers.Singleton(UpdateConversation, store),
        delete=providers.Singleton(DeleteConversation, store),
        add_items=providers.Singleton(AddItems, store, read_items, new_id=providers.Object(new_id)),
        list_items=providers.Singleton(ListItems, store),
        get_item=providers.Singleton(GetItem, store),
        remove_item=providers.Singleton(RemoveItem, store),
        seal=sealer.provided.seal,
        options=http_options,
    )
    file_services = providers.Singleton(
        FileServices,
        add=providers.Singleton(
            AddFile,
            files,
            limits=providers.Singleton(
                FileLimits,
                max_bytes=settings.provided.max_file_bytes,
                quota_bytes=settings.provided.keep_file_bytes,
            ),
            new_id=providers.Object(new_id),
            now=providers.Object(time.time),
        ),
        list=providers.Singleton(ListFiles, files),
        get=providers.Singleton(GetFile, files),
        read=providers.Singleton(ReadFile, files),
        delete=providers.Singleton(DeleteFile, files),
    )
