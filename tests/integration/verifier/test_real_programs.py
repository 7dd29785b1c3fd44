"""Real programs: the zoo's images in a real registry, and Debian's programs, of which the package is the judge."""

import io
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.credentials.keyring import ANONYMOUS
from extender.images.platform import parse_platform
from extender.images.reference import parse_reference
from extender.machine import THIS_MACHINE
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.registry_client import RegistryClient
from extender.verifier.image_verifier import ImageVerifier
from extender.verifier.launchers import command_of, starts_what_words_say
from extender.verifier.verification import Verification
from testbed.binaries import BinariesMissing
from testbed.debian_package import ProgramMissing, fetch_archives, files_of
from testbed.debian_registry import DebianRegistry
from testbed.images import join_index, make_image
from testbed.packed_layers import Layer
from testbed.tiny_programs import find_tiny
from tests.unit.verifier.kept_blobs import look_inside as look_inside_kept
from tests.unit.verifier.zoo import Animal, animals

FEWEST = 60


@pytest.fixture(scope="module")
def zoo() -> list[Animal]:
    try:
        return list(animals(find_tiny))
    except BinariesMissing as exc:
        pytest.skip(str(exc))


async def look_inside(animal: Animal, number: int, registry: DebianRegistry, client: RegistryClient) -> Verification:
    registry.push(f"zoo/{number}", "1", animal.bundle)
    reference = parse_reference(f"{registry.host}/zoo/{number}@{animal.bundle.digest}")
    return (await ImageVerifier(client, reference, parse_platform(animal.platform), ANONYMOUS).verify(60.0))[0]


@pytest.mark.slow
async def test_every_image_of_the_zoo(zoo: list[Animal], debian_registry: DebianRegistry) -> None:
    """All right, and none refuted that is not. The table is printed with `-s`."""
    assert len(zoo) >= FEWEST
    wrong: list[tuple[str, str, Verification]] = []
    host = debian_registry.host
    async with open_session(guard=AddressGuard(allow=[host])) as session:
        client = RegistryClient(session, timeout_seconds=10, plain_http=frozenset((host,)), machine=THIS_MACHINE)
        for number, animal in enumerate(zoo):
            found = await look_inside(animal, number, debian_registry, client)
            said, read = f"{found.program} {found.detail}".strip(), f"{found.read_bytes:,} of {found.layer_bytes:,}"
            print(f"| {animal.name} | {found.state} | {found.requests} | {read} | {said} |")
            if found.state != animal.state or animal.says not in said:
                wrong.append((animal.name, animal.state, found))
    assert wrong == []


PACKAGES = (
    "bash", "bsdutils", "busybox-static", "bzip2", "coreutils", "curl", "dash", "debianutils", "diffutils",
    "file", "findutils", "gawk", "gpgv", "grep", "gzip", "hello", "hostname", "iproute2", "jq", "less",
    "login", "lsof", "make", "mawk", "mount", "nano", "netcat-openbsd", "openssh-client", "openssl", "patch",
    "procps", "psmisc", "rsync", "sed", "socat", "sqlite3", "strace", "tar", "tree", "unzip", "util-linux",
    "vim-tiny", "wget", "xxd", "xz-utils", "zip", "zstd",
)  # fmt: skip
BASE = ("libc6", "perl-base", "base-files")  # loaders, and what scripts need
ARCHITECTURES = ("amd64", "arm64")
FEWEST_PROGRAMS, MOST_OF_A_PACKAGE = 30, 3


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
    """Each program is verified for its own machine and refuted for the other: no disagreement.

    Of a shell or a launcher that is for its own machine it is not known what it starts.
    """
    wrong, states = [], Counter[str]()
    for own in ARCHITECTURES:
        base = [layer_of(files_of(archives[own][package])) for package in BASE]
        for package in PACKAGES:
            files = files_of(archives[own][package])
            for program in programs_in(files):
                for claimed in ARCHITECTURES:
                    platform, layers = f"linux/{claimed}", [*base, layer_of(files)]
                    image = join_index([(platform, make_image(platform, layers, Entrypoint=[program]))])
                    found = await look_inside_kept(image, platform=platform)
                    states[found.state] += 1
                    name = Path(program).name
                    is_launcher = starts_what_words_say(name) or command_of(name, ()) is not None
                    own_state = "claimed" if is_launcher else "verified"
                    if found.state != (own_state if claimed == own else "refuted"):
                        wrong.append((package, own, program, claimed, found.state, found.detail))
    print(dict(states))
    assert wrong == []
    assert min(states["verified"], states["refuted"]) >= 2 * FEWEST_PROGRAMS
