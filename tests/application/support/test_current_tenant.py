"""Work is of the tenant of the task that started it, unless it is for everybody."""

from __future__ import annotations

import asyncio

from antiphon.application.support.tasks import (
    call_soon_for_all,
    current_tenant,
    start_shared_task,
    work_for,
)
from antiphon.entrypoints.http.wire.dispatch import Dispatcher


async def tenant() -> str:
    return current_tenant()


async def test_tasks_are_of_the_tenant_that_starts_them_unless_they_are_shared() -> None:
    work_for("a")
    assert await asyncio.create_task(tenant()) == "a"
    assert await start_shared_task(tenant()) == ""


async def test_what_is_called_for_all_is_of_no_tenant() -> None:
    work_for("a")
    tenants: list[str] = []
    call_soon_for_all(lambda: tenants.append(current_tenant()))
    await asyncio.sleep(0)
    assert tenants == [""]


async def test_requests_that_must_wait_start_as_no_tenants() -> None:
    work_for("a")  # as the request before it on its connection did
    dispatcher, tenants = Dispatcher(portion=1), list[str]()
    assert dispatcher.may_start()
    assert not dispatcher.may_start()
    dispatcher.add(b"", lambda: tenants.append(current_tenant()))
    await asyncio.sleep(0.001)
    assert tenants == [""]
