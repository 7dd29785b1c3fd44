"""Orders the tags of a repository by the version or date that they state.

Tags follow no specification. A tag is read as numbers, which are its version or date, and a flavour such as `-alpine`.
Only tags of one flavour are compared: `1.2-alpine` is no release after `1.1`. An architecture is no part of a flavour,
and a commit no part of a version.
"""

import re
from collections.abc import Iterable

import msgspec

_TAG = re.compile(
    r"(?P<prefix>[A-Za-z][A-Za-z._-]*?[._-]?)?(?P<numbers>\d+(?:[._-]\d+)*)"
    r"(?:[._-]?(?P<stage>dev|alpha|a|beta|b|pre|preview|rc|m)[._-]?(?P<stage_number>\d*)(?![A-Za-z0-9]))?"
    r"(?P<flavour>(?:[._+-].*)?)",
    re.ASCII | re.IGNORECASE,
)
_ARCHITECTURES = {
    "amd64": "amd64", "x86_64": "amd64", "x86-64": "amd64", "x64": "amd64", "arm64": "arm64", "arm64v8": "arm64",
    "arm64-v8": "arm64", "arm64_v8": "arm64", "aarch64": "arm64", "arm": "arm", "armhf": "arm", "armv6": "arm",
    "armv7": "arm", "armv7l": "arm", "arm-v6": "arm", "arm-v7": "arm", "arm_v7": "arm", "arm32v6": "arm",
    "arm32v7": "arm", "i386": "386", "x86": "386", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64",
    "loong64": "loong64",
}  # fmt: skip
_ARCHITECTURE = re.compile(
    rf"(?:^|(?<=[._+-]))(?:linux[._-]?)?({'|'.join(sorted(_ARCHITECTURES, key=len, reverse=True))})(?:$|(?=[._+-]))",
    re.ASCII | re.IGNORECASE,
)
_TIME = re.compile(r"(?<=\d)T(?=\d\d)|(?<=\d\d)Z(?![A-Za-z0-9])", re.ASCII | re.IGNORECASE)
# What `git` calls a commit, alone or behind a word such as sha-; digits alone only if they are no date.
_COMMIT = re.compile(
    r"(?:^|(?<=[_+-]))(?:(?:sha\d*|git|commit|rev)[._-]?[0-9a-f]{5,64}|g?(?=[a-f]*\d)[0-9a-f]{7,64})(?:$|(?=[._+-]))",
    re.ASCII | re.IGNORECASE,
)
_NO_NUMBER = "@"  # which no tag has
_STAGES = {"dev": 0, "alpha": 1, "a": 1, "m": 1, "pre": 2, "preview": 2, "beta": 2, "b": 2, "rc": 3}
_RELEASED = (9, 0)
_NUMBER = re.compile(r"\d+")
_MOST_DIGITS = 18
_YEARS = range(1990, 2200)


class VersionTag(msgspec.Struct, frozen=True):
    """A tag that states a version or a date. `stage` orders pre-releases before their release.

    `family` is equal for tags that can be compared: prefix, flavour without its numbers, and whether it is a date.
    `architecture` is the one that it names; empty if it names none.
    """

    tag: str
    family: tuple[str, str, bool]
    numbers: tuple[int, ...]
    stage: tuple[int, int]
    flavour_numbers: tuple[int, ...]
    architecture: str = ""

    @property
    def order(self) -> tuple[tuple[int, ...], tuple[int, int], tuple[int, ...]]:
        """What orders tags of one family, by releases first."""
        return self.numbers, self.stage, self.flavour_numbers


def parse_tag(tag: str) -> VersionTag | None:
    """The version or date that a tag states; None for a name such as `latest`, and for a commit."""
    text, architecture = _without_architecture(_COMMIT.sub(_without_commit, tag))
    found = _TAG.fullmatch(_TIME.sub(lambda time: "-" if time[0] in "Tt" else "", text))
    if found is None or any(len(digits) > _MOST_DIGITS for digits in _NUMBER.findall(text)):
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
        architecture=architecture,
    )


def newer_tags(tag: str, others: Iterable[str], architecture: str = "") -> list[str]:
    """Those of `others` that are newer than `tag`, comparable to it, and name that architecture, the oldest first.

    Without an architecture, those that name none. Beside a tag that names one, its own version under another name
    counts as newer. Empty if `tag` states no version or date. A tag with fewer numbers than `tag` moves with each
    release and is left out; so are pre-releases, unless `tag` is one.
    """
    own = parse_tag(tag)
    if own is None:
        return []
    found = {
        each
        for each in map(parse_tag, others)
        if each is not None
        and each.architecture == architecture
        and each.family == own.family
        and (each.order > own.order or (each.order == own.order and each.architecture != own.architecture))
        and len(each.numbers) >= len(own.numbers)
        and (each.stage == _RELEASED or own.stage != _RELEASED)
        and (len(each.numbers) == len(own.numbers) or each.numbers[: len(own.numbers)] != own.numbers)
    }
    return [each.tag for each in sorted(found, key=lambda each: (each.order, len(each.numbers), each.tag))]


def _without_commit(found: re.Match[str]) -> str:
    text = found[0]
    is_number = text.isdecimal() and len(text) <= _MOST_DIGITS
    return text if is_number and _is_date((int(text),)) else _NO_NUMBER


def _without_architecture(tag: str) -> tuple[str, str]:
    """The tag without the architecture that it names, and that; empty if it names none."""
    found = _ARCHITECTURE.search(tag)
    if found is None:
        return tag, ""
    before, behind = tag[: found.start()], tag[found.end() :]
    return (before[:-1] + behind if before else behind[1:]), _ARCHITECTURES[found[1].lower()]


def _is_date(numbers: tuple[int, ...]) -> bool:
    first = numbers[0]
    if len(numbers) >= 2 and first in _YEARS:
        return 1 <= numbers[1] <= 12
    return 8 <= len(str(first)) <= 14 and int(str(first)[:4]) in _YEARS and 1 <= int(str(first)[4:6]) <= 12
