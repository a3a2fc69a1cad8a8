"""The composition root: which adapters the settings choose, and who is given what.

It only builds objects; `server.py` starts and closes the chosen ones. dependency-injector appears
nowhere else. Tests build a container of their own and override providers.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dependency_injector import containers, providers

from antiphon.adapters.extras import install_command
from antiphon.adapters.fetching import Checked, Guard, HttpFetcher, NoFetcher
from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import KeysFile
from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.sealing import Sealer
from antiphon.adapters.stores.files import FolderFileStore, MemoryFileStore
from antiphon.adapters.stores.memory import MemoryStore
from antiphon.adapters.stores.memory_log import MemoryEventLog
from antiphon.adapters.stores.vector_stores import SqliteVectorStores
from antiphon.adapters.tool_servers.own import Own, OwnServers
from antiphon.application.background import TakeRuns
from antiphon.application.browsing import Browsers
from antiphon.application.budgets import Budgets
from antiphon.application.check_ready import CheckReady
from antiphon.application.code_tools import CodeTools, ContainerTools
from antiphon.application.compact_conversation import CompactConversation
from antiphon.application.containers import (
    AddContainerFile,
    CheckContainer,
    ContainerLimits,
    DeleteContainerFile,
    FindContainer,
    GetContainerFile,
    ListContainerFiles,
    ListContainers,
    MakeContainer,
    ReadContainerFile,
)
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
from antiphon.application.create_once import CreateOnce
from antiphon.application.create_response import CreateLimits, CreateResponseService
from antiphon.application.expand_prompt import ExpandPrompt
from antiphon.application.file_searching import FileSearches
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
from antiphon.application.hosted import Hosted
from antiphon.application.indexing import IndexFiles
from antiphon.application.jobs import Jobs
from antiphon.application.keys import FindTenant
from antiphon.application.lanes import LaneLimits
from antiphon.application.load_history import LoadHistory
from antiphon.application.media import MediaLimits, ShowMedia
from antiphon.application.models import Models
from antiphon.application.ownership import WatchLeases
from antiphon.application.plan_turns import PlanTurns
from antiphon.application.ports import (
    Embeddings,
    Engine,
    Fetcher,
    Format,
    KeyStore,
    Model,
    PromptTemplates,
    Sandboxes,
    Store,
    ToolServer,
    ToolServers,
    VectorStores,
    Web,
)
from antiphon.application.prepare_turn import PrepareTurn
from antiphon.application.pulse import Pulse
from antiphon.application.quotas import CheckQuota, Quotas
from antiphon.application.read_items import ReadItems
from antiphon.application.repeats import Repeats
from antiphon.application.restore_run import RestoreRun
from antiphon.application.run_response import RunResponse
from antiphon.application.runs import Runs
from antiphon.application.show_items import ShowItems
from antiphon.application.stop_run import StopRun
from antiphon.application.stored_responses import (
    CancelResponse,
    DeleteResponse,
    GetResponse,
    ListInputItems,
)
from antiphon.application.sweeping import Sweep
from antiphon.application.token_model import TokenModel
from antiphon.application.until import Moment
from antiphon.application.vector_stores import (
    AddFileBatch,
    AddFiles,
    AddStoreFile,
    CreateVectorStore,
    DeleteVectorStore,
    FindVectorStore,
    ListStoreFiles,
    ListVectorStores,
    SearchVectorStores,
    SweepVectorStores,
    UpdateVectorStore,
    VectorStoreLimits,
)
from antiphon.application.webhooks import DeliverNotices, Endpoint, WriteNotices
from antiphon.application.workplaces import FindWorkplace
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.domain.mcp import Terms
from antiphon.domain.stand_ins import StandIns
from antiphon.entrypoints.http.bodies import BodyLimits
from antiphon.entrypoints.http.containers import ContainerServices
from antiphon.entrypoints.http.conversations import ConversationServices
from antiphon.entrypoints.http.dialects import DIALECTS
from antiphon.entrypoints.http.files import FileServices
from antiphon.entrypoints.http.heartbeat import Heartbeat
from antiphon.entrypoints.http.responses import HttpOptions, Services
from antiphon.entrypoints.http.vector_stores import VectorStoreServices
from antiphon.entrypoints.model_names import names_of
from antiphon.entrypoints.own_classes import instance_of
from antiphon.entrypoints.settings import SCRIPTED_MODELS, McpServer, Settings
from antiphon.entrypoints.web_search import web
from antiphon.entrypoints.webhook_endpoints import endpoints_of, operators_guard

HARMONY_MODEL = "scripted-harmony"
CHAT_MODELS = tuple(name for name in SCRIPTED_MODELS if name != HARMONY_MODEL)
SCRIPTED_IMAGE_TOKENS = 85
WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_ANSWER_BYTES = 1024 * 1024


def sqlite_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.sqlite import SqliteStore

    assert settings.sqlite_file is not None
    return SqliteStore(settings.sqlite_file)


def postgres_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.postgres import PostgresStore

    return PostgresStore(settings.store)


def redis_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.redis import RedisStore

    return RedisStore(settings.store)


def named_store(settings: Settings) -> Store:
    """Return an instance of the class that `package.module:Class` names."""
    store: Store = instance_of(settings.store, what="The store")
    return store


def keys_file(path: Path | None) -> KeysFile | None:
    return None if path is None else KeysFile(path)


def find_tenant(settings: Settings, file: KeysFile | None, store: KeyStore) -> FindTenant | None:
    """Return what knows API keys, None where none are asked for."""
    if not settings.needs_keys:
        return None
    return FindTenant([store.key] if file is None else [file.key, store.key])


def prompt_templates(folder: Path | None) -> PromptTemplates | None:
    from antiphon.adapters.prompts.folder import FolderPromptTemplates

    return None if folder is None else FolderPromptTemplates(folder)


STORE_KINDS = {
    "memory": "memory",
    "sqlite": "sqlite",
    "postgres": "postgres",
    "postgresql": "postgres",
    "redis": "redis",
    "rediss": "redis",
}


def store_kind(settings: Settings) -> str:
    return STORE_KINDS.get(settings.store.partition("://")[0], "named")


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


def webhook_fetcher(endpoints: Sequence[Endpoint]) -> Fetcher:
    """Return the way to the operator's endpoints, and to nothing else."""
    if not endpoints:
        return NoFetcher()
    return HttpFetcher(
        operators_guard([each.url for each in endpoints]),
        max_bytes=WEBHOOK_ANSWER_BYTES,
        timeout_s=WEBHOOK_TIMEOUT_S,
        max_redirects=0,
    )


