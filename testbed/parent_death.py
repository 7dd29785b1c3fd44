"""Runs a command that the kernel kills as soon as its parent ends: `python parent_death.py PARENT_PID COMMAND…`.

It is a program of its own, run with `-I -S`, since it is not safe to fork a threaded test run and call prctl in the
child. Linux only. In prctl(2), PR_SET_PDEATHSIG, the parent is the *thread* that started the process: start this
program from a thread that lives as long as the command should.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Requests SIGKILL at the parent's end, which survives exec, then becomes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
