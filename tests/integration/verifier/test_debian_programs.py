"""Other people's files: programs of Debian for two machines, of which the package's architecture is the judge."""

import io
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.debian_package import ProgramMissing, fetch_archives, files_of
from testbed.images import join_index, make_image
from testbed.packed_layers import Layer
from tests.unit.verifier.kept_blobs import look_inside

PACKAGES = (
    "bash", "bsdutils", "busybox-static", "bzip2", "coreutils", "curl", "dash", "debianutils", "diffutils",
    "file", "findutils", "gawk", "gpgv", "grep", "gzip", "hello", "hostname", "iproute2", "jq", "less",
    "login", "lsof", "make", "mawk", "mount", "nano", "netcat-openbsd", "openssh-client", "openssl", "patch",
    "procps", "psmisc", "rsync", "sed", "socat", "sqlite3", "strace", "tar", "tree", "unzip", "util-linux",
    "vim-tiny", "wget", "xxd", "xz-utils", "zip", "zstd",
)  # fmt: skip
BASE = ("libc6", "perl-base", "base-files")  # loaders, and what scripts need
ARCHITECTURES = ("amd64", "arm64")
FEWEST, MOST_OF_A_PACKAGE = 30, 3


@pytest.fixture(scope="module")
def archives() -> dict[str, dict[str, Path]]:
    try:
        return {each: fetch_archives(each, [*PACKAGES, *BASE]) for each in ARCHITECTURES}
    except ProgramMissing as exc:
        pytest.skip(str(exc))


def programs_in(files: bytes) -> Iterator[str]:
    found = 0
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        for member in archive:
            is_program = member.isfile() and member.mode & 0o111 and "bin/" in member.name
            body = archive.extractfile(member) if is_program and found < MOST_OF_A_PACKAGE else None
            if body and body.read(4) == b"\x7fELF":
                found += 1
                yield member.name.removeprefix(".")


def layer_of(files: bytes) -> Layer:
    return Layer(files, "application/vnd.oci.image.layer.v1.tar", {}, "sha256:" + "0" * 64)


@pytest.mark.slow
async def test_the_package_and_we_agree(archives: dict[str, dict[str, Path]]) -> None:
    """Each program is verified for its own machine and refuted for the other: no disagreement, and nothing unknown."""
    wrong, states = [], Counter[str]()
    for own in ARCHITECTURES:
        base = [layer_of(files_of(archives[own][package])) for package in BASE]
        for package in PACKAGES:
            files = files_of(archives[own][package])
            for program in programs_in(files):
                for claimed in ARCHITECTURES:
                    platform, layers = f"linux/{claimed}", [*base, layer_of(files)]
                    image = join_index([(platform, make_image(platform, layers, Entrypoint=[program]))])
                    found = await look_inside(image, platform=platform)
                    states[found.state] += 1
                    if found.state != ("verified" if claimed == own else "refuted"):
                        wrong.append((package, own, program, claimed, found.state, found.detail))
    print(dict(states))
    assert wrong == []
    assert min(states["verified"], states["refuted"]) >= 2 * FEWEST
