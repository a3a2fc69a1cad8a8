"""Build the tool servers and the hosted tools."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.adapters.audit_file import AuditFile
from antiphon.adapters.extras import install_command
from antiphon.adapters.ids import new_id
from antiphon.adapters.outgoing.egress import Egress
from antiphon.adapters.tool_servers.configured import ConfiguredServer, ConfiguredServers
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.ports import (
    AuditLog,
    Json,
    OtherServers,
    Sandboxes,
    Store,
    ToolServer,
    ToolServers,
    Web,
)
from antiphon.application.resources.containers import CheckContainer, FindContainer
from antiphon.application.resources.locate_container import LocateContainer
from antiphon.application.resources.vector_stores import FindVectorStore, SearchVectorStores
from antiphon.application.tools.agents.registry import AgentLimits, AgentRegistry
from antiphon.application.tools.agents.runs import AgentRuns
from antiphon.application.tools.agents.sub_agents import AgentTools
from antiphon.application.tools.budgets import Budgets
from antiphon.application.tools.container_tools import CodeTools, ContainerToolProvider
from antiphon.application.tools.file_search import FileSearchProvider
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.programs import ProgramTools
from antiphon.application.tools.response_container import FindResponseContainer
from antiphon.application.tools.web_search import WebSearchProvider
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.domain.offers.mcp import McpServerPolicy
from antiphon.domain.offers.tool_substitutions import ToolSubstitutions
from antiphon.entrypoints.settings import McpServer, Settings
from antiphon.entrypoints.settings.options import OWN_CLASSES, is_own_class
from antiphon.entrypoints.wiring.fetching import egress, http_fetcher, url_policy
from antiphon.entrypoints.wiring.own_classes import check_port, load_instance, load_value
from antiphon.entrypoints.wiring.own_ports import load_port
from antiphon.entrypoints.wiring.webhooks import operator_policy

if TYPE_CHECKING:
    from antiphon.adapters.fetching import GuardedPools
    from antiphon.adapters.tool_servers.oauth import AccessTokens

TOKEN_ANSWER_BYTES = 64 * 1024
TOKEN_TIMEOUT_S = 10.0


def tool_servers(settings: Settings) -> ToolServers | None:
    """Return the tool servers of the settings and of requests, or None if there can be none."""
    request_servers = _request_servers(settings)
    own_servers = [_server_of_class(settings, class_name) for class_name in settings.tool]
    _check_options(settings, [server.terms.label for server in own_servers])
    own_servers += [_server_of_table(settings, table) for table in settings.mcp_servers]
    labels = [server.terms.label for server in own_servers]
    for label in labels:
        if labels.count(label) > 1:
            raise SettingsError(f"Two tool servers have the label {label!r}.")
    if not own_servers:
        return request_servers
    return ConfiguredServers(own_servers, request_servers, keep_lists_s=settings.tools.keep_lists_s)


def tool_substitutions(settings: Settings, tool_servers: ToolServers | None) -> ToolSubstitutions:
    """Return the servers that replace hosted tools. Raises: SettingsError for an unknown server."""
    servers: dict[str, str] = {}
    labels = tool_servers.labels if isinstance(tool_servers, ConfiguredServers) else ()
    for substitution in settings.stand_in:
        tool_type, _, label = substitution.partition("=")
        if tool_type in servers:
            raise SettingsError(f"stand_in names two servers for {tool_type!r}.")
        if label not in labels:
            raise SettingsError(f"stand_in names {label!r}, but no tool server has that label.")
        servers[tool_type] = label
    return ToolSubstitutions(labels=frozenset(settings.hosted_label), servers=servers)


def _request_servers(settings: Settings) -> ToolServers | None:
    from antiphon.adapters.tool_servers.mcp import McpServers

    if importlib.util.find_spec("mcp") is None:
        return None
    return McpServers(
        _pools(url_policy(settings), egress(settings).without_certificate)
        if settings.fetch.urls
        else None,
        timeout_s=settings.tools.timeout_s,
        max_bytes=settings.tools.max_bytes,
        needs_approval=settings.tools.approval == "always",
    )


def _server_of_class(settings: Settings, class_name: str) -> ConfiguredServer:
    """Return the server of the class that `[LABEL=]package.module:Class` names."""
    from antiphon.adapters.tool_servers.in_process import LimitedServer

    label, _, path = class_name.rpartition("=")
    what = OWN_CLASSES["tool"]
    options = settings.options.of("tool").get(label or _label_of(load_value(path, what=what)), {})
    server: ToolServer = load_instance(path, what=what, options=options)
    if not (label := label or _label_of(server)):
        raise SettingsError(
            f"The tool server {path!r} has no label: give the class one, "
            f"or use --tool LABEL={path}."
        )
    check_port(server, ToolServer, what=f"{what} {path!r}")
    if options != settings.options.of("tool").get(label, {}):
        raise SettingsError(
            f"The tool server {path!r} sets its label itself, too late for [options.tool.{label}]: "
            f"use --tool {label}={path}."
        )
    limited = LimitedServer(
        server, label, timeout_s=settings.tools.timeout_s, max_bytes=settings.tools.max_bytes
    )
    approval: str | Json = getattr(server, "require_approval", "never")
    if not isinstance(approval, dict) and approval not in ("always", "never"):
        raise SettingsError(
            f"The tool server {path!r} has an unknown require_approval: {approval!r}. It is "
            "'always', 'never' or rules by name."
        )
    terms = McpServerPolicy(label=label, require_approval=approval)
    return ConfiguredServer(terms=terms, server=limited)


def _label_of(server: object) -> str:
    label = getattr(server, "label", "")
    return label if isinstance(label, str) else ""


def _check_options(settings: Settings, labels: Sequence[str]) -> None:
    """Raises: SettingsError for options of a tool server that there is not."""
    for label in settings.options.of("tool"):
        if label not in labels:
            raise SettingsError(
                f"The table [options.tool.{label}] is for no tool server of yours: `tool` names no "
                "class with that label."
            )


def _server_of_table(settings: Settings, table: McpServer) -> ConfiguredServer:
    from antiphon.adapters.tool_servers.mcp import UrlServer
    from antiphon.adapters.tool_servers.process import ProcessServer

    if importlib.util.find_spec("mcp") is None:
        raise SettingsError(
            f"MCP servers need a package. Install it with: {install_command('mcp')}"
        )
    timeout_s = table.timeout_s or settings.tools.timeout_s
    max_bytes = settings.tools.max_bytes
    server: ToolServer
    open_with = None
    tokens = _access_tokens(table, settings)
    if table.url is not None:
        server = UrlServer(
            table.label,
            url=table.url,
            headers=table.headers,
            pools=_pools(_policy_of(table.label, url=table.url), egress(settings)),
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            tokens=tokens,
        )
        open_with = server.session_with if table.tenant_authorization else None
    else:
        _check_command(table)
        server = ProcessServer(
            table.label, table.command, env=table.env, timeout_s=timeout_s, max_bytes=max_bytes
        )
    terms = McpServerPolicy(
        label=table.label,
        allowed_tools=table.allowed_tools,
        require_approval=table.require_approval,
        tenant_authorization=table.tenant_authorization,
    )
    secrets = (*table.env.values(), *table.headers.values())
    return ConfiguredServer(
        terms=terms,
        server=server,
        open_with=open_with,
        secrets=secrets,
        current_secrets=tuple if tokens is None else tokens.secrets,
    )


def _access_tokens(table: McpServer, settings: Settings) -> AccessTokens | None:
    """Raises: SettingsError."""
    oauth = table.oauth
    if oauth is None:
        return None
    from antiphon.adapters.tool_servers.oauth import AccessTokens, OauthClient

    secret = oauth.client_secret
    if oauth.client_secret_env is not None and not (
        secret := (os.environ.get(oauth.client_secret_env) or "").strip()
    ):
        raise SettingsError(
            f"The variable {oauth.client_secret_env!r} (client_secret_env) is not set."
        )
    client = OauthClient(
        token_url=oauth.token_url,
        client_id=oauth.client_id,
        client_secret=secret or "",
        scopes=oauth.scopes,
        audience=oauth.audience,
        auth=oauth.auth,
    )
    fetcher = http_fetcher(
        _policy_of(table.label, url=oauth.token_url),
        max_bytes=TOKEN_ANSWER_BYTES,
        timeout_s=TOKEN_TIMEOUT_S,
        max_redirects=0,
        reads=("POST",),
        egress=egress(settings),
    )
    return AccessTokens(table.label, client, fetcher)


def _pools(policy: UrlPolicy, egress: Egress) -> GuardedPools:
    # Imported here: a server that calls no URLs does without the HTTP client.
    from antiphon.adapters.fetching import GuardedPools

    return GuardedPools(policy, egress=egress)


def _policy_of(label: str, *, url: str) -> UrlPolicy:
    """Return a policy that allows only the operator's server, also in a private network."""
    try:
        return operator_policy([url])
    except FetchRefused as error:
        raise SettingsError(f"The MCP server {label!r} cannot be called: {error}") from None


