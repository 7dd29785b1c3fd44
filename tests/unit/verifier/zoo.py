"""The zoo: images of ELF and PE files, honest ones of every packaging and liars of every kind."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from testbed.images import Bundle, join_index, make_image
from testbed.packed_layers import PACKINGS, Layer, Put, folder, gzipped, hardlink, symlink

Tiny = Callable[..., bytes]
VERIFIED, REFUTED, CLAIMED = "verified", "refuted", "claimed"
AMD, ARM = "linux/amd64", "linux/arm64"
LINUX = (AMD, ARM, "linux/arm/v7", "linux/s390x", "linux/riscv64")
_BALLAST = b"".join(number.to_bytes(4, "big") for number in range(100_000))  # that packs badly


class Animal(NamedTuple):
    """An image, the platform of it that is looked at, what is true of that, and a word of what is said."""

    name: str
    bundle: Bundle
    platform: str
    state: str
    says: str = ""


def _listed(platform: str, layers: Sequence[Layer], **process: object) -> Bundle:
    return join_index([(platform, make_image(platform, layers, **process))])


def _one(platform: str, files: Sequence[Put], **process: object) -> Bundle:
    return _listed(platform, [gzipped(files)], **process)


def animals(tiny: Tiny) -> Iterator[Animal]:
    """All of them; `tiny` gives the program for a platform, or with `dynamic` one that needs a loader."""
    for kinds in (_scratch, _packings, _starts, _launchers, _layers, _windows, _indexes):
        yield from kinds(tiny)


def _scratch(tiny: Tiny) -> Iterator[Animal]:
    """One static program of each machine under its own name and under every other family's."""
    rows = [(platform, platform, VERIFIED, "") for platform in LINUX]
    rows += [
        (claimed, real, REFUTED, "/app")
        for claimed, real in (
            ("linux/arm64", "linux/amd64"), ("linux/amd64", "linux/arm64"), ("linux/s390x", "linux/amd64"),
            ("linux/riscv64", "linux/arm64"), ("linux/arm/v7", "linux/amd64"), ("linux/amd64", "linux/s390x"),
            ("linux/amd64", "linux/riscv64"), ("linux/arm64", "windows/amd64"), ("linux/amd64", "windows/amd64"),
        )
    ]  # fmt: skip
    families = (("linux/amd64", "linux/386"), ("linux/arm64", "linux/arm/v7"), ("linux/386", "linux/amd64"))
    rows += [(claimed, real, CLAIMED, "some nodes") for claimed, real in families]
    for claimed, real, state, says in rows:
        image = _one(claimed, [Put("app", tiny(real))], Entrypoint=["/app"])
        yield Animal(f"scratch {claimed} is {real}", image, claimed, state, says)


def _packings(tiny: Tiny) -> Iterator[Animal]:
    """Every packing of a layer with 400 KB beside the program, honest and lying, and a script in each."""
    script = [
        Put("run.sh", b"#!/bin/sh\nexec app\n"),
        symlink("bin/sh", "busybox"),
        Put("bin/busybox", tiny(ARM)),
    ]
    for name, pack in PACKINGS.items():
        for real, state in ((ARM, VERIFIED), (AMD, REFUTED)):
            files = [
                folder("usr"),
                folder("usr/bin"),
                Put("usr/bin/ballast", _BALLAST, 0o644),
                Put("usr/bin/app", tiny(real)),
                symlink("bin", "usr/bin"),
            ]
            yield Animal(f"{name} {state}", _listed(ARM, [pack(files)], Entrypoint=["/bin/app"]), ARM, state)
        yield Animal(f"{name} script", _listed(ARM, [pack(script)], Cmd=["/run.sh"]), ARM, CLAIMED, "/run.sh")