def tool_servers(settings: Settings) -> ToolServers | None:
    """Return what calls tools, None where there is nothing that could."""
    others = _servers_of_requests(settings)
    own = [_of_class(settings, named) for named in settings.tool]
    own += [_of_table(settings, server) for server in settings.mcp_servers]
    labels = [each.terms.label for each in own]
    for label in labels:
        if labels.count(label) > 1:
            raise SettingsError(f"Two servers of tools are labelled {label!r}.")
    if not own:
        return others
    return OwnServers(own, others, keep_lists_s=settings.tools.keep_lists_s)


def stand_ins(settings: Settings, tool_servers: ToolServers | None) -> StandIns:
    """Return what stands in for tools. Raises: SettingsError for a server that is not there."""
    servers: dict[str, str] = {}
    labels = tool_servers.labels if isinstance(tool_servers, OwnServers) else ()
    for named in settings.stand_in:
        name, _, label = named.partition("=")
        if name in servers:
            raise SettingsError(f"Two servers stand in for {name!r}.")
        if label not in labels:
            raise SettingsError(f"There is no server of tools labelled {label!r} to stand in.")
        servers[name] = label
    return StandIns(labels=frozenset(settings.hosted_label), servers=servers)


def _servers_of_requests(settings: Settings) -> ToolServers | None:
    from antiphon.adapters.tool_servers.mcp import McpServers

    if importlib.util.find_spec("mcp") is None:
        return None
    return McpServers(
        Checked(_guard(settings)) if settings.fetch.urls else None,
        timeout_s=settings.tools.timeout_s,
        max_bytes=settings.tools.max_bytes,
    )


