"""Layers that are made to hurt, which end within their bounds with nothing refuted, and the images of the zoo."""

import io
import struct
import sys
import tarfile
from collections.abc import Callable, Sequence

import pytest

from extender.images.reference import digest_of
from extender.verifier.image_verifier import VerifierBounds
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
from testbed.images import join_index, make_image
from testbed.packed_layers import PACKINGS, Layer, Put, gzipped, hardlink, plain, symlink, zstandard
from tests.unit.verifier.kept_blobs import ARM, KeptBlobs, image_of, look_inside, look_inside_all
from tests.unit.verifier.zoo import animals

ARM_ELF = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HH", 2, 40) + bytes(44)
SMALL = VerifierBounds(read_bytes=1 << 20, unpacked_bytes=8 << 20, entries=1000)
HOSTILE: dict[str, tuple[Layer, str]] = {
    "a bomb in front": (raw(zeros(64)), "no format|not in the image|hold more"),
    "a bomb as a file": (raw(bomb(64)), "hold more"),
    "a bomb in a bomb": (raw(nested(1, 64)), "no archive"),
    "headers without end": (raw(endless_headers(2000)), "without end"),
    "a header without end": (raw(gnu("x", b"x", size=1 << 30)), "without end"),
    "a long name without end": (raw(gnu("x", b"L", size=1 << 30)), "without end"),
    "more files than anybody has": (raw(many_files(1001)), "more than 1000 files"),
    "names that no file can have": (raw(gnu("x", b"L", b"n" * 5000) + gnu("x", tarfile.REGTYPE)), "names that no"),
    "an extended header of nonsense": (raw(gnu("x", b"x", b"9999 a=b\n") + gnu("x", b"0")), "no archive|not in the im"),
    "an extended size of nonsense": (raw(gnu("x", b"x", b"13 size=-999\n") + gnu("x", b"0")), "no archive"),
    "a file that ends early": (raw(gnu("app", tarfile.REGTYPE, b"#!/", size=100_000)), "no archive"),
    "a size in binary": (raw(gnu("x", tarfile.REGTYPE, size=1 << 62)), "no archive"),
    "holes": (raw(sparse(1 << 62)), "no format"),
    "links in circles, deeper and deeper": (raw(circles()), "not in the image"),
    "folders that nobody can enter": (plain([Put("d/" * 200 + "x")]), "names that no"),
    "no archive": (raw(b"hello" * 1000), "no archive"),
    "gzip that breaks off": (raw(gzipped([Put("app", ARM64_ELF * 1000)]).body[:60]), "cannot be unpacked"),
    "gzip that lies": (raw(b"\x1f\x8b" + b"x" * 1000), "cannot be unpacked"),
    "zstd that lies": (raw(b"\x28\xb5\x2f\xfd" + b"\xff" * 1000), "cannot be unpacked"),
    "zstd that skips to nowhere": (raw(b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + b"x" * 1000), "cannot be unpacked"),
    "a window of 2 GiB": (raw(b"\x28\xb5\x2f\xfd\x00\xa8" + bytes(100)), "cannot be unpacked"),
    "links in a circle": (plain([symlink("app", "b"), symlink("b", "c"), symlink("c", "app")]), "not in the image"),
    "a link to itself": (plain([symlink("app", "app/app")]), "not in the image"),
    "a hard link to itself": (plain([hardlink("app", "app")]), "may not be executed"),
    "hard links in a circle": (plain([hardlink("app", "b"), hardlink("b", "app")]), "may not be executed"),
    "links out of the image": (plain([symlink("app", "../../../../etc/shadow")]), "not in the image"),
    "names out of the image": (plain([Put("../../../app", ARM64_ELF)]), ""),
    "scripts in a circle": (plain([Put("app", b"#!/b\n"), Put("b", b"#!/app\n")]), "no format"),
    "a broken header behind a file": (
        raw(gnu("app", tarfile.REGTYPE, AMD64_ELF) + b"x" * 512 + bytes(1024)), "a layer is no archive that can be read"
    ),
    "nothing": (raw(b""), "no digest or no size"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_layer_refutes_nothing(name: str) -> None:
    """What is not in the image, or is beyond a bound, is not known."""
    layer, words = HOSTILE[name]
    found = await look_inside(image_of(layer), bounds=SMALL, seconds=10.0)
    expected = "verified" if name == "names out of the image" else "claimed"
    assert (found.state, any(word in found.detail for word in words.split("|"))) == (expected, True), found
    assert found.read_bytes <= SMALL.read_bytes


@pytest.mark.slow
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
    """Of layers that are larger than the bound, or than their manifest says."""
    layers = [plain([Put(f"x{number}", bytes(400 << 10))]) for number in range(4)]
    found = await look_inside(image_of(*layers), bounds=SMALL)
    assert (found.state, found.read_bytes <= SMALL.read_bytes) == ("claimed", True)
    assert "more than 1 MiB of its layers" in found.detail
    bundle = image_of(gzipped([Put("app", AMD64_ELF)]))
    for size in (10, 100_000_000):
        client, lying = KeptBlobs(bundle), join_index([(ARM, with_sizes(bundle, [size]))])
        client.manifests |= {each.digest: each for each in lying.manifests}
        assert (await look_inside(lying, client=client, bounds=SMALL)).state == "claimed"


async def test_time_ends_a_look() -> None:
    found = await look_inside(image_of(raw(bomb(900))), seconds=0.05)
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


async def test_only_bytes_that_have_their_digest_refute_or_verify() -> None:
    """A registry that serves others under a layer's digest would speak for every tenant that uses the image."""
    for honest, other in ((ARM64_ELF, AMD64_ELF), (AMD64_ELF, ARM64_ELF)):
        layer, served = (plain([Put("app", body)]) for body in (honest, other))
        bundle = image_of(layer)
        client = KeptBlobs(bundle)
        assert (await look_inside(bundle, client=client)).state in ("verified", "refuted")
        client.blobs[digest_of(layer.body)] = served.body
        found = await look_inside(bundle, client=client)
        assert (found.state, found.detail) == ("claimed", "a layer does not have the digest that its manifest says")


@pytest.mark.parametrize("pack", PACKINGS.values(), ids=PACKINGS)
async def test_bytes_behind_what_was_looked_at_count_for_the_digest(pack: Callable[[Sequence[Put]], Layer]) -> None:
    """The program stands in front, and only the last byte of the layer is another."""
    layer = pack([Put("app", AMD64_ELF), Put("ballast", bytes(range(256)) * 2000)])
    bundle = image_of(layer)
    client = KeptBlobs(bundle)
    assert (await look_inside(bundle, client=client)).state == "refuted"
    client.blobs[digest_of(layer.body)] = layer.body[:-1] + bytes([layer.body[-1] ^ 1])
    assert (await look_inside(bundle, client=client)).state == "claimed"


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
async def test_an_entry_without_content_has_none_whatever_size_it_states(kind: bytes) -> None:
    """As Go and Python read it; the file behind it is the program. Runtimes pass over global headers, too."""
    for extended in (b"", gnu("x", b"x", b"12 size=512\n"), gnu("x", b"g", b"13 path=none\n")):
        archive = extended + gnu("other", kind, size=512) + gnu("app", tarfile.REGTYPE, AMD64_ELF) + bytes(1024)
        found = await look_inside(image_of(raw(archive)))
        assert (found.state, found.program) == ("refuted", "/app")


def of_loader(machine: int, loader: bytes) -> bytes:
    segment = struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(loader) + 1, len(loader) + 1, 1)
    head = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return b"\x7fELF\x02\x01\x01" + bytes(9) + head + segment + loader + b"\0"


_ELF = {"amd64": (2, 1, 62), "arm64": (2, 1, 183), "arm": (1, 1, 40), "s390x": (2, 2, 22), "riscv64": (2, 1, 243),
        "386": (1, 1, 3)}  # fmt: skip


def head_of(platform: str, *, dynamic: bool = False) -> bytes:
    """Stands in for a program, of which only the first bytes are looked at."""
    if dynamic:
        return of_loader(183, b"/lib/ld-linux-aarch64.so.1")
    system, architecture, *_ = platform.split("/")
    if system == "windows":
        return b"MZ" + bytes(58) + struct.pack("<I4sH", 64, b"PE", {"amd64": 0x8664, "arm64": 0xAA64}[architecture])
    bits, order, machine = _ELF[architecture]
    kind = struct.pack(">HH" if order == 2 else "<HH", 2, machine)
    return b"\x7fELF" + bytes([bits, order, 1]) + bytes(9) + kind + bytes(44)


async def test_every_image_of_the_zoo() -> None:
    """As of real programs in a real registry, which take minutes to build."""
    for animal in animals(head_of):
        found = await look_inside(animal.bundle, platform=animal.platform)
        said = f"{found.program} {found.detail}"
        assert (found.state, animal.says in said) == (animal.state, True), (animal.name, found)


@pytest.mark.parametrize(
    ("loader", "state"),
    [
        pytest.param(ARM64_ELF, "verified", id="of the program's machine"),
        pytest.param(AMD64_ELF, "refuted", id="of another machine"),
        pytest.param(ARM_ELF, "claimed", id="of its family"),
        pytest.param(b"#!/bin/sh\n", "claimed", id="a script"),
        pytest.param(b"", "claimed", id="empty"),
        pytest.param(None, "claimed", id="missing"),
    ],
)
@pytest.mark.parametrize("layers", [1, 2, 3])
async def test_a_loader_of_another_machine_refutes_wherever_it_stands(
    loader: bytes | None, state: str, layers: int
) -> None:
    """In the program's own layer, or in one below, which is read for it."""
    program = Put("app", of_loader(183, b"/lib/ld.so"))
    loaders = [] if loader is None else [Put("lib/ld.so", loader)]
    held = {1: [[*loaders, program]], 2: [loaders, [program]], 3: [loaders, [Put("x", b"x")], [program]]}[layers]
    found = await look_inside(image_of(*map(gzipped, held)))
    assert found.state == state, found
    assert state != "refuted" or found.program == "/lib/ld.so"


@pytest.mark.parametrize(
    ("platform", "machine", "bits", "state"),
    [
        ("linux/arm/v7", 183, 2, "refuted"), ("linux/arm/v7", 62, 2, "refuted"), ("linux/arm/v7", 40, 1, "verified"),
        ("linux/arm/v6", 183, 2, "refuted"), ("linux/arm64", 40, 1, "claimed"), ("linux/amd64", 3, 1, "claimed"),
        ("linux/386", 62, 2, "claimed"), ("linux/386", 40, 1, "refuted"),
    ],
)  # fmt: skip
async def test_a_program_that_no_node_of_the_platform_runs_refutes(
    platform: str, machine: int, bits: int, state: str
) -> None:
    """No 32-bit Arm runs AArch64; nodes may run the 32-bit programs of their family."""
    program = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + struct.pack("<HH", 2, machine) + bytes(44)
    bundle = join_index([(platform, make_image(platform, [gzipped([Put("app", program)])], Entrypoint=["/app"]))])
    assert (await look_inside(bundle, platform=platform)).state == state


async def test_the_program_decides_whatever_its_configuration_says() -> None:
    """Runtimes choose by the index, and look at no platform of a single manifest."""
    for words in ("linux/arm64v8", "ubuntu/arm64", "linux/arm64/v8.99", "linux/amd64", "windows/amd64"):
        image = make_image(words, [gzipped([Put("app", ARM64_ELF)])], Entrypoint=["/app"])
        assert (await look_inside(join_index([(ARM, image)]))).state == "verified"
    single = make_image("linux/amd64", [gzipped([Put("bin/sh", AMD64_ELF)]), gzipped([Put("app", ARM64_ELF)])],
                        Entrypoint=["/app"])  # fmt: skip
    found = await look_inside_all(single, platform="linux/amd64")
    assert [(str(each.platform), each.state) for each in found] == [("linux/amd64", "refuted"), (ARM, "verified")]
    assert [each.lie for each in found] == ["claims linux/amd64, but its /app is for AArch64", ""]


async def test_a_manifest_that_its_registry_lacks_is_a_lie() -> None:
    bundle = image_of(gzipped([Put("app", ARM64_ELF)]))
    kept = KeptBlobs(bundle)
    kept.lost = {each.digest for each in bundle.manifests[:-1]}
    found = await look_inside(bundle, client=kept)
    assert found.lie == "claims linux/arm64, but its registry has no manifest for that"


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
