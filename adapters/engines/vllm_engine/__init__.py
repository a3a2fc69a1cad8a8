"""vLLM as an engine in this process.

engine.py      the port: starting, health, closing
options.py     vLLM's own command-line options → its engine arguments and LoRA adapters
images.py      prompts with images: their tokens, before the run
runs.py        one run: admission, steps, leaving
parameters.py  Sampling → vLLM's sampling parameters
spelling.py    token id → its text and exact bytes

Only engine.py may be imported without vLLM; it imports the others when it starts, because vLLM
takes many seconds to import and is not installed everywhere.
"""

from __future__ import annotations

from antiphon.adapters.engines.vllm_engine.engine import VllmEngine

__all__ = ["VllmEngine"]
