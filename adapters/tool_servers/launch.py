"""Run a program that the kernel kills when the process that started it ends.

Used as `python -I -S launch.py PID PROGRAM ARGUMENT…` with the parent's PID. The server starts its
tool servers through this script because it has several threads, and running code between fork and
exec is only safe in a process with one thread. Linux only. It adds no process, because it replaces
itself with the program.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NO_SUCH_PROGRAM = 127


def main() -> None:
    """Replace this process with the program in the arguments."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # the parent ended before the call of prctl
        return
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(NO_SUCH_PROGRAM)


if __name__ == "__main__":
    main()
