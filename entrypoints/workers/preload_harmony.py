"""The vocabulary of Harmony, 54 MB, loaded once for all workers (fork_server.py)."""

from __future__ import annotations

from antiphon.adapters.formats.harmony.encoding import load_encoding

load_encoding()
