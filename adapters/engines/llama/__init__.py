"""llama.cpp as an engine (see `pooled`): tokens in, tokens out.

engine.py         the port: start, health, admission
options.py        what the settings say
process.py        a process of ours that serves a model file
child.py          what runs in that process
profile.py        what a server says of its model
gguf.py           what a model file says, without its weights (no network)
model_folder.py   a model file's tokenizer and template as a model folder
pre_tokenizers.py how tokenizers cut a text, by the name in a model file
wires.py          a run as a request, and the events as steps (no I/O)
lost_tokens.py    tokens that the server does not send (no I/O)
grammar/          our constraints in llama.cpp's words (no I/O)
"""

from __future__ import annotations

from antiphon.adapters.engines.llama.engine import LlamaEngine
from antiphon.adapters.engines.llama.options import LlamaOptions

__all__ = ["LlamaEngine", "LlamaOptions"]
