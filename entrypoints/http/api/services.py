"""The services that handlers call, and the settings that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.application.model.describe_models import DescribeModels
from antiphon.application.ports import Seal
from antiphon.application.resources.embeddings import MakeEmbeddings
from antiphon.application.resources.moderations import Moderate
from antiphon.application.responses.activity import ReportActivity
from antiphon.application.responses.admission import Admission
from antiphon.application.responses.cancel import CancelResponse
from antiphon.application.responses.compact import CompactConversation
from antiphon.application.responses.count_tokens import CountTokens
from antiphon.application.responses.create import CreateResponseService
from antiphon.application.responses.decide import Decide
from antiphon.application.responses.delete import DeleteResponse
from antiphon.application.responses.explain import ExplainResponse
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.responses.get import GetResponse
from antiphon.application.responses.idempotency import CreateOnce
from antiphon.application.responses.list import ListResponses
from antiphon.application.responses.list_input_items import ListInputItems
from antiphon.application.responses.thread import ReadThread
from antiphon.application.runs.until_shutdown import ShutdownSignal
from antiphon.application.websocket.open_websockets import OpenWebSockets
from antiphon.domain.errors import ContainerElsewhere
from antiphon.entrypoints.http.api.requests import HttpRequest
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.wire.sse import KeepAlive

Relay = Callable[[HttpRequest, bytes, ContainerElsewhere], ASGIApp]
"""Answers a request, with its body, from the server that has its container."""


class Services(Struct, frozen=True, kw_only=True):
    """The services that these handlers call.

    `stopping` is set when the server starts to shut down, `drained` when its runs have ended.
    """

    admission: Admission
    create: CreateResponseService
    create_once: CreateOnce
    count: CountTokens
    describe_models: DescribeModels
    compact: CompactConversation
    decide: Decide
    embed: MakeEmbeddings
    moderate: Moderate
    get: GetResponse
    explain: ExplainResponse
    list: ListResponses
    activity: ReportActivity
    thread: ReadThread
    follow: FollowResponse
    delete: DeleteResponse
    cancel: CancelResponse
    input_items: ListInputItems
    keepalive: KeepAlive
    stopping: asyncio.Event
    drained: ShutdownSignal
    seal: Seal
    options: HttpOptions
    websockets: OpenWebSockets
    relay: Relay | None = None
