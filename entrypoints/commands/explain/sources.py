"""Get the bundle of a response: from a server, or from its store."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from antiphon.application.responses.explain import ExplainResponse
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.responses.get import GetResponse
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.domain.errors import NotFound, SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.traces import keep_traces

TIMEOUT_S = 60


def bundle_from_server(url: str, key: str | None, response_id: str) -> bytes:
    """Return the bundle. Raises: NotFound; SettingsError if the server does not answer."""
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"--url must start with http:// or https://, not {url!r}.")
    base = url.rstrip("/").removesuffix("/v1")
    request = Request(f"{base}/v1/responses/{quote(response_id, safe='')}/explain")
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read()
    except HTTPError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            raise NotFound(f"There is no response {response_id!r} for this key.") from None
        raise SettingsError(f"{base} answered with the status {error.code}.") from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise SettingsError(f"{base} cannot be reached: {reason}.") from None
    return body


def bundle_from_store(settings: Settings, tenant: str, response_id: str) -> bytes:
    """Return the bundle. Raises: NotFound, SettingsError, StoreError."""
    if settings.store == "memory":
        raise SettingsError("A memory store can only be read by its server: use --url.")
    return asyncio.run(_from_store(Container(settings=settings), tenant, response_id))


async def _from_store(container: Container, tenant: str, response_id: str) -> bytes:
    store, runs = container.store(), ActiveRuns()
    traces = keep_traces(container.settings(), store, container.sealer())
    follow = FollowResponse(container.log(), store)
    get = GetResponse(store, runs, ApprovalAnswers(store))
    explain = ExplainResponse(get, follow, store, traces)
    await store.start()
    try:
        return await explain(tenant, response_id)
    finally:
        await store.aclose()
