"""What the kernel says that a process has cost."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.process_costs import bytes_read, cpu_seconds, machine_seconds, memory


def test_this_process_has_costs() -> None:
    """The kernel's figures agree with what the process knows of itself."""
    before = bytes_read(os.getpid())
    with Path("/dev/zero").open("rb", buffering=0) as zeros:
        zeros.read(100_000)
    used = memory(os.getpid())
    assert bytes_read(os.getpid()) - before >= 100_000
    assert cpu_seconds(os.getpid()) == pytest.approx(sum(os.times()[:2]), abs=1.0)
    assert (
        cpu_seconds(os.getpid())
        < machine_seconds()
        < 2 * (os.cpu_count() or 1) * time.clock_gettime(time.CLOCK_BOOTTIME)
    )
    assert 5 < used.now_megabytes <= used.most_megabytes


def test_a_process_that_is_gone_has_none() -> None:
    """An error, not a zero."""
    with pytest.raises(OSError, match="No such file"):
        cpu_seconds(2**22 + 1)
