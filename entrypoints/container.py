"""The ports: which adapter the settings choose for each of them. Tests and embedders override them.

It holds what is swappable and starts nothing: `services.py` builds the services on the ports, and
`server/lifetime.py` opens and closes them. No other module defines providers.
"""

from __future__ import annotations

import time

from dependency_injector import containers, providers
from dependency_injector.providers import Object, Provider, Singleton

from antiphon.adapters import ids
from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.sealing import Sealer
from antiphon.application.model.models import Models
from antiphon.application.ports import Clock, Fetcher, Meter, NewId, ReadPdf, Store
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.telemetry.trace_context import Propagation
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring import (
    access,
    code,
    fetching,
    file_search,
    guards,
    images,
    metrics,
    stores,
    telemetry,
    tools,
    transport,
    web_search,
    webhooks,
)
from antiphon.entrypoints.wiring.models import build_models, offer_models


class Container(containers.DeclarativeContainer):
    """The ports of a server. Pass `settings` to it, and its `peers` to a worker's."""

    settings: Provider[Settings] = providers.Dependency(instance_of=Settings)
    peers: Provider[Peers | None] = Object(None)

    now: Provider[Clock] = Object(time.time)
    clock: Provider[Clock] = Object(time.monotonic)
    new_id: Provider[NewId] = Object(ids.new_id)
    owner: Provider[str] = Singleton(ids.new_id, "srv")
    sealer = Singleton(Sealer, settings.provided.seal_key_path)

    prometheus = Singleton(metrics.prometheus_meter, settings)
    meter: Provider[Meter] = Singleton(metrics.meter_or_none, prometheus)
    expose_metrics = Singleton(metrics.expose, prometheus, peers)
    traces = Singleton(telemetry.otlp_traces, settings, owner)
    propagation: Provider[Propagation | None] = Singleton(telemetry.propagation, settings)
    audit_log = Singleton(tools.audit_log, settings)

    chosen_store: Provider[Store] = providers.Selector(
        providers.Callable(stores.store_kind, settings),
        memory=Singleton(stores.memory_store, settings),
        sqlite=Singleton(stores.sqlite_store, settings),
        postgres=Singleton(stores.postgres_store, settings),
        redis=Singleton(stores.redis_store, settings),
        own=Singleton(stores.own_store, settings),
    )
    store: Provider[Store] = Singleton(metrics.measured_store, chosen_store, meter)
    bytes_in_work = Singleton(BytesInWork, settings.provided.max_work_bytes)
    log = Singleton(stores.event_log, settings, bytes_in_work)
    files = Singleton(stores.file_store, settings)
    vector_stores = Singleton(stores.vector_stores, settings)
    batches = Singleton(stores.batches, settings)
    embeddings = Singleton(file_search.embeddings, settings)
    prompts = Singleton(stores.prompt_templates, settings)
    keys_file = Singleton(stores.keys_file, settings.provided.keys_file)
    issuer_keys = Singleton(access.issuer_keys, settings)
    certificate = Singleton(transport.certificate, settings)

    fetcher: Provider[Fetcher] = Singleton(fetching.fetcher, settings)
    read_pdf: Provider[ReadPdf] = Singleton(PdfReader)
    webhook_endpoints = Singleton(webhooks.read_endpoints, settings)
    webhook_fetcher: Provider[Fetcher] = Singleton(
        metrics.measured_webhooks,
        Singleton(webhooks.webhook_fetcher, webhook_endpoints, settings),
        meter,
    )

    supervised_models = Singleton(build_models, settings)
    models: Provider[Models] = Singleton(offer_models, supervised_models, settings)
    tool_servers = Singleton(tools.tool_servers, settings)
    sandboxes = Singleton(code.sandboxes, settings, owner)
    programs = Singleton(code.programs, settings)
    web = Singleton(web_search.web, settings, Singleton(fetching.url_policy, settings), read_pdf)
    image_generator = Singleton(images.image_generator, settings)
    guards = Singleton(guards.guards, settings, audit_log, models.provider)
    ended_runs = Singleton(telemetry.ended_runs, traces, prometheus, settings, tool_servers)
