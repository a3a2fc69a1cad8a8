"""What a model is shown of a conversation: what the rules leave, with what is sealed opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from antiphon.domain import conversation as c
from antiphon.domain import items as i
from antiphon.domain.compaction import opened, unreadable
from antiphon.domain.content import ReasoningText

Unseal = Callable[[str, str], str | None]
"""(tenant, sealed) -> the text, or None if it was not sealed by us for this tenant."""


class ShowItems:
    """From the items as they are kept to the items that a format writes into the prompt."""

    def __init__(self, *, unseal: Unseal) -> None:
        self._unseal = unseal

    async def __call__(
        self, conversation: Sequence[i.AnyItem], *, tenant: str, all_reasoning: bool = False
    ) -> list[i.AnyItem]:
        """Return what is shown; `all_reasoning`: that of turns that are over too.

        Raises: RequestError for what cannot be shown.
        """
        shown = c.shown(conversation, all_reasoning=all_reasoning)
        return [each for item in shown for each in self._opened(item, tenant)]

    def _opened(self, item: i.AnyItem, tenant: str) -> list[i.AnyItem]:
        match item:
            case i.Reasoning(encrypted_content=str(sealed)) if not item.content and sealed:
                return [self._with_thought(item, sealed, tenant)]
            case i.Compaction(encrypted_content=sealed):
                text = self._unseal(tenant, sealed)
                if text is None:
                    raise unreadable()
                return opened(text)
        return [item]

    def _with_thought(self, item: i.Reasoning, sealed: str, tenant: str) -> i.Reasoning:
        text = self._unseal(tenant, sealed)
        if text is None:
            return item  # foreign or expired: what is readable of it is still shown
        return replace(item, content=(ReasoningText(text=text),))
