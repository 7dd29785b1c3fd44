"""Keeping freed memory does what it says, where there is a glibc."""

import ctypes
import subprocess
import sys

import pytest

HAS_GLIBC = hasattr(ctypes.CDLL(None), "mallopt")

_FAULTS = """
import resource, sys
from extender.service.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    bytes(20_000_000)
before = faults()
for _ in range(10):
    bytes(20_000_000).replace(b"\\0", b"\\1")
print(faults() - before)
"""

# What 4,000 blocks take of which one page in 64 is used, after as many smaller ones that were used whole: the order in
# which bodies and the buffers of TLS connections come.
_RESIDENT = """
import ctypes, sys
from extender.service.allocator import keep_freed_memory
from extender.service.garbage import resident_bytes
keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype, libc.free.argtypes = [ctypes.c_size_t], ctypes.c_void_p, [ctypes.c_void_p]
before = resident_bytes()
blocks = []
for _ in range(8):
    used = [bytes(262_000) for _ in range(500)]
    del used
    blocks += [libc.malloc(262_144) for _ in range(500)]
    for block in blocks:
        ctypes.memset(block, 1, 4096)
print(resident_bytes() - before)
"""


def printed_by(program: str, *words: str) -> int:
    """The number that a new process prints."""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_blocks_are_used_again() -> None:
    """A block as large as a body is faulted in once, not each time; without glibc nothing changes."""
    assert (printed_by(_FAULTS, "keep") * 2 < printed_by(_FAULTS, "leave")) is HAS_GLIBC


@pytest.mark.skipif(not HAS_GLIBC, reason="only glibc is told what to keep")
def test_blocks_that_are_hardly_used_take_little_memory() -> None:
    """Those of 4,000 connections: 16 MB of the 1,000 that they reserve, beside the 64 MiB that are kept."""
    assert printed_by(_RESIDENT) < 120_000_000