def _check_command(table: McpServer) -> None:
    if sys.platform == "win32":  # Windows cannot end a process together with its children
        raise SettingsError("Local MCP servers need Linux or macOS.")
    if shutil.which(table.command[0], path=table.env.get("PATH")) is None:
        raise SettingsError(
            f"The MCP server {table.label!r} cannot be started: there is no program "
            f"{table.command[0]!r}."
        )


def audit_log(settings: Settings) -> AuditLog | None:
    """Return the audit log, or None if the settings name no file for it."""
    path = settings.audit_log
    if path is None:
        return None
    if is_own_class(path):
        own: AuditLog = load_port(settings, "audit_log", AuditLog)
        return own
    return AuditFile(path.expanduser(), now=time.time)


def hosted_tools(
    settings: Settings,
    sandboxes: Sandboxes | None,
    find: FindContainer,
    check: CheckContainer,
    web: Web | None,
    find_vector_store: FindVectorStore,
    search: SearchVectorStores,
    *,
    others: OtherServers | None,
) -> Sequence[ToolProvider]:
    """Return the providers of the hosted tools, which run in this server.

    Containers are also looked for at the `others`.
    """
    tool_providers: list[ToolProvider] = [FileSearchProvider(find_vector_store, search)]
    if sandboxes is not None:
        code_tools = CodeTools(code_interpreter=settings.code_interpreter, shell=settings.shell)
        tool_providers.append(
            ContainerToolProvider(
                FindResponseContainer(sandboxes, LocateContainer(find, others), check),
                code_tools,
                new_id,
            )
        )
    if settings.programs:
        tool_providers.append(ProgramTools())
    if web is not None:
        tool_providers.append(WebSearchProvider(web))
    return tool_providers


