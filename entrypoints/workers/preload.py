"""Modules that workers share, loaded in the process that they are forked from (fork_server.py)."""

from __future__ import annotations

import ctypes
import gc
import os
import signal

from antiphon.entrypoints.workers import worker as worker

PR_SET_PDEATHSIG = 1
FORK_SERVER = os.getpid()

# A search for garbage would write to each object, and so copy the memory that workers share.
gc.collect()
gc.freeze()


def end_with_fork_server() -> None:
    """Have the kernel kill this process when the fork server ends, if it was forked from one.

    The supervisor believes then that its workers have ended, too, and starts others.
    """
    if os.getpid() == FORK_SERVER:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != FORK_SERVER:  # it ended before the call of prctl
        os.kill(os.getpid(), signal.SIGKILL)
