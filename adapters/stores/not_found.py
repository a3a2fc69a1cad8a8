"""The errors of what a store does not have, or another tenant has."""

from __future__ import annotations

from antiphon.domain.errors import NotFound


def response_not_found(response_id: str) -> NotFound:
    return NotFound(f"There is no response {response_id!r}.")


def conversation_not_found(conversation_id: str) -> NotFound:
    return NotFound(f"There is no conversation {conversation_id!r}.")


def item_not_found(item_id: str, conversation_id: str) -> NotFound:
    return NotFound(f"There is no item {item_id!r} in conversation {conversation_id!r}.")
