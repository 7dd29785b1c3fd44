"""Shapes of images: what `inspect` says of each, and what a real node does with it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from testbed.images import DOCKER, OCI, Bundle, Family, join_index
from testbed.nodes.images import PROGRAM, build_hello, build_hello_index, build_image
from testbed.nodes.programs import Containerd
from tests.e2e.running import BOTH, Outcome

Hello = Mapping[str, bytes]


class Shape(NamedTuple):
    """An image, the platforms that `inspect` prints for it, and what each version of containerd does with it.

    `says` is empty for an image that is unknown. The versions in `disagrees` do something else than `inspect` lets one
    expect, as docs/limitations.md says.
    """

    name: str
    build: Callable[[Hello], Bundle] | None  # None: the image is absent
    says: Sequence[str]
    does: Mapping[Containerd, Outcome]
    disagrees: Sequence[Containerd] = ()
    run_386: bool = False  # judged with 386-on-amd64 in placement.compatibility


EACH = tuple(Containerd)


def alike(outcome: Outcome) -> Mapping[Containerd, Outcome]:
    return dict.fromkeys(Containerd, outcome)


RUNS, REFUSED, CRASHES = alike(Outcome.RUNS), alike(Outcome.REFUSED), alike(Outcome.CRASHES)


def under(platform: str, image: Callable[[Hello], Bundle], *more: str) -> Callable[[Hello], Bundle]:
    return lambda hello: join_index([(each, image(hello)) for each in (platform, *more)])


def hello_for(architecture: str, family: Family = OCI) -> Callable[[Hello], Bundle]:
    return lambda hello: build_hello(architecture, hello, family)


def saying(platform: str, architecture: str) -> Callable[[Hello], Bundle]:
    return lambda hello: build_image(platform, {PROGRAM: hello[architecture]})


def script(text: bytes, **programs: str) -> Callable[[Hello], Bundle]:
    """A single manifest for amd64 whose program is a script, with programs for the architectures beside it."""
    return lambda hello: build_image(
        "linux/amd64", {PROGRAM: text, **{f"/{name}": hello[each] for name, each in programs.items()}}
    )


def indexed(*architectures: str, family: Family = OCI, attested: bool = False) -> Callable[[Hello], Bundle]:
    return lambda hello: build_hello_index(architectures, hello, family=family, attested=attested)


def other_386(hello: Hello) -> Bundle:
    """A single manifest for 386 that shares nothing with others."""
    return build_image("linux/386", {PROGRAM: hello["386"], "/other": b"other"})


def without_program(hello: Hello) -> Bundle:
    """A single manifest for amd64 that names a program it does not have."""
    return build_image("linux/amd64", {"/other": hello["amd64"]})


ON_AMD64 = [
    Shape("oci-index", indexed(*BOTH), ["linux/amd64", "linux/arm64"], RUNS),
    Shape("docker-list", indexed(*BOTH, family=DOCKER), ["linux/amd64", "linux/arm64"], RUNS),
    Shape("attested-index", indexed("amd64", attested=True), ["linux/amd64"], RUNS),
    Shape("amd64-manifest", hello_for("amd64"), ["linux/amd64"], RUNS),
    Shape("docker-amd64-manifest", hello_for("amd64", DOCKER), ["linux/amd64"], RUNS),
    Shape("arm64-manifest", hello_for("arm64"), ["linux/arm64"], CRASHES),
    Shape("arm64-index", indexed("arm64"), ["linux/arm64"], REFUSED),
    Shape("attested-arm64-index", indexed("arm64", attested=True), ["linux/arm64"], REFUSED),
    Shape("index-lies", under("linux/amd64", saying("linux/amd64", "arm64")), ["linux/amd64"], CRASHES, EACH),
    Shape("index-lies-alone", under("linux/amd64", hello_for("arm64")), ["linux/amd64"], CRASHES, EACH),
    Shape("manifest-lies", saying("linux/arm64", "amd64"), ["linux/arm64"], RUNS, EACH),
    Shape("windows-manifest-lies", saying("windows/amd64", "amd64"), ["windows/amd64"], RUNS, EACH),
    Shape("386-manifest", hello_for("386"), ["linux/386"], RUNS, run_386=True),
    Shape(
        "386-index",
        under("linux/386", other_386),  # of its own, as containerd 2.x runs what it has pulled as a manifest before
        ["linux/386"],
        {Containerd.DEBIAN: Outcome.RUNS, Containerd.MODULE: Outcome.REFUSED},
        disagrees=[Containerd.MODULE],
        run_386=True,
    ),
    Shape(
        "level-index",
        under("linux/amd64/v2", hello_for("amd64"), "linux/amd64/v3"),
        ["linux/amd64/v2", "linux/amd64/v3"],
        REFUSED,
    ),
    Shape("unknown-index", under("unknown/unknown", hello_for("amd64")), [], REFUSED),
    Shape("script-of-arm64", script(b"#!/sh\n", sh="arm64"), ["linux/amd64"], CRASHES, EACH),
    Shape("script-without-interpreter", script(b"hello\n"), ["linux/amd64"], CRASHES, EACH),
    Shape("no-program", without_program, ["linux/amd64"], alike(Outcome.NOT_STARTED), EACH),
    Shape("absent", None, [], REFUSED),
]
ON_ARM64 = [
    Shape("oci-index", indexed(*BOTH), ["linux/amd64", "linux/arm64"], RUNS),
    Shape("amd64-manifest", hello_for("amd64"), ["linux/amd64"], CRASHES),
    Shape("amd64-index", indexed("amd64"), ["linux/amd64"], REFUSED),
    Shape("arm64-manifest", hello_for("arm64"), ["linux/arm64"], RUNS),
    Shape("arm64-index", indexed("arm64"), ["linux/arm64"], RUNS),
    Shape("index-lies", under("linux/arm64", hello_for("amd64")), ["linux/arm64"], CRASHES, EACH),
]
