"""Platforms: their normalised spelling, and which node platform runs which image platform.

Normalisation follows containerd/platforms (database.go). Matching is stricter than containerd's: a match needs both
containerd and CRI-O to run the image. For the two compatibilities on which they differ the operator decides.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from extender.errors import ExtenderError
from extender.images.untrusted import quote


class InvalidPlatform(ExtenderError):
    """A text that is not `os/architecture[/variant]`."""


class Platform(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """An operating system and processor in Go's names. Build it with `normalize_platform` or `parse_platform`.

    Names not listed in this file are valid and kept as they are (`linux/fake`, `linux/mips64le`). An empty variant is
    the architecture's baseline (amd64 v1, arm64 v8).
    """

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        """`os/architecture[/variant]`."""
        return f"{self.os}/{self.architecture}/{self.variant}" if self.variant else f"{self.os}/{self.architecture}"


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """Which other instruction sets the cluster's nodes also run, which depends on their container runtime."""

    run_386_on_amd64: bool = False
    run_arm_on_arm64: bool = False


# Those that Go has a port for (`go tool dist list`), as normalised here. Others are valid in images and on nodes.
OPERATING_SYSTEMS = frozenset(
    ("aix", "android", "darwin", "dragonfly", "freebsd", "illumos", "ios", "js",
     "linux", "netbsd", "openbsd", "plan9", "solaris", "wasip1", "windows")
)  # fmt: skip
ARCHITECTURES = frozenset(
    ("386", "amd64", "arm", "arm64", "loong64", "mips", "mips64", "mips64le", "mipsle", "ppc64", "ppc64le", "riscv64",
     "s390x", "wasm")
)  # fmt: skip

_SYSTEMS = {"macos": "darwin", "wasi": "wasip1"}
_ARCHITECTURES = {
    "x86_64": "amd64",
    "x86-64": "amd64",
    "aarch64": "arm64",
}
# These names imply the variant; a variant stated beside them is dropped.
_WITH_VARIANT = {"i386": ("386", ""), "armhf": ("arm", "v7"), "armel": ("arm", "v6")}
ARCHITECTURE_NAMES = ARCHITECTURES | _ARCHITECTURES.keys() | _WITH_VARIANT.keys()
"""The architectures that Go has a port for, under every name that is normalised."""
SYSTEM_NAMES = OPERATING_SYSTEMS | _SYSTEMS.keys()
"""The same of operating systems."""
ArchitectureName = Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(ARCHITECTURE_NAMES)})]
"""Of a setting. The service itself says what is meant by another name; a schema has the names."""
_PLATFORM = f"^({'|'.join(sorted(SYSTEM_NAMES))})/({'|'.join(sorted(ARCHITECTURE_NAMES))})(/[a-z0-9.]+)?$"
PlatformName = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": _PLATFORM})]
"""The same of `os/architecture[/variant]`."""
_VARIANTS = {
    "amd64": {"v1": ""},
    "arm": {"": "v7", "5": "v5", "6": "v6", "7": "v7", "8": "v8"},
    "arm64": {"8": "", "v8": "", "v8.0": "", "9": "v9", "9.0": "v9", "v9.0": "v9"},
}

_ARM = ("v5", "v6", "v7", "v8")
_AMD64 = ("v2", "v3", "v4")  # x86-64 psABI
_ARM_V8 = tuple(f"v8.{minor}" for minor in range(1, 10))
_ARM_V9 = ("v9", *(f"v9.{minor}" for minor in range(1, 8)))
_VARIANTS_OF_IMAGES = {"arm": _ARM, "amd64": _AMD64, "arm64": (*_ARM_V8, *_ARM_V9)}
# The variants that an arm node of a variant runs. No node states a variant of another architecture.
_RUNS = {variant: frozenset(_ARM[: index + 1]) for index, variant in enumerate(_ARM)}

# Every platform that images usually state, as the one object for it. Other platforms are valid too, but take some 300
# bytes in each content that has them.
_USUAL = {
    platform: platform
    for platform in (
        *(Platform("linux", "amd64", variant) for variant in ("", *_AMD64)),
        *(Platform("linux", "arm", variant) for variant in _ARM),
        *(Platform("linux", "arm64", variant) for variant in ("", *_ARM_V8, *_ARM_V9)),
        *(Platform("linux", name) for name in ("386", "loong64", "mips", "mipsle", "mips64", "mips64le")),
        *(Platform("linux", name) for name in ("ppc64", "ppc64le", "riscv64", "s390x")),
        *(Platform("windows", name) for name in ("386", "amd64", "arm64")),
        *(Platform(os, name) for os in ("darwin", "freebsd") for name in ("amd64", "arm64")),
        Platform("windows", "arm", "v7"),
        Platform("wasip1", "wasm"),
    )
}

# A valid label value, which is narrower than containerd's specifierRe (platforms.go): each part of a platform may be
# written to node affinity, and an API server refuses a pod whose affinity has any other value. A label value may have
# 63 characters. Go's longest name has 11 (mips64p32le, loongarch64): 32 are enough, and cached platforms stay small.
_MOST_CHARACTERS = 32
_WORD = re.compile(rf"[A-Za-z0-9](?:[A-Za-z0-9_.-]{{0,{_MOST_CHARACTERS - 2}}}[A-Za-z0-9])?", re.ASCII)


