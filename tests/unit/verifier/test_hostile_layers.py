"""Layers that are made to hurt: each ends within its bounds, and the platform stays *claimed*, with a reason."""

import gzip
import io
import struct
import tarfile
import zlib

import pytest

from extender.fetcher.image_verifier import VerifierBounds
from testbed.packed_layers import Layer, Put, estargz, folder, gzipped, hardlink, plain, symlink, zstd_chunked
from tests.unit.verifier.kept_blobs import KeptBlobs, image_of, look_inside, with_sizes

SMALL = VerifierBounds(read_bytes=1 << 20, unpacked_bytes=8 << 20, entries=1000)
AMD64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 62) + bytes(44)
ARM64_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 183) + bytes(44)


def raw(body: bytes) -> Layer:
    """A layer of these bytes."""
    return Layer(body, "application/vnd.oci.image.layer.v1.tar+gzip", {}, "sha256:" + "0" * 64)


def gnu(name: str, kind: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    """A header and its body; `size` is what the header says."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size = kind, 0o755, len(body) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512)


def zeros(megabytes: int) -> bytes:
    """A gzip member of so many zeros, a thousandth as large."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(megabytes)) + packer.flush()


def sparse() -> bytes:
    """A program that is a file with holes, as GNU tar writes it."""
    block = bytearray(tarfile.TarInfo("app").tobuf(tarfile.GNU_FORMAT))
    block[100:108], block[156:157], block[124:136] = b"0000755\0", b"S", b"00000000100\0"
    block[386:398], block[398:410], block[482] = b"00000000000\0", b"00000000100\0", 1
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    more = bytearray(512)
    more[504] = 0
    return bytes(block) + bytes(more) + AMD64_ELF.ljust(512, b"\0")


MILLION = b"".join(gnu(f"{number:07}", tarfile.REGTYPE) for number in range(1001))
HOSTILE: dict[str, tuple[Layer, str]] = {
    "a bomb in front": (raw(zeros(64)), "no format|not in the image|hold more"),
    "a bomb as a file": (raw(gzip.compress(gnu("x", tarfile.REGTYPE, size=1 << 40)) + zeros(64)), "hold more"),
    "a bomb in a bomb": (raw(gzip.compress(zeros(64))), "no archive"),
    "headers without end": (raw(gnu("x", b"x", b"30 mtime=1700000000.000000000\n") * 100), "without end"),
    "a header without end": (raw(gnu("x", b"x", size=1 << 30)), "without end"),
    "a long name without end": (raw(gnu("x", b"L", size=1 << 30)), "without end"),
    "more files than anybody has": (raw(gzip.compress(MILLION)), "more than 1000 files"),
    "names that no file can have": (raw(gnu("x", b"L", b"n" * 5000) + gnu("x", tarfile.REGTYPE)), "names that no"),
    "an extended header of nonsense": (raw(gnu("x", b"x", b"9999 a=b\n") + gnu("x", b"0")), "cannot be read"),
    "an extended size of nonsense": (raw(gnu("x", b"x", b"13 size=-999\n") + gnu("x", b"0")), "without a size"),
    "a file that ends early": (raw(gnu("app", tarfile.REGTYPE, b"#!/", size=100_000)), "in the middle"),
    "a size in binary": (raw(gnu("x", tarfile.REGTYPE, size=1 << 62)), "in the middle"),
    "holes": (raw(sparse()), "no format"),
    "no archive": (raw(b"hello" * 1000), "no archive"),
    "gzip that breaks off": (raw(gzipped([Put("app", ARM64_ELF * 1000)]).body[:60]), "in the middle|not in the image"),
    "gzip that lies": (raw(b"\x1f\x8b" + b"x" * 1000), "cannot be unpacked"),
    "zstd that lies": (raw(b"\x28\xb5\x2f\xfd" + b"\xff" * 1000), "cannot be unpacked"),
    "zstd that skips to nowhere": (raw(b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + b"x" * 1000), "not in the image"),
    "a window of 2 GiB": (raw(b"\x28\xb5\x2f\xfd\x00\xa8" + bytes(100)), "cannot be unpacked"),
    "links in a circle": (plain([symlink("app", "b"), symlink("b", "c"), symlink("c", "app")]), "not in the image"),
    "a link to itself": (plain([symlink("app", "app/app")]), "not in the image"),
    "a hard link to itself": (plain([hardlink("app", "app")]), "may not be executed"),
    "hard links in a circle": (plain([hardlink("app", "b"), hardlink("b", "app")]), "may not be executed"),
    "links out of the image": (plain([symlink("app", "../../../../etc/shadow")]), "not in the image"),
    "names out of the image": (plain([Put("../../../app", ARM64_ELF)]), ""),
    "scripts in a circle": (plain([Put("app", b"#!/b\n"), Put("b", b"#!/app\n")]), "no format"),
    "nothing": (raw(b""), "no digest or no size"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_layer_refutes_nothing(name: str) -> None:
    """What is not in the image, or is beyond a bound, is not known."""
    layer, words = HOSTILE[name]
    found = await look_inside(image_of(layer), bounds=SMALL, seconds=10.0)
    expected = "verified" if name == "names out of the image" else "claimed"
    assert (found.state, any(word in found.detail for word in words.split("|"))) == (expected, True), found
    assert found.read_bytes <= SMALL.read_bytes


async def test_more_is_not_read_than_may_be() -> None:
    """Of layers that are larger than the bound."""
    layers = [plain([Put(f"x{number}", bytes(400 << 10))]) for number in range(4)]
    found = await look_inside(image_of(*layers), bounds=SMALL)
    assert (found.state, found.read_bytes <= SMALL.read_bytes) == ("claimed", True)
    assert "more than 1 MiB of its layers" in found.detail


@pytest.mark.parametrize("size", [10, 100_000_000])
async def test_a_manifest_that_lies_about_a_layers_size(size: int) -> None:
    """Too short or too long: what is read ends, and nothing is refuted."""
    bundle = image_of(gzipped([Put("app", AMD64_ELF)]))
    client = KeptBlobs(bundle)
    lying = with_sizes(bundle, [size])
    client.manifests |= {each.digest: each for each in lying.manifests}
    assert (await look_inside(lying, client=client, bounds=SMALL)).state == "claimed"


async def test_time_ends_a_look() -> None:
    """Whatever is being read."""
    found = await look_inside(image_of(raw(zeros(64) * 30)), seconds=0.05)
    assert (found.state, found.detail) == ("claimed", "looking inside took more than 0.05 s")


async def test_a_registry_that_fails_refutes_nothing() -> None:
    """Nor does a manifest that is not there mean more than that."""
    bundle = image_of(gzipped([Put("app", AMD64_ELF)]))
    client = KeptBlobs(bundle)
    client.is_down = True
    found = await look_inside(bundle, client=client)
    assert (found.state, found.detail) == ("claimed", "a layer cannot be read: down")
    client.lost = {bundle.manifests[0].digest}
    found = await look_inside(bundle, client=client)
    assert (found.state, found.detail) == ("missing", bundle.manifests[0].digest)


@pytest.mark.parametrize("pack", [estargz, zstd_chunked])
async def test_a_table_that_lies_is_not_believed(pack: type[Layer]) -> None:
    """One without the digest that the manifest says: the layer itself is read."""
    layer = pack([folder("usr"), Put("app", ARM64_ELF * 100)])  # type: ignore[call-arg, arg-type]
    for key in ("containerd.io/snapshot/stargz/toc.digest", "io.github.containers.zstd-chunked.manifest-checksum"):
        if key in layer.annotations:
            layer.annotations[key] = "sha256:" + "1" * 64
    found = await look_inside(image_of(layer))
    assert (found.state, found.read_bytes >= found.layer_bytes) == ("verified", True)


async def test_archives_of_another_writer() -> None:
    """Python's tarfile, in each of its formats, with names that take extended headers."""
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w", format=form) as archive:
            deep = "/".join(["folder" * 3] * 7) if form != tarfile.USTAR_FORMAT else "folder"
            for name, body in ((f"./{deep}/app", AMD64_ELF), ("./ünï", b"x")):
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(body), 0o755
                archive.addfile(info, io.BytesIO(body))
        found = await look_inside(image_of(raw(written.getvalue()), program=f"/{deep}/app"))
        assert found.state == "refuted", form
