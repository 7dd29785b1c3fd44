"""What is remembered of registries' answers, for whom, and how much memory that takes at most."""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import Platform, normalize_platform
from extender.images.reference import digest_of, pack_digest
from extender.resolver import image_cache
from extender.resolver.image_cache import CachedImage, ImageCache, ImageQuery, Lifetimes, References, Target
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import index_of, target_of
from tests.unit.retained import retained_bytes

SIZE = 400
# 100,000 rows of each table then take 155 MB.
MOST_BYTES_A_ROW = 1_550
USUAL = [("linux", "amd64", ""), ("linux", "386", ""), ("linux", "s390x", ""), ("linux", "ppc64le", "")]
USUAL += [("linux", "arm64", f"v8.{minor}") for minor in range(1, 10)] + [("linux", "amd64", f"v{n}") for n in (2, 3)]
USUAL += [("linux", "arm", f"v{n}") for n in (5, 6, 7, 8)] + [("windows", name, "") for name in ("amd64", "arm64")]

Hostile = Callable[[int], tuple[str, Content]]
A, B = CredentialId("a"), CredentialId("b")
DIGESTS = [digest_of(bytes([number])) for number in range(3)]
CONTENTS = [index_of("linux/amd64"), index_of("linux/arm64"), index_of("linux/amd64", "linux/arm64")]


def make_cache(size: int = SIZE) -> ImageCache:
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
        st.sampled_from(["learn", "prove", "revoke", "load"]),
        st.sampled_from([TAG, SIBLING, ELSEWHERE]),
        st.sampled_from([A, B]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(steps=STEPS)
@example([("revoke", TAG, A, 0), ("load", TAG, A, 1), ("load", TAG, A, 0)])
@example([("learn", TAG, A, 0), ("load", TAG, A, 1), ("load", TAG, A, 2), ("load", TAG, A, 1)])
def test_memory_tells_what_a_plain_record_of_all_events_tells(
    steps: list[tuple[str, Target, CredentialId, int]],
) -> None:
    """Whatever was learned, proven, revoked and loaded: each scope finds its last proof, if no denial came after it."""
    cache = make_cache(1000)
    shown: dict[tuple[str, str], Content] = {}
    names: dict[tuple[str, str, CredentialId], tuple[str, float]] = {}
    denied_at: dict[tuple[str, CredentialId], float] = {}
    for time, (verb, one, credential_id, number) in enumerate(steps):
        key, pair = (one.repository, str(one.name), credential_id), (one.repository, DIGESTS[number])
        if verb == "revoke":
            cache.revoke(one, credential_id, time)
            names.pop(key, None)
            denied_at[one.repository, credential_id] = time
        elif verb == "load":  # of a store, as old as it may be
            at = float(time - number)
            cache.load(
                (one.repository, one.name, credential_id),
                CachedImage(CONTENTS[number], pack_digest(DIGESTS[number]), at),
            )
            shown[pair] = CONTENTS[number]
            if max(names.get(key, ("", -9))[1], denied_at.get((one.repository, credential_id), -9)) < at:
                names[key] = (DIGESTS[number], at)
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


def learn(cache: ImageCache, text: str, content: Content, owner: str = "") -> Target:
    target = target_of(text)
    cache.learn(target, ANONYMOUS.id, digest_of(text.encode()), content, 5.0, owner)
    return target


def unusual(number: int, platforms: int) -> Content:
    """An index of platforms with three words of 32 characters each, which no other content has."""
    words = [f"{number:08d}{platform:04d}{word}".ljust(32, "x") for platform in range(platforms) for word in range(3)]
    return content_of(normalize_platform(*words[at : at + 3]) for at in range(0, len(words), 3))


def usual(number: int, platforms: int) -> Content:
    return content_of(normalize_platform(*words) for words in Random(number).sample(USUAL, platforms))


def content_of(platforms: Iterable[Platform]) -> Content:
    return Content(Kind.INDEX, frozenset(platforms), states_platforms=True)


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(lambda number: (f"{number}:1", unusual(number, 64)), id="64-unusual", marks=pytest.mark.slow),
        pytest.param(lambda number: (f"{number}:1", unusual(number, 1)), id="an-unusual-platform"),
        pytest.param(lambda number: (f"{number}:1", usual(number, 18)), id="distinct-sets-of-usual-ones"),
        pytest.param(lambda number: (f"{'r' * 220}/{number}:{'t' * 128}", usual(number, 5)), id="long-names"),
    ],
)
def test_a_full_cache_has_so_many_bytes_whatever_registries_state(hostile: Hostile) -> None:
    """Large contents and long names cost as many rows as they take memory.

    Of two caches the smaller one counts: beside the other, the interpreter's table of interned texts may have grown.
    """
    sizes = []
    for first in (0, SIZE):
        cache = make_cache()
        gc.collect()
        tracemalloc.start()
        try:
            for name, content in map(hostile, range(first, first + SIZE)):
                learn(cache, f"evil.example/{name}", content)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert min(sizes) < SIZE * MOST_BYTES_A_ROW


def test_as_many_ordinary_images_are_kept_as_the_setting_says() -> None:
    """Official images have some ten platforms, and their names and tags some sixty characters."""
    cache = make_cache()
    targets = [
        learn(cache, f"registry.example.com/department-7/team-31/application-{n}:v1.{n}.0-4f9a1c2", usual(n % 20, 10))
        for n in range(SIZE)
    ]
    assert len(cache) == SIZE
    assert all(cache.find(target, ANONYMOUS.id) for target in targets)


def test_what_a_row_costs_is_what_it_takes() -> None:
    """An unusual platform is counted in full, a usual one not at all: all contents share it."""
    ordinary, large = usual(1, 18), unusual(1, 64)
    assert image_cache.content_bytes(ordinary) < 800
    assert image_cache.is_ordinary(ordinary)
    assert image_cache.row_cost(ordinary, "x" * 100) == 1
    assert image_cache.content_bytes(large) == pytest.approx(retained_bytes(large), rel=0.02)
    assert image_cache.row_cost(large, "x" * 100) == (
        84 if sys.version_info < (3, 12) else 78
    )  # texts are smaller from 3.12 on
    assert image_cache.row_cost(large, "x" * 256) - image_cache.row_cost(large) == 1


def test_a_usual_platform_is_one_object() -> None:
    """However it was spelled, and nothing of it is kept for another platform."""
    assert normalize_platform("linux", "x86_64") is normalize_platform("Linux", "amd64", "v1")
    assert normalize_platform("linux", "armhf") is normalize_platform("linux", "arm", "7")
    assert normalize_platform("linux", "fake") is not normalize_platform("linux", "fake")
    assert not image_cache.is_ordinary(
        content_of([Platform(*words) for words in USUAL[:10]])
    )  # objects that nothing shares
