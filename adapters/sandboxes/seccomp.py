"""The system calls that code in a sandbox may not make, as a filter for the kernel (seccomp).

What is not refused is allowed: the namespaces, which have no files, no network and no other
process in them, are the wall, and this keeps the doors of the kernel shut behind it. Three rules
need more than a name:

1. No second process, only threads: so the limits of one process (rlimits) are those of the sandbox.
   Where there are to be processes, none is in a namespace of its own.
2. No sockets but AF_UNIX ones, which end at the sandbox's own network namespace.
3. Nothing that memory limits do not see (memfd, System V memory, message queues).
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from collections.abc import Mapping, Sequence

from msgspec import Struct

Instruction = tuple[int, int, int, int]

DENIED: Mapping[str, Sequence[tuple[int | None, int | None]]] = {
    # (x86_64, aarch64); None where the machine has no such call
    "other processes": (
        (101, 117),  # ptrace
        (310, 270),  # process_vm_readv
        (311, 271),  # process_vm_writev
        (312, 272),  # kcmp
        (438, 438),  # pidfd_getfd
        (440, 440),  # process_madvise
    ),
    "doors of the kernel": (
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
    "memory that no limit sees": (
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
    """A kind of processor. `column` is its place in DENIED, `foreign` where a second table of calls
    begins that this filter does not know (x32)."""

    audit: int
    column: int
    clone: int
    socket: int
    socketpair: int
    ioctl: int
    foreign: int | None = None


MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(
        audit=0xC000003E,
        column=0,
        clone=56,
        socket=41,
        socketpair=53,
        ioctl=16,
        foreign=0x4000_0000,
    ),
    "aarch64": Machine(audit=0xC00000B7, column=1, clone=220, socket=198, socketpair=199, ioctl=29),
}

CLONE3 = 435
CLONE_THREAD = 0x0001_0000
CLONE_NEW = 0x7E02_0000
"""All namespaces that a process can be started in."""

TIOCSTI, TIOCLINUX = 0x5412, 0x541C

# Of struct seccomp_data: the call's number, the machine, and the low halves of arguments.
_NUMBER, _MACHINE = 0, 4
_FIRST, _SECOND = 16, 24

_LOAD, _EQUALS, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000


def is_supported(machine: str = platform.machine()) -> bool:
    """Whether there is a filter for this kind of processor."""
    return machine in MACHINES


def program(machine: str = platform.machine(), *, processes: bool = False) -> bytes:
    """Return the filter, as `bwrap --seccomp` reads it; with `processes`, some may be started."""
    this = MACHINES[machine]
    found = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUALS, 1, 0, this.audit),
        _returns(_KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if this.foreign is not None:
        found += [(_AT_LEAST, 0, 1, this.foreign), _returns(_KILL)]
    groups = [*DENIED.values(), () if processes else FORKS]
    refused = [each[this.column] for group in groups for each in group]
    for number in refused:
        if number is not None:
            found += [(_EQUALS, 0, 1, number), _fails(errno.EPERM)]
    # Its flags are behind a pointer, where no filter can look; libc then takes clone.
    found += [(_EQUALS, 0, 1, CLONE3), _fails(errno.ENOSYS)]
    is_allowed = (_HAS_BIT, 0, 1, CLONE_NEW) if processes else (_HAS_BIT, 1, 0, CLONE_THREAD)
    found += _only_if(this.clone, _FIRST, is_allowed)
    for number in (this.socket, this.socketpair):
        found += _only_if(number, _FIRST, (_EQUALS, 1, 0, socket.AF_UNIX))
    for command in (TIOCSTI, TIOCLINUX):
        found += _only_if(this.ioctl, _SECOND, (_EQUALS, 0, 1, command))
    found.append(_returns(_ALLOW))
    return b"".join(struct.pack("=HBBI", *each) for each in found)


def _only_if(number: int, argument: int, test: Instruction) -> list[Instruction]:
    """Refuse call `number` unless `test` of its argument skips the refusal."""
    return [
        (_EQUALS, 0, 4, number),
        (_LOAD, 0, 0, argument),
        test,
        _fails(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]


def _fails(code: int) -> Instruction:
    return _returns(_REFUSE | code)


def _returns(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)
