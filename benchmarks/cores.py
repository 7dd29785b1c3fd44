"""The cores that a benchmark's servers and its load run on."""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple


class Cores(NamedTuple):
    """Where servers run and where load comes from: the first and the last core we may use, which may be one."""

    server: int
    load: int


def cores() -> Cores:
    """Those of this process."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[-1])


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started within runs on `core` alone, as this thread does so long; a Go program then has GOMAXPROCS 1."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)
