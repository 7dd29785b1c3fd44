"""The zoo: images of real ELF and PE files, honest ones of every packaging and liars of every kind."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from testbed.images import Bundle
from testbed.packed_layers import PACKINGS, Layer, Put, folder, gzipped, hardlink, symlink
from testbed.tiny_programs import find_tiny
from testbed.zoo_images import make_image, make_index

VERIFIED, REFUTED, CLAIMED = "verified", "refuted", "claimed"
CONTRADICTORY, MISSING = "contradictory", "missing"
LINUX = ("linux/amd64", "linux/arm64", "linux/arm/v7", "linux/s390x", "linux/riscv64")
_BALLAST = b"".join(number.to_bytes(4, "big") for number in range(100_000))  # that packs badly


class Animal(NamedTuple):
    """An image, the platform of it that is looked at, what is true of that, and a word of what is said."""

    name: str
    bundle: Bundle
    platform: str
    state: str
    says: str = ""


def _listed(platform: str, layers: Sequence[Layer], **process: object) -> Bundle:
    """An index that lists one image of the platform, as is."""
    return make_index([(platform, make_image(platform, layers, **process))])


def _one(platform: str, files: Sequence[Put], **process: object) -> Bundle:
    return _listed(platform, [gzipped(files)], **process)


def animals() -> Iterator[Animal]:
    """All of them. Builds the programs if they are not built yet."""
    yield from _scratch()
    yield from _packings()
    yield from _starts()
    yield from _scripts()
    yield from _layers()
    yield from _windows()
    yield from _indexes()


def _scratch() -> Iterator[Animal]:
    """One static program of each machine under its own name and under every other family's."""
    for platform in LINUX:
        yield Animal(
            f"scratch {platform}",
            _one(platform, [Put("app", find_tiny(platform))], Entrypoint=["/app"]),
            platform,
            VERIFIED,
        )
    for claimed, real in (
        ("linux/arm64", "linux/amd64"),
        ("linux/amd64", "linux/arm64"),
        ("linux/s390x", "linux/amd64"),
        ("linux/riscv64", "linux/arm64"),
        ("linux/arm/v7", "linux/amd64"),
        ("linux/amd64", "linux/s390x"),
        ("linux/amd64", "linux/riscv64"),
        ("linux/arm64", "windows/amd64"),
        ("linux/amd64", "windows/amd64"),
    ):
        yield Animal(
            f"scratch {claimed} is {real}",
            _one(claimed, [Put("app", find_tiny(real))], Entrypoint=["/app"]),
            claimed,
            REFUTED,
            "/app",
        )
    for claimed, real in (("linux/amd64", "linux/386"), ("linux/arm64", "linux/arm/v7"), ("linux/386", "linux/amd64")):
        yield Animal(
            f"family {claimed} is {real}",
            _one(claimed, [Put("app", find_tiny(real))], Entrypoint=["/app"]),
            claimed,
            CLAIMED,
            "some nodes",
        )


def _packings() -> Iterator[Animal]:
    """Every packing of a layer with 400 KB beside the program, honest and lying."""
    for name, pack in PACKINGS.items():
        for real, state in (("linux/arm64", VERIFIED), ("linux/amd64", REFUTED)):
            files = [
                folder("usr"),
                folder("usr/bin"),
                Put("usr/bin/ballast", _BALLAST, 0o644),
                Put("usr/bin/app", find_tiny(real)),
                symlink("bin", "usr/bin"),
            ]
            yield Animal(
                f"{name} {state}",
                _listed("linux/arm64", [pack(files)], Entrypoint=["/bin/app"]),
                "linux/arm64",
                state,
            )
    script = [
        Put("run.sh", b"#!/bin/sh\nexec app\n"),
        symlink("bin/sh", "busybox"),
        Put("bin/busybox", find_tiny("linux/arm64")),
    ]
    for name in ("estargz", "zstd:chunked"):
        yield Animal(
            f"{name} script",
            _listed("linux/arm64", [PACKINGS[name](script)], Cmd=["/run.sh"]),
            "linux/arm64",
            VERIFIED,
        )


