"""Layers that are made to hurt: each ends within its bounds, and the platform stays *claimed*, with a reason."""

import io
import sys
import tarfile
import tracemalloc

import pytest

from extender.fetcher.image_verifier import VerifierBounds
from extender.images.reference import digest_of
from extender.verifier.archive_reading import InvalidLayer
from extender.verifier.listed_layers import Listing, read_listing
from testbed.hostile_layers import (
    AMD64_ELF,
    ARM64_ELF,
    bomb,
    circles,
    endless_headers,
    gnu,
    long_names,
    many_files,
    nested,
    raw,
    sparse,
    with_sizes,
    zeros,
)
from testbed.packed_layers import (
    PACKINGS,
    Layer,
    Put,
    estargz,
    folder,
    gzipped,
    hardlink,
    plain,
    symlink,
    zstandard,
    zstd_chunked,
)
from testbed.zoo_images import make_index
from tests.unit.verifier.kept_blobs import ARM, KeptBlobs, image_of, look_inside

SMALL = VerifierBounds(read_bytes=1 << 20, unpacked_bytes=8 << 20, entries=1000)
HOSTILE: dict[str, tuple[Layer, str]] = {
    "a bomb in front": (raw(zeros(64)), "no format|not in the image|hold more"),
    "a bomb as a file": (raw(bomb(64)), "hold more"),
    "a bomb in a bomb": (raw(nested(1, 64)), "no archive"),
    "headers without end": (raw(endless_headers(100)), "without end"),
    "a header without end": (raw(gnu("x", b"x", size=1 << 30)), "without end"),
    "a long name without end": (raw(gnu("x", b"L", size=1 << 30)), "without end"),
    "more files than anybody has": (raw(many_files(1001)), "more than 1000 files"),
    "names that no file can have": (raw(gnu("x", b"L", b"n" * 5000) + gnu("x", tarfile.REGTYPE)), "names that no"),
    "an extended header of nonsense": (raw(gnu("x", b"x", b"9999 a=b\n") + gnu("x", b"0")), "cannot be read"),
    "an extended size of nonsense": (raw(gnu("x", b"x", b"13 size=-999\n") + gnu("x", b"0")), "without a size"),
    "a file that ends early": (raw(gnu("app", tarfile.REGTYPE, b"#!/", size=100_000)), "in the middle"),
    "a size in binary": (raw(gnu("x", tarfile.REGTYPE, size=1 << 62)), "in the middle"),
    "holes": (raw(sparse(1 << 62)), "no format"),
    "links in circles, deeper and deeper": (raw(circles()), "not in the image"),
    "folders that nobody can enter": (plain([Put("d/" * 200 + "x")]), "names that no"),
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


async def test_names_take_a_bounded_memory() -> None:
    """With the folders that they stand for, and the interpreters that programs name."""
    script = b"#!/" + b"x" * 240
    scripts = gzipped([Put(f"{'y' * 900}/{number}", script) for number in range(16_000)])
    for layer in (raw(long_names(5_000)), raw(long_names(3_000)), scripts):
        found = await look_inside(image_of(layer))
        assert (found.state, found.detail) == ("claimed", "its layers have names without end")


async def test_nothing_is_written() -> None:
    """Whatever a layer holds, and however it is packed: no file is opened, made or removed."""
    events: list[tuple[str, object]] = []
    watched = ("open", "os.mkdir", "os.rename", "os.symlink", "os.link", "os.truncate", "os.remove", "tempfile.")

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if hearing and event.startswith(watched):
            events.append((event, arguments))

    hearing = False
    sys.addaudithook(hear)
    await look_inside(image_of(zstandard([Put("app", ARM64_ELF)])))  # imports what unpacks
    packed = [pack([Put("app", ARM64_ELF)]) for pack in PACKINGS.values()]
    images = [image_of(layer) for layer in (*packed, *(layer for layer, _ in HOSTILE.values()))]
    hearing = True
    for image in images:
        await look_inside(image, bounds=SMALL)
    hearing = False
    assert events == []


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
    lying = make_index([(ARM, with_sizes(bundle, [size]))])
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


def test_a_table_of_small_entries_is_refused_before_it_takes_memory() -> None:
    """A million of them are 30 MB of text, and 200 MB once decoded."""
    toc = b'{"version":1,"entries":[' + b",".join([b'{"name":"a","type":"reg"}'] * 5000) + b"]}"
    listing = Listing(digest_of(toc), is_packed_digest=True, place=None)
    tracemalloc.start()
    with pytest.raises(InvalidLayer, match="more than 1000 files"):
        read_listing(listing, toc, 1000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * len(toc)


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
