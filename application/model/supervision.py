"""Start each model by itself, and start it again when its engine has died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from antiphon.application.model.models import READY, STARTING, UNAVAILABLE
from antiphon.application.model.output_bounds import OutputRoom, bounded
from antiphon.application.ports import AdmitPrompt, Model, ModelTurn, RenderedTurn, Turn, Weights
from antiphon.domain.errors import EngineDead, ModelUnavailable, SettingsError

logger = logging.getLogger("antiphon.models")

START_GRACE_S = 5.0
"""The longest wait of the server for its other models once one is ready."""


class RestartPolicy(Struct, frozen=True, kw_only=True):
    """Limits and pauses of starting a model again.

    The pause before a start doubles from `first_pause_s` to `max_pause_s`. It begins anew after the
    model has worked for `stable_s`. After more than `max_failures` in a row, the model has failed
    for good: it is still started again, but the process need not wait for it. `check_s` is the time
    between looks at a model that works.
    """

    max_failures: int = 5
    first_pause_s: float = 1.0
    max_pause_s: float = 60.0
    stable_s: float = 300.0
    check_s: float = 0.5


class SupervisedModel(Model):
    """A model that refuses turns with ModelUnavailable while it is not there, and bounds them.

    `run_forever` starts it, waits until it is dead, closes it, and starts it again after a pause. A
    model that cannot be reached (EngineDead) is waited for without a limit; any other failure to
    start, and a death, counts towards the `max_failures` of the policy.
    """

    def __init__(self, model: Model, policy: RestartPolicy | None = None) -> None:
        self._model = model
        self._policy = policy or RestartPolicy()
        self._state = STARTING
        self._failures = 0
        self._attempts = 0
        self.room = OutputRoom()
        """Shared with the other models."""
        self.error: Exception | None = None
        """The error of the last start, or None if the model has started."""

    @property
    def names(self) -> Sequence[str]:
        return self._model.names

    @property
    def format_name(self) -> str:
        return self._available.format_name

    @property
    def reads_images(self) -> bool:
        return self._available.reads_images

    @property
    def efforts(self) -> Sequence[str]:
        return self._available.efforts

    @property
    def only_answers_end_turns(self) -> bool:
        return self._available.only_answers_end_turns

    @property
    def context_length(self) -> int:
        return self._available.context_length

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._available.sampling_defaults

    @property
    def schedules_by_priority(self) -> bool:
        return self._available.schedules_by_priority

    @property
    def is_dead(self) -> bool:
        return self._model.is_dead

    @property
    def is_starting(self) -> bool:
        """Whether the first start has not ended yet."""
        return self._state == STARTING

    @property
    def has_failed(self) -> bool:
        """Whether it has failed more often in a row than its policy allows."""
        return self._failures > self._policy.max_failures

    async def start(self) -> None:
        """Raises: SettingsError; EngineDead; whatever the model of an operator's class raises."""
        self._attempts += 1
        try:
            await self._model.start()
        except Exception as error:
            self._state, self.error = UNAVAILABLE, error
            self._failures += not isinstance(error, EngineDead)
            raise
        self._state, self.error = READY, None

    async def aclose(self) -> None:
        await self._model.aclose()

    async def check(self) -> None:
        await self._available.check()

    async def count(self, turn: Turn) -> int:
        return await self._available.count(turn)

    async def render(self, turn: Turn) -> RenderedTurn | None:
        return await self._available.render(turn)

    def ignored_fields(self, turn: Turn) -> Sequence[str]:
        return self._available.ignored_fields(turn)

    async def start_turn(
        self, turn: Turn, *, request_id: str, admit: AdmitPrompt | None = None
    ) -> ModelTurn:
        model = self._available
        started = await model.start_turn(turn, request_id=request_id, admit=admit)
        return bounded(started, turn, model.context_length, self.room)

    @property
    def weighs_at_once(self) -> int:
        return self._available.weighs_at_once

    async def labels(self, count: int) -> Sequence[str]:
        return await self._available.labels(count)

    async def weigh(self, turn: Turn, labels: Sequence[str], *, request_id: str) -> Weights:
        return await self._available.weigh(turn, labels, request_id=request_id)

    async def run_forever(self, attempted: Callable[[], None]) -> None:
        """Start the model, and again whenever it is dead; call `attempted` after each attempt."""
        with suppress(Exception):  # whoever supervises it reads `error`
            await self.start()
        attempted()
        while True:
            if self.error is None:
                await self._wait_until_dead()
                attempted()
            await asyncio.sleep(self._pause_s)
            await self._start_again()
            attempted()

    async def _start_again(self) -> None:
        name = self.names[0]
        with suppress(Exception):
            await self.start()
        if self.error is None:
            logger.info("model %r is ready again", name)
        else:
            self.log_error()

    def log_error(self) -> None:
        """Log why the model has not started, and when it is tried again."""
        is_known = isinstance(self.error, EngineDead | SettingsError)
        logger.warning(
            "model %r has not started: %s Next try in %g s.",
            self.names[0],
            self.error,
            self._pause_s,
            exc_info=None if is_known else self.error,
        )

    async def _wait_until_dead(self) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while not self._model.is_dead:  # noqa: ASYNC110 - engines do not announce their death
            await asyncio.sleep(self._policy.check_s)
        lived_s = loop.time() - started_at
        if lived_s >= self._policy.stable_s:
            self._failures = self._attempts = 0
        self._state = UNAVAILABLE
        self._failures += 1
        logger.error("model %r: its engine has died after %.0f s", self.names[0], lived_s)
        try:
            await self._model.aclose()
        except Exception:  # what has died may not close properly
            logger.exception("model %r: its dead engine could not be closed", self.names[0])

    @property
    def _available(self) -> Model:
        """The model, once it works. Raises: ModelUnavailable."""
        if self._state == READY:
            return self._model
        raise ModelUnavailable(self.names[0], self._state)

    @property
    def _pause_s(self) -> float:
        policy, doublings = self._policy, min(max(self._attempts - 1, 0), 30)
        return min(policy.first_pause_s * 2.0**doublings, policy.max_pause_s)


