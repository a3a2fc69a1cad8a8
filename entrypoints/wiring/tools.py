"""Tool servers, and the tools that this server runs itself."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence

from antiphon.adapters.extras import install_command
from antiphon.adapters.fetching import GuardedPools, UrlPolicy
from antiphon.adapters.ids import new_id
from antiphon.adapters.tool_servers.configured import ConfiguredServer, ConfiguredServers
from antiphon.application.ports import (
    Sandboxes,
    ToolServer,
    ToolServers,
    Web,
)
from antiphon.application.resources.containers import (
    CheckContainer,
    FindContainer,
)
from antiphon.application.tools.container_tools import CodeTools, ContainerToolProvider
from antiphon.application.tools.file_search import FileSearchProvider
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.response_container import FindResponseContainer
from antiphon.application.tools.web_search import WebSearchProvider
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.domain.mcp import McpServerPolicy
from antiphon.domain.tool_substitutions import ToolSubstitutions
from antiphon.entrypoints.own_classes import instance_of
from antiphon.entrypoints.settings import McpServer, Settings
from antiphon.entrypoints.wiring.fetching import guard
from antiphon.entrypoints.wiring.webhooks import operator_policy


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
    return ConfiguredServers(own, others, keep_lists_s=settings.tools.keep_lists_s)


def tool_substitutions(settings: Settings, tool_servers: ToolServers | None) -> ToolSubstitutions:
    """Return what stands in for tools. Raises: SettingsError for a server that is not there."""
    servers: dict[str, str] = {}
    labels = tool_servers.labels if isinstance(tool_servers, ConfiguredServers) else ()
    for named in settings.stand_in:
        name, _, label = named.partition("=")
        if name in servers:
            raise SettingsError(f"Two servers stand in for {name!r}.")
        if label not in labels:
            raise SettingsError(f"There is no server of tools labelled {label!r} to stand in.")
        servers[name] = label
    return ToolSubstitutions(labels=frozenset(settings.hosted_label), servers=servers)


def _servers_of_requests(settings: Settings) -> ToolServers | None:
    from antiphon.adapters.tool_servers.mcp import McpServers

    if importlib.util.find_spec("mcp") is None:
        return None
    return McpServers(
        GuardedPools(guard(settings)) if settings.fetch.urls else None,
        timeout_s=settings.tools.timeout_s,
        max_bytes=settings.tools.max_bytes,
    )


def _of_class(settings: Settings, named: str) -> ConfiguredServer:
    """Return the server of the class that `[LABEL=]package.module:Class` names."""
    from antiphon.adapters.tool_servers.in_process import LimitedServer

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
    return ConfiguredServer(terms=McpServerPolicy(label=label), server=limited)


def _of_table(settings: Settings, table: McpServer) -> ConfiguredServer:
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
            GuardedPools(_guard_of(table.label, table.url)),
            timeout_s=timeout_s,
            max_bytes=max_bytes,
        )
    else:
        _check_command(table)
        server = ProcessServer(
            table.label, table.command, env=table.env, timeout_s=timeout_s, max_bytes=max_bytes
        )
    terms = McpServerPolicy(
        label=table.label,
        allowed_tools=table.allowed_tools,
        require_approval=table.require_approval,
    )
    secrets = (*table.env.values(), *table.headers.values())
    return ConfiguredServer(terms=terms, server=server, secrets=secrets)


def _guard_of(label: str, url: str) -> UrlPolicy:
    """Return the way to a server of the operator's alone, in a private network too."""
    try:
        return operator_policy([url])
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


def hosted(
    sandboxes: Sandboxes | None,
    find: FindContainer,
    check: CheckContainer,
    web: Web | None,
    file_searches: FileSearchProvider,
    settings: Settings,
) -> Sequence[ToolProvider]:
    """Return what provides the tools that this server runs by itself."""
    found: list[ToolProvider] = [file_searches]
    if sandboxes is not None:
        allowed = CodeTools(code_interpreter=settings.code_interpreter, shell=settings.shell)
        found.append(
            ContainerToolProvider(FindResponseContainer(sandboxes, find, check), allowed, new_id)
        )
    if web is not None:
        found.append(WebSearchProvider(web))
    return found
