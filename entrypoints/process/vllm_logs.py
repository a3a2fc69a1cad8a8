"""Let vLLM's processes log as this server does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.entrypoints.process.log_format import FORMATTERS

CONFIG_PATH = "VLLM_LOGGING_CONFIG_PATH"
OPERATORS_OWN = ("VLLM_CONFIGURE_LOGGING", CONFIG_PATH, "VLLM_LOGGING_LEVEL")
"""With one of these variables, the operator has decided how vLLM logs."""


def logging_config(level: str, format: str = "text") -> dict[str, object]:
    """Return the configuration for `logging.config.dictConfig`, of things that JSON can hold."""
    kind = FORMATTERS[format]
    formatter = f"{kind.__module__}.{kind.__qualname__}"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"antiphon": {"()": formatter}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "antiphon",
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {"vllm": {"handlers": ["stderr"], "level": level.upper(), "propagate": False}},
    }


@contextmanager
def configure_vllm_logs(level: str, format: str = "text") -> Iterator[None]:
    """Give vLLM our format and level inside the block, unless the operator configures it.

    vLLM reads the configuration from a file, in this process and in those that it starts.
    """
    if any(name in os.environ for name in OPERATORS_OWN):
        yield
        return
    with TemporaryDirectory(prefix="antiphon-") as folder:
        file = Path(folder) / "logging.json"
        file.write_text(json.dumps(logging_config(level, format)), encoding="utf-8")
        os.environ[CONFIG_PATH] = str(file)
        try:
            yield
        finally:
            del os.environ[CONFIG_PATH]
