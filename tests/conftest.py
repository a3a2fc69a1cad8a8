"""Options of the whole suite, and a whole server: real sockets, scripted models, its own thread."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dependency_injector import providers
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from tests.support.with_workers import WORKERS, running_workers

from antiphon.application.ports import ResponseStore
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.services import App
from antiphon.entrypoints.settings import Settings, load
from antiphon.testing.server import serving_in_thread

# The same examples each time, however busy the machine is: what a change breaks fails, and nothing
# else. Others are tried by `pytest --hypothesis-profile=search`.
hypothesis_settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile(
    "search", hypothesis_settings.get_profile("same"), derandomize=False
)
hypothesis_settings.load_profile("same")

# A shell makes what it starts in the background ignore SIGINT, and the servers of tests would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Running(msgspec.Struct):
    """`container` has the ports of the server, and `app` its services, for a test to look at."""

    url: str
    container: Container
    app: App

    @property
    def api(self) -> str:
        return f"{self.url}/v1"

    def engine(self, model: str) -> Any:
        """The engine behind a model, for its counters."""
        return self.app.models.by_name[model]._model._engine


def settings_for(data_dir: Path, *, config: Path | None = None, **given: Any) -> Settings:
    return load(config, {}, {"port": 0, "data_dir": data_dir, "store": "memory", **given})


@contextmanager
def running(settings: Settings, *, store: ResponseStore | None = None) -> Iterator[Running]:
    """Serve until the block is left; what goes wrong in the server's thread is raised here."""
    container = Container(settings=settings)
    if store is not None:
        container.store.override(providers.Object(store))
    with serving_in_thread(container) as served:
        yield Running(url=served.url, container=container, app=served.app)


# Thousands of tests are made and none let go, so the collector would find nothing, for a third of
# the time. `pytest_collection_finish` takes them from its sight, too.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    # Read by now. Servers that tests begin would take them for settings that they do not know.
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if WORKERS == 1:
        return
    for item in items:
        if item.get_closest_marker("one_process") is not None:
            item.add_marker(pytest.mark.skip(reason="each worker has its own"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files anew; read the diff"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session", autouse=True)
def _nobody_is_trusted() -> Iterator[None]:
    """Clients need not read all the authorities of the web, 20 ms each, to speak to ourselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_DIR", str(Path(__file__).parent))
        yield


@pytest.fixture(scope="session")
def server(
    serve_from: Callable[..., AbstractContextManager[Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """One server for all tests that change no setting of it, on a SQLite file."""
    with serve_from(tmp_path_factory.mktemp("server"), store="sqlite") as served:
        yield served


@pytest.fixture(scope="session")
def serve_from() -> Callable[..., AbstractContextManager[Any]]:
    """As `serve`, for a server of a whole module, which brings its folder."""

    def start(folder: Path, *, instead: ResponseStore | None = None, **given: Any) -> Any:
        if WORKERS > 1 and instead is None and given.get("store") != "memory":
            return running_workers(folder, **given)
        return running(settings_for(folder, **given), store=instead)

    return start


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., AbstractContextManager[Running]]:
    """Start a server of the test's own: `with serve(keepalive_s=0.1) as server: …`.

    `instead` is a store to use in place of the one that the settings choose.
    """

    def start(*, instead: ResponseStore | None = None, **given: Any) -> Any:
        return running(settings_for(tmp_path, **given), store=instead)

    return start
