"""What registries have told us: which name means which content, for whom, and what the content runs on.

The cache tells a fact only to credentials that the registry has shown it to. It starts no task, sends no request, and
holds credential ids instead of credentials.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from extender.credentials.keyring import ANONYMOUS, CredentialId, Keyring
from extender.images.content import Answer, Content, Failure
from extender.images.digest import PackedDigest, pack_digest, unpack_digest
from extender.metrics import counter
from extender.resolver.references import TARGETS, References, Target
from extender.tables import LruTable, Table, declare_cache

LOOKUPS = counter(
    "multiarch_lookups_total",
    "Images asked for, by what answered: memory (hit, stale, negative), a lookup already under way (shared), or one of "
    "their own, which ended in content (fetched) or not (error). Refreshing in the background counts as a lookup too.",
    "result",
    ("hit", "stale", "shared", "fetched", "negative", "error"),
)

# Denials remembered before the rows they void are swept out, which takes 20 ms for 100,000 rows.
# They stand in no Table: a denial that is dropped before that would bring its rows back.
_DENIALS = 4096
_NAMES = declare_cache(
    "resolver.image_cache.names",
    key="repository, tag or digest, credential id",
    lifetime="`cache.stale_seconds`",
    bound="`cache.size`",
    invalidated_by="a denial",
)
_CONTENTS = declare_cache("resolver.image_cache.contents", key="repository, digest", bound="`cache.size`")
# A cluster has some dozens of platform sets. One that falls out is only no longer shared.
_PLATFORM_SETS = declare_cache("resolver.image_cache.platform_sets", key="content", bound=4096)

NameKey = tuple[str, PackedDigest, CredentialId]  # repository, tag or digest, credential


class ImageQuery(msgspec.Struct, frozen=True):
    """An image asked for. `always`: its tag is resolved anew whenever a pod starts (imagePullPolicy Always)."""

    reference: str
    always: bool = False


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a tag's meaning is fresh, where it must be resolved often, and where nobody confirms it."""

    tag_seconds: float
    always_seconds: float
    stale_seconds: float


class CachedImage(msgspec.Struct, frozen=True, gc=False):
    """What a target is to one credential; `confirmed_at`: when the registry last said so, by the caller's clock."""

    content: Content
    packed: PackedDigest
    confirmed_at: float

    @property
    def digest(self) -> str:
        """`algorithm:hex`."""
        return unpack_digest(self.packed)


class WriteLog(Protocol):
    """Whoever keeps what memory is told. Neither method waits or raises."""

    def note(self, key: NameKey, known: CachedImage) -> None:
        """The name is now this."""

    def note_denial(self, repository: str, credential_id: CredentialId, at: float) -> None:
        """The credential knows nothing of the repository any more that was proven up to `at`."""


