"""The seccomp filter: it allows the system calls that code in a sandbox may make, and no others.

Namespaces without files, network or other processes are the main barrier; the filter reduces the
attack surface of the kernel behind it. A call that is neither in ALLOWED (system_calls.py) nor in
DENIED fails with ENOSYS, as on a kernel that does not have it: libraries then do without, also
without calls that did not exist when this was written. Three rules need an explanation:

1. No second process, only threads, so that the limits of one process (rlimits) limit the whole
   sandbox. With a shell, processes are allowed, but not in new namespaces.
2. Only AF_UNIX sockets, which cannot leave the sandbox's own network namespace.
3. No memory that the limits do not count (memfd, System V shared memory, message queues).
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from antiphon.adapters.sandboxes.system_calls import ALLOWED

Instruction = tuple[int, int, int, int]

DENIED: Mapping[str, Sequence[tuple[int | None, int | None]]] = {
    # These fail with EPERM: a program may have a reason to make them, and should say why it cannot.
    # (x86_64, aarch64); None if the architecture has no such call
    "other processes": (
        (101, 117),  # ptrace
        (310, 270),  # process_vm_readv
        (311, 271),  # process_vm_writev
        (312, 272),  # kcmp
        (438, 438),  # pidfd_getfd
        (440, 440),  # process_madvise
    ),
    "attack surface of the kernel": (
        (321, 280),  # bpf
        (298, 241),  # perf_event_open
        (323, 282),  # userfaultfd
        (425, 425),  # io_uring_setup
        (426, 426),  # io_uring_enter
        (427, 427),  # io_uring_register
        (206, 0),  # io_setup
        (250, 219),  # keyctl
        (248, 217),  # add_key
        (249, 218),  # request_key
        (135, 92),  # personality
        (304, 265),  # open_by_handle_at
        (303, 264),  # name_to_handle_at
        (300, 262),  # fanotify_init
        (212, 18),  # lookup_dcookie
        (134, None),  # uselib
        (136, None),  # ustat
        (154, None),  # modify_ldt
        (180, 42),  # nfsservctl
    ),
    "namespaces and mounts": (
        (165, 40),  # mount
        (166, 39),  # umount2
        (155, 41),  # pivot_root
        (161, 51),  # chroot
        (428, 428),  # open_tree
        (429, 429),  # move_mount
        (430, 430),  # fsopen
        (431, 431),  # fsconfig
        (432, 432),  # fsmount
        (433, 433),  # fspick
        (442, 442),  # mount_setattr
        (272, 97),  # unshare
        (308, 268),  # setns
    ),
    "memory that no limit counts": (
        (319, 279),  # memfd_create
        (447, 447),  # memfd_secret
        (29, 194),  # shmget
        (68, 186),  # msgget
        (64, 190),  # semget
        (240, 180),  # mq_open
        (237, 235),  # mbind
        (238, 237),  # set_mempolicy
        (256, 238),  # migrate_pages
        (279, 239),  # move_pages
    ),
    "the machine": (
        (179, 60),  # quotactl
        (163, 89),  # acct
        (167, 224),  # swapon
        (169, 142),  # reboot
        (246, 104),  # kexec_load
        (320, 294),  # kexec_file_load
        (175, 105),  # init_module
        (313, 273),  # finit_module
        (176, 106),  # delete_module
        (103, 116),  # syslog
        (164, 170),  # settimeofday
        (227, 112),  # clock_settime
        (159, 171),  # adjtimex
        (305, 266),  # clock_adjtime
        (170, 161),  # sethostname
        (171, 162),  # setdomainname
        (153, 58),  # vhangup
        (172, None),  # iopl
        (173, None),  # ioperm
    ),
}

FORKS: Sequence[tuple[int | None, int | None]] = ((57, None), (58, None))  # fork, vfork


class Machine(Struct, frozen=True, kw_only=True):
    """The call numbers of a processor architecture.

    `column` is its column in ALLOWED and DENIED. `foreign` is the first number of a second call
    table, which this filter does not cover (x32).
    """

    audit_arch: int
    column: int
    clone: int
    socket: int
    socketpair: int
    ioctl: int
    foreign: int | None = None


MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(
        audit_arch=0xC000003E,
        column=0,
        clone=56,
        socket=41,
        socketpair=53,
        ioctl=16,
        foreign=0x4000_0000,
    ),
    "aarch64": Machine(
        audit_arch=0xC00000B7, column=1, clone=220, socket=198, socketpair=199, ioctl=29
    ),
}

CLONE3 = 435
CLONE_THREAD = 0x0001_0000
CLONE_NEW = 0x7E02_0000
"""The flags for a new process in new namespaces."""

TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# Offsets in struct seccomp_data: call number, architecture, low half of the first two arguments.
_NUMBER, _MACHINE = 0, 4
_FIRST, _SECOND = 16, 24

_LOAD, _EQUALS, _ABOVE, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000


def is_supported(machine: str = platform.machine()) -> bool:
    """Whether there is a filter for this processor architecture."""
    return machine in MACHINES


def program(machine: str = platform.machine(), *, processes: bool = False) -> bytes:
    """Return the filter in the form that `bwrap --seccomp` reads.

    With `processes`, the sandbox may start processes.
    """
    numbers = MACHINES[machine]
    instructions = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUALS, 1, 0, numbers.audit_arch),
        _return(_KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if numbers.foreign is not None:
        instructions += [(_AT_LEAST, 0, 1, numbers.foreign), _return(_KILL)]
    groups = [*DENIED.values(), () if processes else FORKS]
    for number in (call[numbers.column] for group in groups for call in group):
        if number is not None:
            instructions += [(_EQUALS, 0, 1, number), _fail(errno.EPERM)]
    # Its flags are behind a pointer, which a filter cannot follow. Without it, libc uses clone.
    instructions += [(_EQUALS, 0, 1, CLONE3), _fail(errno.ENOSYS)]
    is_allowed = (_HAS_BIT, 0, 1, CLONE_NEW) if processes else (_HAS_BIT, 1, 0, CLONE_THREAD)
    instructions += _deny_unless(is_allowed, numbers.clone, _FIRST)
    for number in (numbers.socket, numbers.socketpair):
        instructions += _deny_unless((_EQUALS, 1, 0, socket.AF_UNIX), number, _FIRST)
    for command in (TIOCSTI, TIOCLINUX):
        instructions += _deny_unless((_EQUALS, 0, 1, command), numbers.ioctl, _SECOND)
    for first, last in _allowed_ranges(numbers.column):
        instructions += [(_AT_LEAST, 0, 2, first), (_ABOVE, 1, 0, last), _return(_ALLOW)]
    instructions.append(_fail(errno.ENOSYS))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _allowed_ranges(column: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of each range of allowed calls."""
    calls = [call[column] for group in ALLOWED.values() for call in group.values()]
    numbers = sorted(number for number in calls if number is not None)
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def _deny_unless(test: Instruction, number: int, argument: int) -> list[Instruction]:
    """Deny call `number` unless `test` of its argument skips the denial."""
    return [
        (_EQUALS, 0, 4, number),
        (_LOAD, 0, 0, argument),
        test,
        _fail(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]


def _fail(code: int) -> Instruction:
    return _return(_ERRNO | code)


def _return(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)