class SuperviseModels:
    """Starts all models side by side, and keeps starting those that die."""

    def __init__(self, models: Sequence[SupervisedModel]) -> None:
        self._models = models
        self.share(OutputRoom())
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def share(self, room: OutputRoom) -> None:
        """Let the turns of all models share this room."""
        for model in self._models:
            model.room = room

    async def start(self) -> None:
        """Start supervising, and return when a model is ready, or none is on its way.

        Raises: the first model's error if none can start, usually a SettingsError.
        """
        self._tasks = [
            asyncio.create_task(model.run_forever(self._changed.set)) for model in self._models
        ]
        await self._wait_for(lambda: self._has_ready_model or not self._are_starting)
        with suppress(TimeoutError):
            async with asyncio.timeout(START_GRACE_S):
                await self._wait_for(lambda: not self._are_starting)
        errors = [model.error for model in self._models]
        # None of them will start, however long one waits.
        if errors[0] and not any(isinstance(error, EngineDead | None) for error in errors):
            raise errors[0]
        for model in self._models:
            if model.error is not None:
                model.log_error()

    async def aclose(self) -> None:
        """Stop supervising, and close the models."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for model in self._models:
            await model.aclose()

    async def wait_until_all_failed(self) -> None:
        """Return when each model has failed for good: a new process may help."""
        await self._wait_for(lambda: all(model.has_failed for model in self._models))

    @property
    def _has_ready_model(self) -> bool:
        return any(not model.is_starting and model.error is None for model in self._models)

    @property
    def _are_starting(self) -> bool:
        return any(model.is_starting for model in self._models)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
