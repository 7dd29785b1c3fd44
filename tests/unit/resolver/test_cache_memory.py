"""What registries and names can make the image cache hold, and at whose cost."""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from extender.credentials.keyring import ANONYMOUS
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import Platform, normalize_platform
from extender.images.reference import digest_of
from extender.resolver.image_cache import (
    ImageCache,
    Lifetimes,
    Target,
    content_bytes,
    is_ordinary,
    row_cost,
)
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import target_of
from tests.unit.retained import retained_bytes

SIZE = 400
# 100,000 rows of each table then take 155 MB.
MOST_BYTES_A_ROW = 1_550
USUAL = [("linux", "amd64", ""), ("linux", "386", ""), ("linux", "s390x", ""), ("linux", "ppc64le", "")]
USUAL += [("linux", "arm64", f"v8.{minor}") for minor in range(1, 10)] + [("linux", "amd64", f"v{n}") for n in (2, 3)]
USUAL += [("linux", "arm", f"v{n}") for n in (5, 6, 7, 8)] + [("windows", name, "") for name in ("amd64", "arm64")]

Hostile = Callable[[int], tuple[str, Content]]


def make_cache(size: int = SIZE) -> ImageCache:
    return ImageCache(size, Lifetimes(tag_seconds=900, stale_seconds=86_400), Clock())


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


def content_of(platforms: object) -> Content:
    return Content(Kind.INDEX, frozenset(platforms), states_platforms=True)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(
            lambda number: (f"evil.example/{number}:1", unusual(number, 64)),
            id="64-unusual-platforms", marks=pytest.mark.slow,
        ),
        pytest.param(lambda number: (f"evil.example/{number}:1", unusual(number, 1)), id="an-unusual-platform"),
        pytest.param(lambda number: (f"evil.example/{number}:1", usual(number, 18)), id="distinct-sets-of-usual-ones"),
        pytest.param(
            lambda number: (f"evil.example/{'r' * 220}/{number}:{'t' * 128}", usual(number, 5)), id="long-names"
        ),
    ],
)  # fmt: skip
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
            for number in range(first, first + SIZE):
                learn(cache, *hostile(number))
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
    assert content_bytes(ordinary) < 800
    assert is_ordinary(ordinary)
    assert row_cost(ordinary, "x" * 100) == 1
    nothing_known_besides = sum(
        map(sys.getsizeof, (large.verified, large.falsely_claimed))
    )  # one object for all contents
    assert content_bytes(large) == pytest.approx(retained_bytes(large) - nothing_known_besides, rel=0.02)
    assert row_cost(large, "x" * 100) == (84 if sys.version_info < (3, 12) else 78)  # texts are smaller from 3.12 on
    assert row_cost(large, "x" * 256) - row_cost(large) == 1


def test_a_usual_platform_is_one_object() -> None:
    """However it was spelled, and nothing of it is kept for another platform."""
    assert normalize_platform("linux", "x86_64") is normalize_platform("Linux", "amd64", "v1")
    assert normalize_platform("linux", "armhf") is normalize_platform("linux", "arm", "7")
    assert normalize_platform("linux", "fake") is not normalize_platform("linux", "fake")
    assert not is_ordinary(content_of([Platform(*words) for words in USUAL[:10]]))  # objects that nothing shares
