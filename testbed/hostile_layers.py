"""Layers that are made to hurt whoever unpacks them, and an image of each kind that starts a program in one."""

import functools
import gzip
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from testbed.images import Bundle, join_index, make_image
from testbed.packed_layers import Layer, plain, symlink

AMD64, ARM64 = "linux/amd64", "linux/arm64"
AMD64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 62) + bytes(44)
ARM64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 183) + bytes(44)
_DEPTH, _PATH_CHARACTERS = 120, 4000


def raw(body: bytes) -> Layer:
    """A layer of these bytes."""
    return Layer(body, "application/vnd.oci.image.layer.v1.tar+gzip", {}, "sha256:" + "0" * 64)


def gnu(name: str, kind: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    """A header and its body; `size` is what the header says."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size = kind, 0o755, len(body) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512)


def zeros(megabytes: int) -> bytes:
    """Gzip members of so many zeros, a two hundredth as large or less."""
    return _zeros(64) * (megabytes // 64) + _zeros(megabytes % 64)


def bomb(megabytes: int) -> bytes:
    """A file that is a thousand times as large as what is sent."""
    return gzip.compress(gnu("x", tarfile.REGTYPE, size=megabytes << 20), mtime=0) + zeros(megabytes)


def endless_headers(number: int) -> bytes:
    """Extended headers that describe no file."""
    return _packed([gnu("x", b"x", b"30 mtime=1700000000.000000000\n")] * number)


def many_files(number: int) -> bytes:
    """Empty files of ten million names."""
    start = bytearray(gnu("0000000", tarfile.REGTYPE))
    start[148:156] = b" " * 8
    rest = sum(start) - sum(b"0000000")

    def file(number: int) -> bytes:
        name = b"%07d" % number
        return name + start[7:148] + b"%06o\0 " % (rest + sum(name)) + start[156:]

    return _packed(map(file, range(number)))


def long_names(number: int) -> bytes:
    """Files under folders of their own, a hundred deep, with names of 4,000 characters."""
    deep = "/".join(["x" * (_PATH_CHARACTERS // _DEPTH - 1)] * _DEPTH)
    return _packed(gnu("x", b"L", f"{each:07}/{deep}".encode()) + gnu("x", tarfile.REGTYPE) for each in range(number))


def circles() -> bytes:
    """Links to each other, and some that lead deeper and deeper."""
    deep = "/".join(["d"] * _DEPTH)
    links = [
        symlink("app", "a"),
        symlink("a", "b"),
        symlink("b", "app"),
        symlink(f"{deep}/on", f"/{deep}/on/{deep}/on"),
    ]
    return plain([*links, symlink("self", "self/" * 800), symlink("bin", f"/{deep}/on")]).body


def sparse(real_bytes: int = 64) -> bytes:
    """A program that is a file with holes, as GNU tar writes it, which says how large it would be."""
    block = bytearray(tarfile.TarInfo("app").tobuf(tarfile.GNU_FORMAT))
    block[100:108], block[156:157], block[124:136] = b"0000755\0", b"S", b"00000000100\0"
    block[386:398], block[398:410], block[482] = b"00000000000\0", b"00000000100\0", 1
    block[483:495] = b"\x80" + real_bytes.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block) + bytes(512) + AMD64_ELF.ljust(512, b"\0")


def nested(depth: int, megabytes: int) -> bytes:
    """A bomb in gzip in gzip."""
    body = zeros(megabytes)
    for _ in range(depth):
        body = gzip.compress(body, mtime=0)
    return body


def too_long_file() -> bytes:
    """A file that says it has more bytes than any disk."""
    return gnu("app", tarfile.REGTYPE, b"#!/", size=1 << 62)


class Hostile(NamedTuple):
    """A layer, which may take seconds to make, and a part of what is said of it."""

    make: Callable[[], bytes]
    why: str


KINDS = {
    "bomb": Hostile(lambda: bomb(3 << 10), "its layers hold more than 1024 MiB"),
    "endless headers": Hostile(lambda: endless_headers(100_000), "headers without end"),
    "a million entries": Hostile(lambda: many_files(1_000_000), "more than 200000 files"),
    "long names": Hostile(lambda: long_names(20_000), "names without end"),
    "loops of links": Hostile(circles, "is not in the image"),
    "sparse files": Hostile(lambda: sparse(1 << 62), "of no format that is read here"),
    "sizes that lie": Hostile(too_long_file, "a layer cannot be read"),
    "nested gzip": Hostile(lambda: nested(3, 1 << 10), "no archive that can be read"),
}
"""Some megabytes at most as they are sent; unpacked more than may be read, or never to be understood."""


def hostile_image(kind: str) -> Bundle:
    """An index for two platforms, whose images have such a layer. Takes seconds for some kinds."""
    layer, path = raw(KINDS[kind].make()), ":".join(["/bin", "", "self"] * 100_000)
    process = {"Entrypoint": ["app"], "Env": [f"PATH={path}"]} if kind == "loops of links" else {"Entrypoint": ["/app"]}
    images = [(each, make_image(each, [layer], **process)) for each in (AMD64, ARM64)]
    if kind == "sizes that lie":
        images = [(each, with_sizes(image, [200 << 20])) for each, image in images]
    return join_index(images)


def with_sizes(image: Bundle, sizes: Sequence[int]) -> Bundle:
    """The image, whose manifest says other sizes of its layers."""
    manifest = image.manifests[0]
    body = msgspec.json.decode(manifest.body)
    for layer, size in zip(body["layers"], sizes, strict=True):
        layer["size"] = size
    return Bundle(image.blobs, (manifest._replace(body=msgspec.json.encode(body)),))


@functools.cache
def _zeros(megabytes: int) -> bytes:
    return _packed(bytes(1 << 20) for _ in range(megabytes))


def _packed(parts: Iterable[bytes]) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(map(packer.compress, parts)) + packer.flush()
