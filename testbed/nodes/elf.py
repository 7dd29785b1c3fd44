"""The first bytes of a Linux program, by which the kernel decides whether it can run it."""

import struct

AARCH64, RISCV = 183, 243
"""Values of e_machine in the System V ABI."""


def elf_header(machine: int) -> bytes:
    """Returns the header of a 64-bit ELF executable without any code, for that machine."""
    identification = b"\x7fELF" + bytes([2, 1, 1]).ljust(12, b"\0")  # 64 bits, little endian, version 1
    executable = 2
    return identification + struct.pack("<HHIQQQIHHHHHH", executable, machine, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0)
