"""The image cache: which content a name has for which credential, and what the content runs on.

The cache gives an answer only to credentials to which the registry has given it. It starts no task, sends no request,
and holds credential ids instead of credentials.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from extender.credentials.keyring import ANONYMOUS, CredentialId, Keyring
from extender.errors import InvalidReference
from extender.images.content import Answer, Cause, Content, Failure
from extender.images.platform import is_usual
from extender.images.reference import (
    HUB,
    ImageReference,
    PackedDigest,
    as_short_name,
    pack_digest,
    parse_reference,
    unpack_digest,
)
from extender.images.stated import StatedImages
from extender.metrics import counter
from extender.tables import LruTable, ShareTable

# A reference that can be pulled has fewer than 800 characters. A text that is longer than this, or not ASCII, is
# invalid: it is parsed each time and not cached. The worst row takes 3.3 KB (text, target and its parts), so 4,096 take
# 14 MB. Other characters would take up to four bytes each.
_MAX_KEPT_CHARACTERS = 1024


_MOST_TARGETS = 4_096


class Target(msgspec.Struct, frozen=True, gc=False):
    """What a reference names. `name` is its packed digest if it has one, else its tag; a digest overrides the tag.

    `reference` is as the kubelet parses it, which finds credentials, and `asked` as the container runtime does, which
    finds registries.
    """

    reference: ImageReference
    asked: ImageReference
    repository: str
    name: PackedDigest


class References:
    """What texts name, for the `size` texts used last. Parsing a text takes 5 µs, finding it 0.2 µs."""

    def __init__(self, size: int, *, short_names: bool = False, stated: StatedImages | None = None) -> None:
        """`short_names`: the runtime is CRI-O, which looks for a name without a registry in registries of its own.

        `stated` has the images of which the operator says what they are.
        """
        self._short_names = short_names
        self._stated = stated or StatedImages()
        self._rows: LruTable[str, Target | Content | Failure] = LruTable(size)

    def __len__(self) -> int:
        """How many texts are kept."""
        return len(self._rows)

    def target_of(self, text: str) -> Target | Content | Failure:
        """The target of `text`; or what is known of it without a lookup: the operator's word, or that it is invalid."""
        target = self._rows.get(text)
        if target is None:
            target = self._read(text)
            if len(text) <= _MAX_KEPT_CHARACTERS and text.isascii():
                self._rows.put(text, target)
        return target

    def _read(self, text: str) -> Target | Content | Failure:
        try:
            named = parse_reference(text)
        except InvalidReference as exc:
            return Failure(Cause.INVALID_REFERENCE, str(exc))
        if said := self._stated.find(named):
            return said
        reference = _without_tag(named)
        asked = _without_tag(as_short_name(named, text)) if self._short_names else reference
        name = pack_digest(reference.digest) if reference.digest else reference.tag
        return Target(reference, asked, sys.intern(asked.repository), name)  # the tables hold a repository many times


def _without_tag(reference: ImageReference) -> ImageReference:
    """The reference by its digest alone, if it has one."""
    return reference.with_digest(reference.digest) if reference.digest else reference


LOOKUPS = counter(
    "multiarch_lookups_total",
    "Images asked for, by what answered: memory (hit, stale, negative), a lookup under way (shared) or a new one "
    "(fetched, error); refused: the namespace has too many.",
    "result",
    ("hit", "stale", "shared", "fetched", "negative", "error", "refused"),
)

# A set of 18 usual platforms takes 728 bytes and its content 48; names and digest have 100 characters together. Names
# may be longer if the content is smaller. The largest content has 64 unusual platforms, takes 22 KB and costs 84: a
# registry chooses what an image states. 100,000 images take 155 MB at most, and 70 MB if they are ordinary. If the
# cache's two tables hold different images, both together take 240 MB at most.
_ORDINARY_BYTES = 896
_UNIT_BYTES = 256

# A denial makes no row stale that was confirmed so lately. Otherwise, whoever makes one tag of a repository deny access
# would have all its tags asked for again at each request.
_JUST_CONFIRMED_SECONDS = 60.0
# Denials kept before the rows that they made stale are removed: of 100,000 rows in some 25 ms. They are in no table of
# those that evict, since dropping a denial earlier would make its rows fresh again.
_MOST_DENIALS = 4096
# A cluster has some dozens of platform sets. One that is evicted is merely no longer shared.
_MOST_PLATFORM_SETS = 4096  # 4 MB at most