class ImageCache:
    """Two tables of at most `size` rows each, and the targets of the references read last.

    names: (repository, tag or digest, credential id) → digest, content, and when that was confirmed. A row is at once
    the name's meaning and the credential's right to know it, so nothing learned by one credential is told to another.
    contents: (repository, digest) → what it runs on, true for ever and for every credential that proves its access. The
    repository is in the key because a digest that is merely *stated* says nothing before that repository has shown the
    bytes: it could be the digest of someone else's private image. Equal platform sets are one object.
    """

    def __init__(
        self, size: int, lifetimes: Lifetimes, clock: Callable[[], float], write_log: WriteLog | None = None
    ) -> None:
        """`clock` gives monotonic seconds. `write_log` is told what registries say, but not what is loaded."""
        self.references = References(min(size, TARGETS.rows))
        self.lifetimes = lifetimes
        self._clock = clock
        self._write_log = write_log
        self._names: LruTable[NameKey, CachedImage] = _NAMES.lru_table(size)
        self._contents: Table[tuple[str, PackedDigest], Content] = _CONTENTS.table(size)
        self._interned: LruTable[Content, Content] = _PLATFORM_SETS.lru_table()
        self._denied_at: dict[tuple[str, CredentialId], float] = {}

    @property
    def denials(self) -> int:
        """How many denials are remembered since the rows they void may still be there."""
        return len(self._denied_at)

    def __len__(self) -> int:
        """How many contents are known."""
        return len(self._contents)

    def fresh(self, queries: Sequence[ImageQuery], keyring: Keyring) -> list[Answer] | None:
        """The contents of all, in order and counted as hits, if each is known and fresh; else None.

        Nearly every request takes this path: a microsecond or two for each image.
        """
        now = self._clock()
        target_of, find, credential_ids_for = self.references.target_of, self.find, keyring.credential_ids_for
        contents: list[Answer] = []
        for query in queries:
            target = target_of(query.reference)
            if isinstance(target, Failure):
                return None
            for credential_id in credential_ids_for(target.reference):
                known = find(target, credential_id)
                if known is not None:
                    break
            else:
                return None
            if now - known.confirmed_at >= self.fresh_seconds(query, target, credential_id):
                return None
            contents.append(known.content)
        self.count_hits(len(contents))
        return contents

    @staticmethod
    def count_hits(answers: int) -> None:
        """Counts so many fresh answers: when `fresh` gives them, and again each time they serve another pod."""
        LOOKUPS["hit"].inc(answers)

    def fresh_seconds(self, query: ImageQuery, target: Target, credential_id: CredentialId) -> float:
        """For how long what was confirmed to `credential_id` needs no confirmation."""
        lifetimes = self.lifetimes
        if target.reference.digest:
            return math.inf if credential_id == ANONYMOUS.id else lifetimes.tag_seconds
        return lifetimes.always_seconds if query.always or target.name == "latest" else lifetimes.tag_seconds

    def find(self, target: Target, credential_id: CredentialId) -> CachedImage | None:
        """What `target` is to `credential_id`, however long ago that was proven. Under a microsecond."""
        key = (target.repository, target.name, credential_id)
        known = self._names.peek(key)
        return None if known is None or (self._denied_at and self._is_void(key, known)) else known

    def shown(self, repository: str, digest: str) -> Content | None:
        """What `digest` runs on, if its bytes came from this repository before, to whichever credential."""
        return self._contents.peek((repository, pack_digest(digest)))

    def learn(
        self, target: Target, credential_id: CredentialId, digest: str, content: Content, at: float
    ) -> CachedImage:
        """The registry gave `credential_id` at `at` the bytes of `target`, which hash to `digest` and say `content`."""
        packed = pack_digest(digest)
        content = self._intern(content)
        self._contents.put_in_place((target.repository, packed), content)
        return self._write(target, credential_id, CachedImage(content, packed, at))

    def confirm(self, target: Target, credential_id: CredentialId, digest: str, at: float) -> CachedImage | None:
        """The registry told `credential_id` at `at` that `target` is `digest`; None unless that was shown before."""
        packed = pack_digest(digest)
        content = self._contents.peek((target.repository, packed))
        return None if content is None else self._write(target, credential_id, CachedImage(content, packed, at))

    def revoke(self, repository: str, credential_id: CredentialId, at: float) -> None:
        """`credential_id` knows nothing of `repository` any more that was proven up to `at`. O(1), amortised."""
        self._denied_at[repository, credential_id] = at
        if self._write_log:
            self._write_log.note_denial(repository, credential_id, at)
        if len(self._denied_at) > _DENIALS:
            self._names.remove_where(self._is_void)
            self._denied_at.clear()

    def load(self, key: NameKey, known: CachedImage) -> None:
        """What the registry said to us in an earlier life, or to another replica, unless we were told later."""
        repository, name, credential_id = key
        known = CachedImage(self._intern(known.content), known.packed, known.confirmed_at)
        repository = sys.intern(repository)
        self._contents.put_in_place((repository, known.packed), known.content)
        key = (repository, name, CredentialId(sys.intern(credential_id)))
        before = self._names.peek(key)
        if not self._is_void(key, known) and (before is None or before.confirmed_at < known.confirmed_at):
            self._names.put(key, known)

    def load_content(self, repository: str, packed: PackedDigest, content: Content) -> None:
        """The repository has shown the bytes of the digest to us earlier, or to another replica."""
        self._contents.put_in_place((sys.intern(repository), packed), self._intern(content))

    def _intern(self, content: Content) -> Content:
        known = self._interned.peek(content)
        if known is None:
            self._interned.put(content, content)
        return known or content

    def _write(self, target: Target, credential_id: CredentialId, known: CachedImage) -> CachedImage:
        key = (target.repository, target.name, credential_id)
        before = self._names.peek(key)
        if before and before.packed == known.packed:
            known = CachedImage(
                known.content, before.packed, known.confirmed_at
            )  # the bytes object that `contents` has too
        self._names.put(key, known)
        if self._write_log:
            self._write_log.note(key, known)
        return known

    def _is_void(self, key: NameKey, known: CachedImage) -> bool:
        denied_at = self._denied_at.get((key[0], key[2]))
        return denied_at is not None and known.confirmed_at <= denied_at