def _starts() -> Iterator[Animal]:
    own, other = find_tiny("linux/arm64"), find_tiny("linux/amd64")
    arm = "linux/arm64"
    rows: list[tuple[str, Sequence[Put], dict[str, object], str, str]] = [
        ("cmd alone", [Put("app", own)], {"Cmd": ["/app"]}, VERIFIED, ""),
        (
            "entrypoint before cmd",
            [Put("app", own), Put("x", other)],
            {"Entrypoint": ["/app"], "Cmd": ["/x"]},
            VERIFIED,
            "",
        ),
        ("default path", [Put("usr/sbin/app", own)], {"Cmd": ["app"]}, VERIFIED, ""),
        (
            "own path",
            [Put("opt/app", own), Put("bin/app", other)],
            {"Cmd": ["app"], "Env": ["PATH=/opt:/bin"]},
            VERIFIED,
            "",
        ),
        (
            "path, the first is wrong",
            [Put("opt/app", other), Put("bin/app", own)],
            {"Cmd": ["app"], "Env": ["A=b", "PATH=/opt:/bin"]},
            REFUTED,
            "/opt/app",
        ),
        (
            "path passes over what may not run",
            [Put("opt/app", other, 0o644), Put("bin/app", own)],
            {"Cmd": ["app"], "Env": ["PATH=/opt:/bin"]},
            VERIFIED,
            "",
        ),
        ("working folder", [Put("srv/app", own)], {"Cmd": ["./app"], "WorkingDir": "/srv"}, VERIFIED, ""),
        ("working folder, wrong", [Put("srv/bin/app", other)], {"Cmd": ["bin/app"], "WorkingDir": "/srv"}, REFUTED, ""),
        ("merged usr", [symlink("bin", "usr/bin"), Put("usr/bin/app", own)], {"Cmd": ["/bin/app"]}, VERIFIED, ""),
        (
            "link over links",
            [symlink("a", "b/c"), folder("b"), symlink("b/c", "../d"), symlink("d", "/e/app"), Put("e/app", own)],
            {"Cmd": ["/a"]},
            VERIFIED,
            "",
        ),
        ("links in a circle", [symlink("a", "b"), symlink("b", "a")], {"Cmd": ["/a"]}, CLAIMED, "not in the image"),
        (
            "busybox",
            [Put("bin/busybox", own), symlink("bin/sh", "busybox"), hardlink("bin/ls", "bin/busybox")],
            {"Cmd": ["ls"]},
            VERIFIED,
            "",
        ),
        (
            "busybox, wrong",
            [Put("bin/busybox", other), symlink("bin/sh", "/bin/busybox")],
            {"Cmd": ["sh", "-c", "x"]},
            REFUTED,
            "/bin/busybox",
        ),
        (
            "dynamic",
            [Put("app", find_tiny(arm, dynamic=True)), Put("lib/ld-linux-aarch64.so.1", own)],
            {"Cmd": ["/app"]},
            VERIFIED,
            "",
        ),
        (
            "dynamic, its loader is wrong",
            [Put("app", find_tiny(arm, dynamic=True)), Put("lib/ld-linux-aarch64.so.1", other)],
            {"Cmd": ["/app"]},
            REFUTED,
            "/lib/ld-linux",
        ),
        ("dynamic without a loader", [Put("app", find_tiny(arm, dynamic=True))], {"Cmd": ["/app"]}, CLAIMED, "loader"),
        ("dynamic, wrong", [Put("app", find_tiny("linux/amd64", dynamic=True))], {"Cmd": ["/app"]}, REFUTED, ""),
        ("entrypoint missing", [Put("app", own)], {"Cmd": ["/none"]}, CLAIMED, "not in the image"),
        (
            "entrypoint in a volume",
            [Put("app", own), folder("data")],
            {"Cmd": ["/data/app"], "Volumes": {"/data": {}}},
            CLAIMED,
            "not in the image",
        ),
        ("nothing to start", [Put("app", own)], {}, CLAIMED, "names no program"),
        ("may not be executed", [Put("app", other, 0o644)], {"Cmd": ["/app"]}, CLAIMED, "may not be executed"),
        ("a folder", [folder("app")], {"Cmd": ["/app"]}, CLAIMED, "not in the image"),
        ("text without #!", [Put("app", b"echo hello\n")], {"Cmd": ["/app"]}, CLAIMED, "no format"),
        ("empty program", [Put("app", b"")], {"Cmd": ["/app"]}, CLAIMED, "no format"),
        (
            "java with native libraries",
            [Put("opt/java/bin/java", own), Put("opt/java/lib/libjvm.so", other)],
            {"Entrypoint": ["/opt/java/bin/java", "-jar", "/app.jar"]},
            VERIFIED,
            "",
        ),
        (
            "python in a venv",
            [
                symlink("venv/bin/python", "/usr/bin/python3"),
                symlink("usr/bin/python3", "python3.12"),
                Put("usr/bin/python3.12", own),
            ],
            {"Entrypoint": ["/venv/bin/python", "-m", "app"]},
            VERIFIED,
            "",
        ),
        (
            "a libc of another machine beside",
            [Put("app", own), Put("usr/x86_64-linux-gnu/bin/app", other)],
            {"Cmd": ["/app"]},
            VERIFIED,
            "",
        ),
    ]
    for name, files, process, state, says in rows:
        yield Animal(name, _one(arm, files, **process), arm, state, says)


