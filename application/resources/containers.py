"""Containers: the sandboxes and their files in the API (`/v1/containers`).

A container and its files live in one server, which deletes them after some time without use.
Another server relays requests for them if the servers know each other, and lists them with its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from hashlib import sha256
from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.application.ports import (
    FileStore,
    OtherServers,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.application.resources.server_addresses import server_tag_in
from antiphon.application.resources.skills.mount import FindSkills
from antiphon.application.support.paging import Order
from antiphon.domain.errors import (
    ConcurrencyLimitExceeded,
    NotFound,
    RequestError,
    SandboxError,
    SandboxesBusy,
)
from antiphon.domain.json import Json
from antiphon.domain.requests.request import NewContainer

T = TypeVar("T")

MAX_FILES = 50
MEMORY_LIMITS_GB = {"1g": 1, "4g": 4, "16g": 16, "64g": 64}
"""Gigabytes of memory by the names that requests use for them."""


class ContainerLimits(Struct, frozen=True, kw_only=True):
    """The most that a container may have: memory, bytes of files, and time without use."""

    memory_bytes: int
    disk_bytes: int
    idle_s: float


class ContainerRequest(Struct, frozen=True, kw_only=True):
    """A new container as a request describes it, with its initial files.

    A file is a name and a function that reads its content, so that waiting requests keep no
    contents in memory.
    """

    spec: SandboxSpec = SandboxSpec()
    files: tuple[tuple[str, Callable[[], Awaitable[bytes]]], ...] = ()


class CheckContainer:
    """Checks a request's options for a new container."""

    def __init__(self, files: FileStore, find_skills: FindSkills, limits: ContainerLimits) -> None:
        self._files = files
        self._find_skills = find_skills
        self._limits = limits

    async def __call__(
        self, options: Mapping[str, Any], path: str, *, tenant: str, name: str = ""
    ) -> ContainerRequest:
        """Return the container that the options describe; `path` is their place in the request.

        Raises: RequestError for an option that no container here can have.
        """
        prefix = f"{path}." if path else ""
        memory_bytes = self._parse_memory(options.get("memory_limit"), f"{prefix}memory_limit")
        network = options.get("network_policy")
        if network is not None and (
            not isinstance(network, dict) or network.get("type") != "disabled"
        ):
            raise _invalid_value(
                "Containers on this server have no network access.", f"{prefix}network_policy"
            )
        skills = await self._find_skills(options, f"{prefix}skills", tenant=tenant)
        idle_s = self._parse_idle_s(options.get("expires_after"), f"{prefix}expires_after")
        return ContainerRequest(
            spec=SandboxSpec(name=name, memory_bytes=memory_bytes, idle_s=idle_s, skills=skills),
            files=await self._look_up_files(options.get("file_ids"), f"{prefix}file_ids", tenant),
        )

    def _parse_memory(self, size: Any, path: str) -> int | None:
        if size is None:
            return None
        memory_bytes = MEMORY_LIMITS_GB.get(str(size), 1024) * 1024**3
        if memory_bytes > self._limits.memory_bytes:
            limit_mb = self._limits.memory_bytes // 1024**2
            raise _invalid_value(
                f"Containers on this server may have up to {limit_mb} MB of memory.", path
            )
        return memory_bytes

    def _parse_idle_s(self, after: Any, path: str) -> float | None:
        if after is None:
            return None
        minutes = after.get("minutes") if isinstance(after, dict) else None
        if not isinstance(minutes, int) or after.get("anchor") != "last_active_at":
            raise _invalid_value("Send {'anchor': 'last_active_at', 'minutes': number}.", path)
        limit = _to_minutes(self._limits.idle_s)
        if not 1 <= minutes <= limit:
            raise _invalid_value(
                f"Containers on this server expire after 1 to {limit} minutes.", f"{path}.minutes"
            )
        return minutes * 60.0

    async def _look_up_files(
        self, ids: Any, path: str, tenant: str
    ) -> tuple[tuple[str, Callable[[], Awaitable[bytes]]], ...]:
        ids = ids or []
        if (
            not isinstance(ids, list | tuple)
            or len(ids) > MAX_FILES
            or not all(isinstance(each, str) for each in ids)
        ):
            raise _invalid_value(f"Name up to {MAX_FILES} file ids.", path)
        files = [
            await _look_up(self._files.get_file(tenant, each), each, f"{path}[{position}]")
            for position, each in enumerate(ids)
        ]
        if sum(file.bytes for file in files) > self._limits.disk_bytes:
            limit_mb = self._limits.disk_bytes // 1024**2
            raise _invalid_value(
                f"Containers on this server may have up to {limit_mb} MB of files.", path
            )
        return tuple((file.filename, partial(self._read, tenant, file.id, path)) for file in files)

    async def _read(self, tenant: str, file_id: str, path: str) -> bytes:
        return await _look_up(self._files.get_content(tenant, file_id), file_id, path)


