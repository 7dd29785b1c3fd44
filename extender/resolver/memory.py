"""What registries have told us: which name means which content, for whom, and what the content runs on.

Knows what may be told to whom. No clock (times come in as they go out), no task, no request, and of a credential only
its scope.
"""

import itertools

import msgspec

from extender.placement.facts import Content
from extender.registry.keyring import Scope
from extender.resolver.references import Target
from extender.resolver.tables import PackedDigest, Table, pack_digest, unpack_digest

# Distinct platform sets; a cluster has some dozens. One that falls out is only no longer shared.
_INTERNED = 4096


class Known(msgspec.Struct, frozen=True, gc=False):
    """What a target is to one scope; `proven_at`: when the registry last said so to it, by the caller's clock."""

    content: Content
    packed: PackedDigest
    proven_at: float

    @property
    def digest(self) -> str:
        """`algorithm:hex`."""
        return unpack_digest(self.packed)


class Memory:
    """Two tables of at most `size` rows each.

    names: (repository, tag or digest, scope) → digest, content, and when that was proven. A row is at once the name's
    meaning and the scope's right to know it, so nothing learned by one credential is told to another.
    contents: (repository, digest) → what it runs on, true for ever and for all scopes that prove access. The repository
    is in the key because a digest that is merely *stated* says nothing before the same repository has shown the bytes:
    it could be the digest of someone else's private image. One object per distinct platform set.

    The pair (repository, scope) is written in a name's key as a number. Taking the number away takes all rows of the
    pair away, in O(1); they fall out of the table as time goes by.
    """

    def __init__(self, size: int) -> None:
        self._numbers: Table[tuple[str, Scope], int] = Table(size)
        self._names: Table[tuple[int, str], Known] = Table(size)
        self._contents: Table[tuple[str, PackedDigest], Content] = Table(size)
        self._interned: Table[Content, Content] = Table(_INTERNED)
        self._next_number = itertools.count()

    def __len__(self) -> int:
        """How many contents are known."""
        return len(self._contents)

    def find(self, target: Target, scope: Scope) -> Known | None:
        """What `target` is to `scope`, however long ago that was proven. Half a microsecond."""
        number = self._numbers.peek((target.repository, scope))
        return None if number is None else self._names.peek((number, target.name))

    def shown(self, repository: str, digest: str) -> Content | None:
        """What `digest` runs on, if its bytes came from this repository before, to whichever scope."""
        return self._contents.peek((repository, pack_digest(digest)))

    def show(self, repository: str, digest: str, content: Content) -> Content:
        """`repository` served bytes that hash to `digest`, and they say `content`; the one object equal to that."""
        content = self._interned.peek(content) or content
        self._interned.put(content, content)
        self._contents.put((repository, pack_digest(digest)), content)
        return content

    def prove(self, target: Target, scope: Scope, digest: str, content: Content, at: float) -> Known:
        """The registry told `scope` at `at` that `target` is `digest`, whose `content` the repository has shown."""
        number = self._numbers.peek((target.repository, scope))
        if number is None:
            number = next(self._next_number)
            self._numbers.put((target.repository, scope), number)
        known = Known(content, pack_digest(digest), at)
        self._names.put((number, target.name), known)
        return known

    def revoke(self, repository: str, scope: Scope) -> None:
        """`scope` knows nothing of `repository` any more. O(1)."""
        self._numbers.remove((repository, scope))
