"""The seccomp filter of sandboxes, run here as the kernel would run it."""

from __future__ import annotations

import errno
import re
import socket
import struct
from pathlib import Path

import pytest

from antiphon.adapters.sandboxes import seccomp
from antiphon.adapters.sandboxes.system_calls import ALLOWED

ALLOW, KILL, ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
NOT_PERMITTED, UNKNOWN = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
MACHINES = ("x86_64", "aarch64")
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NEW_CALLS = range(457, 1000)
"""listmount, statmount, those of security modules, and those that do not exist yet."""


def verdict(
    machine: str, number: int, *arguments: int, processes: bool = False, arch: int | None = None
) -> int:
    """Run the filter on a call, and return what the kernel would do."""
    arch = seccomp.MACHINES[machine].audit_arch if arch is None else arch
    call = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", seccomp.program(machine, processes=processes)))
    assert len(instructions) <= 4096
    position = loaded = 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        match code:
            case 0x06:
                return int(value)
            case 0x20:
                [loaded] = struct.unpack_from("=I", call, value)
            case _:
                tests = {
                    0x15: loaded == value,
                    0x25: loaded > value,
                    0x35: loaded >= value,
                    0x45: bool(loaded & value),
                }
                position += if_true if tests[code] else if_false


def number_of(machine: str, name: str) -> int:
    numbers = {name: call for group in ALLOWED.values() for name, call in group.items()}
    number = numbers[name][MACHINES.index(machine)]
    assert number is not None
    return number


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_that_the_filter_does_not_know_fails_as_on_a_kernel_without_it(machine: str) -> None:
    landlock, seccomp_call = (444, 445, 446), {"x86_64": 317, "aarch64": 277}[machine]
    for number in (*landlock, seccomp_call, *NEW_CALLS):
        if number != 462:  # mseal, for newer C libraries
            assert verdict(machine, number) == UNKNOWN, number


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_are_denied_are_not_allowed_as_well(machine: str) -> None:
    column = MACHINES.index(machine)
    for group in seccomp.DENIED.values():
        for call in group:
            if (number := call[column]) is not None:
                assert verdict(machine, number, processes=True) == NOT_PERMITTED, number


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_list_is_allowed(machine: str) -> None:
    depends_on_arguments = {"clone", "socket", "socketpair", "fork", "vfork"}
    for group in ALLOWED.values():
        for name, call in group.items():
            number = call[MACHINES.index(machine)]
            if number is not None and name not in depends_on_arguments:
                assert verdict(machine, number) == ALLOW, name


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_over_threads_sockets_and_terminals(machine: str) -> None:
    clone, ioctl = number_of(machine, "clone"), number_of(machine, "ioctl")
    thread, user_namespace = 0x0001_0000, 0x1000_0000
    assert verdict(machine, clone, thread) == ALLOW
    assert verdict(machine, clone, 0) == NOT_PERMITTED
    assert verdict(machine, clone, 0, processes=True) == ALLOW
    assert verdict(machine, clone, user_namespace, processes=True) == NOT_PERMITTED
    assert verdict(machine, 435, processes=True) == UNKNOWN  # clone3: libc then uses clone
    for name in ("socket", "socketpair"):
        assert verdict(machine, number_of(machine, name), socket.AF_UNIX) == ALLOW
        assert verdict(machine, number_of(machine, name), socket.AF_INET) == NOT_PERMITTED
    assert verdict(machine, ioctl, 1, 0x5401) == ALLOW
    assert verdict(machine, ioctl, 1, 0x5412) == NOT_PERMITTED


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_end_the_process(machine: str) -> None:
    assert verdict(machine, 0, arch=0x4000_0003) == KILL
    other = seccomp.MACHINES[MACHINES[1 - MACHINES.index(machine)]].audit_arch
    assert verdict(machine, 0, arch=other) == KILL


def test_the_second_table_of_x86_ends_the_process() -> None:
    assert verdict("x86_64", 0x4000_0000 | 1) == KILL
    assert verdict("x86_64", 0xFFFF_FFFF) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("there are no headers of the kernel here")
    defines = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\n", HEADERS[machine].read_text())
    numbers = {name: int(number) for name, number in defines}
    assert len(numbers) > 250
    for group in ALLOWED.values():
        for name, call in group.items():
            assert numbers.get(name, call[MACHINES.index(machine)]) == call[MACHINES.index(machine)]
