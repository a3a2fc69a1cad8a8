"""The Litestar application: routes, error handlers, and the services injected into handlers."""

from __future__ import annotations

from typing import Any

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

from antiphon import __version__
from antiphon.application.model.models import Models
from antiphon.application.runs.readiness import CheckReady
from antiphon.entrypoints.http.api.batches import BatchRoutes, BatchServices
from antiphon.entrypoints.http.api.containers.routes import Containers, ContainerServices
from antiphon.entrypoints.http.api.containers.skills import SkillRoutes, SkillServices
from antiphon.entrypoints.http.api.conversations import Conversations, ConversationServices
from antiphon.entrypoints.http.api.embeddings import EmbeddingRoutes
from antiphon.entrypoints.http.api.files import Files, FileServices
from antiphon.entrypoints.http.api.forms import FORM_BYTES
from antiphon.entrypoints.http.api.health import Health
from antiphon.entrypoints.http.api.metrics import Expose, metrics_page
from antiphon.entrypoints.http.api.models import ModelRoutes
from antiphon.entrypoints.http.api.responses import Responses
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.api.vector_store_files import FileBatches, VectorStoreFiles
from antiphon.entrypoints.http.api.vector_stores import VectorStoreRoutes, VectorStoreServices
from antiphon.entrypoints.http.console.activity import console_activity
from antiphon.entrypoints.http.console.markdown import console_markdown
from antiphon.entrypoints.http.console.pages import console_asset, console_page
from antiphon.entrypoints.http.console.session import Console, SessionEndpoint
from antiphon.entrypoints.http.console.state import ServerState, console_state
from antiphon.entrypoints.http.console.threads import console_thread
from antiphon.entrypoints.http.doors.chat.routes import ChatCompletions
from antiphon.entrypoints.http.doors.completions.routes import Completions
from antiphon.entrypoints.http.doors.decisions import Decisions
from antiphon.entrypoints.http.doors.messages.routes import Messages
from antiphon.entrypoints.http.doors.moderations import ModerationRoutes
from antiphon.entrypoints.http.errors import ExceptionHandlers
from antiphon.entrypoints.http.pages.home import home
from antiphon.entrypoints.http.pages.openapi import openapi_config
from antiphon.entrypoints.http.websocket.endpoint import handle_websocket
from antiphon.entrypoints.http.wire.asgi_responses import BYTES_IN_WORK

CONSOLE_ROUTES: tuple[Any, ...] = (
    console_page,
    console_asset,
    SessionEndpoint,
    console_state,
    console_activity,
    console_thread,
    console_markdown,
)


class HttpApp(Litestar):
    """Litestar with its plugin for msgspec alone.

    Its plugins for pydantic and attrs would cost each server 6 MB and a tenth of a second, if these
    libraries are installed; no handler here takes or returns their types.
    """

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def create_app(
    services: Services,
    conversations: ConversationServices,
    models: Models,
    files: FileServices,
    containers: ContainerServices,
    skills: SkillServices,
    vector_stores: VectorStoreServices,
    batches: BatchServices,
    check_ready: CheckReady,
    console: Console | None,
    server_state: ServerState,
    *,
    started_at: int,
    max_file_bytes: int,
    needs_keys: bool = False,
    error_stacks: bool = False,
    expose: Expose | None = None,
) -> Litestar:
    """Return the app. Its services must already be started; without `console`, there is none."""
    return HttpApp(
        route_handlers=[
            Responses,
            ChatCompletions,
            Completions,
            Messages,
            handle_websocket,
            Conversations,
            Files,
            Containers,
            SkillRoutes,
            VectorStoreRoutes,
            VectorStoreFiles,
            FileBatches,
            BatchRoutes,
            Decisions,
            EmbeddingRoutes,
            ModerationRoutes,
            ModelRoutes,
            Health,
            home,
            *([] if console is None else CONSOLE_ROUTES),
            metrics_page,
        ],
        dependencies={
            "services": Provide(lambda: services, sync_to_thread=False, use_cache=True),
            "conversations": Provide(lambda: conversations, sync_to_thread=False, use_cache=True),
            "models": Provide(lambda: models, sync_to_thread=False, use_cache=True),
            "file_services": Provide(lambda: files, sync_to_thread=False, use_cache=True),
            "containers": Provide(lambda: containers, sync_to_thread=False, use_cache=True),
            "skills": Provide(lambda: skills, sync_to_thread=False, use_cache=True),
            "vector_stores": Provide(lambda: vector_stores, sync_to_thread=False, use_cache=True),
            "batches": Provide(lambda: batches, sync_to_thread=False, use_cache=True),
            "check_ready": Provide(lambda: check_ready, sync_to_thread=False, use_cache=True),
            "console": Provide(lambda: console, sync_to_thread=False, use_cache=True),
            "server_state": Provide(lambda: server_state, sync_to_thread=False),
            "expose": Provide(lambda: expose, sync_to_thread=False),
            "has_console": Provide(
                lambda: console is not None, sync_to_thread=False, use_cache=True
            ),
            "needs_keys": Provide(lambda: needs_keys, sync_to_thread=False, use_cache=True),
            "started_at": Provide(lambda: started_at, sync_to_thread=False, use_cache=True),
        },
        exception_handlers=ExceptionHandlers(
            dialect=services.options.dialect, stacks=error_stacks
        ).handlers,
        openapi_config=openapi_config(__version__),
        logging_config=None,
        # Only for forms: bodies.py reads JSON bodies.
        request_max_body_size=max_file_bytes + FORM_BYTES,
        state=State({BYTES_IN_WORK: services.options.limits.bytes_in_work}, deep_copy=False),
    )
