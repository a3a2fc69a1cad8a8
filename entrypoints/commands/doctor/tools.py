"""Checks of what the server calls and runs: tool servers, sandboxes, URLs, webhooks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence

from antiphon.adapters.sandboxes.cgroups import WITHOUT_CGROUP
from antiphon.adapters.tool_servers.configured import ConfiguredServers
from antiphon.adapters.url_policy import DEFAULT_PORTS, read_url
from antiphon.application.resources.webhooks import WebhookEndpoint
from antiphon.domain.errors import SettingsError, StoreError, ToolServerError
from antiphon.domain.tools import McpTool
from antiphon.entrypoints.commands.doctor.findings import (
    Check,
    Finding,
    Installation,
    ok,
    problem,
    skipped,
    warning,
)
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.server.lifetime import Startable, parts_that_read
from antiphon.entrypoints.wiring.code import programs, sandboxes
from antiphon.entrypoints.wiring.fetching import url_policy
from antiphon.entrypoints.wiring.tools import tool_servers
from antiphon.entrypoints.wiring.webhooks import operator_policy, read_endpoints

INNER_ADDRESSES = ("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "::1")
"""This machine, private networks, and the metadata of clouds."""
LIST_S = 20.0


async def check_tool_servers(installation: Installation) -> Sequence[Finding]:
    """Return for each of the operator's tool servers whether it lists its tools."""
    servers = tool_servers(installation.settings)
    if servers is None or not isinstance(servers, ConfiguredServers):
        return [skipped("The settings name no tool servers.")]
    try:
        return await asyncio.gather(*(_list_tools(servers, label) for label in servers.labels))
    finally:
        await servers.aclose()


async def _list_tools(servers: ConfiguredServers, label: str) -> Finding:
    if servers.wants_token(label):
        return skipped(f"The tool server {label!r} lists its tools for a token of a tenant's.")
    session = servers.session(McpTool(server_label=label))
    advice = "Check that it runs, its address or command, and its credential in the settings."
    try:
        async with asyncio.timeout(LIST_S):
            tools = await session.tools()
    except TimeoutError:
        return problem(f"The tool server {label!r} did not list its tools in {LIST_S:g} s.", advice)
    except ToolServerError as error:
        return problem(f"The tool server {label!r} does not list its tools: {error}", advice)
    finally:
        await session.aclose()
    if not tools:
        return warning(f"The tool server {label!r} lists no tools.", "Check its allowed_tools.")
    return ok(f"The tool server {label!r} lists {len(tools)} tools.")


async def check_sandbox(installation: Installation) -> Sequence[Finding]:
    """Return whether a sandbox passes its self-test, and what enforces its limits."""
    settings = installation.settings
    found = sandboxes(settings, "doctor")
    if found is None:
        return [skipped("The code interpreter and the shell are off.")]
    try:
        await found.start()
    finally:
        await found.aclose()
    limited_by = getattr(found, "limited_by", None)
    if settings.shell and limited_by is not None and not limited_by.startswith("cgroup"):
        return [
            warning(
                f"The sandbox is safe; its limits are enforced by {limited_by}. {WITHOUT_CGROUP}",
                "Delegate a cgroup to the server: see --code-cgroup.",
            )
        ]
    limits = f"; its limits are enforced by {limited_by}" if limited_by else ""
    return [ok(f"The sandbox passed its self-test{limits}.")]


async def check_programs(installation: Installation) -> Sequence[Finding]:
    """Return whether programs of models run in their sandbox."""
    found = programs(installation.settings)
    if found is None:
        return [skipped("Programs are off.")]
    try:
        await found.start()
    finally:
        await found.aclose()
    return [ok("A program ran in its sandbox.")]


async def check_parts(installation: Installation) -> Sequence[Finding]:
    """Return whether the server's parts can be built and, if that changes nothing, started.

    The server starts with the same parts, so that it refuses nothing that passes here.
    """
    ports = Container(settings=installation.settings)
    findings = [finding for name in BUILT if (finding := _build(getattr(ports, name)))]
    for name, part in parts_that_read(ports).items():
        if (finding := await _start(name, part)) is not None:
            findings.append(finding)
    return findings or [skipped("The settings name no search, templates or embeddings.")]


BUILT = (
    *("audit_log", "certificate", "expose_metrics", "fetcher", "files", "keys_file", "log"),
    *("meter", "propagation", "store", "traces", "vector_stores", "webhook_fetcher"),
)
"""Ports of the container that have no check of their own for what stops a server."""


def _build(build: Callable[[], object]) -> Finding | None:
    try:
        build()
    except SettingsError as error:
        return problem(str(error))
    return None


async def _start(name: str, build: Callable[[], Startable | None]) -> Finding | None:
    try:
        part = build()
        if part is None:
            return None
        try:
            await part.start()
        finally:
            await part.aclose()
    except (SettingsError, StoreError) as error:
        return problem(str(error))
    return ok(f"The server can start its {name}.")


def check_network_rules(installation: Installation) -> Iterator[Finding]:
    """Yield which URLs of requests are fetched, and which inner addresses they can reach."""
    settings = installation.settings
    if not settings.fetch.urls:
        yield ok("No URL in a request is fetched.")
        return
    hosts = ", ".join(settings.fetch.hosts) or "any public host"
    yield ok(f"URLs in requests are fetched from {hosts}.")
    policy = url_policy(settings)
    reachable = [each for each in INNER_ADDRESSES if policy.allows_address(each)]
    if reachable or settings.fetch.private:
        yield warning(
            "Clients can reach inner addresses: "
            f"{', '.join([*settings.fetch.private, *reachable])}.",
            "Keep --fetch-private as small as you can.",
        )
    else:
        yield ok(f"Inner addresses are refused: {', '.join(INNER_ADDRESSES)}.")


async def check_webhooks(installation: Installation) -> Sequence[Finding]:
    """Return for each webhook endpoint whether its host has an address that may be called."""
    endpoints = read_endpoints(installation.settings)
    if not endpoints:
        return [skipped("The settings name no webhook endpoints.")]
    return [await _resolve(endpoint) for endpoint in endpoints]


async def _resolve(endpoint: WebhookEndpoint) -> Finding:
    url = read_url(endpoint.url)
    policy, port = operator_policy([endpoint.url]), url.port or DEFAULT_PORTS[url.scheme]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except OSError:
        return problem(
            f"The host of the webhook endpoint {endpoint.name!r} has no address.",
            "Check the host's name and the name server.",
        )
    refused = [str(each[4][0]) for each in found if not policy.allows_address(str(each[4][0]))]
    if refused:
        return problem(
            f"The webhook endpoint {endpoint.name!r} has an address that is never called: "
            f"{refused[0]}.",
            "Use a host with a public or private address; link-local ones are refused.",
        )
    return ok(f"The webhook endpoint {endpoint.name!r} has an address that may be called.")


CHECKS: Sequence[Check] = (
    Check(name="network rules", run=check_network_rules),
    Check(name="webhooks", run=check_webhooks),
    Check(name="tool servers", run=check_tool_servers, limit_s=30),
    Check(name="parts", run=check_parts, limit_s=60),
    Check(name="sandbox", run=check_sandbox, limit_s=120),
    Check(name="programs", run=check_programs, limit_s=60),
)
