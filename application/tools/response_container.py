"""The container in which the code and the commands of one response run.

It outlives the response: a later response that continues the conversation finds the variables and
files there, as long as the container lives and the request reaches the server that has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote

from msgspec.structs import replace

from antiphon.application.ports import MountedSkill, Sandbox, Sandboxes
from antiphon.application.resources.containers import CheckContainer, ContainerRequest, file_id_of
from antiphon.application.resources.locate_container import LocateContainer
from antiphon.domain import items as i
from antiphon.domain.content import Annotation, ContainerFileCitation
from antiphon.domain.errors import (
    NotFound,
    RequestError,
    SandboxError,
    StoreError,
    missing_parameter,
)
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.requests.skills import describe_skills
from antiphon.domain.retrieval.citations import LINK
from antiphon.domain.tools import CodeInterpreter, Shell

LOST = "The container of the earlier calls is gone: its variables and files are lost."


class ResponseContainer:
    """A container that calls use one after another, in the order in which they ask for it.

    Without an existing `sandbox`, the first call opens a new one, as `request` describes it. `note`
    is what the model should know with the result of the first call. `is_only_here`: it exists, and
    there are other servers, which do not have it.
    """

    def __init__(
        self,
        sandboxes: Sandboxes,
        tenant: str,
        sandbox: Sandbox | None,
        request: ContainerRequest,
        *,
        note: str = "",
        is_only_here: bool = False,
    ) -> None:
        self.is_only_here = is_only_here
        self._sandboxes = sandboxes
        self._note = note
        self._tenant = tenant
        self._sandbox = sandbox
        self._spec = request.spec
        self._missing_files = list(request.files)
        self._paths: set[str] = set()
        self._lock = asyncio.Lock()
        self._is_lost = False

    @property
    def id(self) -> str:
        return self._open().id

    @property
    def skills_note(self) -> str:
        """The text that tells the model of the container's skills, "" if it has none."""
        skills = self._spec.skills if self._sandbox is None else self._sandbox.skills
        return describe_skills([each.info for each in skills])

    def restore(self, container_id: str) -> None:
        """Note that another server has opened the container, which may be gone with it."""
        if self._sandbox is None or self._sandbox.id != container_id:
            self._sandbox = self._sandboxes.find(self._tenant, container_id)
            if self._sandbox is None:
                self._note = LOST

    def take_note(self) -> str:
        """Return the note once, and "" afterwards."""
        note, self._note = self._note, ""
        return note

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[Sandbox]:
        """Wait for the container and hold it, with its initial files. Raises: SandboxError."""
        async with self._lock:
            sandbox = self._open()
            while self._missing_files:
                name, read = self._missing_files[0]
                try:
                    await sandbox.put(name, await read())
                except (NotFound, StoreError):
                    raise SandboxError(f"The file {name!r} can no longer be read.") from None
                del self._missing_files[0]
            yield sandbox
            with suppress(SandboxError):
                self._paths = {file.path for file in await sandbox.files()}

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        """Return the citation of a file that existed after the latest call."""
        if self._sandbox is None or not words.startswith(LINK):
            return None
        path = words.removeprefix(LINK)
        path = path if path in self._paths else unquote(path)
        if path not in self._paths:
            return None
        return ContainerFileCitation(
            container_id=self._sandbox.id,
            file_id=file_id_of(self._sandbox, path),
            filename=path.rpartition("/")[2],
            start_index=start,
            end_index=end,
        )

    def _open(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self._sandboxes.open(self._tenant, self._spec)
        return self._sandbox


class FindResponseContainer:
    """Finds the container in which a request's tools run."""

    def __init__(
        self, sandboxes: Sandboxes, locate: LocateContainer, check: CheckContainer
    ) -> None:
        self._sandboxes = sandboxes
        self._locate = locate
        self._check = check

    async def __call__(
        self, tools: Sequence[ToolDefinition], conversation: Sequence[i.Item], *, tenant: str
    ) -> ResponseContainer:
        """Return the container of these tools.

        A tool that names a container decides for all of them. `auto` reuses the container of the
        conversation's latest call, unless the tools bring files, or skills that it does not have.

        Raises: RequestError for a container that does not exist, or options that it cannot have;
        ContainerElsewhere.
        """
        named: str | None = None
        request, path, named_path = ContainerRequest(), "", ""
        for tool in tools:
            options, path = _options_of(tool)
            if not isinstance(options, str):
                checked = await self._check(options, path, tenant=tenant)
                request = _merge(request, checked, path)
            elif named is None:
                named, named_path = options, path
            elif options != named:
                raise RequestError(
                    "The tools of a response share one container.", param=path, code="invalid_value"
                )
        sandbox, note = None, ""
        if named is not None:  # only now: of two, one may be at another server
            sandbox = await self._locate(tenant, named, path=named_path)
        latest = _latest_container_id(conversation)
        if sandbox is None and not request.files and latest is not None:
            sandbox = await self._locate.latest(tenant, latest, path=path)
            note = LOST if sandbox is None else ""
            if sandbox is not None and not _has_skills(sandbox, request.spec.skills):
                sandbox = None
        return ResponseContainer(
            self._sandboxes,
            tenant,
            sandbox,
            request,
            note=note,
            is_only_here=sandbox is not None and self._locate.has_others,
        )


def _options_of(definition: ToolDefinition) -> tuple[str | dict[str, object], str]:
    """Return a container's id, or the options of a new one; and their path in the request."""
    tool, path = definition.tool, definition.path
    if isinstance(tool, Shell):
        environment, path = tool.environment or {}, f"{path}.environment"
        if environment.get("type") == i.CONTAINER_REFERENCE:
            container = environment.get("container_id")
            if not isinstance(container, str):
                raise missing_parameter(f"{path}.container_id")
            return container, f"{path}.container_id"
        expected_type, options = "container_auto", environment
    else:
        assert isinstance(tool, CodeInterpreter)
        path = f"{path}.container"
        if isinstance(tool.container, str):
            return tool.container, path
        expected_type, options = "auto", tool.container
    if options.get("type") != expected_type:
        raise RequestError(
            f"A container is an id or {{'type': {expected_type!r}}}.",
            param=f"{path}.type",
            code="invalid_value",
        )
    return options, path


def _merge(first: ContainerRequest, second: ContainerRequest, path: str) -> ContainerRequest:
    """Raises: RequestError with the path of the second."""
    sizes = [each.spec.memory_bytes for each in (first, second)]
    memory = max((size for size in sizes if size is not None), default=None)
    return ContainerRequest(
        spec=replace(
            first.spec,
            memory_bytes=memory,
            skills=_merge_skills(first.spec.skills, second.spec.skills, path),
        ),
        files=tuple(dict([*first.files, *second.files]).items()),
    )


def _merge_skills(
    first: Sequence[MountedSkill], second: Sequence[MountedSkill], path: str
) -> tuple[MountedSkill, ...]:
    skills = {each.info.name: each for each in first}
    for skill in second:
        if skills.setdefault(skill.info.name, skill).version != skill.version:
            raise RequestError(
                "The tools of a response share one container, which cannot have two skills "
                f"{skill.info.name!r}.",
                param=f"{path}.skills",
                code="invalid_value",
            )
    return tuple(skills.values())


def _has_skills(sandbox: Sandbox, skills: Sequence[MountedSkill]) -> bool:
    """Return whether the sandbox has these skills, in these versions."""
    mounted = {(each.info, each.version) for each in sandbox.skills}
    return mounted.issuperset((each.info, each.version) for each in skills)


def _latest_container_id(conversation: Sequence[i.Item]) -> str | None:
    ids = (_container_id_of(item) for item in reversed(conversation))
    return next((each for each in ids if each is not None), None)


def _container_id_of(item: i.Item) -> str | None:
    if isinstance(item, i.CodeInterpreterCall):
        return item.container_id
    if isinstance(item, i.ShellCall) and i.is_container_call(item):
        return str((item.environment or {}).get("container_id"))
    return None
