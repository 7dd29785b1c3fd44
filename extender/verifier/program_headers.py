"""Reads from the first bytes of a file which machine it is a program for, or which interpreter reads it.

Sources: the System V gABI's chapters 4 and 5 (ELF), elf.h for the machines' numbers, Microsoft's PE format, and
Linux's fs/binfmt_elf.c and fs/binfmt_script.c for what the kernel makes of them.
"""

import enum
import struct

import msgspec

HEAD_BYTES = 4096
"""How much of a file is looked at. Linkers place the interpreter's path in the first page."""

_ELF, _PE, _SCRIPT = b"\x7fELF", b"MZ", b"#!"
_INTERPRETER_SEGMENT = 3  # PT_INTERP
_MOST_SEGMENTS = 64
_SCRIPT_BYTES = 256  # BINPRM_BUF_SIZE


class Format(enum.StrEnum):
    """What the first bytes of a file are."""

    ELF = "elf"
    PE = "pe"
    SCRIPT = "script"
    OTHER = "other"


class ProgramHead(msgspec.Struct, frozen=True, gc=False):
    """What the first bytes say. `architecture` is Go's name, empty if there is none for the machine.

    `interpreter` is the path of an ELF file's loader or of a script's interpreter, and `argument` the one that the
    script gives it; both may be empty.
    """

    format: Format
    architecture: str = ""
    interpreter: str = ""
    argument: str = ""


OTHER = ProgramHead(Format.OTHER)

# By the ELF header's e_machine, its class (1: 32 bits, 2: 64) and its byte order (1: little, 2: big).
_MACHINES = {
    (62, 2, 1): "amd64", (62, 1, 1): "amd64", (3, 1, 1): "386",
    (183, 2, 1): "arm64", (40, 1, 1): "arm",
    (243, 2, 1): "riscv64", (22, 2, 2): "s390x", (258, 2, 1): "loong64",
    (21, 2, 1): "ppc64le", (21, 2, 2): "ppc64",
    (8, 1, 1): "mipsle", (8, 1, 2): "mips", (8, 2, 1): "mips64le", (8, 2, 2): "mips64",
}  # fmt: skip
_PE_MACHINES = {0x8664: "amd64", 0x14C: "386", 0xAA64: "arm64", 0x1C4: "arm"}

# Machines of one family run each other's programs, at least some of them: what is for another in the family is not
# known to be wrong. No machine of 32-bit Arm runs a program for AArch64.
_FAMILIES = {"amd64": "x86", "386": "x86", "arm64": "arm", "arm": "arm", "ppc64": "ppc", "ppc64le": "ppc",
             "mips": "mips", "mipsle": "mips", "mips64": "mips", "mips64le": "mips"}  # fmt: skip
_WORDS = {"amd64": "x86-64", "386": "x86 (32 bits)", "arm64": "AArch64", "arm": "Arm (32 bits)"}
KNOWN_ARCHITECTURES = frozenset(_MACHINES.values())


def machine_text(head: ProgramHead) -> str:
    """The machine in words: `x86-64`, `Windows on AArch64`."""
    machine = _WORDS.get(head.architecture, head.architecture)
    return f"Windows on {machine}" if head.format is Format.PE else machine


def may_run(program: str, node: str) -> bool:
    """Whether a node of an architecture may run a program for another, as far as is known."""
    return _FAMILIES.get(program, program) == _FAMILIES.get(node, node) and (program, node) != ("arm64", "arm")


def read_head(head: bytes) -> ProgramHead:
    """What the first bytes of a file say, of which `HEAD_BYTES` are enough. Never fails."""
    try:
        if head.startswith(_ELF):
            return _read_elf(head)
        if head.startswith(_PE):
            return _read_pe(head)
    except (struct.error, IndexError):
        return OTHER
    return _read_script(head) if head.startswith(_SCRIPT) else OTHER


def _read_elf(head: bytes) -> ProgramHead:
    bits, order = head[4], "<" if head[5] == 1 else ">"
    (machine,) = struct.unpack_from(f"{order}H", head, 18)
    architecture = _MACHINES.get((machine, bits, head[5]), "")
    if not architecture:
        return OTHER
    return ProgramHead(Format.ELF, architecture, _loader_of(head, order, is_64=bits == 2))


def _loader_of(head: bytes, order: str, *, is_64: bool) -> str:
    """The path of the dynamic loader; empty for a static program, and where it does not stand in the first bytes."""
    (start,) = struct.unpack_from(f"{order}{'Q' if is_64 else 'I'}", head, 32 if is_64 else 28)
    size, number = struct.unpack_from(f"{order}HH", head, 54 if is_64 else 42)
    for index in range(min(number, _MOST_SEGMENTS)):
        at = start + index * size
        if at + size > len(head) or size < (56 if is_64 else 32):
            return ""
        if struct.unpack_from(f"{order}I", head, at)[0] == _INTERPRETER_SEGMENT:
            # type, flags, offset, virtual and physical address, size; of 32 bits the flags come later
            layout = f"{order}4x4xQ16xQ" if is_64 else f"{order}4xI8xI"
            offset, length = struct.unpack_from(layout, head, at)
            return _text(head[offset : offset + length].partition(b"\0")[0])
    return ""


def _read_pe(head: bytes) -> ProgramHead:
    (at,) = struct.unpack_from("<I", head, 0x3C)
    if head[at : at + 4] != b"PE\0\0":
        return OTHER
    architecture = _PE_MACHINES.get(struct.unpack_from("<H", head, at + 4)[0], "")
    return ProgramHead(Format.PE, architecture) if architecture else OTHER


def _read_script(head: bytes) -> ProgramHead:
    """As the kernel reads a script's first line: one path, and all that follows as one argument."""
    line = head[2:_SCRIPT_BYTES].partition(b"\n")[0].strip(b" \t\r")
    path, _, argument = line.replace(b"\t", b" ").partition(b" ")
    if not path:
        return OTHER
    return ProgramHead(Format.SCRIPT, interpreter=_text(path), argument=_text(argument.strip(b" ")))


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")
