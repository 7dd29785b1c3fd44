"""What is remembered of registries' words, and for whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.credentials.keyring import CredentialId
from extender.images.content import Content
from extender.images.reference import digest_of, pack_digest
from extender.resolver.image_cache import (
    CachedImage,
    ImageCache,
    ImageQuery,
    Lifetimes,
    NameKey,
    References,
    Target,
    WriteLog,
)
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import index_of

A, B = CredentialId("a"), CredentialId("b")
DIGESTS = [digest_of(bytes([number])) for number in range(3)]
CONTENTS = [index_of("linux/amd64"), index_of("linux/arm64"), index_of("linux/amd64", "linux/arm64")]


def make_cache(size: int, write_log: WriteLog | None = None) -> ImageCache:
    """A cache whose rows stay fresh, since nothing here reads the clock."""
    lifetimes = Lifetimes(tag_seconds=900, stale_seconds=86_400)
    return ImageCache(size, lifetimes, Clock(), write_log)


def target(text: str) -> Target:
    found = References(1).target_of(text)
    assert isinstance(found, Target)
    return found


TAG = target("ghcr.io/team/app:1")
SIBLING = target("ghcr.io/team/app:2")
ELSEWHERE = target("ghcr.io/other/app:1")


def test_what_was_learned_is_found_with_its_digest_and_time() -> None:
    """A row says what runs where, which digest that is, and when the registry said so."""
    cache = make_cache(10)
    cache.learn(TAG, A, DIGESTS[0], CONTENTS[0], 5.0)
    known = cache.find(TAG, A)
    assert known is not None
    assert (known.content, known.digest, known.confirmed_at) == (CONTENTS[0], DIGESTS[0], 5.0)


def test_another_tag_of_the_repository_needs_only_the_digest() -> None:
    """Content is shared by digest within a repository."""
    cache = make_cache(10)
    cache.learn(TAG, A, DIGESTS[0], CONTENTS[0], 5.0)
    assert cache.confirm(SIBLING, A, DIGESTS[0], 6.0) == cache.find(SIBLING, A)


def is_fresh(cache: ImageCache, one: Target, credential_id: CredentialId, now: float) -> bool:
    """Whether the row that is there needs no confirmation at `now`."""
    known = cache.find(one, credential_id)
    assert known is not None
    return cache.is_fresh(known, ImageQuery(str(one.reference)), one, credential_id, now)


def test_a_tag_that_is_denied_again_and_again_costs_its_siblings_one_request_a_minute() -> None:
    """Whoever may push to a repository may also make one of its tags deny access."""
    cache = make_cache(10)
    cache.learn(SIBLING, A, DIGESTS[0], CONTENTS[0], 5.0)
    cache.revoke(TAG, A, 6.0)
    assert is_fresh(cache, SIBLING, A, 64.9)
    assert not is_fresh(cache, SIBLING, A, 65.0)


def test_denials_without_end_neither_pile_up_nor_bring_rows_back() -> None:
    """After some thousands the rows they made stale are swept out, and only those."""
    cache = make_cache(10)
    for one in (TAG, SIBLING, ELSEWHERE):
        cache.learn(one, A, DIGESTS[0], CONTENTS[0], 5.0)
    cache.revoke(TAG, A, 6.0)
    for number in range(5000):
        cache.revoke(target(f"ghcr.io/denied/{number}:1"), A, 6.0)
    assert cache.denials < 5000
    assert cache.find(TAG, A) is None
    assert cache.find(SIBLING, A) is None
    assert cache.find(ELSEWHERE, A) is not None


def test_equal_platform_sets_are_one_object() -> None:
    """A hundred thousand images have some dozens of platform sets between them."""
    cache = make_cache(10)
    one = cache.learn(TAG, A, DIGESTS[0], index_of("linux/amd64"), 5.0)
    other = cache.learn(ELSEWHERE, A, DIGESTS[1], index_of("linux/amd64"), 5.0)
    assert one.content is other.content


def test_a_digest_is_one_object_however_often_it_is_confirmed() -> None:
    """Thirty-two bytes cost eighty as an object of their own."""
    cache = make_cache(10)
    first = cache.learn(TAG, A, DIGESTS[0], CONTENTS[0], 5.0)
    again = cache.confirm(TAG, A, DIGESTS[0], 6.0)
    assert again is not None
    assert again.packed is first.packed


@pytest.mark.parametrize("size", [1, 3], ids=["one-row", "three-rows"])
def test_the_tables_never_outgrow_their_size(size: int) -> None:
    """The names used longest ago go, and the one just learned is there."""
    cache = make_cache(size)
    for number in range(10):
        cache.learn(target(f"ghcr.io/team/app:{number}"), A, digest_of(bytes([number])), CONTENTS[0], 5.0)
    assert len(cache) == size
    assert cache.find(target("ghcr.io/team/app:9"), A) is not None
    assert cache.find(target("ghcr.io/team/app:0"), A) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["learn", "prove", "revoke"]),
        st.sampled_from([TAG, SIBLING, ELSEWHERE]),
        st.sampled_from([A, B]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_memory_tells_what_a_plain_record_of_all_events_tells(
    steps: list[tuple[str, Target, CredentialId, int]],
) -> None:
    """Whatever was learned, proven and revoked: each scope finds its last proof, if no denial came after it."""
    cache = make_cache(1000)
    shown: dict[tuple[str, str], Content] = {}
    names: dict[tuple[str, str, CredentialId], tuple[str, float]] = {}
    for time, (verb, one, credential_id, number) in enumerate(steps):
        key, pair = (one.repository, str(one.name), credential_id), (one.repository, DIGESTS[number])
        if verb == "revoke":
            cache.revoke(one, credential_id, time)
            names.pop(key, None)
        elif verb == "learn":
            cache.learn(one, credential_id, DIGESTS[number], CONTENTS[number], time)
            shown[pair] = CONTENTS[number]
            names[key] = (DIGESTS[number], time)
        elif cache.confirm(one, credential_id, DIGESTS[number], time):
            assert pair in shown
            names[key] = (DIGESTS[number], time)
        else:
            assert pair not in shown
    for one in (TAG, SIBLING, ELSEWHERE):
        for credential_id in (A, B):
            known, expected = cache.find(one, credential_id), names.get((one.repository, str(one.name), credential_id))
            assert (known and (known.digest, known.confirmed_at)) == expected
            if known:
                assert known.content == shown[one.repository, known.digest]


class Pages:
    """A journal to look into."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def note(self, key: NameKey, known: CachedImage) -> None:
        self.lines.append((key, known))

    def note_denial(self, key: NameKey, at: float) -> None:
        self.lines.append((key, at))


