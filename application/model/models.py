"""The models that this server offers, by the names that clients use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from antiphon.application.ports import Model
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import EngineDead, ModelUnavailable, NotFound, RequestError

logger = logging.getLogger("antiphon.models")

CHECK_TIMEOUT_S = 2.0
"""A model that does not answer in this time is not ready."""

STARTING, READY, UNAVAILABLE, SILENT = "starting", "ok", "unavailable", "silent"


class Models:
    """All models by all of their names; the first model's first name is the default."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.all = tuple(models)

    def allowed_by(self, policy: KeyPolicy) -> Models:
        """Return the models that a key may use. For it, there are no others."""
        if not policy.models:
            return self
        return Models([model for model in self.all if policy.allows_model(model.names)])

    @property
    def default(self) -> Model:
        """The model of requests that name none. Raises: RequestError if there is no model."""
        if not self.all:
            raise RequestError(
                "The API key may use none of this server's models.",
                param="model",
                code="model_not_found",
            )
        return self.all[0]

    @property
    def by_name(self) -> Mapping[str, Model]:
        return {name: model for model in self.all for name in model.names}

    def get(self, name: str) -> Model:
        """Return a request's model. Raises: RequestError if no model has this name."""
        for model in self.all:
            if name in model.names:
                return model
        names = ", ".join(repr(each) for each in self.by_name) or "no model for this API key"
        raise RequestError(
            f"The requested model {name[:100]!r} does not exist. This server has {names}.",
            param="model",
            code="model_not_found",
        )

    def exists(self, name: str) -> None:
        """Raises: NotFound."""
        if name not in self.by_name:
            raise NotFound(f"The model {name[:100]!r} does not exist.", code="model_not_found")

    async def check(self) -> None:
        """Raises: EngineDead if no model can serve requests."""
        states = await self.states()
        if READY not in states.values():
            raise EngineDead("No model is ready.")

    async def states(self) -> Mapping[str, str]:
        """Return each model's state by its first name: `ok`, or one word for the problem."""
        states = await asyncio.gather(*map(_state_of, self.all))
        return {model.names[0]: state for model, state in zip(self.all, states, strict=True)}


async def _state_of(model: Model) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            await model.check()
    except ModelUnavailable as error:
        return error.state
    except TimeoutError:
        return SILENT
    except Exception:  # not in the answer: it may name machines, and the endpoint is public
        logger.debug("model %r is not ready", model.names[0], exc_info=True)
        return UNAVAILABLE
    return READY
