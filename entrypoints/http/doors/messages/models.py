"""The models as the Messages API describes them, and the one that answers a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from msgspec import Struct

from antiphon.application.model.describe_models import ModelDescription
from antiphon.application.model.models import Models
from antiphon.domain.errors import EngineDead, NotInList, RequestError
from antiphon.entrypoints.http.doors.messages.thinking import EFFORTS

logger = logging.getLogger("antiphon.models")

CLAUDE = "claude-"
"""How the names begin that clients of this API ask for unless they are told of others."""

MAX_LOGGED = 100
"""Names that are remembered as logged."""


class MessagesModel(Struct, frozen=True, kw_only=True):
    """A model under one of its names. What is unknown while the model is not there is null."""

    type: str = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: str = "active"
    max_input_tokens: int | None = None
    max_tokens: int | None = None
    capabilities: None = None  # this and the rest: unknown, or none
    line: None = None
    deprecated_at: None = None
    retires_at: None = None


class MessagesModelList(Struct, frozen=True, kw_only=True):
    """A page of the models."""

    data: Sequence[MessagesModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def messages_model(name: str, description: ModelDescription, *, created: int) -> MessagesModel:
    """Return a model under one of its names."""
    capabilities = description.capabilities
    length = capabilities.context_length if capabilities else None
    return MessagesModel(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
        max_input_tokens=length,
        max_tokens=length,
    )


def page_of(
    models: Sequence[MessagesModel], *, limit: int, after: str | None, before: str | None
) -> MessagesModelList:
    """Return the first models behind `after`, or the last ones before `before`.

    Raises: RequestError if there is no such model.
    """
    names = [model.id for model in models]
    first = 0 if after is None else _place(names, after, "after_id") + 1
    last = len(names) if before is None else _place(names, before, "before_id")
    found = models[first:last]
    page = found[:limit] if before is None else found[-limit:]
    return MessagesModelList(
        data=page,
        has_more=len(page) < len(found),
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
    )


def _place(names: Sequence[str], name: str, param: str) -> int:
    if name not in names:
        raise NotInList(name, param)
    return names.index(name)


def answering_name(name: str | None, models: Models) -> str | None:
    """Return the name of the model that answers a request for `name`.

    A model of Anthropic's that is not served here stands for the default: clients of this API name
    one even if nobody has chosen it.
    """
    if name is None or not name.startswith(CLAUDE) or name in models.by_name or not models.all:
        return name
    default = models.default.names[0]
    _log_once(name, default)
    return default


def known_efforts(name: str | None, models: Models) -> Sequence[str]:
    """Return the efforts of a model; all of them if it cannot say, since others check them, too."""
    try:
        model = models.default if name is None else models.get(name)
        return model.efforts
    except (RequestError, EngineDead):
        return EFFORTS


@lru_cache(maxsize=MAX_LOGGED)
def _log_once(name: str, default: str) -> None:
    logger.info("%r, which is not served here, stands for the default model %r", name, default)
