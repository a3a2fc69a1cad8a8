"""Checks of this machine: Python, packages, limits, clock."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from antiphon.adapters.extras import install_command, packages_of
from antiphon.entrypoints.commands.doctor.findings import (
    Check,
    Finding,
    Installation,
    ok,
    problem,
    warning,
)
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.models import runs_a_file
from antiphon.entrypoints.wiring.stores import store_kind
from antiphon.entrypoints.wiring.transport import MAX_OPEN_FILES, fitting_connections

GIB = 1024**3
MIN_MEMORY_BYTES = GIB
MIN_CONNECTIONS = 1000
EARLIEST_S = 1_735_689_600
"""The start of 2025 in seconds since the epoch: an earlier clock is not set."""
CGROUP = Path("/sys/fs/cgroup")

_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(\[[^]]*\])?\s*(>=\s*(?P<version>[\d.]+))?")


SERVERS = {"vllm_http", "llama", "chat"}
"""Engines that are on servers of their own."""


FEATURES: Sequence[tuple[str, str, Callable[[Settings], bool]]] = (
    ("vllm", "the engine vllm", lambda s: "vllm" in s.engines),
    ("chat", "chat templates", lambda s: bool({"vllm", "vllm_http", "llama"} & {*s.engines})),
    ("upstream", "model servers", lambda s: bool(SERVERS & {*s.engines})),
    ("llama", "model files", lambda s: any(map(runs_a_file, s.models)) or s.engine == "llama"),
    ("upstream", "vLLM for several workers", lambda s: s.workers > 1 and "vllm" in s.engines),
    ("postgres", "the PostgreSQL store", lambda s: store_kind(s) == "postgres"),
    ("redis", "the Redis store", lambda s: store_kind(s) == "redis"),
    ("mcp", "MCP servers", lambda s: bool(s.mcp_servers)),
    ("oidc", "tokens of an issuer", lambda s: s.oidc.issuer is not None),
    ("web", "web search", lambda s: s.web_search != "off"),
    ("embeddings", "semantic search", lambda s: s.embeddings.url is not None),
    ("traces", "traces", lambda s: s.otlp_endpoint is not None),
    ("metrics", "metrics", lambda s: s.metrics),
)
"""The extra that a feature needs, the feature, and whether the settings choose it."""


def check_versions(installation: Installation) -> Iterator[Finding]:
    """Yield the versions of Python and Antiphon, and what a chosen feature lacks."""
    yield ok(f"Antiphon {metadata.version('antiphon')} on Python {platform.python_version()}.")
    for extra, feature, is_chosen in FEATURES:
        if is_chosen(installation.settings):
            yield from check_extra(extra, feature)


def check_extra(extra: str, feature: str) -> Iterator[Finding]:
    """Yield whether the packages of an extra are installed and new enough."""
    for requirement in packages_of(extra):
        match = _REQUIREMENT.match(requirement)
        assert match is not None
        name, wanted = match["name"], match["version"] or "0"
        install = f"Run: {install_command(extra)}"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield problem(f"{feature} need{_s(feature)} {name}, which is not installed.", install)
            continue
        if _numbers(version) < _numbers(wanted):
            yield problem(
                f"{name} {version} is too old for {feature}: {wanted} is needed.", install
            )
        else:
            yield ok(f"{name} {version} is installed, for {feature}.")


def _s(feature: str) -> str:
    return "" if feature.endswith("s") else "s"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version.

    >>> _numbers("0.32.1rc1") >= _numbers("0.32")
    True
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def check_open_files(installation: Installation) -> Iterator[Finding]:
    """Yield how many connections the limit of open files allows."""
    if sys.platform == "win32":
        return
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # The server raises its soft limit to the hard one when it starts.
    files = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    fitting, chosen = fitting_connections(files), installation.settings.max_connections
    wanted = chosen or MIN_CONNECTIONS
    if fitting < wanted:
        yield warning(
            f"The server may open {files} files, which is enough for {fitting} connections and "
            f"not for {wanted}.",
            "Raise the hard limit of open files (`ulimit -Hn`; systemd: LimitNOFILE=65536).",
        )
    else:
        yield ok(f"The server may open {files} files, enough for {fitting} connections.")


def check_resources(_: Installation) -> Iterator[Finding]:
    """Yield the memory and processors that this process may use."""
    memory = _memory_bytes()
    if memory is not None and memory < MIN_MEMORY_BYTES:
        yield warning(
            f"The server may use {memory / GIB:.1f} GiB of memory.",
            "Give it 1 GiB or more: raise the limit of its cgroup or container.",
        )
    elif memory is not None:
        yield ok(f"The server may use {memory / GIB:.1f} GiB of memory.")
    processors = _processors()
    if processors < 1:
        yield warning(
            f"The server may use {processors:g} of a processor, so streams will stutter.",
            "Raise the CPU limit of its cgroup or container to 1 or more.",
        )
    else:
        yield ok(f"The server may use {processors:g} processors.")


def _memory_bytes() -> int | None:
    sizes = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit = _read(CGROUP / "memory.max")
    sizes += [int(limit)] if limit.isdecimal() else []
    return min(sizes, default=None)


def _processors() -> float:
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    return min(count, int(quota) / int(period)) if quota.isdecimal() and period else count


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def check_clock(_: Installation) -> Iterator[Finding]:
    """Yield whether the clock is set, and the monotonic clock runs forward."""
    before, now, after = time.monotonic(), time.time(), time.monotonic()
    if now < EARLIEST_S:
        yield problem("The clock of this machine is not set.", "Synchronize it, with NTP.")
    elif after < before:
        yield problem("The monotonic clock runs backward.", "Repair or move this machine.")
    else:
        yield ok("The clock is set.")


CHECKS: Sequence[Check] = (
    Check(name="versions", run=check_versions),
    Check(name="open files", run=check_open_files),
    Check(name="resources", run=check_resources),
    Check(name="clock", run=check_clock),
)
