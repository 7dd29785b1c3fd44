"""Lets the process have as many file descriptors as it may: connections of callers, and its own."""

import contextlib
import resource

# Twice what all listeners accept, and few enough for what still closes each of them in a child process.
_MOST = 4_096


def raise_descriptor_limit() -> None:
    """Raises the soft limit of open files, often 1,024, towards the hard one. Go's programs do so at their start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(_MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):  # a limit that cannot be raised is no reason not to serve
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
