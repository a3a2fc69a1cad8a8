"""How a sandbox is built: the command line of bubblewrap, and what of this machine is in it.

Every wall is named here or in seccomp.py: no environment, no inherited descriptors, no network, no
other processes, no rights, nobody's identity; of the files, the interpreter and its libraries, to
be read; and two folders in memory that can be written, each of a size. Where commands are to run,
the machine's programs can be read too.
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
MAX_THREADS = 64
MAX_PROCESSES = 64
MAX_DESCRIPTORS = 256

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

_RUN = """
import os, sys
with os.fdopen(int(sys.argv.pop(1))) as file:
    kernel = file.read()
exec(compile(kernel, "kernel", "exec"))
"""
"""Commands may list processes: the whole kernel is not to be in its command line."""

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
    each call. With `commands` it has a shell, so processes: memory and `cpu_s` are each one's then,
    and of the memory of all together the server sees to it, or a cgroup."""

    commands: bool = False
    memory_bytes: int = 1024**3
    disk_bytes: int = 256 * 1024**2
    files: int = 10_000
    cpu_s: int = 600
    output_bytes: int = 1024**2
    images: int = 8
    image_bytes: int = 4 * 1024**2


class Interpreter(Struct, frozen=True, kw_only=True):
    """A Python of this machine: its program, its library, and folders of further packages."""

    program: str
    library: str
    packages: tuple[str, ...] = ()


def find_interpreter(program: str) -> Interpreter:
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


class Descriptors(Struct, frozen=True, kw_only=True):
    """Descriptors of a sandbox: `kernel` of the program that it runs; `line` of its requests;
    `commands` of requests to run a command, and of what that prints (line, stdout, stderr);
    `seccomp` of the filter; `info` of what bubblewrap tells of the process that it started."""

    kernel: int
    line: int
    seccomp: int
    info: int
    commands: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        return (self.kernel, self.line, self.seccomp, self.info, *self.commands)


def command(
    start: Sequence[str], python: Interpreter, limits: Limits, ends: Descriptors
) -> list[str]:
    """Return the whole command."""
    walls = [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
        *("--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"),
        *("--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"),
        *("--seccomp", str(ends.seccomp), "--info-fd", str(ends.info)),
    ]
    environment = [
        word
        for name, value in environment_of(python, limits).items()
        for word in ("--setenv", name, value)
    ]
    writable = [
        *("--size", str(limits.disk_bytes), "--tmpfs", FOLDER),
        *("--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"),
    ]
    # The root and /dev are folders in memory too, without a size: nobody may write there.
    shut = ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--remount-ro", "/"]
    runs = [python.program, "-I", "-B", "-c", _RUN, str(ends.kernel), str(ends.line)]
    options = json.dumps(_options(python, limits) | {"commands": ends.commands})
    return [*start, *walls, *environment, *writable, *_files(python, limits), *shut, *runs, options]


def environment_of(python: Interpreter, limits: Limits) -> Mapping[str, str]:
    """Return all that code and commands find in their environment."""
    if not limits.commands:
        return ENVIRONMENT
    folders = dict.fromkeys((os.path.dirname(python.program), "/usr/bin", "/bin"))
    return {**ENVIRONMENT, "PATH": ":".join(folders), "PYTHONPATH": ":".join(python.packages)}


LIBRARIES = ("/usr/lib", "/lib", "/lib64", "/usr/lib64")
PROGRAMS = ("/usr/bin", "/bin")
TABLES = "/usr/share/zoneinfo"
NAMES_OF_PROGRAMS = "/etc/alternatives"
"""Links alone, by which some programs are found."""


def _files(python: Interpreter, limits: Limits) -> Iterator[str]:
    for folder in (*LIBRARIES, *(PROGRAMS if limits.commands else ())):
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        else:
            yield from ("--ro-bind-try", folder, folder)
    for path in _own(python, limits):
        yield from ("--ro-bind", path, path)
    for path in (TABLES, *([NAMES_OF_PROGRAMS] if limits.commands else ())):
        yield from ("--ro-bind-try", path, path)


def shown(python: Interpreter, limits: Limits) -> list[str]:
    """Return the paths that a sandbox has; there is nothing beside them."""
    programs = (*PROGRAMS, NAMES_OF_PROGRAMS) if limits.commands else ()
    own = _own(python, limits)
    return [*LIBRARIES, *programs, TABLES, FOLDER, "/tmp", "/proc", "/dev", *own]


def _own(python: Interpreter, limits: Limits) -> list[str]:
    paths = dict.fromkeys((python.library, *python.packages, python.program))
    there = ("/usr/lib", "/usr/bin") if limits.commands else ("/usr/lib",)
    return [path for path in paths if not any(f"{path}/".startswith(f"{at}/") for at in there)]


def _options(python: Interpreter, limits: Limits) -> dict[str, Any]:
    most = MAX_PROCESSES if limits.commands else MAX_THREADS
    return {
        "folder": FOLDER,
        "packages": python.packages,
        "images": limits.images,
        "image_bytes": limits.image_bytes,
        "limits": {
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_CPU": limits.cpu_s,
            "RLIMIT_NPROC": most,
            "RLIMIT_FSIZE": limits.disk_bytes,
            "RLIMIT_NOFILE": MAX_DESCRIPTORS,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_SIGPENDING": 256,
        },
    }
