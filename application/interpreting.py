"""The code interpreter of one response: which container its code runs in, and its calls there.

A container outlives the response: who continues a conversation goes on with its variables, as long
as the container lives and the request reaches the server that has it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.application.calling import Caller, ItemCaller
from antiphon.application.hosted import Hosted
from antiphon.application.ports import FileStore, Ran, Sandbox, Sandboxes
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import NotFound, RequestError, SandboxError
from antiphon.domain.offers import Definition, Known
from antiphon.domain.tools import PYTHON, CodeInterpreter

Json = dict[str, Any]

MOST_FILES = 50
SIZES = {"1g": 1, "4g": 4, "16g": 16, "64g": 64}
"""Gigabytes of a container's memory, as requests name them."""


class Interpreters(Hosted):
    """Gives each response its interpreter. `memory_bytes` is what a container has."""

    def __init__(self, sandboxes: Sandboxes, files: FileStore, *, memory_bytes: int) -> None:
        self._sandboxes = sandboxes
        self._files = files
        self._memory_bytes = memory_bytes

    def runs(self, tool: Known) -> bool:
        return isinstance(tool, CodeInterpreter)

    async def callers(
        self, asked: Sequence[Definition], conversation: Sequence[i.Item], *, tenant: str
    ) -> Mapping[str, Caller]:
        latest = asked[-1]
        assert isinstance(latest.tool, CodeInterpreter)
        return {PYTHON: await self.of(latest.tool, latest.path, conversation, tenant=tenant)}

    async def of(
        self, tool: CodeInterpreter, path: str, conversation: Sequence[i.Item], *, tenant: str
    ) -> Interpreter:
        """Return the interpreter that `tool`, at `path` of the request, asks for.

        Raises: RequestError for a container that is not there, or not to be had like that.
        """
        path = f"{path}.container"
        if isinstance(tool.container, str):
            sandbox = self._sandboxes.find(tenant, tool.container)
            if sandbox is None:
                raise NotFound(
                    f"Container with id {tool.container[:100]!r} not found: it has expired, or "
                    "another server has it.",
                    param=path,
                )
            return Interpreter(self._sandboxes, tenant, sandbox)
        self._check(tool.container, path)
        files = await self._named(tool.container, f"{path}.file_ids", tenant)
        latest = self._latest(conversation, tenant) if not files else None
        return Interpreter(self._sandboxes, tenant, latest, files)

    def _latest(self, conversation: Sequence[i.Item], tenant: str) -> Sandbox | None:
        calls = (item for item in reversed(conversation) if isinstance(item, i.CodeInterpreterCall))
        latest = next(calls, None)
        return None if latest is None else self._sandboxes.find(tenant, latest.container_id)

    def _check(self, container: Json, path: str) -> None:
        if container.get("type") != "auto":
            raise RequestError(
                "A container is an id or {'type': 'auto'}.",
                param=f"{path}.type",
                code="invalid_value",
            )
        size = container.get("memory_limit")
        if size is not None and SIZES.get(str(size), 1024) * 1024**3 > self._memory_bytes:
            raise RequestError(
                f"Containers have {self._memory_bytes // 1024**2} MB of memory here.",
                param=f"{path}.memory_limit",
                code="invalid_value",
            )
        network = container.get("network_policy")
        if network is not None and (
            not isinstance(network, dict) or network.get("type") != "disabled"
        ):
            raise RequestError(
                "Containers have no network here.",
                param=f"{path}.network_policy",
                code="invalid_value",
            )

    async def _named(self, container: Json, path: str, tenant: str) -> list[tuple[str, bytes]]:
        ids = container.get("file_ids") or []
        if (
            not isinstance(ids, list)
            or len(ids) > MOST_FILES
            or not all(isinstance(each, str) for each in ids)
        ):
            raise RequestError(
                f"Name up to {MOST_FILES} ids of files.", param=path, code="invalid_value"
            )
        found = []
        for position, each in enumerate(ids):
            try:
                file = await self._files.get(tenant, each)
                found.append((file.filename, await self._files.content(tenant, each)))
            except NotFound:
                raise NotFound(
                    f"File with id {each[:100]!r} not found.", param=f"{path}[{position}]"
                ) from None
        return found


class Interpreter(ItemCaller):
    """Runs the code of one response, one call after another, in `sandbox` or in a new one, which
    begins with `files`."""

    step = "interpreting"

    def __init__(
        self,
        sandboxes: Sandboxes,
        tenant: str,
        sandbox: Sandbox | None,
        files: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self._sandboxes = sandboxes
        self._tenant = tenant
        self._found = sandbox
        self._files = list(files)

    @property
    def _sandbox(self) -> Sandbox:
        if self._found is None:
            self._found = self._sandboxes.open(self._tenant)
        return self._found

    def opening(self, start: d.CallStart) -> d.Delta:  # noqa: ARG002
        return d.ToolStart("code_interpreter_call", {"container_id": self._sandbox.id})

    def found_nobody(self, end: d.ToolEnd) -> bool:
        return end.status == "failed"  # it could not be run: what its code does is output

    def refusal(self, why: str) -> d.ToolEnd:
        return d.ToolEnd("failed", {"outputs": (_logs(why),)})

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:  # noqa: ARG002
        sandbox = self._sandbox
        try:
            while self._files:
                await sandbox.put(*self._files[0])
                del self._files[0]
            ran = await sandbox.run(arguments)
        except SandboxError as error:
            return self.refusal(str(error))
        return d.ToolEnd("completed", {"outputs": _outputs(ran)})


def _outputs(ran: Ran) -> tuple[Json, ...]:
    # Code that prints nothing has an output too: the model sees that it ran.
    logs = (_logs(ran.logs),) if ran.logs or not ran.images else ()
    return (*logs, *map(_image, ran.images))


def _logs(text: str) -> Json:
    return {"type": "logs", "logs": text}


def _image(content: bytes) -> Json:
    url = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return {"type": "image", "url": url}
