"""Tells glibc to keep freed memory (mallopt(3)): requests' bodies and answers are large, and more of them follow."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# The largest that glibc takes (HEAP_MAX_SIZE / 2): the body of 3,000 whole nodes.
_MMAP_BYTES = 32 * 1024 * 1024
_TRIM_BYTES = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    """From now on freed blocks up to 32 MiB stay with the process, 64 MiB of them at most at the top of its heap.

    Left to itself glibc maps blocks from 128 KiB on and gives them back one by one, so that every page of every body
    and answer is faulted in anew: half of the time that 1,000 whole nodes take. Without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
