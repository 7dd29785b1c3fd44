"""What glibc does with freed memory: it keeps some for the large bodies and answers of requests (mallopt(3))."""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# The largest value that glibc accepts (HEAP_MAX_SIZE / 2), enough for the body of 3,000 whole nodes.
_LARGEST_BYTES = 32 * 1024 * 1024
# From here on a block is mapped, and unmapped when it is freed, if the heap has no room for it: glibc's default.
_MAPPED_BYTES = 128 * 1024
_KEPT_BYTES = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    """Makes the process keep up to 64 MiB free at the top of its heap, where blocks up to 32 MiB are made.

    By default glibc maps each block from 128 KiB on and unmaps it when it is freed, so that each page of each body and
    answer causes a page fault: half of the time for 1,000 whole nodes. But what finds no room there is still mapped.
    uvloop reserves 256 KiB for each TLS connection and uses little of it; on a heap that grows for them, the unused
    rest would be pages that others have used before: 130 MB for 1,500 connections. Does nothing without glibc.
    """
    libc = ctypes.CDLL(None)
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
    _grow_heap(libc)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _grow_heap(libc: ctypes.CDLL) -> None:
    """Gives the heap three quarters of what it keeps; no page of that is used yet."""
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    blocks = [libc.malloc(_KEPT_BYTES * 3 // 8) for _ in range(2)]
    for block in blocks:
        libc.free(block)


def give_back_free_memory() -> None:
    """Gives the system all pages of the heap that are free now (malloc_trim(3)). Does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
