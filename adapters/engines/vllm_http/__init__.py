"""A pool of vLLM servers as one engine (see `pooled`): tokens in, tokens out.

engine.py       the port: start, health, admission
options.py      what the settings say about the pool
hub_folder.py   a tokenizer that is fetched from a hub
profile.py      what one server serves, and which wires it offers
wires.py        a run as a request on either wire, and the wires' events as steps (no I/O)
image_tokens.py which tokens images become, in the words of the wires (no I/O)
images.py       prompts with images, expanded before the run
"""

from __future__ import annotations

from antiphon.adapters.engines.vllm_http.engine import VllmHttpEngine
from antiphon.adapters.engines.vllm_http.options import VllmHttpOptions

__all__ = ["VllmHttpEngine", "VllmHttpOptions"]
