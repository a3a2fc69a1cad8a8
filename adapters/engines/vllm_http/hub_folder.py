"""Fetch a model's tokenizer and chat template from the hub that its servers have it from."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

log = logging.getLogger("antiphon.engine")

FILES = (
    "tokenizer*",
    "tekken.json",
    "chat_template*",
    "special_tokens_map.json",
    "config.json",
    "generation_config.json",
)
"""No weights: those are the servers'."""

FETCH_S = 60.0
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+\Z")


async def fetch_model_folder(name: str) -> Path | None:
    """Return the folder of a model with a name like `org/model`, None if it cannot be fetched.

    What an earlier start has fetched comes from the cache of `huggingface_hub`, whose variables
    (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE…) hold here, too.
    """
    if not _HUB_NAME.match(name):
        return None
    try:
        async with asyncio.timeout(FETCH_S):
            return await asyncio.to_thread(_fetch, name)
    except TimeoutError:
        log.warning("the tokenizer of %r could not be fetched in %g s", name, FETCH_S)
    except Exception as error:  # whatever the hub's client raises, there is no folder
        log.warning("the tokenizer of %r could not be fetched: %s", name, type(error).__name__)
    return None


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=list(FILES)))
