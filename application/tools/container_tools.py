"""The tools that run in a container: the code interpreter and the shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from antiphon.application.ports import NewId
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.code_interpreter import CodeInterpreterCaller
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.response_container import FindResponseContainer
from antiphon.application.tools.shell import ShellCaller
from antiphon.domain import items as i
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.tools import CONTAINER, PYTHON, CodeInterpreter, RequestTool, Shell


class CodeTools(Struct, frozen=True, kw_only=True):
    """The container tools that the operator allows."""

    code_interpreter: bool = False
    shell: bool = False


class ContainerToolProvider(ToolProvider):
    """Provides each response with the callers for its code and its commands."""

    def __init__(
        self, find_response_container: FindResponseContainer, allowed: CodeTools, new_id: NewId
    ) -> None:
        self._find_container = find_response_container
        self._allowed = allowed
        self._new_id = new_id

    @property
    def tool_types(self) -> Sequence[str]:
        return [name for name in self._allowed.__struct_fields__ if getattr(self._allowed, name)]

    def handles(self, tool: RequestTool) -> bool:
        if isinstance(tool, Shell):
            return self._allowed.shell and not tool.is_local
        return self._allowed.code_interpreter and isinstance(tool, CodeInterpreter)

    async def callers(
        self, tools: Sequence[ToolDefinition], conversation: Sequence[i.Item], *, tenant: str
    ) -> Mapping[str, ToolCaller]:
        latest = {type(each.tool): each for each in tools}
        container = await self._find_container(list(latest.values()), conversation, tenant=tenant)
        callers: dict[str, ToolCaller] = {}
        if CodeInterpreter in latest:
            # With a shell, its description tells of the skills: once is enough.
            note = "" if Shell in latest else container.skills_note
            callers[PYTHON] = CodeInterpreterCaller(container, note=note)
        if Shell in latest:
            callers[CONTAINER] = ShellCaller(container, self._new_id)
        return callers
