"""The command line of bubblewrap, and which of this machine's files a sandbox can see.

Every restriction is here or in seccomp.py. A sandbox has no inherited environment or descriptors,
no network, no other processes, no capabilities, and runs as `nobody`. It can read the interpreter
and its libraries, and its skills, and write to two folders in memory, each with a size limit. With
a shell it can also read the machine's programs.
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
"""The folder for uploaded and generated files; models were trained to look there."""

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
"""The whole environment of the code. Without the thread settings, libraries would start a thread
for each processor."""

_ISOLATION = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
    *("--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"),
    *("--uid", NOBODY, "--gid", NOBODY, "--hostname", "sandbox"),
)
# The root and /dev are in memory too, but without a size limit: they must not be writable. Nor may
# /proc: if root has started the sandbox, the settings of the kernel in /proc/sys are its own there.
_READ_ONLY = (
    *("--proc", "/proc", "--dev", "/dev"),
    *("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),
)

_RUN_KERNEL = """
import os, sys
with os.fdopen(int(sys.argv.pop(1))) as file:
    kernel = file.read()
exec(compile(kernel, "kernel", "exec"))
"""
"""Reads the kernel from a descriptor, so that its source is not in the command line, which commands
can list."""

_PRINT_PATHS = """
import json, os, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "program": os.path.realpath(sys.executable),
    "library": os.path.join(sys.base_prefix, "lib"),
    "packages": sorted({paths["purelib"], paths["platlib"]}),
}))
"""


class Limits(Struct, frozen=True, kw_only=True):
    """The resource limits of one sandbox.

    `cpu_s` is for its whole life, the output and the images are for each call, and the others hold
    at any time. With `commands` the sandbox has a shell and can start processes.
    `memory_bytes` and `cpu_s` then apply to each process; the server watches the memory of all
    processes together, or a cgroup limits it.
    """

    commands: bool = False
    memory_bytes: int = 1024**3
    disk_bytes: int = 256 * 1024**2
    files: int = 10_000
    cpu_s: int = 600
    output_bytes: int = 1024**2
    images: int = 8
    image_bytes: int = 4 * 1024**2
    all_images_bytes: int = 8 * 1024**2


class Interpreter(Struct, frozen=True, kw_only=True):
    """A Python on this machine: its program, its standard library, and its package folders."""

    program: str
    library: str
    packages: tuple[str, ...] = ()


def find_interpreter(program: str) -> Interpreter:
    """Ask a Python program for its paths. Raises: SettingsError."""
    try:
        process = subprocess.run(
            [program, "-I", "-c", _PRINT_PATHS],
            env={},
            capture_output=True,
            check=True,
            timeout=30,
        )
        paths: dict[str, Any] = json.loads(process.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SettingsError(f"{program!r} is not a Python that can run code: {error}.") from None
    packages = tuple(folder for folder in paths["packages"] if os.path.isdir(folder))
    return Interpreter(program=paths["program"], library=paths["library"], packages=packages)


def find_launcher() -> list[str]:
    """Return the start of every sandbox's command line: bwrap, and for root a change of user.

    Raises: SettingsError if a program is not installed.
    """
    names = ["bwrap", "setpriv"] if os.geteuid() == 0 else ["bwrap"]
    paths = {name: shutil.which(name) for name in names}
    for name, package in (("bwrap", "bubblewrap"), ("setpriv", "util-linux")):
        if name in paths and paths[name] is None:
            raise SettingsError(
                f"The code interpreter needs {name!r}, which is not installed: install {package} "
                f"(apt-get install {package}), or leave --code-interpreter out."
            )
    if "setpriv" not in paths:
        return [str(paths["bwrap"])]
    # Code that breaks out of its namespace must not be able to read root's files.
    identity = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    return [str(paths["setpriv"]), *identity, str(paths["bwrap"])]


class Descriptors(Struct, frozen=True, kw_only=True):
    """The file descriptors that a sandbox inherits.

    `kernel` holds the program that it runs, `requests` is the socket of its requests, `seccomp` is
    the filter, and bubblewrap writes the id of the process that it started to `info`. `commands`
    are the request socket, stdout and stderr of the process that runs shell commands.
    """

    kernel: int
    requests: int
    seccomp: int
    info: int
    commands: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        return (self.kernel, self.requests, self.seccomp, self.info, *self.commands)


def sandbox_command(
    launcher: Sequence[str],
    python: Interpreter,
    limits: Limits,
    descriptors: Descriptors,
    folders: Mapping[str, str],
) -> list[str]:
    """Return the command line of a sandbox.

    It sees `folders`, by their paths in it, and cannot change them.
    """
    channels = ["--seccomp", str(descriptors.seccomp), "--info-fd", str(descriptors.info)]
    environment = [
        word
        for name, value in environment_of(python, limits).items()
        for word in ("--setenv", name, value)
    ]
    writable = [
        *("--size", str(limits.disk_bytes), "--tmpfs", FOLDER),
        *("--size", str(SCRATCH_BYTES), "--tmpfs", "/tmp"),
    ]
    read_only = [
        word for inside, outside in folders.items() for word in ("--ro-bind", outside, inside)
    ]
    options = json.dumps(_kernel_options(python, limits) | {"commands": descriptors.commands})
    kernel = [
        *(python.program, "-I", "-B", "-c", _RUN_KERNEL),
        *(str(descriptors.kernel), str(descriptors.requests), options),
    ]
    return [
        *launcher,
        *_ISOLATION,
        *channels,
        *environment,
        *writable,
        *_read_only_binds(python, limits),
        *read_only,
        *_READ_ONLY,
        *kernel,
    ]


def own_program_command(
    launcher: Sequence[str], python: Interpreter, seccomp: int, arguments: Sequence[str]
) -> list[str]:
    """Return the command line of a program of the server's own, which can write nowhere."""
    return [
        *launcher,
        *_ISOLATION,
        *("--seccomp", str(seccomp)),
        *_read_only_binds(python, Limits()),
        *_READ_ONLY,
        python.program,
        *arguments,
    ]


