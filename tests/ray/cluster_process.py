"""A Ray cluster of one machine with the application on it, as a process of its own.

It reads commands from standard input, one JSON list a line, and answers each with a line of JSON.
At the end of the input, it stops everything that it started.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client

from antiphon.entrypoints.ray_serve import build
from antiphon.entrypoints.ray_serve.application import NAME

OBJECT_STORE_BYTES = 200 * 1024 * 1024
APP = "antiphon"


def deploy(args: dict[str, Any], autoscaling: Mapping[str, float] | None = None) -> None:
    """Deploy the application, or replace it. Here, a replica has a tenth of a processor."""
    built = build(args)._bound_deployment
    config = built._deployment_config.autoscaling_config.model_copy(update=dict(autoscaling or {}))
    options = {"ray_actor_options": {"num_cpus": 0.1}, "autoscaling_config": config}
    serve.run(built.options(**options).bind(*built.init_args), name=APP)


def replicas() -> dict[str, int]:
    """Return the replicas that run, and their processes."""
    application = _get_global_client().get_serve_details()["applications"][APP]
    found = application["deployments"][NAME]["replicas"]
    return {each["replica_id"]: each["pid"] for each in found if each["state"] == "RUNNING"}


def kill(replica: str) -> None:
    os.kill(replicas()[replica], signal.SIGKILL)


COMMANDS = {each.__name__: each for each in (deploy, replicas, kill)}


def start_cluster(folder: str) -> None:
    """Start Ray. It waits for half a minute at the most, which a busy machine may need longer."""
    for last in (False, False, True):
        try:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=folder,
                _node_ip_address="127.0.0.1",
            )
        except Exception as error:
            if last or "timed out" not in str(error):
                raise
            ray.shutdown()
        else:
            return


def main(folder: str, port: int) -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where Ray writes logs of its processes
    start_cluster(folder)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    print(json.dumps({"answer": "ready"}), file=answers)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = {"answer": COMMANDS[name](*arguments)}
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
