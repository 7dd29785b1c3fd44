"""Runs runc for a node that says arm64 on a machine that is amd64.

`python arm64_runc.py RUNC QEMU FOREIGN ARGUMENTS…`: before a container is created, its first program is looked at. One
for arm64 is run by qemu. Any other is replaced by FOREIGN, a program for a machine that this one is not either, so that
the kernel itself refuses it. Only the first program of a container is looked at: what that one starts is not.

It is a program of its own, run with `-I -S` by containerd's shim.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

AARCH64 = 183
EMULATOR = "/.qemu"
MOST_LINKS = 40  # as in Linux


def main() -> None:
    """Adapts the container that is to be created, if any, then becomes runc."""
    runc, qemu, foreign, *arguments = sys.argv[1:]
    if "create" in arguments:
        bundle = Path(arguments[arguments.index("--bundle") + 1])
        file = bundle / "config.json"
        spec = json.loads(file.read_text())
        adapt(spec, bundle / spec["root"]["path"], qemu, foreign)
        file.write_text(json.dumps(spec))
    os.execv(runc, [runc, *arguments])


def adapt(spec: dict[str, Any], root: Path, qemu: str, foreign: str) -> None:
    """Changes the container's first program to what an arm64 machine would make of it."""
    process = spec["process"]
    program = find_program(root, process)
    if program is None:
        return  # runc says what is missing
    before: list[str] = []
    if (first := read_start(root, program)).startswith(b"#!"):  # the kernel runs the interpreter
        before = first.partition(b"\n")[0][2:].decode().split(None, 1)
        program = resolve(root, before[0])
        first = read_start(root, program)
    if not first.startswith(b"\x7fELF"):
        return  # the kernel refuses it by itself
    if int.from_bytes(first[18:20], "little") != AARCH64:
        add_mount(spec, foreign, program)
        return
    add_mount(spec, qemu, EMULATOR)
    arguments = [*before[1:], str(find_program(root, process)), *process["args"][1:]] if before else process["args"][1:]
    process["args"] = [EMULATOR, program, *arguments]


def find_program(root: Path, process: dict[str, Any]) -> str | None:
    """Returns the path in the container of the program that `args` name, or None if it is not there."""
    name = process["args"][0]
    values = [each.removeprefix("PATH=") for each in process.get("env", []) if each.startswith("PATH=")]
    folders = [""] if "/" in name else [folder for value in values[-1:] for folder in value.split(":")]
    for folder in folders:
        path = resolve(root, os.path.join(process.get("cwd", "/"), folder, name))  # noqa: PTH118 - a path in the container
        if (root / path.lstrip("/")).is_file():
            return path
    return None


def resolve(root: Path, path: str) -> str:
    """Returns the path with its symbolic links followed within `root`."""
    found, remaining, links = "/", path.split("/"), 0
    while remaining:
        part = remaining.pop(0)
        found = os.path.normpath(os.path.join(found, part))  # noqa: PTH118 - as above
        link = root / found.lstrip("/")
        if link.is_symlink() and links < MOST_LINKS:
            links += 1
            target = os.readlink(link)  # noqa: PTH115 - the text of the link
            remaining = target.split("/") + remaining
            found = "/" if target.startswith("/") else os.path.dirname(found)  # noqa: PTH120 - as above
    return found


def read_start(root: Path, path: str) -> bytes:
    """Returns as much of the file as the kernel looks at; nothing of a file that is not there."""
    try:
        with (root / path.lstrip("/")).open("rb") as file:
            return file.read(256)
    except OSError:
        return b""


def add_mount(spec: dict[str, Any], source: str, destination: str) -> None:
    """Shows a file of the machine in the container."""
    spec.setdefault("mounts", []).append(
        {"source": source, "destination": destination, "type": "bind", "options": ["bind", "ro"]}
    )


if __name__ == "__main__":
    main()
