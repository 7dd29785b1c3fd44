"""What a platform is, how its spelling is normalised, and which node platform runs which image platform.

Normalisation follows containerd/platforms (database.go). Matching is stricter than containerd's: only what containerd
and CRI-O both run counts, and the two compatibilities on which they differ are the operator's choice.
"""

import re

import msgspec

from extender.errors import ExtenderError


class InvalidPlatform(ExtenderError):
    """Text that is no `os/architecture[/variant]`."""


class Platform(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """An operating system and processor, in Go's words. Build it with `normalize_platform` or `parse_platform`.

    Unknown words are kept as they are (`linux/fake`, `linux/mips64le`): a platform nobody lists here is still one.
    An empty variant is the architecture's baseline (amd64 v1, arm64 v8).
    """

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        """`os/architecture[/variant]`."""
        return f"{self.os}/{self.architecture}/{self.variant}" if self.variant else f"{self.os}/{self.architecture}"


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """Which foreign instruction sets this cluster's nodes run as well (containerd says yes to both, CRI-O to none)."""

    run_386_on_amd64: bool = False
    run_arm_on_arm64: bool = False


_ARCHITECTURES = {
    "i386": "386",
    "x86_64": "amd64",
    "x86-64": "amd64",
    "aarch64": "arm64",
}
_ARMS = {"armhf": "v7", "armel": "v6"}
_ARM_VARIANTS = {"": "v7", "5": "v5", "6": "v6", "7": "v7", "8": "v8"}
_ARM64_VARIANTS = {"8": "", "v8": "", "v8.0": "", "9": "v9", "9.0": "v9", "v9.0": "v9"}
_COMPONENT = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
_LEVEL = re.compile(r"v([0-9]{1,3})(?:\.([0-9]{1,3}))?", re.ASCII)


def normalize_platform(os: str, architecture: str, variant: str = "") -> Platform:
    """The platform in containerd's spelling: `aarch64`+`v8` is `arm64`, `armhf` is `arm/v7`. O(1).

    An empty `os` or `architecture` stays empty: a service must not fill in its own.
    """
    os, architecture, variant = os.lower(), architecture.lower(), variant.lower()
    os = "darwin" if os == "macos" else os
    if architecture in _ARMS:
        return Platform(os, "arm", _ARMS[architecture])
    architecture = _ARCHITECTURES.get(architecture, architecture)
    if architecture == "386":
        return Platform(os, "386")
    if architecture == "amd64":
        return Platform(os, "amd64", "" if variant == "v1" else variant)
    if architecture == "arm64":
        return Platform(os, "arm64", _ARM64_VARIANTS.get(variant, variant))
    if architecture == "arm":
        return Platform(os, "arm", _ARM_VARIANTS.get(variant, variant))
    return Platform(os, architecture, variant)


def parse_platform(text: str) -> Platform:
    """The normalised platform in `os/architecture[/variant]`.

    Raises:
        InvalidPlatform: there are not two or three parts, or one holds something but letters, digits, `_`, `-` and `.`.
    """
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(_COMPONENT.fullmatch(part) for part in parts):
        raise InvalidPlatform(
            f"{text!r} is no platform; write os/architecture or os/architecture/variant, e.g. linux/arm64"
        )
    return normalize_platform(*parts)


def runs_on(platforms: frozenset[Platform], node: Platform, compatibility: Compatibility) -> bool:
    """Whether an image built for `platforms` runs on `node`: one of them is satisfied by it."""
    return node in platforms or any(satisfies(node, required, compatibility) for required in platforms)


def satisfies(node: Platform, required: Platform, compatibility: Compatibility) -> bool:
    """Whether a node of platform `node` runs what was built for `required`. Not symmetric.

    An amd64 or arm64 level (`amd64/v3`, `arm64/v9`) is satisfied only by a node that declares as much.
    """
    if node.os != required.os:
        return False
    if node.architecture == required.architecture:
        return _variant_satisfies(node.architecture, node.variant, required.variant)
    if required.architecture == "386":
        return node.architecture == "amd64" and compatibility.run_386_on_amd64
    if required.architecture == "arm" and node.architecture == "arm64" and compatibility.run_arm_on_arm64:
        return _variant_satisfies("arm", "v8", required.variant)
    return False


def _variant_satisfies(architecture: str, node: str, required: str) -> bool:
    if node == required or (not required and architecture in ("amd64", "arm64")):
        return True
    node_level, required_level = _level(architecture, node), _level(architecture, required)
    if node_level is None or required_level is None:
        return False
    if architecture == "arm64" and node_level[0] == 9 and required_level[0] == 8:
        return required_level[1] <= node_level[1] + 5  # Armv9.x holds Armv8.(x+5), as containerd has it
    if architecture == "arm64" and node_level[0] != required_level[0]:
        return False
    return required_level <= node_level


def _level(architecture: str, variant: str) -> tuple[int, int] | None:
    """A variant as a number that can be compared, None for the variants of architectures we know no order of."""
    if architecture not in ("amd64", "arm64", "arm"):
        return None
    if not variant:
        return {"amd64": (1, 0), "arm64": (8, 0)}.get(architecture)
    found = _LEVEL.fullmatch(variant)
    return (int(found[1]), int(found[2] or 0)) if found else None