async def _look_up(file_or_content: Awaitable[T], file_id: str, path: str) -> T:
    """Await an uploaded file or its content. Raises: NotFound, with the path."""
    try:
        return await file_or_content
    except NotFound:
        raise NotFound(f"File with id {file_id[:100]!r} not found.", param=path) from None


class FindContainer:
    """Finds containers; there are none on a server without sandboxes."""

    def __init__(self, sandboxes: Sandboxes | None) -> None:
        self._sandboxes = sandboxes

    def __call__(self, tenant: str, container_id: str, *, path: str = "container_id") -> Sandbox:
        """Raises: NotFound."""
        sandbox = self._sandboxes.find(tenant, container_id) if self._sandboxes else None
        if sandbox is None:
            raise NotFound(
                f"Container with id {container_id[:100]!r} not found: it has expired, it was "
                "lost with its server, or another server has it.",
                param=path,
            )
        return sandbox

    def list_all(self, tenant: str) -> list[Sandbox]:
        return self._sandboxes.list_all(tenant) if self._sandboxes else []


class CreateContainer:
    def __init__(self, sandboxes: Sandboxes | None, check: CheckContainer) -> None:
        self._sandboxes = sandboxes
        self._check = check

    async def __call__(self, tenant: str, request: NewContainer) -> Json:
        """Start a container with its files. Raises: RequestError."""
        if self._sandboxes is None:
            raise RequestError("This server has no containers: it runs no code and no commands.")
        checked = await self._check(_options_of(request), "", tenant=tenant, name=request.name)
        sandbox = self._sandboxes.open(tenant, checked.spec)
        try:
            await _convert_errors(sandbox.start())
            for name, read in checked.files:
                await _convert_errors(sandbox.put(name, await read()), path="file_ids")
        except BaseException:
            await sandbox.aclose()
            raise
        return render_container(sandbox)


class ContainerPage(Struct, Generic[T], frozen=True, kw_only=True):
    """One page of a list."""

    data: Sequence[T]
    has_more: bool


class ListContainers:
    """Lists the containers of this server, and those of all `others` that answer."""

    def __init__(self, find: FindContainer, others: OtherServers | None = None) -> None:
        self._find = find
        self._others = others

    async def __call__(
        self,
        tenant: str,
        *,
        after: str | None,
        limit: int,
        order: Order,
        name: str | None,
        everywhere: bool = True,
    ) -> ContainerPage[Json]:
        """Return a page; without `everywhere`, of this server's own. Raises: RequestError."""
        containers = [render_container(each) for each in self._find.list_all(tenant)]
        if everywhere and self._others is not None:
            # An operator's own sandboxes may be known to several servers.
            own = {each["id"] for each in containers}
            others = await self._others.containers(tenant)
            containers += {each["id"]: each for each in others if each["id"] not in own}.values()
            # Sorting is stable, so those of one server stay in the order in which they were made.
            containers.sort(key=lambda each: (each["created_at"], server_tag_in(each["id"])))
        named = [each for each in containers if name in (None, each["name"])]
        return _to_page(named, after=after, limit=limit, order=order)


class ListContainerFiles:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(
        self, tenant: str, container_id: str, *, after: str | None, limit: int, order: Order
    ) -> ContainerPage[Json]:
        """Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        files = sorted(await _convert_errors(sandbox.files()), key=lambda file: file.changed_at)
        return _to_page(
            [_show_file(sandbox, each) for each in files], after=after, limit=limit, order=order
        )


class CreateContainerFile:
    def __init__(self, find: FindContainer, files: FileStore) -> None:
        self._find = find
        self._files = files

    async def __call__(
        self, tenant: str, container_id: str, *, file_id: str | None, name: str, content: bytes
    ) -> Json:
        """Add the uploaded file with this id, or this content. Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        if file_id is not None:
            file = await _look_up(self._files.get_file(tenant, file_id), file_id, "file_id")
            name = file.filename
            content = await _look_up(self._files.get_content(tenant, file_id), file_id, "file_id")
        await _convert_errors(sandbox.put(name, content), path="file")
        return _show_file(sandbox, await _find_file(sandbox, file_id_of(sandbox, name)))


