"""Runs a command that the kernel kills as soon as its parent is gone: `python parent_death.py PARENT_PID COMMAND…`.

A file of its own, run with `-I -S`, since forking a threaded test run to call prctl in the child is not safe.
Linux only; see prctl(2), PR_SET_PDEATHSIG: the parent is the *thread* that started us, so start us from one that stays.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Asks for SIGKILL at the parent's death, which outlives exec, then becomes the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
