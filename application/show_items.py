"""What a model is shown of a conversation: what the rules leave, with what is sealed opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from antiphon.domain import conversation as c
from antiphon.domain import items as i
from antiphon.domain.content import ReasoningText
from antiphon.domain.request import CreateResponse

Unseal = Callable[[str, str], str | None]
"""(tenant, sealed) -> the text, or None if it was not sealed by us for this tenant."""


class ShowItems:
    """From the items as they are kept to the items that a format writes into the prompt."""

    def __init__(self, *, unseal: Unseal) -> None:
        self._unseal = unseal

    async def __call__(
        self, request: CreateResponse, conversation: Sequence[i.AnyItem], *, tenant: str
    ) -> list[i.AnyItem]:
        """Raises: RequestError for what cannot be shown."""
        every = request.reasoning is not None and request.reasoning.context == "all_turns"
        shown = c.shown(conversation, all_reasoning=every)
        return [self._opened(item, tenant) for item in shown]

    def _opened(self, item: i.AnyItem, tenant: str) -> i.AnyItem:
        """Return a reasoning item with its sealed text opened, where only that is there."""
        if not isinstance(item, i.Reasoning) or item.content or not item.encrypted_content:
            return item
        text = self._unseal(tenant, item.encrypted_content)
        if text is None:
            return item  # foreign or expired: what is readable of it is still shown
        return replace(item, content=(ReasoningText(text=text),))
