"""Orders the tags of a repository by the version or date that they state.

Tags follow no specification. A tag is read as numbers, which are its version or date, and a flavour such as `-alpine`.
Only tags of one flavour are compared: `1.2-alpine` is no release after `1.1`.
"""

import re
from collections.abc import Iterable

import msgspec

_TAG = re.compile(
    r"(?P<prefix>[A-Za-z][A-Za-z_-]*?[_-]?)?(?P<numbers>\d+(?:[._-]\d+)*)"
    r"(?:[._-]?(?P<stage>dev|alpha|a|beta|b|pre|preview|rc|m)[._-]?(?P<stage_number>\d*)(?![A-Za-z0-9]))?"
    r"(?P<flavour>(?:[._+-].*)?)",
    re.ASCII | re.IGNORECASE,
)
_STAGES = {"dev": 0, "alpha": 1, "a": 1, "m": 1, "pre": 2, "preview": 2, "beta": 2, "b": 2, "rc": 3}
_RELEASED = (9, 0)
_NUMBER = re.compile(r"\d+")
_MOST_DIGITS = 18
_YEARS = range(1990, 2200)


class VersionTag(msgspec.Struct, frozen=True):
    """A tag that states a version or a date. `stage` orders pre-releases before their release.

    `family` is equal for tags that can be compared: prefix, flavour without its numbers, and whether it is a date.
    """

    tag: str
    family: tuple[str, str, bool]
    numbers: tuple[int, ...]
    stage: tuple[int, int]
    flavour_numbers: tuple[int, ...]

    @property
    def order(self) -> tuple[tuple[int, ...], tuple[int, int], tuple[int, ...]]:
        """What orders tags of one family, by releases first."""
        return self.numbers, self.stage, self.flavour_numbers


def parse_tag(tag: str) -> VersionTag | None:
    """The version or date that a tag states; None for a name such as `latest`, and for what looks like a commit."""
    found = _TAG.fullmatch(tag)
    if found is None or any(len(digits) > _MOST_DIGITS for digits in _NUMBER.findall(tag)):
        return None
    numbers = tuple(int(digits) for digits in re.split(r"[._-]", found["numbers"]))
    prefix, flavour = (found["prefix"] or "").lower(), found["flavour"]
    stage = _STAGES[found["stage"].lower()] if found["stage"] else None
    return VersionTag(
        tag=tag,
        family=("" if prefix == "v" else prefix, _NUMBER.sub("#", flavour), _is_date(numbers)),
        numbers=numbers,
        stage=_RELEASED if stage is None else (stage, int(found["stage_number"] or 0)),
        flavour_numbers=tuple(int(digits) for digits in _NUMBER.findall(flavour)),
    )


def newer_tags(tag: str, others: Iterable[str]) -> list[str]:
    """Those of `others` that are newer than `tag` and comparable to it, the oldest first.

    Empty if `tag` states no version or date. A tag with fewer numbers than `tag` moves with each release and is left
    out; so are pre-releases, unless `tag` is one.
    """
    own = parse_tag(tag)
    if own is None:
        return []
    found = {
        each
        for each in map(parse_tag, others)
        if each is not None
        and each.family == own.family
        and each.order > own.order
        and len(each.numbers) >= len(own.numbers)
        and (each.stage == _RELEASED or own.stage != _RELEASED)
        and (len(each.numbers) == len(own.numbers) or each.numbers[: len(own.numbers)] != own.numbers)
    }
    return [each.tag for each in sorted(found, key=lambda each: (each.order, len(each.numbers), each.tag))]


def _is_date(numbers: tuple[int, ...]) -> bool:
    first = numbers[0]
    if len(numbers) >= 2 and first in _YEARS:
        return 1 <= numbers[1] <= 12
    return 8 <= len(str(first)) <= 14 and int(str(first)[:4]) in _YEARS and 1 <= int(str(first)[4:6]) <= 12
