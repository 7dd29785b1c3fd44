"""Keeping freed memory does what it says, where there is a glibc."""

import ctypes
import subprocess
import sys

_FAULTS = """
import ctypes, resource, sys
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


def page_faults(how: str) -> int:
    """How many pages a new process faults in while it makes and drops large blocks."""
    done = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_large_blocks_are_used_again() -> None:
    """A block as large as a body is faulted in once, not each time; without glibc nothing changes."""
    has_glibc = hasattr(ctypes.CDLL(None), "mallopt")
    assert (page_faults("keep") * 2 < page_faults("leave")) is has_glibc
