"""How a sandbox is built: the command line of bubblewrap, and what of this machine is in it.

Every wall is named here or in seccomp.py: no environment, no inherited descriptors, no network, no
other processes, no rights, nobody's identity; of the files, the interpreter and its libraries, to
be read; and two folders in memory that can be written, each of a size.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.domain.errors import SettingsError

FOLDER = "/mnt/data"
"""Where files are, in and out; models were trained to look there."""

SCRATCH_BYTES = 64 * 1024 * 1024
NOBODY = "65534"
MOST_THREADS = 64
MOST_DESCRIPTORS = 256

KERNEL = Path(__file__).with_name("kernel.py")

ENVIRONMENT: Mapping[str, str] = {
    "HOME": FOLDER,
    "LANG": "C.UTF-8",
    "MPLBACKEND": "agg",
    "MPLCONFIGDIR": "/tmp",
    "OMP_NUM_THREADS": "4",
    "OPENBLAS_NUM_THREADS": "4",
    "TMPDIR": "/tmp",
}
"""All that code finds in its environment. Libraries would start a thread for each processor."""

_ASK = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "program": os.path.realpath(sys.executable),
    "library": os.path.join(sys.base_prefix, "lib"),
    "packages": sorted({paths["purelib"], paths["platlib"]}),
}))
"""


class Limits(Struct, frozen=True, kw_only=True):
    """What one sandbox may use. `cpu_s` is for its whole life, all else at any time; of images, for
    each call."""

    memory_bytes: int = 1024**3
    disk_bytes: int = 256 * 1024**2
    files: int = 10_000
    cpu_s: int = 600
    output_bytes: int = 1024**2
    images: int = 8
    image_bytes: int = 4 * 1024**2
    file_bytes: int = 64 * 1024**2


class Interpreter(Struct, frozen=True, kw_only=True):
    """A Python of this machine: its program, its library, and folders of further packages."""

    program: str
    library: str
    packages: tuple[str, ...] = ()


def interpreter(program: str) -> Interpreter:
    """Ask a Python where it is. Raises: SettingsError."""
    try:
        asked = subprocess.run(
            [program, "-I", "-c", _ASK], env={}, capture_output=True, check=True, timeout=30
        )
        found: dict[str, Any] = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SettingsError(f"{program!r} is no Python that can run code: {error}.") from None
    packages = tuple(folder for folder in found["packages"] if os.path.isdir(folder))
    return Interpreter(program=found["program"], library=found["library"], packages=packages)


def programs() -> list[str]:
    """Return the command that starts a sandbox. Raises: SettingsError for what is not installed."""
    needed = ["bwrap", "setpriv"] if os.geteuid() == 0 else ["bwrap"]
    found = {name: shutil.which(name) for name in needed}
    for name, package in (("bwrap", "bubblewrap"), ("setpriv", "util-linux")):
        if name in found and found[name] is None:
            raise SettingsError(
                f"The code interpreter needs {name!r}, which is not here: install {package} "
                f"(apt-get install {package}), or leave --code-interpreter out."
            )
    if "setpriv" not in found:
        return [str(found["bwrap"])]
    # What root owns is not to be read by what breaks out of a namespace.
    who = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    return [str(found["setpriv"]), *who, str(found["bwrap"])]


def command(
    start: Sequence[str], python: Interpreter, limits: Limits, *, line: int, seccomp: int, told: int
) -> list[str]:
    """Return the whole command. `line`, `seccomp` and `told` are descriptors: of the kernel's
    requests, of the filter, and of what bubblewrap tells of the process that it started."""
    walls = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
        *("--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"),
        *("--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"),
        *("--seccomp", str(seccomp), "--info-fd", str(told)),
    ]
    environment = [
        word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)
    ]
    writable = [
        *("--size", str(limits.disk_bytes), "--tmpfs", FOLDER),
        *("--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"),
    ]
    # The root and /dev are folders in memory too, without a size: nobody may write there.
    shut = ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/"]
    runs = [python.program, "-I", "-B", "-c", KERNEL.read_text(encoding="utf-8"), str(line)]
    options = json.dumps(_options(python, limits))
    return [*start, *walls, *environment, *writable, *_files(python), *shut, *runs, options]


def _files(python: Interpreter) -> Iterator[str]:
    yield from ("--ro-bind", "/usr/lib", "/usr/lib")
    for folder in ("/lib", "/lib64", "/usr/lib64"):
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        else:
            yield from ("--ro-bind-try", folder, folder)
    for path in _own(python):
        yield from ("--ro-bind", path, path)
    yield from ("--ro-bind-try", "/usr/share/zoneinfo", "/usr/share/zoneinfo")


def shown(python: Interpreter) -> list[str]:
    """Return the paths that a sandbox has; there is nothing beside them."""
    system = ("/usr/lib", "/lib", "/lib64", "/usr/lib64", "/usr/share/zoneinfo")
    return [*system, FOLDER, "/tmp", "/proc", "/dev", *_own(python)]


def _own(python: Interpreter) -> list[str]:
    paths = dict.fromkeys((python.library, *python.packages, python.program))
    return [path for path in paths if not path.startswith("/usr/lib/") and path != "/usr/lib"]


def _options(python: Interpreter, limits: Limits) -> dict[str, Any]:
    return {
        "folder": FOLDER,
        "packages": python.packages,
        "images": limits.images,
        "image_bytes": limits.image_bytes,
        "file_bytes": limits.file_bytes,
        "limits": {
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_CPU": limits.cpu_s,
            "RLIMIT_NPROC": MOST_THREADS,
            "RLIMIT_FSIZE": limits.disk_bytes,
            "RLIMIT_NOFILE": MOST_DESCRIPTORS,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_SIGPENDING": 256,
        },
    }
