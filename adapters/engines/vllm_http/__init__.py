"""A pool of vLLM servers as one engine: tokens in, tokens out.

engine.py       the port: start, health, admission
options.py      what the settings say about the pool
server_urls.py  where the pool's members come from: a list, a file that changes, DNS
hub_folder.py   a tokenizer that is fetched from a hub
profile.py      what one server serves, and which wires it offers
pool.py         the members: probes, failures, draining, the choice of one for a run
routing.py      the rule of that choice (no I/O)
prefixes.py     which prefixes a server has probably cached (no I/O)
wires.py        a run as a request on either wire, and the wires' events as steps (no I/O)
refusals.py     a server's error as ours (no I/O)
image_tokens.py which tokens images become, in the words of the wires (no I/O)
images.py       prompts with images, expanded before the run
text.py         text that is decoded here, because the server sends none
runs.py         a run: tries the next server while no token has come
"""

from __future__ import annotations

from antiphon.adapters.engines.vllm_http.engine import VllmHttpEngine
from antiphon.adapters.engines.vllm_http.options import VllmHttpOptions

__all__ = ["VllmHttpEngine", "VllmHttpOptions"]
