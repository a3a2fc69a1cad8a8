"""Where the code and the commands of one response run: one container for both.

It outlives the response: who continues a conversation goes on with its variables and files, as long
as the container lives and the request reaches the server that has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote

from msgspec.structs import replace

from antiphon.application.ports import Sandbox, Sandboxes
from antiphon.application.resources.containers import (
    CheckContainer,
    ContainerRequest,
    FindContainer,
    file_id_of,
)
from antiphon.domain import items as i
from antiphon.domain.citations import LINK
from antiphon.domain.content import Annotation, ContainerFileCitation
from antiphon.domain.errors import (
    NotFound,
    RequestError,
    SandboxError,
    StoreError,
    missing_parameter,
)
from antiphon.domain.offers import ToolDefinition
from antiphon.domain.tools import CodeInterpreter, Shell


class ResponseContainer:
    """`found` is a container that is there already; else a new one is opened, as `asked`, by the
    first call. Calls have it one after another, in the order in which they ask for it."""

    def __init__(
        self, sandboxes: Sandboxes, tenant: str, found: Sandbox | None, asked: ContainerRequest
    ) -> None:
        self._sandboxes = sandboxes
        self._tenant = tenant
        self._found = found
        self._kind = asked.kind
        self._files = list(asked.files)
        self._paths: set[str] = set()
        self._turn = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._sandbox().id

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[Sandbox]:
        """Have the container, with the files that it begins with. Raises: SandboxError."""
        async with self._turn:
            sandbox = self._sandbox()
            while self._files:
                name, content = self._files[0]
                try:
                    await sandbox.put(name, await content())
                except (NotFound, StoreError):
                    raise SandboxError(f"The file {name!r} cannot be read any more.") from None
                del self._files[0]
            yield sandbox
            with suppress(SandboxError):
                self._paths = {file.path for file in await sandbox.files()}

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        """Return the citation of a file that was there after the latest call."""
        if self._found is None or not words.startswith(LINK):
            return None
        path = words.removeprefix(LINK)
        path = path if path in self._paths else unquote(path)
        if path not in self._paths:
            return None
        return ContainerFileCitation(
            container_id=self._found.id,
            file_id=file_id_of(self._found, path),
            filename=path.rpartition("/")[2],
            start_index=start,
            end_index=end,
        )

    def _sandbox(self) -> Sandbox:
        if self._found is None:
            self._found = self._sandboxes.open(self._tenant, self._kind)
        return self._found


class FindResponseContainer:
    """Reads where a request's tools are to run."""

    def __init__(self, sandboxes: Sandboxes, find: FindContainer, check: CheckContainer) -> None:
        self._sandboxes = sandboxes
        self._find = find
        self._check = check

    async def __call__(
        self, tools: Sequence[ToolDefinition], conversation: Sequence[i.Item], *, tenant: str
    ) -> ResponseContainer:
        """Return the container of these tools. One that names a container decides for all; `auto`
        goes on in that of the conversation's latest call, unless it brings files.

        Raises: RequestError for a container that is not there, or not to be had like that.
        """
        named: dict[str, Sandbox] = {}
        asked = ContainerRequest()
        for each in tools:
            options, path = _options(each)
            if isinstance(options, str):
                named[options] = self._find(tenant, options, path=path)
                if len(named) > 1:
                    raise RequestError(
                        "The tools of a response share one container.",
                        param=path,
                        code="invalid_value",
                    )
            else:
                asked = _both(asked, await self._check(options, path, tenant=tenant))
        found = next(iter(named.values()), None)
        if found is None and not asked.files:
            found = self._latest(conversation, tenant)
        return ResponseContainer(self._sandboxes, tenant, found, asked)

    def _latest(self, conversation: Sequence[i.Item], tenant: str) -> Sandbox | None:
        used = (_container_of(item) for item in reversed(conversation))
        latest = next((each for each in used if each is not None), None)
        return None if latest is None else self._sandboxes.find(tenant, latest)


def _options(definition: ToolDefinition) -> tuple[str | dict[str, object], str]:
    """Return a container's id, or what is said of a new one; and where the request says it."""
    tool, path = definition.tool, definition.path
    if isinstance(tool, Shell):
        environment, path = tool.environment or {}, f"{path}.environment"
        if environment.get("type") == i.REFERENCE:
            container = environment.get("container_id")
            if not isinstance(container, str):
                raise missing_parameter(f"{path}.container_id")
            return container, f"{path}.container_id"
        expected, options = "container_auto", environment
    else:
        assert isinstance(tool, CodeInterpreter)
        path = f"{path}.container"
        if isinstance(tool.container, str):
            return tool.container, path
        expected, options = "auto", tool.container
    if options.get("type") != expected:
        raise RequestError(
            f"A container is an id or {{'type': {expected!r}}}.",
            param=f"{path}.type",
            code="invalid_value",
        )
    return options, path


def _both(first: ContainerRequest, second: ContainerRequest) -> ContainerRequest:
    sizes = [each.kind.memory_bytes for each in (first, second)]
    memory = max((size for size in sizes if size is not None), default=None)
    return ContainerRequest(
        kind=replace(first.kind, memory_bytes=memory),
        files=tuple(dict([*first.files, *second.files]).items()),
    )


def _container_of(item: i.Item) -> str | None:
    if isinstance(item, i.CodeInterpreterCall):
        return item.container_id
    if isinstance(item, i.ShellCall) and i.is_server_run_call(item):
        return str((item.environment or {}).get("container_id"))
    return None
