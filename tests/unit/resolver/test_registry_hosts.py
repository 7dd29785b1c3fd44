"""When a registry host is given a rest."""

import asyncio
import contextlib

import pytest

from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryThrottled,
    RegistryUnavailable,
    UnsupportedManifest,
)
from extender.images.content import Cause
from extender.resolver.registry_hosts import Host, HostResting, Hosts
from testbed.clock import Clock


@pytest.fixture
async def host(clock: Clock) -> Host:
    """A host that nobody has asked yet."""
    return Host("ghcr.io", clock, lambda: 0.0)


async def visit(
    host: Host, image: str = "app", error: BaseException | None = None, until: asyncio.Event | None = None
) -> None:
    """One lookup, which lasts `until` and ends with `error`, if any; raises HostResting where the host is not asked."""
    with contextlib.suppress(type(error)) if error else contextlib.nullcontext():
        async with host.visit(image):
            if until:
                await until.wait()
            if error:
                raise error


async def visits(host: Host, *errors: Exception | None, until: asyncio.Event) -> list[asyncio.Task[None]]:
    """Lookups of as many images, all of them at the host already, which last `until`."""
    tasks = [asyncio.create_task(visit(host, f"image {number}", error, until)) for number, error in enumerate(errors)]
    await asyncio.sleep(0)
    return tasks


def resting_cause(host: Host) -> Cause | None:
    failure = host.resting()
    return failure.cause if failure else None


async def test_a_throttling_host_rests_until_it_said(host: Host, clock: Clock) -> None:
    """The time the registry named is kept to the second, and nothing is asked before it."""
    await visit(host, error=RegistryThrottled("x", 17.0))
    clock.advance(16.999)
    with pytest.raises(HostResting) as caught:
        await visit(host)
    assert caught.value.failure.cause is Cause.THROTTLED
    clock.advance(0.001)
    await visit(host)
    assert resting_cause(host) is None


async def test_one_image_s_trouble_is_its_own(host: Host) -> None:
    """An image whose blob is broken answers 500 each time, and must not close the host to others."""
    for _ in range(5):
        await visit(host, "broken", RegistryUnavailable("x"))
    assert resting_cause(host) is None


async def test_two_images_in_a_row_are_the_host_s_trouble(host: Host, clock: Clock) -> None:
    """After the second the host rests for 10 s."""
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", RegistryUnavailable("x"))
    clock.advance(9.999)
    assert resting_cause(host) is Cause.UNAVAILABLE
    clock.advance(0.001)
    assert resting_cause(host) is None


@pytest.mark.parametrize(
    "answer",
    [None, ManifestNotFound("x"), RegistryDenied("x"), InvalidManifest("x"), UnsupportedManifest("x")],
    ids=["content", "missing", "denied", "invalid", "unsupported"],
)
async def test_any_answer_between_two_failures_clears_the_host(host: Host, answer: Exception | None) -> None:
    """A host that says no is well."""
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "three", answer)
    await visit(host, "two", RegistryUnavailable("x"))
    assert resting_cause(host) is None


async def test_one_probe_goes_through_when_the_rest_ends(host: Host, clock: Clock) -> None:
    """While it is under way others are refused; its success opens the host to all."""
    await visit(host, error=RegistryThrottled("x", 5.0))
    clock.advance(5)
    async with host.visit("probe"):
        assert resting_cause(host) is Cause.THROTTLED
        with pytest.raises(HostResting):
            await visit(host, "other")
    assert resting_cause(host) is None
    async with host.visit("one"), host.visit("two"):
        assert resting_cause(host) is None


async def test_a_failed_probe_lengthens_the_rest(host: Host, clock: Clock) -> None:
    """10 s, then 20 s, then 40 s; a success in the end starts anew at 10 s."""
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", RegistryUnavailable("x"))
    for seconds in (10, 20, 40):
        clock.advance(seconds - 0.5)
        assert resting_cause(host) is Cause.UNAVAILABLE
        clock.advance(0.5)
        assert resting_cause(host) is None
        await visit(host, "one", RegistryUnavailable("x"))
    clock.advance(80)
    await visit(host)
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", RegistryUnavailable("x"))
    clock.advance(10)
    assert resting_cause(host) is None


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), KeyError("a defect")], ids=["cancelled", "a-defect-of-ours"]
)
async def test_a_probe_that_comes_to_nothing_leaves_the_place_to_the_next(
    host: Host, clock: Clock, error: BaseException
) -> None:
    """It says nothing about the host, which would otherwise rest for ever."""
    await visit(host, error=RegistryThrottled("x", 5.0))
    clock.advance(5)
    await visit(host, error=error)
    assert resting_cause(host) is None
    async with host.visit("the next probe"):
        assert resting_cause(host) is Cause.THROTTLED


