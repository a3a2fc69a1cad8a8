"""Write the lock files: `make lock` (or `lock.py UV`, with the path of uv).

    server.txt  what the server and all its extras but llama, ray and vllm need: for an image
    dev.txt     server.txt, and what tests and checks need: for CI
    build.txt   what builds the wheel: for an image
    more_clients.txt  the clients of more_clients.in and what they need, without hashes

Each package has one version and the hashes of its files, for Python 3.11 and later, on any machine.
Releases of the last days are left out: most malicious ones are found within that time.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
COOLDOWN = "7 days"
NOT_LOCKED = frozenset(
    {"browser", "clients", "deploy", "dev", "docs", "llama", "mistral", "ray", "security", "vllm"}
)
"""Extras that are not for the server, vLLM and llama, which are bound to the GPU's drivers and the
processor, mistral, which vLLM brings and which wants an older NumPy, and ray, whose version is that
of the cluster."""

_PACKAGE = re.compile(r"^(?P<name>[a-z0-9._-]+)==", re.MULTILINE)


def server_extras() -> Sequence[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(project["optional-dependencies"].keys() - NOT_LOCKED)


def build_requirements() -> Sequence[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [str(each) for each in project["build-system"]["requires"]]


def packages(text: str) -> Iterator[tuple[str, str]]:
    """Yield each package of a lock file with its lines."""
    starts = [match.start() for match in _PACKAGE.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        lines = text[start:end]
        yield lines.partition("==")[0], lines


def _compile(uv: str, extras: Sequence[str], *, constraint: Path | None = None) -> str:
    options = [option for extra in extras for option in ("--extra", extra)]
    if constraint is not None:
        options += ["--constraint", str(constraint)]
    return _run(uv, "pyproject.toml", *options)


def _compile_build(uv: str) -> str:
    return _run(uv, "-", given="\n".join(build_requirements()))


def _run(uv: str, source: str, *options: str, given: str = "", hashes: bool = True) -> str:
    command = [
        *(uv, "pip", "compile", source, *options, "--quiet", "--no-header"),
        *("--universal", "--python-version", "3.11", "--upgrade"),
        *(("--generate-hashes",) if hashes else ()),
        *("--exclude-newer", COOLDOWN, "--no-emit-index-url", "--no-emit-find-links"),
    ]
    return subprocess.run(
        command, cwd=ROOT, check=True, input=given, stdout=subprocess.PIPE, text=True
    ).stdout


def main(uv: str) -> None:
    """Write all files."""
    server_file = FOLDER / "server.txt"
    server = _compile(uv, server_extras())
    server_file.write_text(f"# Drawn by `make lock`.\n{server}", encoding="utf-8")
    locked = {name for name, _ in packages(server)}
    dev = _compile(uv, ["dev"], constraint=server_file)
    rest = "".join(lines for name, lines in packages(dev) if name not in locked)
    head = "# Drawn by `make lock`.\n--requirement server.txt\n"
    (FOLDER / "dev.txt").write_text(head + rest, encoding="utf-8")
    build = f"# Drawn by `make lock`.\n{_compile_build(uv)}"
    (FOLDER / "build.txt").write_text(build, encoding="utf-8")
    clients = _run(uv, "requirements/more_clients.in", "--no-annotate", hashes=False)
    (FOLDER / "more_clients.txt").write_text(
        f"# Drawn by `make lock`.\n{clients}", encoding="utf-8"
    )


if __name__ == "__main__":
    main(sys.argv[1])
