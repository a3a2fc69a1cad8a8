"""Serve from an installed wheel, with nothing but the base dependencies, and ask both models."""

import asyncio
import json
import sys
import tempfile
import urllib.request
from pathlib import Path

from antiphon.entrypoints.container import Container
from antiphon.entrypoints.server.serve import serving
from antiphon.entrypoints.settings import load


def ask(url: str, model: str) -> str:
    body = json.dumps({"model": model, "input": "Say hello."}).encode()
    request = urllib.request.Request(
        f"{url}/v1/responses", data=body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)["output"][0]["content"][0]["text"]


def read_console(url: str) -> None:
    """Raises: HTTPError if a file of the console is not in the wheel."""
    for name in ("", "/assets/app.js", "/assets/style.css"):
        with urllib.request.urlopen(f"{url}/console{name}", timeout=20) as answer:
            assert answer.read()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = load(None, {}, {"port": 0, "data_dir": Path(folder)})
        async with serving(Container(settings=settings)) as served:
            for model in ("scripted-chat", "scripted-harmony"):
                said = await asyncio.to_thread(ask, served.url, model)
                assert said == "Echo: Say hello.", said
            await asyncio.to_thread(read_console, served.url)
    optional = {"vllm", "torch", "tokenizers", "pytest", "prometheus_client", "opentelemetry"}
    loaded = optional & set(sys.modules)
    assert not loaded, f"imported although nobody chose them: {loaded}"
    sys.stdout.write("the wheel serves both scripted models\n")


asyncio.run(main())