def test_what_registries_say_is_noted_and_what_is_adopted_is_not() -> None:
    """Whoever keeps the journal gave us the latter."""
    pages = Pages()
    cache = make_cache(10, pages)
    learned = cache.learn(TAG, A, DIGESTS[0], CONTENTS[0], 5.0)
    confirmed = cache.confirm(SIBLING, A, DIGESTS[0], 6.0)
    assert cache.confirm(SIBLING, A, DIGESTS[1], 6.0) is None
    cache.revoke(TAG, A, 7.0)
    cache.load((ELSEWHERE.repository, "1", A), learned)
    assert pages.lines == [
        ((TAG.repository, "1", A), learned),
        ((SIBLING.repository, "2", A), confirmed),
        ((TAG.repository, "1", A), 7.0),
    ]


def test_what_is_adopted_is_found_by_its_scope_alone() -> None:
    """And its digest needs no other proof than any that was shown."""
    cache = make_cache(10)
    cache.load((TAG.repository, "1", A), CachedImage(CONTENTS[0], pack_digest(DIGESTS[0]), 5.0))
    known = cache.find(TAG, A)
    assert known is not None
    assert (known.content, known.digest, known.confirmed_at) == (CONTENTS[0], DIGESTS[0], 5.0)
    assert cache.find(TAG, B) is None
    assert cache.confirm(TAG, B, DIGESTS[0], 6.0) is not None


@pytest.mark.parametrize(("at", "digest"), [(4.0, DIGESTS[0]), (5.0, DIGESTS[0]), (6.0, DIGESTS[1])], ids=str)
def test_what_is_adopted_gives_way_to_what_was_proven_later(at: float, digest: str) -> None:
    """Whichever came first: the last word of the registry counts."""
    cache = make_cache(10)
    cache.learn(TAG, A, DIGESTS[0], CONTENTS[0], 5.0)
    cache.load((TAG.repository, "1", A), CachedImage(CONTENTS[1], pack_digest(DIGESTS[1]), at))
    known = cache.find(TAG, A)
    assert known is not None
    assert known.digest == digest


def test_what_was_denied_is_not_adopted() -> None:
    """Unless it was proven again since."""
    cache = make_cache(10)
    cache.revoke(TAG, A, 6.0)
    cache.load((TAG.repository, "1", A), CachedImage(CONTENTS[0], pack_digest(DIGESTS[0]), 6.0))
    assert cache.find(TAG, A) is None
    cache.load((TAG.repository, "1", A), CachedImage(CONTENTS[0], pack_digest(DIGESTS[0]), 7.0))
    assert cache.find(TAG, A) is not None