def _scripts() -> Iterator[Animal]:
    own, other, arm = find_tiny("linux/arm64"), find_tiny("linux/amd64"), "linux/arm64"
    python = Put("usr/local/bin/python3", own)
    rows: list[tuple[str, bytes, Sequence[Put], str, str]] = [
        ("script", b"#!/bin/sh\nexec app\n", [Put("bin/sh", own)], VERIFIED, ""),
        ("script, its shell is wrong", b"#!/bin/sh -e\n", [Put("bin/sh", other)], REFUTED, "/bin/sh"),
        ("script without its shell", b"#!/bin/bash\n", [], CLAIMED, "/bin/bash"),
        ("script by env", b"#!/usr/bin/env python3\n", [Put("usr/bin/env", own), python], VERIFIED, ""),
        ("script by env -S", b"#!/usr/bin/env -S A=b python3 -u\n", [Put("usr/bin/env", own), python], VERIFIED, ""),
        (
            "script by env, wrong",
            b"#!/usr/bin/env python3\n",
            [Put("usr/bin/env", own), Put("usr/bin/python3", other)],
            REFUTED,
            "/usr/bin/python3",
        ),
        (
            "script by a wrong env",
            b"#!/usr/bin/env python3\n",
            [Put("usr/bin/env", other), python],
            REFUTED,
            "/usr/bin/env",
        ),
        ("script of a script", b"#!/run\n", [Put("run", b"#!/bin/sh\n"), Put("bin/sh", own)], VERIFIED, ""),
        ("script of itself", b"#!/app\n", [], CLAIMED, "no format"),
    ]
    for name, text, files, state, says in rows:
        yield Animal(name, _one(arm, [Put("app", text), *files], Entrypoint=["/app"]), arm, state, says)


