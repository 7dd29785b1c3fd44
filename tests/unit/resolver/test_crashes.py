"""Programs that a node did not know: whom that keeps off, and for how long."""

from extender.images.content import judged
from extender.images.platform import parse_platform
from extender.images.platform_states import PlatformState
from extender.images.reference import digest_of, pack_digest
from extender.resolver.crashes import KEPT_SECONDS, Crashes
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import index_of

AMD64, ARM64 = parse_platform("linux/amd64"), parse_platform("linux/arm64")
ONE, TWO = (pack_digest(digest_of(text)) for text in (b"1", b"2"))
BOTH = index_of("linux/amd64", "linux/arm64")


def test_a_crash_is_of_one_namespace_digest_and_platform() -> None:
    """All else is as it was, and the same object."""
    crashes = Crashes(Clock())
    assert not crashes
    assert crashes.note("shop", ONE, ARM64)
    found = crashes.apply("shop", ONE, BOTH)
    assert (found.platforms, found.state_of(ARM64)) == (frozenset({AMD64}), PlatformState.CRASHED_THERE)
    assert crashes.apply("other", ONE, BOTH) is BOTH
    assert crashes.apply("shop", TWO, BOTH) is BOTH


def test_a_crash_is_forgotten_after_a_day() -> None:
    """And one that is seen again and again meanwhile is no news, and lasts no longer for that."""
    clock = Clock()
    crashes = Crashes(clock)
    crashes.note("shop", ONE, ARM64)
    clock.advance(KEPT_SECONDS - 1)
    assert not crashes.note("shop", ONE, ARM64)
    assert crashes.apply("shop", ONE, BOTH).denied
    clock.advance(2)
    assert crashes.apply("shop", ONE, BOTH) is BOTH
    assert crashes.note("shop", ONE, ARM64)


def test_what_is_verified_is_not_denied_by_a_crash() -> None:
    """The program is for this machine: what ended was another."""
    crashes = Crashes(Clock())
    crashes.note("shop", ONE, ARM64)
    verified = judged(BOTH, [], [(ARM64, PlatformState.VERIFIED)])
    assert crashes.apply("shop", ONE, verified) is verified


def test_an_image_crashes_on_a_few_platforms_and_a_namespace_fills_no_memory() -> None:
    """Statuses are written by whoever may write them."""
    crashes = Crashes(Clock())
    for number in range(100):
        crashes.note("shop", ONE, parse_platform(f"linux/odd{number}"))
    assert crashes.apply("shop", ONE, index_of(*(f"linux/odd{number}" for number in range(100)))).denied[4:] == ()
    for number in range(5000):
        crashes.note("loud", pack_digest(digest_of(str(number).encode())), ARM64)
    assert len(crashes) == 4096