# Digests of a repository that a HEAD may state instead of a GET, and repositories of which any are kept: 4 MB at most.
_MOST_RECENT, _MOST_REPOSITORIES = 16, 1_024

NameKey = tuple[str, PackedDigest, CredentialId]  # repository, tag or digest, credential


# How long an answer is fresh for a tag that kubelets ask for at each start of a pod, and for `latest`. A HEAD a minute
# and tag is less than kubelets send for these pods, and no registry counts it as a pull.
ALWAYS_SECONDS = 60.0


class ImageQuery(msgspec.Struct, frozen=True, gc=False):
    """An image to resolve. `always`: the kubelet resolves its tag at each start of a pod (imagePullPolicy Always)."""

    reference: str
    always: bool = False


class Lifetimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long an answer for a tag is fresh, and when it expires."""

    tag_seconds: float
    stale_seconds: float


class CachedImage(msgspec.Struct, frozen=True, gc=False):
    """The digest and content of a target for one credential.

    `confirmed_at` is when the registry last confirmed it to that credential, by the caller's clock. `owner` is the
    tenant whose lookup wrote the row, empty for the operator and for rows of the store. `label` says where the
    credential is from if it is one of the operator's, and that is known. `is_partial` as of `Image`.
    """

    content: Content
    packed: PackedDigest
    confirmed_at: float
    owner: str = ""
    label: str = ""
    is_partial: bool = False

    @property
    def digest(self) -> str:
        """`algorithm:hex`."""
        return unpack_digest(self.packed)


class WriteLog(Protocol):
    """Receives the changes of the cache, to keep them. Neither method waits or raises."""

    def note(self, key: NameKey, known: CachedImage) -> None:
        """Records the name's new row."""

    def note_denial(self, key: NameKey, at: float) -> None:
        """Records that the name's row is void if it was confirmed up to `at`."""


class _OwnedContent(msgspec.Struct, frozen=True, gc=False):
    """The content of a digest, and the tenant whose lookup fetched it."""

    content: Content
    owner: str


