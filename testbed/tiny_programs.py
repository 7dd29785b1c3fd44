"""Builds small programs for any platform that Go has a port for: real ELF and PE files for tests."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from testbed.binaries import BinariesMissing, cache_folder

NOTHING = Path(__file__).parent / "tiny"
"""The source of a program that does nothing."""


@functools.cache
def find_tiny(platform: str, *, dynamic: bool = False, source: Path = NOTHING) -> bytes:
    """Returns the program for `os/architecture[/variant]`, built once; `dynamic` names a loader (amd64, arm64).

    Raises:
        BinariesMissing: Go is missing, or it fails.
    """
    sources = b"\0".join((source / name).read_bytes() for name in ("go.mod", "main.go"))
    name = platform.replace("/", "-") + ("-dynamic" if dynamic else "")
    program = cache_folder() / "tiny" / hashlib.sha256(sources).hexdigest()[:12] / name
    if not program.exists():
        go = shutil.which("go")
        if go is None:
            raise BinariesMissing("programs of tests must be built once, which needs Go on the PATH")
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            made = Path(scratch) / name
            _build(go, source, platform, made, dynamic=dynamic)
            made.rename(program)
    return program.read_bytes()


def _build(go: str, source: Path, platform: str, made: Path, *, dynamic: bool) -> None:
    system, architecture, *variant = platform.split("/")
    pinned = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOOS": system, "GOARCH": architecture}
    pinned |= {"GOARM": variant[0].removeprefix("v")} if variant else {}
    mode = ["-buildmode=pie"] if dynamic else []
    command = ["nice", go, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", *mode, "-o", str(made), "."]
    done = subprocess.run(command, cwd=source, env=os.environ | pinned, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BinariesMissing(f"go build failed in {source}:\n{done.stderr}")
