"""What the operator says that images run on, in place of what their registries say."""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from extender.images.content import Cause, Content, Failure
from extender.images.manifest import Image, Kind, PlatformEntry
from extender.images.platform import PlatformName, parse_platform
from extender.images.reference import ImageReference

NEVER_KNOWN = Failure(Cause.BY_OPERATOR, "the operator says so, in placement.images")


class ImageRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The platforms of the images whose whole name matches a glob; without any, they are never known.

    The name is as nodes complete it, with tag and digest: `docker.io/library/mongo:8`. A `*` matches any characters.
    """

    match: Annotated[str, msgspec.Meta(pattern=r"^[^/]+/", max_length=1024)]
    platforms: tuple[PlatformName, ...]


class StatedImages:
    """The rules, of which the first that matches a name holds."""

    def __init__(self, rules: Sequence[ImageRule] = ()) -> None:
        """Raises InvalidPlatform if a rule names what is no platform."""
        self._rules = [(_pattern(rule.match), _said(rule)) for rule in rules]

    def find(self, reference: ImageReference) -> Content | Failure | None:
        """What is said of the image; None if nothing is."""
        if not self._rules:
            return None
        name = str(reference)
        return next((said for pattern, said in self._rules if pattern.fullmatch(name)), None)


def image_of(content: Content) -> Image:
    """What is said of an image, as its details."""
    entries = tuple(PlatformEntry(platform, "", 0) for platform in sorted(content.platforms))
    return Image(digest="", media_type="", kind=content.kind, entries=entries, states_platforms=True)


def _said(rule: ImageRule) -> Content | Failure:
    platforms = frozenset(map(parse_platform, rule.platforms))
    return Content(Kind.STATED, platforms, states_platforms=True) if platforms else NEVER_KNOWN


def _pattern(glob: str) -> re.Pattern[str]:
    # Each part but the last matches where it is first found, and there alone: no name takes longer than its length.
    first, *others = map(re.escape, glob.split("*"))
    middle, last = others[:-1], others[-1:]
    return re.compile("".join([first, *(f"(?>.*?{part})" for part in middle), *(f".*{part}" for part in last)]))