def agent_tools(settings: Settings, store: Store, runs: AgentRuns) -> AgentTools | None:
    """Return what sub-agents need, or None if responses may have none."""
    limits = settings.agents
    if not limits.total:
        return None
    return AgentTools(
        runs=runs,
        registry=AgentRegistry(store),
        limits=AgentLimits(depth=limits.depth, total=limits.total, concurrent=limits.concurrent),
        new_id=new_id,
        call_s=settings.tools.call_s,
    )


def budgets(settings: Settings) -> Budgets:
    tools = settings.tools
    return Budgets(
        turns=tools.max_turns,
        call_s=tools.call_s,
        call_bytes=tools.call_bytes,
        response_bytes=tools.response_bytes,
    )


def labels_of(tool_servers: ToolServers | None) -> Sequence[str]:
    """Return the labels of the MCP servers that a request may name without a URL."""
    return () if tool_servers is None else tool_servers.labels


def hosted_tool_types(
    settings: Settings, providers: Sequence[ToolProvider], tool_servers: ToolServers | None
) -> Sequence[str]:
    """Return the types of the tools that this server runs, or that a tool server replaces."""
    replaced = [substitution.partition("=")[0] for substitution in settings.stand_in]
    provided = [name for provider in providers for name in provider.tool_types]
    return sorted({*replaced, *provided, *(() if tool_servers is None else ("mcp",))})
