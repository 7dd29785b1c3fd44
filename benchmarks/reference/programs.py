"""Builds the Go programs that ours is measured against into the cache folder, once, from the sources beside this file.

`typed` is written as published extenders are. `null` is the limit of the protocol; with `-score` it returns scores.
`webhook` is a mutating webhook written as those on controller-runtime are.
`python -m benchmarks.reference.programs` builds what is missing and prints the paths.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from testbed.binaries import BinariesMissing, GoModule, build

_BUILD_INFO = b"\xff Go buildinf:"
_BUILD_INFO_BYTES = 32  # of header, before the length and the text of the version; see Go's package debug/buildinfo


class Programs(NamedTuple):
    """The paths of the programs, and the Go version that built them, such as go1.26.0."""

    null: Path
    typed: Path
    webhook: Path
    go_version: str


class SourceModule(GoModule, frozen=True, kw_only=True):
    """A Go module of our own, beside this file. A change of its sources changes its folder in the cache too."""

    @property
    def folder(self) -> Path:
        """The folder that holds go.mod and the sources."""
        return Path(__file__).parent

    @property
    def key(self) -> str:
        """The name of its folder in the cache."""
        digest = hashlib.sha256()
        for source in sorted(self.folder.rglob("*.go")):
            digest.update(f"{source.relative_to(self.folder)}\0".encode() + source.read_bytes())
        return f"{super().key}-{digest.hexdigest()[:12]}"


REFERENCE = SourceModule(
    name="extenders",
    dependency="k8s.io/kube-scheduler",
    programs={"typed": "./typed", "null": "./null", "webhook": "./webhook"},
    room="reference",
)


def find_programs(environment: Mapping[str, str] = os.environ) -> Programs:
    """Returns the programs, built if needed. Raises BinariesMissing.

    A first build says on stderr that it takes minutes.
    """
    folder = build(REFERENCE, environment)
    return Programs(folder / "null", folder / "typed", folder / "webhook", _go_version(folder / "typed"))


def _go_version(program: Path) -> str:
    """Returns the Go version that built the program, from its build information."""
    data = program.read_bytes()
    at = data.index(_BUILD_INFO) + _BUILD_INFO_BYTES
    return data[at + 1 : at + 1 + data[at]].decode()


def main() -> int:
    """Builds what is missing and prints the paths and the version; returns the exit code."""
    try:
        programs = find_programs()
    except BinariesMissing as exc:
        print(exc, file=sys.stderr)
        return 1
    print("\n".join(map(str, programs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
