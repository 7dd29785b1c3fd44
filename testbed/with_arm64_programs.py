"""Runs a command for which programs for arm64 run by qemu: `python with_arm64_programs.py QEMU COMMAND…`.

Since Linux 6.7 a user namespace has its own table of what runs programs of which form (binfmt_misc), so nothing of the
machine changes. Users and groups are those outside. It needs root. Linux only.
"""

import ctypes
import os
import sys
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_TABLE = "/proc/sys/fs/binfmt_misc"
_ALL = "0 0 4294967295"
# The head of an ELF file for AArch64, and which bits of it count: not the operating system's, and both kinds of
# program, of a fixed and of any address.
_HEAD = bytes.fromhex("7f454c460201010000000000000000000200b700")
_BITS = bytes.fromhex("ffffffffffffff00fffffffffffffffffeffffff")


def main() -> None:
    """Becomes the command, in a child; ends as it does."""
    qemu, command = sys.argv[1], sys.argv[2:]
    moved, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS)
        os.write(moved[1], b"1")
        os.read(mapped[0], 1)
        _call("mount", b"binfmt_misc", _TABLE.encode(), b"binfmt_misc", 0, None)
        Path(_TABLE, "register").write_bytes(
            b":arm64:M::" + _escaped(_HEAD) + b":" + _escaped(_BITS) + b":" + qemu.encode() + b":F"
        )
        os.execvp(command[0], command)
    os.read(moved[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text(_ALL)
    os.write(mapped[1], b"1")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _call(name: str, *arguments: object) -> None:
    """Calls a function of the C library."""
    if ctypes.CDLL(None, use_errno=True)[name](*arguments) != 0:
        sys.exit(f"programs for arm64 need root and Linux 6.7 or later ({name}: {os.strerror(ctypes.get_errno())})")


def _escaped(data: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in data)


if __name__ == "__main__":
    main()
