"""The output tokens that a response and its sub-agents may write together (`max_output_tokens`).

Agents work at the same time, so each one that starts gets a share of what is left, which nobody
else can use until it has ended. Then what it has not used is free again. A share is divided among
the agents below in the same way, so the bound holds for the tree.
"""

from __future__ import annotations

from antiphon.application.tools.agents.children import Children
from antiphon.application.tools.agents.runs import AgentRuns
from antiphon.domain.errors import NotFound


class TokenShares:
    """The shares of the `children` of a response, which may have `total` tokens with them; None if
    nothing bounds them."""

    def __init__(self, runs: AgentRuns, tenant: str, children: Children, total: int | None) -> None:
        self._runs = runs
        self._tenant = tenant
        self._children = children
        self._total = total
        self._shares: dict[str, int] = {}

    async def next(self, own_tokens: int, *, among: int) -> int | None:
        """Return one of equal shares of what is left; None if nothing bounds it.

        `own_tokens` are those of the response without its sub-agents. Raises: StoreError.
        """
        if self._total is None:
            return None
        return (self._total - own_tokens - await self.taken()) // among

    async def note(self, response_id: str) -> None:
        """Note that a sub-agent has started. Raises: StoreError."""
        if self._total is not None:
            await self._share_of(response_id)

    async def taken(self) -> int:
        """Return the tokens of all that have ended, and the shares of the others.

        Raises: StoreError.
        """
        children = self._children
        if self._total is None:
            return children.output_tokens
        started = {*self._shares, *(child.response_id for child in children.active)}
        shares = [await self._share_of(each) for each in started - children.ended_ids]
        return children.output_tokens + sum(shares)

    async def _share_of(self, response_id: str) -> int:
        # Its own response tells: another server may have started it.
        if response_id not in self._shares:
            try:
                response = await self._runs.get(self._tenant, response_id)
            except NotFound:
                return 0
            self._shares[response_id] = response.max_output_tokens or 0
        return self._shares[response_id]
