"""Containers: sandboxes as clients know them, and their files (`/v1/containers`).

A container and its files live in one server, which ends them when they were not used for a while:
another server knows nothing of them, and says so.
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
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.application.support.paging import Order
from antiphon.domain.errors import (
    NotFound,
    QueueFull,
    RequestError,
    SandboxError,
    SandboxesBusy,
)
from antiphon.domain.json import Json
from antiphon.domain.request import NewContainer

T = TypeVar("T")

MAX_FILES = 50
SIZES = {"1g": 1, "4g": 4, "16g": 16, "64g": 64}
"""Gigabytes of a container's memory, as requests name them."""


class ContainerLimits(Struct, frozen=True, kw_only=True):
    """What a container has at most: of memory, of files, and of time without use."""

    memory_bytes: int
    disk_bytes: int
    idle_s: float


class ContainerRequest(Struct, frozen=True, kw_only=True):
    """A container that a request may have, and the files that it begins with.

    Each has a name and what reads it: many requests that wait hold no contents.
    """

    kind: SandboxSpec = SandboxSpec()
    files: tuple[tuple[str, Callable[[], Awaitable[bytes]]], ...] = ()


class CheckContainer:
    """Reads what a request says of a new container."""

    def __init__(self, files: FileStore, limits: ContainerLimits) -> None:
        self._files = files
        self._limits = limits

    async def __call__(
        self, options: Mapping[str, Any], path: str, *, tenant: str, name: str = ""
    ) -> ContainerRequest:
        """Return what is asked for; `path` is where in the request.

        Raises: RequestError for what no container here can have.
        """
        prefix = f"{path}." if path else ""
        memory = self._memory(options.get("memory_limit"), f"{prefix}memory_limit")
        network = options.get("network_policy")
        if network is not None and (
            not isinstance(network, dict) or network.get("type") != "disabled"
        ):
            raise _invalid("Containers have no network here.", f"{prefix}network_policy")
        if options.get("skills"):
            raise _invalid("Containers have no skills here.", f"{prefix}skills")
        idle_s = self._idle_s(options.get("expires_after"), f"{prefix}expires_after")
        return ContainerRequest(
            kind=SandboxSpec(name=name, memory_bytes=memory, idle_s=idle_s),
            files=await self._named(options.get("file_ids"), f"{prefix}file_ids", tenant),
        )

    def _memory(self, size: Any, path: str) -> int | None:
        if size is None:
            return None
        asked = SIZES.get(str(size), 1024) * 1024**3
        if asked > self._limits.memory_bytes:
            most = self._limits.memory_bytes // 1024**2
            raise _invalid(f"Containers have {most} MB of memory here.", path)
        return asked

    def _idle_s(self, after: Any, path: str) -> float | None:
        if after is None:
            return None
        minutes = after.get("minutes") if isinstance(after, dict) else None
        if not isinstance(minutes, int) or after.get("anchor") != "last_active_at":
            raise _invalid("It is {'anchor': 'last_active_at', 'minutes': number}.", path)
        most = _minutes(self._limits.idle_s)
        if not 1 <= minutes <= most:
            raise _invalid(f"Containers are kept for 1 to {most} minutes here.", f"{path}.minutes")
        return minutes * 60.0

    async def _named(
        self, ids: Any, path: str, tenant: str
    ) -> tuple[tuple[str, Callable[[], Awaitable[bytes]]], ...]:
        ids = ids or []
        if (
            not isinstance(ids, list | tuple)
            or len(ids) > MAX_FILES
            or not all(isinstance(each, str) for each in ids)
        ):
            raise _invalid(f"Name up to {MAX_FILES} ids of files.", path)
        found = [
            await _found(self._files.get(tenant, each), each, f"{path}[{position}]")
            for position, each in enumerate(ids)
        ]
        if sum(file.bytes for file in found) > self._limits.disk_bytes:
            most = self._limits.disk_bytes // 1024**2
            raise _invalid(f"Containers have {most} MB for files here.", path)
        return tuple(
            (file.filename, partial(self._content, tenant, file.id, path)) for file in found
        )

    async def _content(self, tenant: str, file_id: str, path: str) -> bytes:
        return await _found(self._files.content(tenant, file_id), file_id, path)


async def _found(looked_up: Awaitable[T], file_id: str, path: str) -> T:
    """Return what there is of an uploaded file. Raises: NotFound, with the path."""
    try:
        return await looked_up
    except NotFound:
        raise NotFound(f"File with id {file_id[:100]!r} not found.", param=path) from None


class FindContainer:
    """Knows no containers where there are no sandboxes."""

    def __init__(self, sandboxes: Sandboxes | None) -> None:
        self._sandboxes = sandboxes

    def __call__(self, tenant: str, container_id: str, *, path: str = "container_id") -> Sandbox:
        """Raises: NotFound."""
        found = self._sandboxes.find(tenant, container_id) if self._sandboxes else None
        if found is None:
            raise NotFound(
                f"Container with id {container_id[:100]!r} not found: it has expired, or another "
                "server has it.",
                param=path,
            )
        return found

    def list_all(self, tenant: str) -> list[Sandbox]:
        return self._sandboxes.list_all(tenant) if self._sandboxes else []


