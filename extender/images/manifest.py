"""From manifest bytes to the platforms an image runs on, or to what else must be fetched to know."""

import enum

import msgspec

from extender.images.platform import Platform


class Kind(enum.StrEnum):
    """What a manifest document is."""

    INDEX = "index"
    MANIFEST = "manifest"
    ARTIFACT = "artifact"


class PlatformEntry(msgspec.Struct, frozen=True):
    """One thing to run in an image."""

    platform: Platform
    digest: str
    size_bytes: int


class Skipped(msgspec.Struct, frozen=True):
    """A descriptor that is nothing to run, and why."""

    digest: str
    why: str


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """Everything learned about one digest."""

    digest: str
    media_type: str
    kind: Kind
    entries: tuple[PlatformEntry, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    states_platforms: bool = False