def normalize_platform(os: str, architecture: str, variant: str = "") -> Platform:
    """The platform in containerd's spelling: `aarch64` with `v8` is `arm64`, `armhf` is `arm/v7`. O(1).

    An empty `os` or `architecture` stays empty: a service must not default to its own platform. Equal results are one
    object if the platform is usual.
    """
    os, architecture, variant = os.lower(), architecture.lower(), variant.lower()
    os = _SYSTEMS.get(os, os)
    if architecture in _WITH_VARIANT:
        return shared_platform(Platform(os, *_WITH_VARIANT[architecture]))
    architecture = _ARCHITECTURES.get(architecture, architecture)
    return shared_platform(Platform(os, architecture, _VARIANTS.get(architecture, {}).get(variant, variant)))


def variants_of(architecture: str) -> tuple[str, ...]:
    """The variants that images may state of an architecture besides its baseline, as normalised here."""
    return _VARIANTS_OF_IMAGES.get(architecture, ())


def is_of_nodes(platform: Platform) -> bool:
    """Whether a node may be of the platform: nodes state a variant of arm alone."""
    return not platform.variant or platform.architecture == "arm"


def needs_handler(platform: Platform) -> bool:
    """Whether no kind of node is of the platform, so that programs for it run under a RuntimeClass alone."""
    return platform.architecture in ("wasm", "wasm32", "wasm64")


def missing_features(os: str, features: Sequence[str | None] | None) -> str:
    """Those of an entry's `os.features` that no node of this system has, as `os.features erofs, nydus`; mostly nothing.

    Runtimes pull an entry of an index only if the node has all of them. Windows has `win32k`.
    """
    found = [each for each in features or () if each and not (each == "win32k" and os == "windows")]
    return f"os.features {quote(', '.join(found))}" if found else ""


def as_single(platform: Platform) -> Platform:
    """What counts of the platform in the config of a single manifest, which no node compares with its own.

    It is the architecture, but for arm: a program for v7 ends on a node of v6.
    """
    return platform if is_of_nodes(platform) else normalize_platform(platform.os, platform.architecture)


def has_known_words(platform: Platform) -> bool:
    """Whether Go has a port for the operating system and the architecture, and the architecture has the variant."""
    return platform in _USUAL or (
        platform.os in OPERATING_SYSTEMS
        and platform.architecture in ARCHITECTURES
        and (not platform.variant or platform.variant in variants_of(platform.architecture))
    )


def shared_platform(platform: Platform) -> Platform:
    """The one object for a usual platform; any other platform itself."""
    return _USUAL.get(platform, platform)


def is_usual(platform: Platform) -> bool:
    """Whether the platform is one of those that `shared_platform` gives as one object, and is that object."""
    return _USUAL.get(platform) is platform


def platform_of(os: str, architecture: str, variant: str = "") -> Platform:
    """The normalised platform of untrusted values; an empty `variant` means that none is stated.

    Raises:
        InvalidPlatform: `os` or `architecture` is empty, or a value is not a valid label value of 32 characters at
            most.
    """
    if not (_WORD.fullmatch(os) and _WORD.fullmatch(architecture) and (not variant or _WORD.fullmatch(variant))):
        shown = (quote(word, _MOST_CHARACTERS) for word in (os, architecture, variant))
        raise InvalidPlatform("os {}, architecture {}, variant {} is no platform".format(*shown))
    return normalize_platform(os, architecture, variant)


def parse_platform(text: str) -> Platform:
    """The normalised platform in `os/architecture[/variant]`.

    Raises:
        InvalidPlatform: there are not two or three parts, or one is not a valid label value of 32 characters at most.
    """
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(_WORD.fullmatch(part) for part in parts):
        raise InvalidPlatform(
            f"{quote(text)} is no platform; write os/architecture or os/architecture/variant, e.g. linux/arm64"
        )
    return normalize_platform(*parts)


def runs_on(platforms: frozenset[Platform], node: Platform, compatibility: Compatibility) -> bool:
    """Whether an image built for `platforms` runs on `node`, that is, `node` satisfies at least one of them."""
    if not node.variant and node in platforms:  # as usual, and fast
        return True
    return any(satisfies(node, required, compatibility) for required in platforms)


def satisfies(node: Platform, required: Platform, compatibility: Compatibility) -> bool:
    """Whether a node of platform `node` runs an image built for `required`. Not symmetric.

    No node satisfies a level of amd64 or arm64 (`amd64/v3`, `arm64/v9`): container runtimes know none of their node and
    pull no such entry of an index. Every node of an architecture satisfies its baseline.
    """
    if node.os != required.os:
        return False
    if node.architecture == required.architecture == "arm":
        return node.variant == required.variant or required.variant in _RUNS.get(node.variant, ())
    if node.architecture == required.architecture:
        return not required.variant
    if required.architecture == "386" and node.architecture == "amd64":
        return compatibility.run_386_on_amd64 and not required.variant
    if required.architecture == "arm" and node.architecture == "arm64":
        return compatibility.run_arm_on_arm64 and required.variant in _RUNS["v8"]
    return False