class GetContainerFile:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(self, tenant: str, container_id: str, file_id: str) -> Json:
        """Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        return _show_file(sandbox, await _find_file(sandbox, file_id))


class GetContainerFileContent:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(
        self, tenant: str, container_id: str, file_id: str
    ) -> tuple[str, AsyncGenerator[bytes]]:
        """Return the file's name and its content in chunks. Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        file = await _find_file(sandbox, file_id)
        chunks = sandbox.pieces(file.path, max_bytes=file.bytes)
        # Errors come with the first chunk. Reading it here, before the answer starts, allows for an
        # error response.
        first = await _convert_errors(anext(chunks))
        return file.path.rpartition("/")[2], _prepend(first, chunks)


class DeleteContainerFile:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(self, tenant: str, container_id: str, file_id: str) -> None:
        """Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        file = await _find_file(sandbox, file_id)
        await _convert_errors(sandbox.remove(file.path))


def file_id_of(sandbox: Sandbox, path: str) -> str:
    """Return a file's id, which depends only on the container and the path."""
    return "cfile_" + sha256(f"{sandbox.id}/{path}".encode()).hexdigest()[:32]


async def _find_file(sandbox: Sandbox, file_id: str) -> SandboxFile:
    """Raises: NotFound, RequestError."""
    for file in await _convert_errors(sandbox.files()):
        if file_id_of(sandbox, file.path) == file_id:
            return file
    raise NotFound(f"File with id {file_id[:100]!r} not found in the container.", param="file_id")


def render_container(sandbox: Sandbox) -> Json:
    """Return the container as the API shows it."""
    gigabytes = sandbox.memory_bytes / 1024**3
    return {
        "id": sandbox.id,
        "object": "container",
        "created_at": sandbox.created_at,
        "status": "running",
        "expires_after": {"anchor": "last_active_at", "minutes": _to_minutes(sandbox.idle_s)},
        "last_active_at": sandbox.last_active_at,
        "memory_limit": next(
            (name for name, size in MEMORY_LIMITS_GB.items() if size == gigabytes), None
        ),
        "name": sandbox.name,
        "network_policy": {"type": "disabled"},
    }


def _show_file(sandbox: Sandbox, file: SandboxFile) -> Json:
    """Return a container's file as the API shows it."""
    return {
        "id": file_id_of(sandbox, file.path),
        "object": "container.file",
        "created_at": file.changed_at,
        "bytes": file.bytes,
        "container_id": sandbox.id,
        "path": f"/mnt/data/{file.path}",
        "source": "user" if file.is_uploaded else "assistant",
    }


async def _convert_errors(result: Awaitable[T], *, path: str | None = None) -> T:
    """Await a result of a sandbox and raise its errors as those of a request."""
    try:
        return await result
    except SandboxesBusy as error:
        raise ConcurrencyLimitExceeded(str(error)) from None
    except SandboxError as error:
        raise RequestError(str(error), param=path, code="container_error") from None


async def _prepend(first: bytes, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk


def _options_of(request: NewContainer) -> Json:
    return {
        "memory_limit": request.memory_limit,
        "network_policy": request.network_policy,
        "skills": request.skills,
        "file_ids": request.file_ids,
        "expires_after": request.expires_after,
    }


def _to_page(
    entries: Sequence[Json], *, after: str | None, limit: int, order: Order
) -> ContainerPage[Json]:
    if order == "desc":
        entries = entries[::-1]
    start = 0
    if after is not None:
        ids = [entry["id"] for entry in entries]
        if after not in ids:
            raise _invalid_value(f"This list has no {after[:100]!r}.", "after")
        start = ids.index(after) + 1
    end = start + limit
    return ContainerPage(data=entries[start:end], has_more=end < len(entries))


def _to_minutes(seconds: float) -> int:
    return max(1, int(seconds // 60))


def _invalid_value(message: str, path: str) -> RequestError:
    return RequestError(message, param=path, code="invalid_value")
