"""What is said of models that work, die, hang or never start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from antiphon.application.model.describe_models import (
    Capabilities,
    DescribeModels,
    ModelDescription,
)
from antiphon.application.model.models import Models
from antiphon.application.ports import AdmitPrompt, Model, ModelTurn, Turn
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import EngineDead, NotFound

Check = Callable[[], Awaitable[Any]]


async def is_well() -> None: ...


async def hangs() -> None:
    await asyncio.Event().wait()


async def breaks() -> None:
    raise RuntimeError("a bug in a model of the operator's own")


class OneModel(Model):
    reads_images = False
    efforts = ("low", "high")
    format_name = "mine"
    sampling_defaults: Mapping[str, Any] = {}

    def __init__(self, *names: str, check: Check = is_well) -> None:
        self._names = names
        self._check = check

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @property
    def context_length(self) -> int:
        return 4096

    async def check(self) -> None:
        await self._check()

    async def count(self, turn: Turn) -> int:
        raise NotImplementedError

    async def start_turn(
        self, turn: Turn, *, request_id: str, admit: AdmitPrompt | None = None
    ) -> ModelTurn:
        raise NotImplementedError


class DeadModel(OneModel):
    async def check(self) -> None:
        raise EngineDead("no GPU")


class ModelThatNeverStarted(DeadModel):
    @property
    def context_length(self) -> int:
        raise EngineDead("no GPU")


async def described(*models: Model, policy: KeyPolicy = FULL_ACCESS) -> list[ModelDescription]:
    describe = DescribeModels(Models(models), hosted_tools=("file_search", "shell"))
    return list(await describe(policy))


async def test_a_model_is_described_with_all_of_its_names() -> None:
    assert await described(OneModel("first", "second")) == [
        ModelDescription(
            names=("first", "second"),
            is_ready=True,
            hosted_tools=["file_search", "shell"],
            capabilities=Capabilities(
                context_length=4096,
                reads_images=False,
                efforts=("low", "high"),
                format_name="mine",
            ),
        )
    ]


async def test_a_model_that_died_keeps_its_capabilities() -> None:
    (dead,) = await described(DeadModel("m"))
    assert not dead.is_ready
    assert dead.capabilities is not None


async def test_a_model_that_never_started_has_no_capabilities() -> None:
    (absent,) = await described(ModelThatNeverStarted("m"))
    assert (absent.is_ready, absent.capabilities) == (False, None)


@pytest.mark.parametrize("check", [hangs, breaks])
async def test_a_broken_model_does_not_affect_the_others(check: Check) -> None:
    broken, works = await described(OneModel("a", check=check), OneModel("b"))
    assert (broken.is_ready, works.is_ready) == (False, True)


async def test_models_are_checked_at_the_same_time() -> None:
    all_checks = asyncio.Barrier(3)
    models = [OneModel(name, check=all_checks.wait) for name in "abc"]
    assert all(each.is_ready for each in await described(*models))


async def test_a_key_sees_its_models_and_tools_only() -> None:
    policy = KeyPolicy(models=("b",), tools=("shell",))
    (only,) = await described(OneModel("a"), OneModel("b"), policy=policy)
    assert (only.names, only.hosted_tools) == (("b",), ["shell"])


async def test_only_the_named_model_is_checked() -> None:
    models = Models([OneModel("a", check=hangs), OneModel("b", "c")])
    describe = DescribeModels(models, hosted_tools=())
    found = await describe.describe("c", FULL_ACCESS)
    assert found.is_ready
    with pytest.raises(NotFound):
        await describe.describe("a", KeyPolicy(models=("b",)))
