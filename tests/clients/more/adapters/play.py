"""Play scenes with one client: `play.py CLIENT RESULTS`, with the scenes as JSON on stdin.

The adapter of a client is the module of its name beside this one. It runs in the environment of the
clients alone, and has a function for each scene that the client can play:

    plain(prompt) -> str                    an answer
    stream(prompt) -> list[str]             the pieces of a streamed answer
    tools(prompt) -> str                    the answer after all calls of `get_weather`
    turns(prompt, prompt) -> list[str]      the answers of one conversation
    structured(prompt) -> dict[str, Any]    a `Place`

RESULTS becomes a file with an object for each scene: its `result` or `error`, and the cities that
were asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import BaseModel

API = os.environ["ANTIPHON_API"]
URL = os.environ["ANTIPHON_URL"]
MODEL = os.environ["ANTIPHON_MODEL"]
KEY = "none"

CITIES: list[str] = []


class Place(BaseModel):
    city: str
    population: int


def get_weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: The name of the city.
    """
    CITIES.append(city)
    return f"{city}: 20C"


def play(adapter: Any, scene: str, prompts: list[str]) -> dict[str, Any]:
    if not hasattr(adapter, scene):
        return {"missing": True}
    CITIES.clear()
    try:
        result = getattr(adapter, scene)(*prompts)
    except Exception:
        return {"error": traceback.format_exc()}
    return {"result": result, "cities": list(CITIES)}


def main(client: str, results: str) -> None:
    sys.modules["play"] = sys.modules["__main__"]
    adapter = importlib.import_module(client)
    scenes = json.load(sys.stdin)
    played = {scene: play(adapter, scene, prompts) for scene, prompts in scenes.items()}
    Path(results).write_text(json.dumps(played), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # the threads of some clients would wait for their makers' servers


if __name__ == "__main__":
    main(*sys.argv[1:])
