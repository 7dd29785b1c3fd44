"""The cores that a benchmark's servers and its load run on."""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple


class Cores(NamedTuple):
    """The core for servers and the core for load: the first and the last that this process may use.

    They may be the same.
    """

    server: int
    load: int


def cores() -> Cores:
    """Returns the cores for this process."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[-1])


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """Runs this thread, and programs started within the block, on `core` alone. A Go program then has GOMAXPROCS 1."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)