def _starts(tiny: Tiny) -> Iterator[Animal]:
    """What an image's configuration has to say about its program, and where that stands."""
    own, other = tiny(ARM), tiny(AMD)
    app, sh, dynamic = Put("app", own), Put("bin/sh", own), Put("app", tiny(ARM, dynamic=True))
    two_paths: dict[str, object] = {"Cmd": ["app"], "Env": ["A=b", "PATH=/opt:/bin"]}
    over_links = [symlink("a", "b/c"), folder("b"), symlink("b/c", "../d"), symlink("d", "/e/app"), Put("e/app", own)]
    busybox = [Put("bin/busybox", own), symlink("bin/sh", "busybox"), hardlink("bin/ls", "bin/busybox")]
    java = [Put("opt/java/bin/java", own), Put("opt/java/lib/libjvm.so", other)]
    python = [symlink("venv/bin/python", "/usr/bin/python3"), symlink("usr/bin/python3", "python3.12")]
    verified: list[tuple[str, Sequence[Put], dict[str, object]]] = [
        ("cmd alone", [app], {"Cmd": ["/app"]}),
        ("entrypoint before cmd", [app, Put("x", other)], {"Entrypoint": ["/app"], "Cmd": ["/x"]}),
        ("default path", [Put("usr/sbin/app", own)], {"Cmd": ["app"]}),
        ("own path", [Put("opt/app", own), Put("bin/app", other)], two_paths),
        ("path passes over what may not run", [Put("opt/app", other, 0o644), Put("bin/app", own)], two_paths),
        ("working folder", [Put("srv/app", own)], {"Cmd": ["./app"], "WorkingDir": "/srv"}),
        ("merged usr", [symlink("bin", "usr/bin"), Put("usr/bin/app", own)], {"Cmd": ["/bin/app"]}),
        ("link over links", over_links, {"Cmd": ["/a"]}),
        ("busybox", busybox, {"Cmd": ["ls"]}),
        ("dynamic", [dynamic, Put("lib/ld-linux-aarch64.so.1", own)], {"Cmd": ["/app"]}),
        ("java with native libraries", java, {"Entrypoint": ["/opt/java/bin/java", "-jar", "/app.jar"]}),
        ("python in a venv", [*python, Put("usr/bin/python3.12", own)], {"Entrypoint": ["/venv/bin/python"]}),
        ("another libc beside", [app, Put("usr/x86_64-linux-gnu/bin/app", other)], {"Cmd": ["/app"]}),
    ]
    others: list[tuple[str, Sequence[Put], dict[str, object], str, str]] = [
        ("path, the first is wrong", [Put("opt/app", other), Put("bin/app", own)], two_paths, REFUTED, "/opt/app"),
        ("folder, wrong", [Put("srv/bin/app", other)], {"Cmd": ["bin/app"], "WorkingDir": "/srv"}, REFUTED, ""),
        ("busybox, wrong", [Put("b/busy", other), symlink("bin/sh", "/b/busy")], {"Cmd": ["sh"]}, REFUTED, "/b/busy"),
        ("script, wrong", [Put("app", b"#!/bin/sh -e\n"), Put("bin/sh", other)], {"Cmd": ["/app"]}, REFUTED, "/bin/sh"),
        ("script", [Put("app", b"#!/bin/sh\nexec app\n"), sh], {"Cmd": ["/app"]}, CLAIMED, "script /app"),
        ("script of a script", [Put("app", b"#!/run\n"), Put("run", b"#!/bin/sh\n"), sh], {"Cmd": ["/app"]}, CLAIMED,
         "script"),
        ("shell", [sh, app], {"Cmd": ["/bin/sh", "-c", "/app"]}, CLAIMED, "/bin/sh"),
        ("shell of busybox", busybox, {"Cmd": ["sh"]}, CLAIMED, "/bin/busybox"),
        ("applet that is a shell", busybox, {"Cmd": ["busybox", "sh", "-c", "ls"]}, CLAIMED, "/bin/busybox"),
        ("shell by another name", [Put("bin/dash", own), symlink("x", "bin/dash")], {"Cmd": ["/x"]}, CLAIMED, "dash"),
        ("supervisor", [Put("sbin/s6-svscan", own)], {"Cmd": ["s6-svscan", "/run"]}, CLAIMED, "starts"),
        ("script without its shell", [Put("app", b"#!/bin/bash\n")], {"Cmd": ["/app"]}, CLAIMED, "/bin/bash"),
        ("dynamic without a loader", [dynamic], {"Cmd": ["/app"]}, CLAIMED, "loader"),
        ("in a volume", [app, folder("v")], {"Cmd": ["/v/x"], "Volumes": {"/v": {}}}, CLAIMED, "not in the image"),
        ("nothing to start", [app], {}, CLAIMED, "names no program"),
        ("may not be executed", [Put("app", other, 0o644)], {"Cmd": ["/app"]}, CLAIMED, "may not be executed"),
        ("a folder", [folder("app")], {"Cmd": ["/app"]}, CLAIMED, "not in the image"),
        ("text without #!", [Put("app", b"echo hello\n")], {"Cmd": ["/app"]}, CLAIMED, "no format"),
        ("empty program", [Put("app", b"")], {"Cmd": ["/app"]}, CLAIMED, "no format"),
    ]  # fmt: skip
    for name, files, process, state, says in (*((*row, VERIFIED, "") for row in verified), *others):
        yield Animal(name, _one(ARM, files, **process), ARM, state, says)
    env, python3 = "usr/bin/env", "usr/local/bin/python3"
    for line, machines, state, says in (
        (b"#!/usr/bin/env python3\n", (own, own), CLAIMED, "script /app"),
        (b"#!/usr/bin/env -S A=b python3 -u\n", (own, own), CLAIMED, "script /app"),
        (b"#!/usr/bin/env -S A=b python3 -u\n", (own, other), REFUTED, "/usr/local/bin/python3"),
        (b"#!/usr/bin/env python3\n", (own, other), REFUTED, "/usr/local/bin/python3"),
        (b"#!/usr/bin/env python3\n", (other, own), REFUTED, "/usr/bin/env"),
    ):
        files = [Put("app", line), Put(env, machines[0]), Put(python3, machines[1])]
        yield Animal(f"script by env {says}", _one(ARM, files, Entrypoint=["/app"]), ARM, state, says)