class ImageCache:
    """Two tables of at most `size` ordinary rows each, and the targets of the references used last.

    Larger rows cost more, whatever registries state; `row_cost` has the figures. A tenant that fills a table evicts its
    own rows before those of others; see `ShareTable`.

    names: (repository, tag or digest, credential id) → digest, content, and when that was confirmed. A row holds the
    name's meaning and proves the credential's access, so that no credential gets what only another one was shown.

    contents: (repository, digest) → what it runs on, valid for ever and for every credential that proves its access.
    The repository is part of the key because a registry can *state* any digest, even that of someone else's private
    image. A stated digest therefore gives content only after this repository has delivered the bytes.

    Equal contents share one object, unless they state unusual platforms.
    """

    def __init__(
        self,
        size: int,
        lifetimes: Lifetimes,
        clock: Callable[[], float],
        write_log: WriteLog | None = None,
        *,
        short_names: bool = False,
        stated: StatedImages | None = None,
    ) -> None:
        """`clock` gives monotonic seconds. `write_log` receives what registries confirm or deny, not loaded rows.

        `short_names` and `stated` are as in `References`.
        """
        self.references = References(min(size, _MOST_TARGETS), short_names=short_names, stated=stated)
        self.lifetimes = lifetimes
        self._clock = clock
        self._write_log = write_log
        self._names: ShareTable[NameKey, CachedImage] = ShareTable(
            size,
            owner_of=lambda _, known: known.owner,
            cost_of=lambda key, known: row_cost(known.content, key[0], key[1], known.packed),
        )
        self._contents: ShareTable[tuple[str, PackedDigest], _OwnedContent] = ShareTable(
            size,
            owner_of=lambda _, row: row.owner,
            cost_of=lambda key, row: row_cost(row.content, *key),
        )
        self._interned: LruTable[Content, Content] = LruTable(_MOST_PLATFORM_SETS)
        most = min(size // 10, _MOST_REPOSITORIES)
        self._recent: LruTable[str, LruTable[PackedDigest, PackedDigest]] = LruTable(most)  # the last name by digest
        self._denied_at: dict[tuple[str, CredentialId], float] = {}  # by repository, the last time of each

    @property
    def denials(self) -> int:
        """How many denials are kept because rows that they made stale may still be in the table."""
        return len(self._denied_at)

    def __len__(self) -> int:
        """How many contents are kept."""
        return len(self._contents)

    def fresh(self, queries: Sequence[ImageQuery], keyring: Keyring) -> list[Answer] | None:
        """The contents for all queries, in order and counted as hits, if each is fresh; else None.

        Nearly every request takes this path. It costs a microsecond or two per image.
        """
        now = self._clock()
        contents: list[Answer] = []
        for query in queries:
            target = self.references.target_of(query.reference)
            if not isinstance(target, Target):
                if isinstance(target, Failure):
                    return None
                contents.append(target)
                continue
            for credential_id in keyring.credential_ids_for(target.reference):
                known = self.find(target, credential_id)
                if known is not None:
                    break
            else:
                return None
            if not self.is_fresh(known, query, target, credential_id, now):
                return None
            contents.append(known.content)
        LOOKUPS["hit"].inc(len(contents))
        return contents

    def is_fresh(
        self, known: CachedImage, query: ImageQuery, target: Target, credential_id: CredentialId, now: float
    ) -> bool:
        """Whether the row of `target` for `credential_id` needs no confirmation yet; `now` is by the caller's clock."""
        age_seconds = now - known.confirmed_at
        may_be_denied = self._denied_at and age_seconds >= _JUST_CONFIRMED_SECONDS
        if may_be_denied and self._is_denied((target.repository, target.name, credential_id), known):
            return False
        lifetimes = self.lifetimes
        if known.is_partial:
            return age_seconds < ALWAYS_SECONDS
        if target.reference.digest:
            return credential_id == ANONYMOUS.id or age_seconds < lifetimes.tag_seconds
        is_often = query.always or target.name == "latest"
        return age_seconds < (min(lifetimes.tag_seconds, ALWAYS_SECONDS) if is_often else lifetimes.tag_seconds)

    def find(self, target: Target, credential_id: CredentialId) -> CachedImage | None:
        """The row of `target` for `credential_id`, whatever its age. Takes less than a microsecond."""
        return self._names.get((target.repository, target.name, credential_id))

    def known_digests(self, target: Target, credential_ids: Iterable[CredentialId]) -> tuple[str, ...]:
        """The digests that the target may well have, of which this repository has shown the bytes; none for a new name.

        A registry then need only say which it is, by HEAD. It is worth asking so where the name is known, whoever
        looked it up. On Docker Hub, which counts a GET as a pull and no HEAD, that is each name of a repository of
        which any is known: a new tag there is often another name of what is known.
        """
        rows = (self.find(target, each) for each in credential_ids)
        digests = {row.packed for row in rows if row}
        recent = dict(recent.items()) if (recent := self._recent.get(target.repository)) else {}
        if target.reference.digest:
            digests.add(target.name)
        elif digests or target.reference.domain == HUB or target.name in recent.values():
            digests.update(recent)
        return tuple(unpack_digest(each) for each in digests if self._contents.get((target.repository, each)))

    def learn(
        self,
        target: Target,
        credential_id: CredentialId,
        digest: str,
        content: Content,
        at: float,
        owner: str = "",
        label: str = "",
        *,
        is_partial: bool = False,
    ) -> CachedImage:
        """Records that the registry gave `credential_id` the bytes of `target` at `at`. Returns the row.

        The bytes hash to `digest`, and `content` was read from them. `owner` is the tenant for which they were fetched,
        `label` and `is_partial` as in `CachedImage`. What is partial is no fact about the digest: it is in no other
        row, nor in the store, and read again when it is confirmed.
        """
        packed = pack_digest(digest)
        if is_partial:
            known = CachedImage(content, packed, at, owner, label, is_partial=True)
            self._names.put((target.repository, target.name, credential_id), known)
            return known
        content = self._put_content(target.repository, packed, content, owner)
        return self._write(target, credential_id, CachedImage(content, packed, at, owner, label))

    def confirm(
        self, target: Target, credential_id: CredentialId, digest: str, at: float, owner: str = "", label: str = ""
    ) -> CachedImage | None:
        """Records that the registry stated `digest` for `target` to `credential_id` at `at`. Returns the row.

        Returns None and records nothing if the content of the digest is not known for this repository. `owner` is the
        tenant for which the registry was asked.
        """
        packed = pack_digest(digest)
        row = self._contents.get((target.repository, packed))
        if row is None:
            return None
        return self._write(target, credential_id, CachedImage(row.content, packed, at, owner, label))

    def revoke(self, target: Target, credential_id: CredentialId, at: float) -> None:
        """Removes the row of `target` for `credential_id`, which was denied at `at`.

        Rows of other names in its repository become stale for this credential: it may have lost access to them too.
        """
        key = (target.repository, target.name, credential_id)
        self._names.remove(key)
        self._denied_at[target.repository, credential_id] = at
        if len(self._denied_at) > _MOST_DENIALS:
            self._names.remove_where(self._is_denied)
            self._denied_at.clear()
        if self._write_log:
            self._write_log.note_denial(key, at)

    def load(self, key: NameKey, known: CachedImage) -> None:
        """Adds a row of an earlier process or of another replica, unless a later row or denial is known."""
        repository, name, credential_id = key
        repository = sys.intern(repository)
        content = self._put_content(repository, known.packed, known.content, known.owner)
        known = CachedImage(content, known.packed, known.confirmed_at, known.owner)
        key = (repository, name, CredentialId(sys.intern(credential_id)))
        before = self._names.get(key)
        if not self._is_denied(key, known) and (before is None or before.confirmed_at < known.confirmed_at):
            self._put(key, known)

    def _is_denied(self, key: NameKey, known: CachedImage) -> bool:
        """Whether the row was confirmed before its repository denied access to its credential."""
        denied_at = self._denied_at.get((key[0], key[2]))
        return denied_at is not None and known.confirmed_at <= denied_at

    def _put_content(self, repository: str, packed: PackedDigest, content: Content, owner: str) -> Content:
        """Adds the content of a digest. Returns the object that all rows share."""
        row = self._contents.get((repository, packed))
        if row is not None and row.content == content:
            return row.content
        content = self._intern(content)
        self._contents.put((repository, packed), _OwnedContent(content, owner))
        return content

    def _intern(self, content: Content) -> Content:
        if not is_ordinary(content):
            return content
        known = self._interned.get(content)
        if known is None:
            self._interned.put(content, content)
        return known or content

    def _write(self, target: Target, credential_id: CredentialId, known: CachedImage) -> CachedImage:
        key = (target.repository, target.name, credential_id)
        before = self._names.get(key)
        if before and before.packed == known.packed:
            # the bytes object that `contents` has too
            known = msgspec.structs.replace(known, packed=before.packed)
        self._put(key, known)
        if self._write_log:
            self._write_log.note(key, known)
        return known

    def _put(self, key: NameKey, known: CachedImage) -> None:
        self._names.put(key, known)
        repository, name, _ = key
        recent = self._recent.get(repository)
        if recent is None:
            recent = LruTable(_MOST_RECENT)
            self._recent.put(repository, recent)
        if name != known.packed or recent.peek(name) is None:  # a tag says more than the digest itself
            recent.put(known.packed, name)


def row_cost(content: Content, *names: str | bytes) -> int:
    """What a row of this content and these names costs; 1 for each 256 bytes that it exceeds an ordinary one."""
    exceeding = content_bytes(content) + sum(map(len, names)) - _ORDINARY_BYTES
    return 1 + max(0, -(-exceeding // _UNIT_BYTES))


def is_ordinary(content: Content) -> bool:
    """Whether the content costs nothing besides its row: at most 18 platforms, all of them usual."""
    return content_bytes(content) <= _ORDINARY_BYTES


def content_bytes(content: Content) -> int:
    """The memory that the content takes, without usual platforms: all contents share those. O(platforms)."""
    own = sys.getsizeof(content) + sys.getsizeof(content.platforms)
    for platform in content.platforms:
        if not is_usual(platform):
            own += sum(map(sys.getsizeof, (platform, platform.os, platform.architecture, platform.variant)))
    return own
