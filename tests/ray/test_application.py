"""What `build` returns, and a replica without a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

serve = pytest.importorskip("ray.serve", reason="the extra ray is not installed")
yaml = pytest.importorskip("yaml")

from ray.serve.schema import ServeDeploySchema  # noqa: E402

from antiphon.entrypoints.ray_serve import build  # noqa: E402
from antiphon.entrypoints.ray_serve.application import NAME, load_settings  # noqa: E402
from antiphon.entrypoints.ray_serve.replica import NotReady, Replica  # noqa: E402

pytestmark = pytest.mark.ray

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.yaml"


def example() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return loaded


def test_the_example_is_a_serve_config_of_this_application() -> None:
    application = ServeDeploySchema.model_validate(example()).applications[0]
    package, _, function = application.import_path.partition(":")
    assert (package, function) == ("antiphon.entrypoints.ray_serve", build.__name__)
    assert [each.name for each in application.deployments] == [NAME]
    assert build(application.args)._bound_deployment.name == NAME


def test_a_replica_has_time_to_end_its_runs_and_survives_an_outage_of_the_store() -> None:
    args = {**example()["applications"][0]["args"], "graceful_shutdown_s": 90, "store_retry_s": 60}
    config = build(args)._bound_deployment._deployment_config
    assert config.graceful_shutdown_timeout_s == 100
    assert config.health_check_period_s == 30
    assert config.max_ongoing_requests == 10_000


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    args = {"store": f"sqlite:///{tmp_path}/shared.db", "data_dir": str(tmp_path), "auth": "off"}
    started = Replica(load_settings({**args, "graceful_shutdown_s": 0}, {}))
    await started.__serve_build_asgi_app__()
    yield started
    await started._shut_down()


async def test_a_replica_is_healthy_while_it_is_ready(replica: Replica) -> None:
    await replica.check_health()
    replica._app.runs.active.close()
    with pytest.raises(NotReady, match="server stopping, store ok, engine ok"):
        await replica.check_health()


async def test_a_replica_reports_the_load_that_no_request_shows(replica: Replica) -> None:
    stats = await replica.record_autoscaling_stats()
    assert stats == {"background_runs": 0, "waiting_runs": 0}