class CreateContainer:
    def __init__(self, sandboxes: Sandboxes | None, check: CheckContainer) -> None:
        self._sandboxes = sandboxes
        self._check = check

    async def __call__(self, tenant: str, request: NewContainer) -> Json:
        """Begin a container, with its files. Raises: RequestError."""
        if self._sandboxes is None:
            raise RequestError("This server has no containers: it runs no code and no commands.")
        asked = await self._check(_options(request), "", tenant=tenant, name=request.name)
        sandbox = self._sandboxes.open(tenant, asked.kind)
        try:
            await _told(sandbox.start())
            for name, content in asked.files:
                await _told(sandbox.put(name, await content()), path="file_ids")
        except BaseException:
            await sandbox.aclose()
            raise
        return shown(sandbox)


class ContainerList(Struct, Generic[T], frozen=True, kw_only=True):
    """A part of a list."""

    data: Sequence[T]
    has_more: bool


class ListContainers:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    def __call__(
        self, tenant: str, *, after: str | None, limit: int, order: Order, name: str | None
    ) -> ContainerList[Json]:
        """Raises: RequestError."""
        listed = [shown(each) for each in self._find.list_all(tenant) if name in (None, each.name)]
        return _cut(listed, after=after, limit=limit, order=order)


class ListContainerFiles:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(
        self, tenant: str, container_id: str, *, after: str | None, limit: int, order: Order
    ) -> ContainerList[Json]:
        """Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        files = sorted(await _told(sandbox.files()), key=lambda file: file.changed_at)
        listed = [shown_file(sandbox, each) for each in files]
        return _cut(listed, after=after, limit=limit, order=order)


class CreateContainerFile:
    def __init__(self, find: FindContainer, files: FileStore) -> None:
        self._find = find
        self._files = files

    async def __call__(
        self, tenant: str, container_id: str, *, file_id: str | None, name: str, content: bytes
    ) -> Json:
        """Put a file there: an uploaded one, of that id, or this. Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        if file_id is not None:
            file = await _found(self._files.get(tenant, file_id), file_id, "file_id")
            name = file.filename
            content = await _found(self._files.content(tenant, file_id), file_id, "file_id")
        await _told(sandbox.put(name, content), path="file")
        return shown_file(sandbox, await file_of(sandbox, file_id_of(sandbox, name)))


class GetContainerFile:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(self, tenant: str, container_id: str, file_id: str) -> Json:
        """Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        return shown_file(sandbox, await file_of(sandbox, file_id))


class GetContainerFileContent:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(
        self, tenant: str, container_id: str, file_id: str
    ) -> tuple[str, AsyncGenerator[bytes]]:
        """Return the file's name and its content in pieces. Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        file = await file_of(sandbox, file_id)
        pieces = sandbox.pieces(file.path)
        # What is wrong shows with the first one, when there can still be an answer that says so.
        first = await _told(anext(pieces))
        return file.path.rpartition("/")[2], _with_first(first, pieces)


class DeleteContainerFile:
    def __init__(self, find: FindContainer) -> None:
        self._find = find

    async def __call__(self, tenant: str, container_id: str, file_id: str) -> None:
        """Raises: RequestError."""
        sandbox = self._find(tenant, container_id)
        file = await file_of(sandbox, file_id)
        await _told(sandbox.remove(file.path))


def file_id_of(sandbox: Sandbox, path: str) -> str:
    """Return a file's id: the same for as long as a file is there by this path."""
    return "cfile_" + sha256(f"{sandbox.id}/{path}".encode()).hexdigest()[:32]


async def file_of(sandbox: Sandbox, file_id: str) -> SandboxFile:
    """Raises: NotFound, RequestError."""
    for each in await _told(sandbox.files()):
        if file_id_of(sandbox, each.path) == file_id:
            return each
    raise NotFound(f"File with id {file_id[:100]!r} not found in the container.", param="file_id")


def shown(sandbox: Sandbox) -> Json:
    """Return the container as the API shows it."""
    gigabytes = sandbox.memory_bytes / 1024**3
    return {
        "id": sandbox.id,
        "object": "container",
        "created_at": sandbox.created_at,
        "status": "running",
        "expires_after": {"anchor": "last_active_at", "minutes": _minutes(sandbox.idle_s)},
        "last_active_at": sandbox.last_active_at,
        "memory_limit": next((name for name, size in SIZES.items() if size == gigabytes), None),
        "name": sandbox.name,
        "network_policy": {"type": "disabled"},
    }


def shown_file(sandbox: Sandbox, file: SandboxFile) -> Json:
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


async def _told(work: Awaitable[T], *, path: str | None = None) -> T:
    """Return what comes of work in a sandbox, its errors as a request's."""
    try:
        return await work
    except SandboxesBusy as error:
        raise QueueFull(str(error)) from None
    except SandboxError as error:
        raise RequestError(str(error), param=path, code="container_error") from None


async def _with_first(first: bytes, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece


def _options(request: NewContainer) -> Json:
    after = request.expires_after
    return {
        "memory_limit": request.memory_limit,
        "network_policy": request.network_policy,
        "skills": request.skills,
        "file_ids": request.file_ids,
        "expires_after": after,
    }


def _cut(
    listed: Sequence[Json], *, after: str | None, limit: int, order: Order
) -> ContainerList[Json]:
    if order == "desc":
        listed = listed[::-1]
    start = 0
    if after is not None:
        ids = [each["id"] for each in listed]
        if after not in ids:
            raise _invalid(f"There is no {after[:100]!r} in this list.", "after")
        start = ids.index(after) + 1
    end = start + limit
    return ContainerList(data=listed[start:end], has_more=end < len(listed))


def _minutes(seconds: float) -> int:
    return max(1, int(seconds // 60))


def _invalid(message: str, path: str) -> RequestError:
    return RequestError(message, param=path, code="invalid_value")