def _of_class(settings: Settings, named: str) -> Own:
    """Return the server of the class that `[LABEL=]package.module:Class` names."""
    from antiphon.adapters.tool_servers.limited import LimitedServer

    label, _, path = named.rpartition("=")
    server: ToolServer = instance_of(path, what="The tool server")
    if not (label := label or getattr(server, "label", "")):
        raise SettingsError(
            f"The tool server {path!r} has no label: give the class one, "
            f"or say --tool LABEL={path}."
        )
    limited = LimitedServer(
        server, label, timeout_s=settings.tools.timeout_s, max_bytes=settings.tools.max_bytes
    )
    return Own(terms=Terms(label=label), server=limited)


def _of_table(settings: Settings, table: McpServer) -> Own:
    from antiphon.adapters.tool_servers.mcp import UrlServer
    from antiphon.adapters.tool_servers.process import ProcessServer

    if importlib.util.find_spec("mcp") is None:
        raise SettingsError(
            f"MCP servers need a package. Install it with: {install_command('mcp')}"
        )
    timeout_s = table.timeout_s or settings.tools.timeout_s
    max_bytes = settings.tools.max_bytes
    server: ToolServer
    if table.url is not None:
        server = UrlServer(
            table.label,
            table.url,
            table.headers,
            Checked(_guard_of(table.label, table.url)),
            timeout_s=timeout_s,
            max_bytes=max_bytes,
        )
    else:
        _check_command(table)
        server = ProcessServer(
            table.label, table.command, env=table.env, timeout_s=timeout_s, max_bytes=max_bytes
        )
    terms = Terms(
        label=table.label,
        allowed_tools=table.allowed_tools,
        require_approval=table.require_approval,
    )
    secrets = (*table.env.values(), *table.headers.values())
    return Own(terms=terms, server=server, secrets=secrets)


def _guard_of(label: str, url: str) -> Guard:
    """Return the way to a server of the operator's alone, in a private network too."""
    try:
        return operators_guard([url])
    except FetchRefused as error:
        raise SettingsError(f"The MCP server {label!r} cannot be called: {error}") from None


def _check_command(table: McpServer) -> None:
    if sys.platform == "win32":  # nothing there ends a process together with all that it began
        raise SettingsError("Local MCP servers need Linux or macOS.")
    if shutil.which(table.command[0], path=table.env.get("PATH")) is None:
        raise SettingsError(
            f"The MCP server {table.label!r} cannot be begun: there is no program "
            f"{table.command[0]!r}."
        )


def sandboxes(settings: Settings) -> Sandboxes | None:
    """Return what runs the code of models, None where it is not asked for."""
    if not settings.code_interpreter and not settings.shell:
        return None
    from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes, Places
    from antiphon.adapters.sandboxes.recipe import Limits

    code = settings.code
    return BubblewrapSandboxes(
        python=code.python,
        new_id=new_id,
        limits=Limits(
            commands=settings.shell,
            memory_bytes=code.memory_mb * 1024**2,
            disk_bytes=code.disk_mb * 1024**2,
            cpu_s=code.cpu_s,
        ),
        places=Places(each_tenant=code.per_tenant, all=code.most, idle_s=code.idle_s),
        timeout_s=code.timeout_s,
        cgroup=code.cgroup,
    )


def container_limits(settings: Settings) -> ContainerLimits:
    code = settings.code
    return ContainerLimits(
        memory_bytes=code.memory_mb * 1024**2,
        disk_bytes=code.disk_mb * 1024**2,
        idle_s=code.idle_s,
    )