def environment_of(python: Interpreter, limits: Limits) -> Mapping[str, str]:
    """Return the whole environment of code and commands."""
    if not limits.commands:
        return ENVIRONMENT
    folders = dict.fromkeys((os.path.dirname(python.program), "/usr/bin", "/bin"))
    return {**ENVIRONMENT, "PATH": ":".join(folders), "PYTHONPATH": ":".join(python.packages)}


LIBRARIES = ("/usr/lib", "/lib", "/lib64", "/usr/lib64")
PROGRAMS = ("/usr/bin", "/bin")
TIME_ZONES = "/usr/share/zoneinfo"
ALTERNATIVES = "/etc/alternatives"
"""Symbolic links only; some programs are found through them."""


def _read_only_binds(python: Interpreter, limits: Limits) -> Iterator[str]:
    for folder in (*LIBRARIES, *(PROGRAMS if limits.commands else ())):
        if os.path.islink(folder):
            yield from ("--symlink", os.readlink(folder), folder)
        else:
            yield from ("--ro-bind-try", folder, folder)
    for path in _interpreter_paths(python, limits):
        yield from ("--ro-bind", path, path)
    for path in (TIME_ZONES, *([ALTERNATIVES] if limits.commands else ())):
        yield from ("--ro-bind-try", path, path)


def visible_paths(python: Interpreter, limits: Limits) -> list[str]:
    """Return every path that a sandbox can see."""
    programs = (*PROGRAMS, ALTERNATIVES) if limits.commands else ()
    interpreter = _interpreter_paths(python, limits)
    return [*LIBRARIES, *programs, TIME_ZONES, FOLDER, "/tmp", "/proc", "/dev", *interpreter]


def _interpreter_paths(python: Interpreter, limits: Limits) -> list[str]:
    """Return the interpreter's paths that the system folders do not already contain."""
    paths = dict.fromkeys((python.library, *python.packages, python.program))
    bound = ("/usr/lib", "/usr/bin") if limits.commands else ("/usr/lib",)
    return [
        path for path in paths if not any(f"{path}/".startswith(f"{folder}/") for folder in bound)
    ]


def _kernel_options(python: Interpreter, limits: Limits) -> dict[str, Any]:
    return {
        "folder": FOLDER,
        "packages": python.packages,
        "images": limits.images,
        "image_bytes": limits.image_bytes,
        "all_images_bytes": limits.all_images_bytes,
        "limits": {
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_CPU": limits.cpu_s,
            "RLIMIT_NPROC": MAX_PROCESSES if limits.commands else MAX_THREADS,
            "RLIMIT_FSIZE": limits.disk_bytes,
            "RLIMIT_NOFILE": MAX_DESCRIPTORS,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_SIGPENDING": 256,
        },
    }