async def test_a_success_begun_before_the_rest_does_not_end_it(host: Host) -> None:
    """It was asked before the trouble."""
    end = asyncio.Event()
    earlier = await visits(host, None, until=end)
    await visit(host, error=RegistryThrottled("x", 5.0))
    end.set()
    await asyncio.gather(*earlier)
    assert resting_cause(host) is Cause.THROTTLED


async def test_failures_that_come_in_while_resting_do_not_lengthen_the_rest(host: Host, clock: Clock) -> None:
    """Sixteen lookups that wait for a dead host are one trouble."""
    soon, late = asyncio.Event(), asyncio.Event()
    first = await visits(host, *[RegistryUnavailable("x")] * 8, until=soon)
    second = await visits(host, *[RegistryUnavailable("x")] * 8, until=late)
    soon.set()
    await asyncio.gather(*first)
    clock.advance(9)
    late.set()
    await asyncio.gather(*second)
    assert resting_cause(host) is Cause.UNAVAILABLE
    clock.advance(1)
    assert resting_cause(host) is None


async def test_a_lookup_begun_before_the_rest_is_not_taken_for_the_probe(host: Host, clock: Clock) -> None:
    """Its end, which says nothing about the host, does not let a second probe through."""
    soon, late = asyncio.Event(), asyncio.Event()
    earlier = await visits(host, KeyError("a defect"), until=soon)
    await visit(host, error=RegistryThrottled("x", 5.0))
    clock.advance(5)
    probe = await visits(host, None, until=late)
    soon.set()
    await asyncio.gather(*earlier)
    assert resting_cause(host) is Cause.THROTTLED
    late.set()
    await asyncio.gather(*probe)
    assert resting_cause(host) is None


async def test_throttling_while_resting_can_only_lengthen_the_rest(host: Host, clock: Clock) -> None:
    """Of two lookups throttled together the longer time holds, and they count as one: the next rest is the second."""
    end = asyncio.Event()
    together = await visits(host, RegistryThrottled("x", 60.0), RegistryThrottled("x", 5.0), until=end)
    end.set()
    await asyncio.gather(*together)
    clock.advance(59.999)
    assert resting_cause(host) is Cause.THROTTLED
    clock.advance(0.001)
    await visit(host, error=RegistryUnavailable("x"))
    clock.advance(20)
    assert resting_cause(host) is None


async def test_a_host_has_room_for_sixteen_lookups(host: Host) -> None:
    """The seventeenth waits, and goes as soon as one ends."""
    end = asyncio.Event()
    inside = await visits(host, *[None] * 16, until=end)
    seventeenth = asyncio.create_task(visit(host))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not seventeenth.done()
    end.set()
    await asyncio.gather(*inside, seventeenth)


async def test_those_who_wait_for_room_are_refused_when_the_host_falls_ill(host: Host) -> None:
    """A stalled host costs the time of those at it, not of all who queue."""
    end = asyncio.Event()
    tasks = await visits(host, *[RegistryUnavailable("x")] * 50, until=end)
    end.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(outcome, HostResting) for outcome in outcomes) == 34


async def test_hosts_rest_one_by_one(clock: Clock) -> None:
    """A throttling registry says nothing about another, nor about one that was never asked."""
    hosts = Hosts(10, clock, lambda: 0.0)
    await visit(hosts.host("ghcr.io"), error=RegistryThrottled("x", 5.0))
    assert hosts.resting("ghcr.io")
    await visit(hosts.host("quay.io"))
    assert hosts.resting("quay.io") is None
    assert hosts.resting("registry.example.com") is None


@pytest.mark.parametrize("error", [RegistryThrottled("x", 300.0), RegistryUnavailable("x")], ids=["spared", "mirrored"])
async def test_trouble_that_is_not_the_hosts_gives_it_no_rest(host: Host, error: RegistryError) -> None:
    """It was spared to save its quota, or a mirror of it answers well: however many images that happens to."""
    error.host_is_well = True
    for image in ("one", "two", "three"):
        await visit(host, image, error=error)
    assert host.resting() is None