def _launchers(tiny: Tiny) -> Iterator[Animal]:
    """A launcher says nothing of the program behind it, which is what crashes or does not."""
    own, other = tiny(ARM), tiny(AMD)
    behind = (
        "tini --", "tini -g -s", "tini -vv -p SIGTERM -e 143 --", "tini-static-amd64", "dumb-init_1.2.5_x86_64",
        "gosu-amd64 nobody", "/sbin/docker-init --", "dumb-init",
        "dumb-init -c --rewrite 15:3 --", "dumb-init --rewrite=15:3", "catatonit --", "env A=b -u C", "env -i --",
        "env -S", "env -C /srv A=b", "gosu nobody", "su-exec 65534:65534",
        "setpriv --reuid 1000 --clear-groups --no-new-privs", "setpriv --reuid=1000 --inh-caps=-all --",
        "s6-setuidgid nobody", "nice -n 5", "timeout -k 5 60", "stdbuf -oL", "tini -- gosu nobody env A=b",
    )  # fmt: skip
    for words in behind:
        names = {Path(word).name for word in words.split() if Path(word).name in _LAUNCHER_NAMES}
        for program, launcher, state, says in (
            (own, own, VERIFIED, "/opt/app"),
            (other, own, REFUTED, "/opt/app"),
            (own, other, REFUTED, "bin/"),
            (b"#!/bin/sh\n", own, CLAIMED, "/bin/sh"),
            (None, own, CLAIMED, "app is not in the image"),
        ):
            files = [] if program is None else [Put("opt/app", program)]
            files += [Put(f"sbin/{name}", launcher) for name in sorted(names)]
            image = _one(ARM, files, Entrypoint=words.split(), Cmd=["app", "--now"], Env=["PATH=/opt:/sbin"])
            yield Animal(f"{words} {state}", image, ARM, state, says)
    for words in ("tini --", "tini", "env A=b", "gosu nobody", "env PATH=/srv app"):
        files = [Put(f"sbin/{name}", own) for name in _LAUNCHER_NAMES] + [Put("opt/app", other)]
        image = _one(ARM, files, Cmd=words.split(), Env=["PATH=/opt:/sbin"])
        yield Animal(f"{words} and nothing", image, ARM, CLAIMED, "starts")


_LAUNCHER_NAMES = frozenset(
    ("tini", "tini-static-amd64", "dumb-init_1.2.5_x86_64", "gosu-amd64", "docker-init",
      "dumb-init", "catatonit", "env", "gosu", "su-exec", "setpriv",
     "s6-setuidgid", "nice", "timeout", "stdbuf")
)  # fmt: skip


