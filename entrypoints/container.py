"""The composition root: it chooses adapters by the settings and injects them into services.

It only builds objects; `server.py` starts and closes them. No other module uses
dependency-injector. Tests build their own container and override providers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from dependency_injector import containers, providers

from antiphon.adapters.ids import new_id
from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.sealing import Sealer
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.input.history import LoadHistory
from antiphon.application.input.items import ReadItems
from antiphon.application.input.media import LoadMedia, MediaLimits
from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.input.show_items import ShowItems
from antiphon.application.model.describe_models import DescribeModels
from antiphon.application.model.supervision import SuperviseModels
from antiphon.application.ports import (
    AuditLog,
    Embeddings,
    EventLog,
    FileStore,
    Meter,
    PromptTemplates,
    Sandboxes,
    Store,
    ToolServers,
    VectorStores,
    Web,
)
from antiphon.application.resources.containers import CheckContainer, FindContainer
from antiphon.application.resources.conversation_claim import ClaimConversation
from antiphon.application.resources.conversations import (
    CreateConversation,
    CreateItems,
    DeleteConversation,
    DeleteItem,
    GetConversation,
    GetItem,
    ListConversations,
    ListItems,
    UpdateConversation,
)
from antiphon.application.resources.files import (
    CreateFile,
    DeleteFile,
    FileLimits,
    GetFile,
    GetFileContent,
    ListFiles,
)
from antiphon.application.resources.indexing import IndexFiles
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.resources.quotas import CheckQuota, Quotas
from antiphon.application.resources.vector_stores import (
    AddFiles,
    CreateFileBatch,
    CreateStoreFile,
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
from antiphon.application.resources.webhooks import CreateDeliveries, SendDeliveries
from antiphon.application.responses.cancel import CancelResponse
from antiphon.application.responses.compact import CompactConversation
from antiphon.application.responses.count_tokens import CountTokens
from antiphon.application.responses.create import CallerBounds, CreateResponseService
from antiphon.application.responses.delete import DeleteResponse
from antiphon.application.responses.explain import ExplainResponse
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.responses.get import GetResponse
from antiphon.application.responses.idempotency import CreateOnce, IdempotencyKeys
from antiphon.application.responses.list import ListResponses
from antiphon.application.responses.list_input_items import ListInputItems
from antiphon.application.responses.prepare import PrepareResponse
from antiphon.application.responses.start import StartLimits, StartResponse
from antiphon.application.responses.sweep import Sweep
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.background import StartBackgroundRuns
from antiphon.application.runs.heartbeat import Heartbeat
from antiphon.application.runs.jobs import Jobs
from antiphon.application.runs.ownership import WatchLeases
from antiphon.application.runs.plan_turns import PlanTurns
from antiphon.application.runs.prepare_turn import PrepareTurn
from antiphon.application.runs.readiness import CheckReady
from antiphon.application.runs.restore import RestoreRun, ResumeLimits
from antiphon.application.runs.run_response import RunResponse
from antiphon.application.runs.sequencers import MakeSequencer
from antiphon.application.runs.shutdown import ShutdownSignal
from antiphon.application.runs.stop import StopRun
from antiphon.application.telemetry.run_trace import KeepTraces
from antiphon.application.tools.budgets import Budgets
from antiphon.application.websocket.lanes import LaneLimits
from antiphon.application.websocket.open_websockets import OpenWebSockets
from antiphon.domain.limits import parse_limits
from antiphon.entrypoints.http.access.cors import normalize_origins
from antiphon.entrypoints.http.access.identity import Identity
from antiphon.entrypoints.http.api.conversations import ConversationServices
from antiphon.entrypoints.http.api.files import FileServices
from antiphon.entrypoints.http.api.responses import Services
from antiphon.entrypoints.http.api.vector_stores import VectorStoreServices
from antiphon.entrypoints.http.console.session import Console
from antiphon.entrypoints.http.console.sessions import Sessions
from antiphon.entrypoints.http.console.state import ServerState
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.wire.bodies import BodyLimits
from antiphon.entrypoints.http.wire.dialects import DIALECTS
from antiphon.entrypoints.http.wire.incoming_bytes import IncomingBytes
from antiphon.entrypoints.http.wire.keepalive import KeepAlive
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.access import bearer_identity, console, identities, issuer_keys
from antiphon.entrypoints.wiring.admission import admission, tenant_share
from antiphon.entrypoints.wiring.code import container_limits, container_services, sandboxes
from antiphon.entrypoints.wiring.fetching import fetcher, url_policy
from antiphon.entrypoints.wiring.file_search import embeddings
from antiphon.entrypoints.wiring.metrics import (
    Watched,
    expose,
    measured_store,
    measured_webhooks,
    meter_or_none,
    prometheus_meter,
)
from antiphon.entrypoints.wiring.models import build_models, offer_models
from antiphon.entrypoints.wiring.relaying import relay_of, relaying
from antiphon.entrypoints.wiring.stores import (
    event_log,
    file_store,
    keys_file,
    own_store,
    postgres_store,
    prompt_templates,
    redis_store,
    sqlite_store,
    store_kind,
    vector_stores,
)
from antiphon.entrypoints.wiring.telemetry import ended_runs, otlp_traces, propagation, report_of
from antiphon.entrypoints.wiring.tools import (
    audit_log,
    hosted_tool_types,
    hosted_tools,
    tool_servers,
    tool_substitutions,
)
from antiphon.entrypoints.wiring.traces import server_facts, trace_limits
from antiphon.entrypoints.wiring.transport import certificate, max_body_bytes, transport
from antiphon.entrypoints.wiring.web_search import web
from antiphon.entrypoints.wiring.webhooks import read_endpoints, webhook_fetcher


class Container(containers.DeclarativeContainer):
    """The dependency injection container. Pass `settings` to it, and its `peers` to a worker's."""

    settings: providers.Dependency[Settings] = providers.Dependency(instance_of=Settings)
    peers: providers.Provider[object] = providers.Object(None)

    now = providers.Object(time.time)
    owner = providers.Singleton(new_id, "srv")
    prometheus = providers.Singleton(prometheus_meter, settings)
    expose_metrics = providers.Singleton(expose, prometheus, peers)
    meter: providers.Provider[Meter] = providers.Singleton(meter_or_none, prometheus)
    chosen_store: providers.Provider[Store] = providers.Selector(
        providers.Callable(store_kind, settings),
        memory=providers.Singleton(MemoryStore, keep=settings.provided.keep_responses),
        sqlite=providers.Singleton(sqlite_store, settings),
        postgres=providers.Singleton(postgres_store, settings),
        redis=providers.Singleton(redis_store, settings),
        own=providers.Singleton(own_store, settings),
    )
    store: providers.Provider[Store] = providers.Singleton(measured_store, chosen_store, meter)
    keys_file = providers.Singleton(keys_file, settings.provided.keys_file)
    issuer_keys = providers.Singleton(issuer_keys, settings)
    files: providers.Provider[FileStore] = providers.Singleton(file_store, settings)
    log: providers.Provider[EventLog] = providers.Singleton(event_log, settings)
    supervised_models = providers.Singleton(build_models, settings)
    supervise_models = providers.Singleton(SuperviseModels, supervised_models)
    models = providers.Singleton(offer_models, supervised_models, settings)
    sealer = providers.Singleton(Sealer, settings.provided.seal_key_path)
    bearer = providers.Singleton(bearer_identity, settings, keys_file, store, issuer_keys)
    sessions = providers.Singleton(Sessions, sealer.provided.seal, sealer.provided.unseal, now=now)
    identities: providers.Provider[Sequence[Identity] | None] = providers.Singleton(
        identities, settings, bearer, sessions
    )
    console: providers.Provider[Console | None] = providers.Singleton(
        console, settings, identities, bearer, sessions
    )
    heartbeat = providers.Singleton(Heartbeat, store, owner, lease_s=settings.provided.lease_s)
    runs = providers.Singleton(
        ActiveRuns,
        slots=settings.provided.background_runs,
        slots_per_tenant=providers.Callable(
            tenant_share, settings.provided.background_runs, settings
        ),
    )
    webhook_endpoints = providers.Singleton(read_endpoints, settings)
    propagation = providers.Singleton(propagation, settings)
    create_deliveries = providers.Singleton(
        CreateDeliveries, webhook_endpoints, new_id=providers.Object(new_id), now=now
    )
    send_deliveries = providers.Singleton(
        SendDeliveries,
        store,
        providers.Singleton(
            measured_webhooks, providers.Singleton(webhook_fetcher, webhook_endpoints), meter
        ),
        webhook_endpoints,
        now=now,
        clock=providers.Object(time.monotonic),
        propagation=propagation,
    )
    check_quota = providers.Singleton(
        CheckQuota,
        store,
        providers.Singleton(
            Quotas,
            responses=settings.provided.tenant_quotas[0],
            bytes=settings.provided.tenant_quotas[1],
        ),
        clock=providers.Object(time.monotonic),
    )
    limits = providers.Singleton(
        EnforceLimits,
        store,
        owner=owner,
        now=now,
        defaults=providers.Singleton(parse_limits, settings.provided.default_limit),
    )
    traces = providers.Singleton(otlp_traces, settings, owner)
    tool_servers: providers.Provider[ToolServers | None] = providers.Singleton(
        tool_servers, settings
    )
    ended_runs = providers.Singleton(ended_runs, traces, prometheus, settings, tool_servers)
    run_response = providers.Singleton(
        RunResponse,
        log,
        store,
        limits,
        deliveries=create_deliveries,
        log_outputs=settings.provided.log_outputs,
        max_run_s=settings.provided.response_s,
        retry_s=settings.provided.store_retry_s,
        report=providers.Singleton(report_of, ended_runs),
    )
    prompts: providers.Provider[PromptTemplates | None] = providers.Singleton(
        prompt_templates, settings
    )
    expand_prompt = providers.Singleton(ExpandPrompt, prompts)
    read_items = providers.Singleton(ReadItems, store)
    load_history = providers.Singleton(LoadHistory, store)
    read_pdf = providers.Singleton(PdfReader)
    load_media = providers.Singleton(
        LoadMedia,
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
    show_items = providers.Singleton(ShowItems, load_media, unseal=sealer.provided.unseal)
    vector_stores: providers.Provider[VectorStores] = providers.Singleton(vector_stores, settings)
    embeddings: providers.Provider[Embeddings | None] = providers.Singleton(embeddings, settings)
    index_files = providers.Singleton(
        IndexFiles,
        vector_stores,
        files,
        read_pdf,
        embeddings,
        quota_bytes=settings.provided.keep_vector_bytes,
    )
    find_vector_store = providers.Singleton(FindVectorStore, vector_stores, now=now)
    search_vector_stores = providers.Singleton(SearchVectorStores, vector_stores, embeddings)
    sweep_vector_stores = providers.Singleton(SweepVectorStores, vector_stores, now=now)
    sandboxes: providers.Provider[Sandboxes | None] = providers.Singleton(
        sandboxes, settings, owner
    )
    web: providers.Provider[Web | None] = providers.Singleton(
        web, settings, providers.Singleton(url_policy, settings), read_pdf
    )
    find_container = providers.Singleton(FindContainer, sandboxes)
    check_container = providers.Singleton(
        CheckContainer, files, providers.Singleton(container_limits, settings)
    )
    relaying = providers.Singleton(relaying, settings, owner, store, sealer, peers)
    hosted_tools = providers.Factory(
        hosted_tools,
        sandboxes,
        find_container,
        check_container,
        web,
        find_vector_store,
        search_vector_stores,
        settings,
    )
    make_prepare_turn = providers.Factory(
        PrepareTurn,
        models,
        read_items,
        load_history,
        show_items,
        tool_servers,
        salt=sealer.provided.salt,
        tool_substitutions=providers.Singleton(tool_substitutions, settings, tool_servers),
    )
    prepare_turn = providers.Singleton(
        make_prepare_turn,
        hosted=providers.Singleton(hosted_tools, others=relaying.provided.client),
    )
    # A run that has begun is not relayed: it goes on without a container that is elsewhere.
    prepare_resumed_turn = providers.Singleton(
        make_prepare_turn, hosted=providers.Singleton(hosted_tools, others=None)
    )
    audit_log: providers.Provider[AuditLog | None] = providers.Singleton(audit_log, settings)
    keep_traces = providers.Singleton(
        KeepTraces,
        store,
        sealer.provided.seal,
        sealer.provided.unseal,
        limits=providers.Singleton(trace_limits, settings),
        server=providers.Singleton(server_facts, settings),
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
        audit_log=audit_log,
        propagation=propagation,
        traces=keep_traces,
    )
    jobs = providers.Singleton(Jobs, sealer.provided.seal, sealer.provided.unseal)
    make_sequencer = providers.Singleton(
        MakeSequencer,
        new_id=providers.Object(new_id),
        now=now,
        seal=sealer.provided.seal,
    )
    admission = providers.Singleton(admission, settings)
    create_response = providers.Singleton(
        CreateResponseService,
        expand_prompt,
        providers.Singleton(CallerBounds, limits=limits, check_quota=check_quota),
        providers.Singleton(ClaimConversation, store, owner=owner),
        providers.Singleton(
            PrepareResponse,
            prepare_turn,
            plan_turns,
            jobs,
            can_resume=store.provided.outlives_server,
            owner=owner,
            new_id=providers.Object(new_id),
            now=now,
        ),
        providers.Singleton(
            StartResponse,
            store,
            log,
            runs,
            run_response,
            make_sequencer,
            owner=owner,
            now=now,
            limits=providers.Singleton(
                StartLimits,
                keep_days=settings.provided.keep_days,
                max_waiting=settings.provided.max_waiting,
                retry_s=settings.provided.store_retry_s,
            ),
        ),
        runs,
        admission,
    )
    restore_run = providers.Singleton(
        RestoreRun,
        expand_prompt,
        prepare_resumed_turn,
        plan_turns,
        jobs,
        store,
        log,
        make_sequencer,
        limits=providers.Factory(
            ResumeLimits,
            max_attempts=settings.provided.run_attempts,
            retry_s=settings.provided.store_retry_s,
        ),
    )
    stop_run = providers.Singleton(StopRun, store, runs, restore_run, run_response, owner=owner)
    start_background_runs = providers.Singleton(
        StartBackgroundRuns,
        store,
        log,
        runs,
        models,
        restore_run,
        run_response,
        owner=owner,
        may_take=heartbeat.provided.is_healthy,
    )
    watch_leases = providers.Singleton(WatchLeases, store, runs, owner=owner)
    sweep = providers.Singleton(Sweep, store, keep_events_s=settings.provided.keep_events_s)
    stopping = providers.Singleton(asyncio.Event)
    drained = providers.Singleton(ShutdownSignal)
    ready = providers.Singleton(CheckReady, store, models, runs)
    incoming_bytes = providers.Singleton(IncomingBytes, settings.provided.max_incoming_bytes)
    transport = providers.Singleton(transport, settings, incoming_bytes)
    certificate = providers.Singleton(certificate, settings)
    http_options = providers.Singleton(
        HttpOptions,
        limits=providers.Singleton(
            BodyLimits,
            max_bytes=providers.Callable(max_body_bytes, settings, models),
            incoming=incoming_bytes,
            max_depth=settings.provided.max_depth,
            max_nodes=settings.provided.max_json_nodes,
        ),
        dialect=providers.Callable(DIALECTS.__getitem__, settings.provided.dialect),
        strict=settings.provided.strict,
        strict_unknown_fields=settings.provided.refuses_unknown_fields,
        log_requests=settings.provided.log_requests,
        error_stacks=settings.provided.error_stacks,
        websocket_s=settings.provided.websocket_s,
        cors_origins=providers.Callable(normalize_origins, settings.provided.cors_origin),
        lanes=providers.Singleton(LaneLimits),
    )
    get_response = providers.Singleton(GetResponse, store, runs)
    follow_response = providers.Singleton(FollowResponse, log, store, meter)
    explain_response = providers.Singleton(
        ExplainResponse, get_response, follow_response, store, keep_traces
    )
    services = providers.Singleton(
        Services,
        admission=admission,
        create=create_response,
        create_once=providers.Singleton(
            CreateOnce,
            create_response,
            providers.Singleton(
                IdempotencyKeys,
                store,
                owner=owner,
                now=now,
                clock=providers.Object(time.monotonic),
            ),
        ),
        count=providers.Singleton(CountTokens, expand_prompt, prepare_turn, limits),
        compact=providers.Singleton(
            CompactConversation, create_response, new_id=providers.Object(new_id)
        ),
        describe_models=providers.Singleton(
            DescribeModels,
            models,
            hosted_tools=providers.Callable(hosted_tool_types, settings, tool_servers),
        ),
        get=get_response,
        explain=explain_response,
        list=providers.Singleton(ListResponses, store, runs, get_response),
        seal=sealer.provided.seal,
        follow=follow_response,
        delete=providers.Singleton(DeleteResponse, store, log, stop_run),
        cancel=providers.Singleton(CancelResponse, store, stop_run),
        input_items=providers.Singleton(ListInputItems, store),
        keepalive=providers.Singleton(KeepAlive, settings.provided.keepalive_s),
        stopping=stopping,
        drained=drained,
        options=http_options,
        websockets=providers.Singleton(OpenWebSockets, settings.provided.websockets_per_tenant),
        relay=providers.Singleton(relay_of, relaying, runs),
    )
    server_state = providers.Singleton(
        ServerState,
        owner=owner,
        store_kind=providers.Callable(store_kind, settings),
        started_at=providers.Callable(int, providers.Callable(time.time)),
        store=store,
        runs=runs,
        admission=admission,
        check_ready=ready,
        describe_models=services.provided.describe_models,
        streams=services.provided.keepalive,
        websockets=services.provided.websockets,
        connections=transport.provided.connections,
        peers=peers,
    )
    watched = providers.Singleton(Watched, server_state, models)
    conversations = providers.Singleton(
        ConversationServices,
        create=providers.Singleton(
            CreateConversation,
            store,
            read_items,
            check_quota,
            new_id=providers.Object(new_id),
            now=now,
        ),
        get=providers.Singleton(GetConversation, store),
        list=providers.Singleton(ListConversations, store),
        update=providers.Singleton(UpdateConversation, store),
        delete=providers.Singleton(DeleteConversation, store),
        add_items=providers.Singleton(
            CreateItems, store, read_items, check_quota, new_id=providers.Object(new_id)
        ),
        list_items=providers.Singleton(ListItems, store),
        get_item=providers.Singleton(GetItem, store),
        remove_item=providers.Singleton(DeleteItem, store),
        seal=sealer.provided.seal,
        options=http_options,
    )
    file_services = providers.Singleton(
        FileServices,
        add=providers.Singleton(
            CreateFile,
            files,
            limits=providers.Singleton(
                FileLimits,
                max_bytes=settings.provided.max_file_bytes,
                quota_bytes=settings.provided.keep_file_bytes,
            ),
            new_id=providers.Object(new_id),
            now=now,
        ),
        list=providers.Singleton(ListFiles, files),
        get=providers.Singleton(GetFile, files),
        read=providers.Singleton(GetFileContent, files),
        delete=providers.Singleton(DeleteFile, files, vector_stores),
    )
    vector_store_limits = providers.Singleton(VectorStoreLimits)
    add_files = providers.Singleton(
        AddFiles,
        vector_stores,
        files,
        index_files,
        limits=vector_store_limits,
        now=now,
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
            now=now,
        ),
        find=find_vector_store,
        list=providers.Singleton(ListVectorStores, find_vector_store),
        update=providers.Singleton(UpdateVectorStore, vector_stores, find_vector_store),
        delete=providers.Singleton(DeleteVectorStore, vector_stores),
        search=search_vector_stores,
        add_file=providers.Singleton(CreateStoreFile, vector_stores, find_vector_store, add_files),
        add_batch=providers.Singleton(
            CreateFileBatch,
            vector_stores,
            find_vector_store,
            add_files,
            new_id=providers.Object(new_id),
            now=now,
        ),
        list_files=providers.Singleton(ListStoreFiles, vector_stores),
        options=http_options,
    )
    container_services = providers.Singleton(
        container_services,
        sandboxes,
        find_container,
        check_container,
        files,
        relaying,
        options=http_options,
    )
