"""Serve the scripted models to tests, on a port of this machine or in the test's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.commands.keys import create
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.process.event_loop import new_event_loop
from antiphon.entrypoints.server.process import Process
from antiphon.entrypoints.server.serve import RunningServer, drain, serving, start_app
from antiphon.entrypoints.settings import SETTINGS, Settings, load

START_LIMIT_S = 60
STOP_LIMIT_S = 30


class ScriptedServer(Struct, frozen=True, kw_only=True):
    """A server that answers: `base_url` and `api_key` are what clients are given.

    `api_key` is a real one if the settings have `auth="on"`; otherwise any key will do.
    """

    base_url: str
    models: tuple[str, ...]
    api_key: str


@contextmanager
def serve_scripted(
    folder: Path, *, config: Path | None = None, **settings: Any
) -> Iterator[ScriptedServer]:
    """Serve the scripted models on a free port of this machine, in a thread, inside the block.

    The store is in memory; everything else that the server keeps is in `folder`. `config` is a
    settings file. `settings` are those of `antiphon serve`, named as in that file, with a dot
    written as two underscores: `scripted__tokens_per_s=50`. No variable of the environment counts.
    Raises: SettingsError.
    """
    loaded, api_key = _load(folder, config, settings)
    container = Container(settings=loaded)
    with serving_in_thread(container) as server:
        models = tuple(server.app.models.by_name)
        yield ScriptedServer(base_url=f"{server.url}/v1", models=models, api_key=api_key)


@asynccontextmanager
async def scripted_app(*, config: Path | None = None, **settings: Any) -> AsyncIterator[ASGIApp]:
    """Start the scripted models without a port, and yield the ASGI app that serves them.

    It runs in the event loop of the caller. `config` and `settings` are those of `serve_scripted`;
    for `auth="on"`, name a `keys_file`.
    """
    with TemporaryDirectory() as folder:
        loaded, _ = _load(Path(folder), config, settings)
        async with AsyncExitStack() as stack:
            served, app = await start_app(Container(settings=loaded), stack)
            try:
                yield served
            finally:
                app.services.stopping.set()
                await drain(app, 0)


class _TestProcess(Process):
    """The process of the tests: its interpreter is set up by them."""

    def tune(self) -> None: ...


@contextmanager
def serving_in_thread(container: Container) -> Iterator[RunningServer]:
    """Serve in a thread inside the block, and yield the server.

    Errors of the server, at its start or later, are raised here.
    """
    settings = container.settings()
    if settings.workers > 1:
        raise SettingsError("This server runs in a thread of the tests: set workers to 1.")
    ready = threading.Event()
    started: dict[str, Any] = {}
    errors: list[BaseException] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        try:
            async with serving(container, _TestProcess(settings)) as served:
                started.update(server=served, stop=lambda: loop.call_soon_threadsafe(stop.set))
                ready.set()
                await stop.wait()
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    def work() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=work, name="antiphon", daemon=True)
    thread.start()
    if not ready.wait(START_LIMIT_S):
        raise TimeoutError(f"The server did not start within {START_LIMIT_S} seconds.")
    if errors:
        thread.join()
        raise errors[0]
    try:
        yield started["server"]
    finally:
        started["stop"]()
        thread.join(STOP_LIMIT_S)
        if thread.is_alive():
            raise TimeoutError(f"The server did not stop within {STOP_LIMIT_S} seconds.")
        if errors:
            raise errors[0]


def _load(folder: Path, config: Path | None, settings: Mapping[str, Any]) -> tuple[Settings, str]:
    """Return the checked settings and a key for clients: a new one if the server asks for keys."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    unknown = sorted(named.keys() - SETTINGS.keys())
    if unknown:
        raise SettingsError(
            f"{unknown[0]!r} is not a setting; `antiphon serve --help` lists them all."
        )
    own = {"port": 0, "data_dir": folder, "store": "memory", "engine": "scripted"}
    tree = {**own, "allowed_host": ["*"], **named}  # no browser of a person comes here
    loaded = load(config, {}, tree)
    if loaded.auth != "on" or loaded.keys_file is not None:
        return loaded, "none"
    file = folder / "keys.toml"
    api_key, _ = create(loaded, "tests", "default", file)
    return load(config, {}, {**tree, "keys_file": file}), api_key