def _layers() -> Iterator[Animal]:
    """Several layers: what is above hides what is below."""
    own, other, arm = find_tiny("linux/arm64"), find_tiny("linux/amd64"), "linux/arm64"
    base = [folder("bin"), Put("bin/app", other), Put("bin/sh", own), symlink("sbin", "bin")]
    rows: list[tuple[str, Sequence[Sequence[Put]], str, str, str]] = [
        ("replaced above", [base, [Put("bin/app", own)]], "/bin/app", VERIFIED, ""),
        ("replaced above by a wrong one", [[Put("bin/app", own)], [Put("bin/app", other)]], "/bin/app", REFUTED, ""),
        ("under a link of a layer below", [base, [Put("bin/new", own)]], "/sbin/new", VERIFIED, ""),
        ("whited out", [base, [Put("bin/.wh.app")]], "/bin/app", CLAIMED, "not in the image"),
        (
            "an opaque folder",
            [base, [folder("bin"), Put("bin/.wh..wh..opq"), Put("bin/x", own)]],
            "/bin/app",
            CLAIMED,
            "not in the image",
        ),
        (
            "an opaque folder, filled anew",
            [base, [Put("bin/.wh..wh..opq"), Put("bin/app", own)]],
            "/bin/app",
            VERIFIED,
            "",
        ),
        (
            "a folder that became a link",
            [base, [symlink("bin", "usr/bin"), Put("usr/bin/app", own)]],
            "/bin/app",
            VERIFIED,
            "",
        ),
        ("a hard link to a layer below", [[Put("a", own)], [hardlink("b", "a")]], "/b", VERIFIED, ""),
        ("whited out and put again", [base, [Put("bin/.wh.app")], [Put("bin/app", own)]], "/bin/app", VERIFIED, ""),
        (
            "path search through layers",
            [[Put("usr/local/bin/app", other)], [Put("usr/bin/app", own)]],
            "app",
            REFUTED,
            "/usr/local/bin/app",
        ),
    ]
    for name, layers, program, state, says in rows:
        image = _listed(arm, [gzipped(files) for files in layers], Entrypoint=[program])
        yield Animal(f"layers: {name}", image, arm, state, says)
    mixed: list[Callable[[Sequence[Put]], Layer]] = [PACKINGS["estargz"], PACKINGS["zstd:chunked"], gzipped]
    held = ([Put("bin/sh", own)], [Put("x", other)], [Put("app", b"#!/bin/sh\n")])
    packed = [pack(files) for pack, files in zip(mixed, held, strict=True)]
    yield Animal("layers: of three packings", _listed(arm, packed, Entrypoint=["/app"]), arm, VERIFIED)


def _windows() -> Iterator[Animal]:
    files = {
        real: [Put("Files/App/app.exe", find_tiny(real), 0o644)]
        for real in ("windows/amd64", "windows/arm64", "linux/amd64")
    }
    for claimed, real, state in (
        ("windows/amd64", "windows/amd64", VERIFIED),
        ("windows/amd64", "windows/arm64", REFUTED),
        ("windows/amd64", "linux/amd64", REFUTED),
        ("windows/arm64", "windows/amd64", CLAIMED),
    ):
        yield Animal(f"{claimed} is {real}", _one(claimed, files[real], Entrypoint=[r"C:\App\app.exe"]), claimed, state)
    yield Animal(
        "windows by its folder",
        _one("windows/amd64", files["windows/amd64"], Cmd=["app"], WorkingDir=r"C:\APP"),
        "windows/amd64",
        VERIFIED,
    )


def _indexes() -> Iterator[Animal]:
    """What the index and the configurations say of each other."""
    own, other, arm, amd = find_tiny("linux/arm64"), find_tiny("linux/amd64"), "linux/arm64", "linux/amd64"
    for_arm = make_image(arm, [gzipped([Put("app", own)])], Entrypoint=["/app"])
    for_amd = make_image(amd, [gzipped([Put("app", other)])], Entrypoint=["/app"])
    both = make_index([(amd, for_amd), (arm, for_arm)])
    yield Animal("both, arm64", both, arm, VERIFIED)
    yield Animal("both, amd64", both, amd, VERIFIED)
    yield Animal("amd64 listed twice", make_index([(amd, for_amd), (arm, for_amd)]), arm, CONTRADICTORY, amd)
    yield Animal("one manifest", for_arm, arm, VERIFIED)
    lying = make_image(arm, [gzipped([Put("app", other)])], Entrypoint=["/app"])
    yield Animal("one manifest, wrong", lying, arm, REFUTED)
    yield Animal("not listed", both, "linux/s390x", CLAIMED, "does not list")
