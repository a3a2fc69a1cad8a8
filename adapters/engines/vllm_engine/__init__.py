"""vLLM as an engine inside this process.

engine.py      the port: start, health checks, shutdown
options.py     vLLM's command-line options → its engine arguments and LoRA adapters
images.py      prompts with images: expands their tokens before the run
runs.py        runs: admission, steps, abort
parameters.py  Sampling → vLLM's sampling parameters

Only engine.py may be imported without vLLM. It imports the other modules when it starts, because
vLLM takes many seconds to import and is not installed everywhere.
"""

from __future__ import annotations

from antiphon.adapters.engines.vllm_engine.engine import VllmEngine

__all__ = ["VllmEngine"]
