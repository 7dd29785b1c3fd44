"""Parses the image references of pods, and caches the results.

`images.reference` has the grammar. This file defines the name under which the tables keep a reference.
"""

import sys

import msgspec

from extender.errors import InvalidReference
from extender.images.content import Cause, Failure
from extender.images.digest import PackedDigest, pack_digest
from extender.images.reference import ImageReference, parse_reference
from extender.tables import LruTable, declare_cache

# A reference that can be pulled has fewer than 800 characters. A text that is longer than this, or not ASCII, is
# invalid: it is parsed each time and not cached. The worst row takes 3.3 KB (text, target and its parts), so 8,192 take
# 27 MB. Other characters would take up to four bytes each.
_MAX_KEPT_CHARACTERS = 1024


TARGETS = declare_cache("resolver.references.targets", key="text of the reference", rows=4_096, most_mb=14)


class Target(msgspec.Struct, frozen=True, gc=False):
    """What a reference names. `name` is its packed digest if it has one, else its tag; a digest overrides the tag."""

    reference: ImageReference
    repository: str
    name: PackedDigest


class References:
    """Target or `Failure` by text, for the `size` texts used last. Parsing a text takes 5 µs, finding it 0.2 µs."""

    def __init__(self, size: int) -> None:
        self._rows: LruTable[str, Target | Failure] = TARGETS.lru_table(size)

    def __len__(self) -> int:
        """How many texts are kept."""
        return len(self._rows)

    def target_of(self, text: str) -> Target | Failure:
        """The target of `text`, or why `text` is not a valid reference."""
        target = self._rows.peek(text)
        if target is None:
            target = _read(text)
            if len(text) <= _MAX_KEPT_CHARACTERS and text.isascii():
                self._rows.put(text, target)
        return target


def _read(text: str) -> Target | Failure:
    try:
        reference = parse_reference(text)
    except InvalidReference as exc:
        return Failure(Cause.INVALID_REFERENCE, str(exc))
    if reference.digest:
        reference = reference.with_digest(reference.digest)
    name = pack_digest(reference.digest) if reference.digest else reference.tag
    return Target(reference, sys.intern(reference.repository), name)  # the tables hold each repository many times
