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
    References,
    Target,
)
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import index_of, target_of
from tests.unit.retained import retained_bytes

A, B = CredentialId("a"), CredentialId("b")
DIGESTS = [digest_of(bytes([number])) for number in range(3)]
CONTENTS = [index_of("linux/amd64"), index_of("linux/arm64"), index_of("linux/amd64", "linux/arm64")]


def make_cache(size: int) -> ImageCache:
    return ImageCache(size, Lifetimes(tag_seconds=900, stale_seconds=86_400), Clock())


TAG, SIBLING, ELSEWHERE = (
    target_of("ghcr.io/team/app:1"),
    target_of("ghcr.io/team/app:2"),
    target_of("ghcr.io/other/app:1"),
)


def is_fresh(cache: ImageCache, one: Target, credential_id: CredentialId, now: float) -> bool:
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
        cache.revoke(target_of(f"ghcr.io/denied/{number}:1"), A, 6.0)
    assert cache.denials < 5000
    assert cache.find(TAG, A) is None
    assert cache.find(SIBLING, A) is None
    assert cache.find(ELSEWHERE, A) is not None


def test_what_many_rows_have_alike_is_one_object() -> None:
    """Platform sets, of which 100,000 images have some dozens, digests and names of repositories."""
    cache = make_cache(10)
    first = cache.learn(TAG, A, DIGESTS[0], index_of("linux/amd64"), 5.0)
    again, other = cache.confirm(TAG, A, DIGESTS[0], 6.0), cache.learn(ELSEWHERE, A, DIGESTS[1], CONTENTS[0], 5.0)
    assert again is not None
    assert first.content is other.content is again.content
    assert first.packed is again.packed
    assert target_of("ghcr.io/a/b:1").repository is target_of("ghcr.io/a/b:2").repository


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


DIGEST = digest_of(b"content")


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        pytest.param("debian", "docker.io/library/debian:latest", True, id="defaults-are-written-out"),
        pytest.param(f"debian:12@{DIGEST}", f"debian@{DIGEST}", True, id="a-tag-beside-a-digest-says-nothing"),
        pytest.param("debian:12", "debian:13", False, id="tags-differ"),
        pytest.param("ghcr.io/a/b:1", "quay.io/a/b:1", False, id="registries-differ"),
    ],
)
def test_references_that_ask_for_the_same_have_equal_targets(one: str, other: str, are_same: bool) -> None:
    """What a registry would be asked decides, not how the reference is written."""
    references = References(10)
    assert (references.target_of(one) == references.target_of(other)) is are_same


def test_the_largest_texts_that_are_kept_take_little_memory() -> None:
    """A text that is not ASCII is no reference, takes four bytes a character, and is not kept."""
    references = References(10)
    longest = f"{'.'.join(['a' * 60] * 9)[:540]}/{'b/' * 120}a:{'t' * 128}"[: 1024 - 136] + f"@sha512:{'0' * 128}"
    for text in (longest, "a" * 1024):
        target = references.target_of(text)
        assert references.target_of(text) is target
        assert retained_bytes((text, target)) < 3_400
    wide = "\N{GRINNING FACE}" * 1024
    assert references.target_of(wide) is not references.target_of(wide)


def test_short_names_are_found_in_registries_of_the_runtime() -> None:
    """Credentials go by the kubelet's name; the name of another image does not stand for the same."""
    references = References(10, short_names=True)
    short, full = references.target_of("app:1"), references.target_of("docker.io/library/app:1")
    assert isinstance(short, Target)
    assert isinstance(full, Target)
    assert short.reference == full.reference == full.asked
    assert (short.asked.domain, short.repository, full.repository) == ("", "app", "docker.io/library/app")
    usual = References(10).target_of("app:1")
    assert usual == full
