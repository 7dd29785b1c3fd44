"""Makes kubelet and containerd say that they run on arm64, though their instructions are amd64's.

A Go program has the architecture that it was built for (`runtime.GOARCH`) as a constant, which no setting changes. So
a copy of the program is changed. The names are equally long, and a string in a Go program has its length beside it.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HERE, THERE, SYSTEM = b"amd64", b"arm64", b"linux"
NEAR_BYTES = 80  # between the two addresses of one value of type Platform
_LOAD_ADDRESS = re.compile(
    rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]"
)  # lea, relative to the next instruction
_LOAD_BYTES = 7


class Section(NamedTuple):
    """A section of an ELF file: where it is in memory, where in the file, and its size."""

    address: int
    offset: int
    size: int


def exchange_constant(program: Path, copy: Path) -> None:
    """Writes a copy of the program in which the constant is arm64: for kubelet, which only reports it."""
    _write(copy, program.read_bytes().replace(HERE, THERE))


def redirect_constant(program: Path, copy: Path) -> None:
    """Writes a copy of the program whose own platform is linux/arm64: for containerd.

    containerd also needs the word amd64 to normalise the platforms of images. So both words stay, and only where the
    program takes the constant together with its operating system, it gets the other word.

    Raises:
        ValueError: there is no such instruction.
    """
    changed = bytearray(program.read_bytes())
    sections = read_sections(changed)
    loads: dict[bytes, dict[int, int]] = {HERE: {}, THERE: {}, SYSTEM: {}}
    for offset, word, target in _loads(changed, sections):
        loads[word][offset] = target
    own = [here for here in loads[HERE] if any(abs(here - system) < NEAR_BYTES for system in loads[SYSTEM])]
    if not own or not loads[THERE]:
        raise ValueError(f"{program} has no platform of its own that could be changed")
    target = next(iter(loads[THERE].values()))
    for offset in own:
        struct.pack_into("<i", changed, offset + 3, target - _next_address(offset, sections[".text"]))
    _write(copy, bytes(changed))


def read_sections(program: bytes | bytearray) -> Mapping[str, Section]:
    """Returns the sections of a 64-bit ELF file by their names."""
    (table,) = struct.unpack_from("<Q", program, 40)
    count, names_index = struct.unpack_from("<HH", program, 60)
    headers = [struct.unpack_from("<IIQQQQ", program, table + 64 * index) for index in range(count)]
    names = headers[names_index][4]
    return {_text_at(program, names + header[0]): Section(*header[3:]) for header in headers}


def _loads(program: bytearray, sections: Mapping[str, Section]) -> Iterator[tuple[int, bytes, int]]:
    """Yields each instruction that loads the address of one of the words: its offset, the word, and the address."""
    code, constants = sections[".text"], sections[".rodata"]
    for found in _LOAD_ADDRESS.finditer(program, code.offset, code.offset + code.size - _LOAD_BYTES):
        (distance,) = struct.unpack_from("<i", program, found.start() + 3)
        target = _next_address(found.start(), code) + distance
        if constants.address <= target < constants.address + constants.size:
            offset = constants.offset + target - constants.address
            if (word := bytes(program[offset : offset + len(HERE)])) in (HERE, THERE, SYSTEM):
                yield found.start(), word, target


def _next_address(offset: int, code: Section) -> int:
    """Returns the address in memory of the instruction after the one at `offset` in the file."""
    return code.address + offset - code.offset + _LOAD_BYTES


def _text_at(program: bytes | bytearray, offset: int) -> str:
    return bytes(program[offset : program.index(0, offset)]).decode()


def _write(copy: Path, program: bytes) -> None:
    copy.write_bytes(program)
    copy.chmod(0o755)
