"""Become another program, which ends when the process that started it does.

Run as `python -I -S launch.py PID PROGRAM ARGUMENT…`, PID being the parent's. It stands between
the server and its tool servers because what a process does between fork and exec is safe only in
a process of one thread, which the server is not. Linux alone; it costs no process: it becomes the
program.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NO_SUCH_PROGRAM = 127


def main() -> None:
    """Replace this process by the program that the arguments name."""
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it died before it could be noticed
        return
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(NO_SUCH_PROGRAM)


if __name__ == "__main__":
    main()