def _layers(tiny: Tiny) -> Iterator[Animal]:
    own, other = tiny(ARM), tiny(AMD)
    base = [folder("bin"), Put("bin/app", other), Put("bin/sh", own), symlink("sbin", "bin")]
    app, opaque = Put("bin/app", own), Put("bin/.wh..wh..opq")
    usr = [symlink("bin", "usr/bin"), Put("usr/bin/app", own)]
    searched = [[Put("usr/local/bin/app", other)], [Put("usr/bin/app", own)]]
    rows: list[tuple[str, Sequence[Sequence[Put]], str, str, str]] = [
        ("replaced above", [base, [app]], "/bin/app", VERIFIED, ""),
        ("replaced above by a wrong one", [[app], [Put("bin/app", other)]], "/bin/app", REFUTED, ""),
        ("under a link of a layer below", [base, [Put("bin/new", own)]], "/sbin/new", VERIFIED, ""),
        ("whited out", [base, [Put("bin/.wh.app")]], "/bin/app", CLAIMED, "not in the image"),
        ("whited out and put again", [base, [Put("bin/.wh.app")], [app]], "/bin/app", VERIFIED, ""),
        ("an opaque folder", [base, [folder("bin"), opaque, Put("x", own)]], "/bin/app", CLAIMED, "not in the image"),
        ("an opaque folder, filled anew", [base, [opaque, app]], "/bin/app", VERIFIED, ""),
        ("a folder that became a link", [base, usr], "/bin/app", VERIFIED, ""),
        ("a hard link to a layer below", [[Put("a", own)], [hardlink("b", "a")]], "/b", VERIFIED, ""),
        ("path search through layers", searched, "app", REFUTED, "/usr/local/bin/app"),
    ]  # fmt: skip
    for name, layers, program, state, says in rows:
        image = _listed(ARM, [gzipped(files) for files in layers], Entrypoint=[program])
        yield Animal(f"layers: {name}", image, ARM, state, says)
    mixed: list[Callable[[Sequence[Put]], Layer]] = [PACKINGS["estargz"], PACKINGS["zstd:chunked"], gzipped]
    held = ([Put("bin/sh", own)], [Put("x", other)], [Put("app", b"#!/bin/sh\n")])
    packed = [pack(files) for pack, files in zip(mixed, held, strict=True)]
    yield Animal("layers: of three packings", _listed(ARM, packed, Entrypoint=["/app"]), ARM, CLAIMED, "/app")


def _windows(tiny: Tiny) -> Iterator[Animal]:
    program = {"Entrypoint": [r"C:\App\app.exe"]}
    for claimed, real, state, process in (
        ("windows/amd64", "windows/amd64", VERIFIED, program),
        ("windows/amd64", "windows/amd64", VERIFIED, {"Cmd": ["app"], "WorkingDir": r"C:\APP"}),
        ("windows/amd64", "windows/arm64", REFUTED, program),
        ("windows/amd64", "linux/amd64", REFUTED, program),
        ("windows/arm64", "windows/amd64", CLAIMED, program),
        ("windows/amd64", "windows/amd64", CLAIMED, {"Cmd": ["cmd", "/S", "/C", "app"], "WorkingDir": r"C:\App"}),
    ):
        files = [Put(f"Files/App/{name}.exe", tiny(real), 0o644) for name in ("app", "cmd")]
        yield Animal(f"{claimed} is {real}", _one(claimed, files, **process), claimed, state)


def _indexes(tiny: Tiny) -> Iterator[Animal]:
    own, other = tiny(ARM), tiny(AMD)
    for_arm = make_image(ARM, [gzipped([Put("app", own)])], Entrypoint=["/app"])
    for_amd = make_image(AMD, [gzipped([Put("app", other)])], Entrypoint=["/app"])
    lying = make_image(ARM, [gzipped([Put("app", other)])], Entrypoint=["/app"])
    both = join_index([(AMD, for_amd), (ARM, for_arm)])
    yield Animal("both, arm64", both, ARM, VERIFIED)
    yield Animal("both, amd64", both, AMD, VERIFIED)
    yield Animal("amd64 listed twice", join_index([(AMD, for_amd), (ARM, for_amd)]), ARM, REFUTED, "x86-64")
    wrong_config = make_image(AMD, [gzipped([Put("app", own)])], Entrypoint=["/app"])
    yield Animal("only its configuration is wrong", join_index([(ARM, wrong_config)]), ARM, VERIFIED)
    yield Animal("one manifest", for_arm, ARM, VERIFIED)
    yield Animal("one manifest, wrong", lying, ARM, REFUTED)
    yield Animal("not listed", both, "linux/s390x", CLAIMED, "does not list")