def embeddings(settings: Settings) -> Embeddings | None:
    """Return what makes vectors, None where texts are searched by words alone."""
    engine = settings.embeddings
    if engine.url is None:
        return None
    from antiphon.adapters.embeddings import HttpEmbeddings

    return HttpEmbeddings(
        engine.url, engine.model, api_key=engine.api_key, timeout_s=engine.timeout_s
    )


def hosted(
    sandboxes: Sandboxes | None,
    find: FindContainer,
    check: CheckContainer,
    web: Web | None,
    file_searches: FileSearches,
    settings: Settings,
) -> Sequence[Hosted]:
    """Return what provides the tools that this server runs by itself."""
    found: list[Hosted] = [file_searches]
    if sandboxes is not None:
        allowed = CodeTools(code_interpreter=settings.code_interpreter, shell=settings.shell)
        found.append(ContainerTools(FindWorkplace(sandboxes, find, check), allowed, new_id))
    if web is not None:
        found.append(Browsers(web))
    return found


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


class Container(containers.DeclarativeContainer):
    """Give it `settings`; ask it for what `server.py` starts and serves."""

    settings: providers.Dependency[Settings] = providers.Dependency(instance_of=Settings)

    owner = providers.Singleton(new_id, "srv")
    store: providers.Provider[Store] = providers.Selector(
        providers.Callable(store_kind, settings),
        memory=providers.Singleton(MemoryStore, keep=settings.provided.keep_responses),
        sqlite=providers.Singleton(sqlite_store, settings),
        postgres=providers.Singleton(postgres_store, settings),
        redis=providers.Singleton(redis_store, settings),
        named=providers.Singleton(named_store, settings),
    )
    keys_file = providers.Singleton(keys_file, settings.provided.keys_file)
    find_tenant: providers.Provider[FindTenant | None] = providers.Singleton(
        find_tenant, settings, keys_file, store
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
    pulse = providers.Singleton(Pulse, store, owner, lease_s=settings.provided.lease_s)
    runs = providers.Singleton(Runs, slots=settings.provided.background_runs)
    webhook_endpoints = providers.Singleton(endpoints_of, settings)
    write_notices = providers.Singleton(
        WriteNotices,
        webhook_endpoints,
        new_id=providers.Object(new_id),
        now=providers.Object(time.time),
    )
    deliver_notices = providers.Singleton(
        DeliverNotices,
        store,
        providers.Singleton(webhook_fetcher, webhook_endpoints),
        webhook_endpoints,
        now=providers.Object(time.time),
        clock=providers.Object(time.monotonic),
    )
    check_quota = providers.Singleton(
        CheckQuota,
        store,
        providers.Singleton(
            Quotas,
            responses=settings.provided.quota_responses,
            bytes=settings.provided.quota_bytes,
        ),
        clock=providers.Object(time.monotonic),
    )
    run_response = providers.Singleton(
        RunResponse,
        log,
        store,
        notices=write_notices,
        log_outputs=settings.provided.log_outputs,
        most_s=settings.provided.response_s,
        retry_s=settings.provided.store_retry_s,
    )
    prompts: providers.Provider[PromptTemplates | None] = providers.Singleton(
        prompt_templates, settings.provided.prompts_dir
    )
    expand_prompt = providers.Singleton(ExpandPrompt, prompts)
    read_items = providers.Singleton(ReadItems, store)
    load_history = providers.Singleton(LoadHistory, store)
    read_pdf = providers.Singleton(PdfReader)
    show_media = providers.Singleton(
        ShowMedia,
        files,
        providers.Singleton(fetcher, settings),
        read_pdf,
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
    vector_stores: providers.Provider[VectorStores] = providers.Singleton(
        SqliteVectorStores, settings.provided.vector_stores_file
    )
    embeddings: providers.Provider[Embeddings | None] = providers.Singleton(embeddings, settings)
    index_files = providers.Singleton(
        IndexFiles,
        vector_stores,
        files,
        read_pdf,
        embeddings,
        quota_bytes=settings.provided.keep_vector_bytes,
    )
    find_vector_store = providers.Singleton(
        FindVectorStore, vector_stores, now=providers.Object(time.time)
    )
    search_vector_stores = providers.Singleton(SearchVectorStores, vector_stores, embeddings)
    sweep_vector_stores = providers.Singleton(
        SweepVectorStores, vector_stores, now=providers.Object(time.time)
    )
    sandboxes: providers.Provider[Sandboxes | None] = providers.Singleton(sandboxes, settings)
    web: providers.Provider[Web | None] = providers.Singleton(
        web, settings, providers.Singleton(_guard, settings), read_pdf
    )
    find_container = providers.Singleton(FindContainer, sandboxes)
    check_container = providers.Singleton(
        CheckContainer, files, providers.Singleton(container_limits, settings)
    )
    prepare_turn = providers.Singleton(
        PrepareTurn,
        models,
        read_items,
        load_history,
        show_items,
        tool_servers,
        salt=sealer.provided.salt,
        hosted=providers.Singleton(
            hosted,
            sandboxes,
            find_container,
            check_container,
            web,
            providers.Singleton(FileSearches, find_vector_store, search_vector_stores),
            settings,
        ),
        stand_ins=providers.Singleton(stand_ins, settings, tool_servers),
    )
    plan_turns = providers.Singleton(
        PlanTurns,
        show_items,
        sealer.provided.seal,
        tool_servers,
        budgets=providers.Singleton(
            Budgets,
            turns=settings.provided.tools.max_turns,
            call_s=settings.provided.tools.call_s,
            call_bytes=settings.provided.tools.call_bytes,
        ),
    )
    jobs = providers.Singleton(Jobs, sealer.provided.seal, sealer.provided.unseal)
    create_response = providers.Singleton(
        CreateResponseService,
        expand_prompt,
        providers.Singleton(HoldConversation, store, owner=owner),
        prepare_turn,
        plan_turns,
        jobs,
        store,
        log,
        runs,
        run_response,
        check_quota,
        owner=owner,
        new_id=providers.Object(new_id),
        now=providers.Object(time.time),
        seal=sealer.provided.seal,
        limits=providers.Singleton(
            CreateLimits,
            keep_days=settings.provided.keep_days,
            max_waiting=settings.provided.max_waiting,
            retry_s=settings.provided.store_retry_s,
        ),
    )
    restore_run = providers.Singleton(
        RestoreRun,
        expand_prompt,
        prepare_turn,
        plan_turns,
        jobs,
        store,
        log,
        new_id=providers.Object(new_id),
        now=providers.Object(time.time),
        seal=sealer.provided.seal,
        retry_s=settings.provided.store_retry_s,
    )
    stop_run = providers.Singleton(StopRun, store, runs, restore_run, run_response, owner=owner)
    take_runs = providers.Singleton(
        TakeRuns,
        store,
        log,
        runs,
        models,
        restore_run,
        run_response,
        owner=owner,
        may_take=pulse.provided.is_calm,
    )
    watch_leases = providers.Singleton(WatchLeases, store, runs, owner=owner)
    sweep = providers.Singleton(Sweep, store, keep_events_s=settings.provided.keep_events_s)
    stopping = providers.Singleton(asyncio.Event)
    drained = providers.Singleton(Moment)
    ready = providers.Singleton(CheckReady, store, models, runs)
    http_options = providers.Singleton(
        HttpOptions,
        limits=providers.Singleton(
            BodyLimits,
            max_bytes=settings.provided.max_body_bytes,
            max_depth=settings.provided.max_depth,
            max_nodes=settings.provided.max_json_nodes,
        ),
        dialect=providers.Callable(DIALECTS.__getitem__, settings.provided.dialect),
        strict=settings.provided.strict,
        strict_unknown_fields=settings.provided.refuses_unknown_fields,
        log_requests=settings.provided.log_requests,
        error_stacks=settings.provided.error_stacks,
        websocket_s=settings.provided.websocket_s,
        lanes=providers.Singleton(LaneLimits),
    )
    services = providers.Singleton(
        Services,
        create=create_response,
        create_once=providers.Singleton(
            CreateOnce,
            create_response,
            providers.Singleton(
                Repeats,
                store,
                owner=owner,
                now=providers.Object(time.time),
                clock=providers.Object(time.monotonic),
            ),
            new_id=providers.Object(new_id),
        ),
        count=providers.Singleton(CountTokens, expand_prompt, prepare_turn),
        compact=providers.Singleton(
            CompactConversation, create_response, new_id=providers.Object(new_id)
        ),
        get=providers.Singleton(GetResponse, store),
        seal=sealer.provided.seal,
        follow=providers.Singleton(FollowResponse, log, store),
        delete=providers.Singleton(DeleteResponse, store, log, stop_run),
        cancel=providers.Singleton(CancelResponse, store, stop_run),
        input_items=providers.Singleton(ListInputItems, store),
        heartbeat=providers.Singleton(Heartbeat, settings.provided.keepalive_s),
        stopping=stopping,
        drained=drained,
        options=http_options,
    )
    conversations = providers.Singleton(
        ConversationServices,
        create=providers.Singleton(
            CreateConversation,
            store,
            read_items,
            check_quota,
            new_id=providers.Object(new_id),
            now=providers.Object(time.time),
        ),
        get=providers.Singleton(GetConversation, store),
        update=providers.Singleton(UpdateConversation, store),
        delete=providers.Singleton(DeleteConversation, store),
        add_items=providers.Singleton(
            AddItems, store, read_items, check_quota, new_id=providers.Object(new_id)
        ),
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
        delete=providers.Singleton(DeleteFile, files, vector_stores),
    )
    vector_store_limits = providers.Singleton(VectorStoreLimits)
    add_files = providers.Singleton(
        AddFiles,
        vector_stores,
        files,
        index_files,
        limits=vector_store_limits,
        now=providers.Object(time.time),
    )
    vector_store_services = providers.Singleton(
        VectorStoreServices,
        stores=vector_stores,
        create=providers.Singleton(
            CreateVectorStore,
            vector_stores,
            add_files,
            limits=vector_store_limits,
            new_id=providers.Object(new_id),
            now=providers.Object(time.time),
        ),
        find=find_vector_store,
        list=providers.Singleton(ListVectorStores, find_vector_store),
        update=providers.Singleton(UpdateVectorStore, vector_stores, find_vector_store),
        delete=providers.Singleton(DeleteVectorStore, vector_stores),
        search=search_vector_stores,
        add_file=providers.Singleton(AddStoreFile, vector_stores, find_vector_store, add_files),
        add_batch=providers.Singleton(
            AddFileBatch,
            vector_stores,
            find_vector_store,
            add_files,
            new_id=providers.Object(new_id),
            now=providers.Object(time.time),
        ),
        list_files=providers.Singleton(ListStoreFiles, vector_stores),
        options=http_options,
    )
    container_services = providers.Singleton(
        ContainerServices,
        make=providers.Singleton(MakeContainer, sandboxes, check_container),
        find=find_container,
        list=providers.Singleton(ListContainers, find_container),
        add_file=providers.Singleton(AddContainerFile, find_container, files),
        list_files=providers.Singleton(ListContainerFiles, find_container),
        get_file=providers.Singleton(GetContainerFile, find_container),
        read_file=providers.Singleton(ReadContainerFile, find_container),
        delete_file=providers.Singleton(DeleteContainerFile, find_container),
        options=http_options,
    )
