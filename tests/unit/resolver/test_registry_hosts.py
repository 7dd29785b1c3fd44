"""When a registry host is not asked."""

import asyncio
import contextlib
from contextvars import Context

import pytest

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    NameUnresolved,
    RegistryDenied,
    RegistryError,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    UnsupportedManifest,
)
from extender.images.content import Cause
from extender.resolver.references import References, Target
from extender.resolver.registry_hosts import BreakerOpen, RegistryHosts
from extender.turns import Interest, set_interest
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import OTHER, TENANT


@pytest.fixture
async def host(clock: Clock) -> RegistryHosts:
    """Hosts that nobody has asked yet; the tests ask one of them."""
    return RegistryHosts(clock, lambda: 0.0)


def target_of(image: str) -> Target:
    """The target of `image`: a path on ghcr.io with or without a tag, or a whole reference."""
    target = References(1).target_of(image if "." in image else f"ghcr.io/{image.replace(' ', '-')}")
    assert isinstance(target, Target)
    return target


async def visit(
    host: RegistryHosts,
    image: str = "app",
    error: BaseException | None = None,
    until: asyncio.Event | None = None,
    account: CredentialId = ANONYMOUS.id,
) -> None:
    """One lookup, which lasts `until` and ends with `error`, if any; raises BreakerOpen where the host is not asked."""
    with contextlib.suppress(type(error)) if error else contextlib.nullcontext():
        async with host.visit(target_of(image), account):
            if until:
                await until.wait()
            if error:
                raise error


async def visits(host: RegistryHosts, *errors: Exception | None, until: asyncio.Event) -> list[asyncio.Task[None]]:
    """Lookups of as many images, all of them at the host already, which last `until`."""
    tasks = [asyncio.create_task(visit(host, f"image {number}", error, until)) for number, error in enumerate(errors)]
    await asyncio.sleep(0)
    return tasks


def cause_of(host: RegistryHosts, image: str = "never-asked", account: CredentialId = ANONYMOUS.id) -> Cause | None:
    """Why the host is not asked now."""
    failure = host.failure(target_of(image), account)
    return failure.cause if failure else None


async def test_a_throttling_host_is_not_asked_until_it_said(host: RegistryHosts, clock: Clock) -> None:
    """The time the registry named is kept to the second, and nothing is asked before it."""
    await visit(host, error=RegistryThrottled("x", 17.0))
    clock.advance(16.999)
    with pytest.raises(BreakerOpen) as caught:
        await visit(host)
    assert caught.value.failure.cause is Cause.THROTTLED
    clock.advance(0.001)
    await visit(host)
    assert cause_of(host) is None


@pytest.mark.parametrize("error", [RegistryNotAsked("x"), NameUnresolved("x")], ids=["no-connection", "no-address"])
async def test_lookup_that_asked_nothing_is_no_news(host: RegistryHosts, error: RegistryNotAsked) -> None:
    """It opens no breaker, however many repositories it happens to, and is no answer either."""
    for number in range(5):
        await visit(host, f"image {number}", error)
    assert cause_of(host) is None
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", error)
    await visit(host, "three", RegistryUnavailable("x"))
    assert cause_of(host) is Cause.UNAVAILABLE


async def test_one_image_s_failure_is_its_own(host: RegistryHosts) -> None:
    """An image whose blob is broken answers 500 each time, and must not close the host to others."""
    for _ in range(5):
        await visit(host, "broken", RegistryUnavailable("x"))
    assert cause_of(host) is None


async def test_two_repositories_in_a_row_are_the_host_s_failure(host: RegistryHosts, clock: Clock) -> None:
    """After the second the host is not asked for 10 s."""
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", RegistryUnavailable("x"))
    clock.advance(9.999)
    assert cause_of(host) is Cause.UNAVAILABLE
    clock.advance(0.001)
    assert cause_of(host) is None


@pytest.mark.parametrize(
    "answer",
    [
        None,
        ManifestNotFound("x"),
        RegistryDenied("x"),
        RegistryRefusedImage("x", 412),
        InvalidManifest("x"),
        UnsupportedManifest("x"),
    ],
    ids=["content", "missing", "denied", "refused", "invalid", "unsupported"],
)
async def test_any_answer_between_two_failures_clears_the_host(host: RegistryHosts, answer: Exception | None) -> None:
    """A host that says no is well."""
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "three", answer)
    await visit(host, "two", RegistryUnavailable("x"))
    assert cause_of(host) is None


async def test_one_probe_goes_through_when_the_time_is_over(host: RegistryHosts, clock: Clock) -> None:
    """While it is under way others are refused; its success opens the host to all."""
    await visit(host, error=RegistryThrottled("x", 5.0))
    clock.advance(5)
    async with host.visit(target_of("probe"), ANONYMOUS.id):
        assert cause_of(host) is Cause.THROTTLED
        with pytest.raises(BreakerOpen):
            await visit(host, "other")
    assert cause_of(host) is None
    async with host.visit(target_of("one"), ANONYMOUS.id), host.visit(target_of("two"), ANONYMOUS.id):
        assert cause_of(host) is None


async def test_a_failed_probe_opens_the_breaker_for_longer(host: RegistryHosts, clock: Clock) -> None:
    """10 s, then 20 s, then 40 s; after a success it is 10 s again."""
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", RegistryUnavailable("x"))
    for seconds in (10, 20, 40):
        clock.advance(seconds - 0.5)
        assert cause_of(host) is Cause.UNAVAILABLE
        clock.advance(0.5)
        assert cause_of(host) is None
        await visit(host, "one", RegistryUnavailable("x"))
    clock.advance(80)
    await visit(host)
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", RegistryUnavailable("x"))
    clock.advance(10)
    assert cause_of(host) is None


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), KeyError("a defect")], ids=["cancelled", "a-defect-of-ours"]
)
async def test_a_probe_that_comes_to_nothing_gives_way_to_the_next(
    host: RegistryHosts, clock: Clock, error: BaseException
) -> None:
    """It says nothing about the host, which would otherwise never be asked again."""
    await visit(host, error=RegistryThrottled("x", 5.0))
    clock.advance(5)
    await visit(host, error=error)
    assert cause_of(host) is None
    async with host.visit(target_of("the next probe"), ANONYMOUS.id):
        assert cause_of(host) is Cause.THROTTLED


async def test_a_success_begun_before_the_opening_does_not_end_it(host: RegistryHosts) -> None:
    """The host was asked before it failed."""
    end = asyncio.Event()
    earlier = await visits(host, None, until=end)
    await visit(host, error=RegistryThrottled("x", 5.0))
    end.set()
    await asyncio.gather(*earlier)
    assert cause_of(host) is Cause.THROTTLED


async def test_failures_that_come_in_while_open_do_not_lengthen_it(host: RegistryHosts, clock: Clock) -> None:
    """Sixteen lookups that wait for a dead host are one failure."""
    soon, late = asyncio.Event(), asyncio.Event()
    first = await visits(host, *[RegistryUnavailable("x")] * 8, until=soon)
    second = await visits(host, *[RegistryUnavailable("x")] * 8, until=late)
    soon.set()
    await asyncio.gather(*first)
    clock.advance(9)
    late.set()
    await asyncio.gather(*second)
    assert cause_of(host) is Cause.UNAVAILABLE
    clock.advance(1)
    assert cause_of(host) is None


@pytest.mark.parametrize("error", [None, RegistryUnavailable("x")], ids=["answer", "failure"])
async def test_the_end_of_a_lookup_begun_before_the_opening_is_no_news(
    host: RegistryHosts, clock: Clock, error: Exception | None
) -> None:
    """Even when the time is over it neither closes the breaker nor opens it again: the next lookup is the probe."""
    end = asyncio.Event()
    earlier = await visits(host, error, until=end)
    await visit(host, error=RegistryThrottled("x", 5.0))
    clock.advance(5)
    end.set()
    await asyncio.gather(*earlier)
    async with host.visit(target_of("probe"), ANONYMOUS.id):
        assert cause_of(host) is Cause.THROTTLED
    assert cause_of(host) is None


async def test_a_lookup_begun_before_the_opening_is_not_taken_for_the_probe(host: RegistryHosts, clock: Clock) -> None:
    """Its end, which says nothing about the host, does not let a second probe through."""
    soon, late = asyncio.Event(), asyncio.Event()
    earlier = await visits(host, KeyError("a defect"), until=soon)
    await visit(host, error=RegistryThrottled("x", 5.0))
    clock.advance(5)
    probe = await visits(host, None, until=late)
    soon.set()
    await asyncio.gather(*earlier)
    assert cause_of(host) is Cause.THROTTLED
    late.set()
    await asyncio.gather(*probe)
    assert cause_of(host) is None


async def test_throttling_while_open_can_only_lengthen_it(host: RegistryHosts, clock: Clock) -> None:
    """Of two lookups throttled together the longer time holds; they count as one, so the next failure is the second."""
    end = asyncio.Event()
    together = await visits(host, RegistryThrottled("x", 60.0), RegistryThrottled("x", 5.0), until=end)
    end.set()
    await asyncio.gather(*together)
    clock.advance(59.999)
    assert cause_of(host) is Cause.THROTTLED
    clock.advance(0.001)
    await visit(host, error=RegistryUnavailable("x"))
    clock.advance(20)
    assert cause_of(host) is None


async def test_a_host_has_room_for_sixteen_lookups(host: RegistryHosts) -> None:
    """The seventeenth waits, and goes as soon as one ends."""
    end = asyncio.Event()
    inside = await visits(host, *[None] * 16, until=end)
    seventeenth = asyncio.create_task(visit(host))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not seventeenth.done()
    end.set()
    await asyncio.gather(*inside, seventeenth)


async def test_those_who_wait_for_room_are_refused_when_the_breaker_opens(host: RegistryHosts) -> None:
    """A stalled host costs the time of those at it, not of all who queue."""
    end = asyncio.Event()
    tasks = await visits(host, *[RegistryUnavailable("x")] * 50, until=end)
    end.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(outcome, BreakerOpen) for outcome in outcomes) == 34


async def test_each_host_has_its_own_breaker(host: RegistryHosts) -> None:
    """A throttling registry says nothing about another, nor about one that was never asked."""
    await visit(host, error=RegistryThrottled("x", 5.0))
    assert cause_of(host) is Cause.THROTTLED
    await visit(host, "quay.io/app")
    assert cause_of(host, "quay.io/app") is None
    assert cause_of(host, "registry.example.com/app") is None


async def test_throttled_account_waits_alone(host: RegistryHosts, clock: Clock) -> None:
    """Others go on asking the host, and what they are answered does not shorten the wait."""
    await visit(host, error=RegistryThrottled("x", 17.0), account=TENANT.id)
    await visit(host, "other", account=OTHER.id)
    await visit(host, "third")
    assert cause_of(host, account=TENANT.id) is Cause.THROTTLED
    assert cause_of(host, account=OTHER.id) is None
    with pytest.raises(BreakerOpen):
        await visit(host, account=TENANT.id)
    clock.advance(17)
    await visit(host, account=TENANT.id)
    assert cause_of(host, account=TENANT.id) is None


async def test_throttling_shows_that_the_host_answers(host: RegistryHosts) -> None:
    """Two repositories that fail around a 429 are not two in a row."""
    await visit(host, "one", RegistryUnavailable("x"))
    await visit(host, "two", RegistryThrottled("x", 5.0), account=TENANT.id)
    await visit(host, "three", RegistryUnavailable("x"))
    assert cause_of(host) is None


async def test_two_names_of_a_repository_are_the_repository_s_failure(host: RegistryHosts, clock: Clock) -> None:
    """It is not asked for 10 s; the other repositories of the host are."""
    for name in ("broken:1", "broken:2", "broken:1"):
        with contextlib.suppress(BreakerOpen):
            await visit(host, name, RegistryUnavailable("x"))
    assert cause_of(host, "broken:3") is Cause.UNAVAILABLE
    assert cause_of(host) is None
    await visit(host, "well")
    assert cause_of(host, "broken:3") is Cause.UNAVAILABLE
    clock.advance(10)
    await visit(host, "broken:3")
    assert cause_of(host, "broken:1") is None


@pytest.mark.parametrize("error", [RegistryThrottled("x", 300.0), RegistryUnavailable("x")], ids=["spared", "mirrored"])
async def test_failure_that_is_not_the_hosts_opens_no_breaker(host: RegistryHosts, error: RegistryError) -> None:
    """It was spared to save its quota, or a mirror of it answers well: however many images that happens to."""
    error.host_is_well = True
    for image in ("one", "two", "three"):
        await visit(host, image, error=error)
    assert cause_of(host) is None


async def test_names_that_fail_once_evict_no_open_breaker(clock: Clock) -> None:
    """Not even those of the same tenant: a throttled account stays alone until the registry's time is over."""
    host = RegistryHosts(clock, lambda: 0.0, size=8)
    await visit(host, "app", RegistryThrottled("x", 20.0))
    await visit(host, "quay.io/a/one:1", RegistryUnavailable("x"))
    await visit(host, "quay.io/a/two:1", RegistryUnavailable("x"))
    for number in range(50):
        await visit(host, f"host-{number}.example/app:1", RegistryUnavailable("x"))
    assert cause_of(host) is Cause.THROTTLED
    assert cause_of(host, "quay.io/a/three:1") is Cause.UNAVAILABLE


async def test_failures_of_one_tenant_s_hosts_evict_nothing_of_another(clock: Clock) -> None:
    """Whoever owns a zone can name as many failing hosts as they like, each of which fails as often as they like."""
    host = RegistryHosts(clock, lambda: 0.0, size=8)
    set_interest(Interest("team", clock.now))
    await visit(host, "app", RegistryThrottled("x", 20.0))
    await visit(host, "quay.io/a/one:1", RegistryUnavailable("x"))
    set_interest(Interest("flood", clock.now))
    for number in range(12):
        for image in ("one", "two"):
            await visit(host, f"host-{number}.example/{image}:1", RegistryUnavailable("x"))
        await visit(host, f"throttled-{number}.example/app:1", RegistryThrottled("x", 20.0))
        await visit(host, f"once-{number}.example/app:1", RegistryUnavailable("x"))
    assert cause_of(host) is Cause.THROTTLED
    set_interest(Interest("team", clock.now))
    await visit(host, "quay.io/a/two:1", RegistryUnavailable("x"))
    assert cause_of(host, "quay.io/a/three:1") is Cause.UNAVAILABLE


async def test_what_fails_in_one_project_rests_the_project_alone(host: RegistryHosts, clock: Clock) -> None:
    """Whoever has a project at a registry may have all of its repositories fail."""
    for number in range(2):
        await visit(host, f"ghcr.io/mallory/app-{number}:1", RegistryUnavailable("503"))
    assert cause_of(host, "ghcr.io/mallory/other:1") is Cause.UNAVAILABLE
    assert cause_of(host, "ghcr.io/team/app:1") is None
    clock.advance(11)
    await visit(host, "ghcr.io/mallory/app-0:1")
    assert cause_of(host, "ghcr.io/mallory/other:1") is None


async def test_a_host_that_has_answered_lately_does_not_rest(host: RegistryHosts, clock: Clock) -> None:
    """Two projects fail, and a third gets what it asks for."""
    await visit(host, "ghcr.io/team/app:1")
    for project in ("mallory", "eve", "trudy"):
        await visit(host, f"ghcr.io/{project}/app:1", RegistryUnavailable("503"))
    assert cause_of(host, "ghcr.io/team/other:1") is None
    clock.advance(10)
    for project in ("mallory", "eve"):
        await visit(host, f"ghcr.io/{project}/new:2", RegistryUnavailable("503"))
    assert cause_of(host, "ghcr.io/team/other:1") is Cause.UNAVAILABLE


async def test_a_lookup_that_lets_others_wait_for_long_is_the_repository_s_fault(
    host: RegistryHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses its turn, and is not asked for again at once."""
    monkeypatch.setattr("extender.turns.REVOKE_SECONDS", 0.0)
    waiting = asyncio.Event()

    def start(tenant: str, image: str, until: asyncio.Event) -> "asyncio.Task[None]":
        context = Context()
        context.run(set_interest, Interest(tenant, 1000.0))
        return asyncio.get_running_loop().create_task(visit(host, image, until=until), context=context)

    slow = [start("mallory", f"ghcr.io/mallory/app-{number}:1", waiting) for number in range(12)]
    slow += [start("eve", f"ghcr.io/eve/app-{number}:1", waiting) for number in range(4)]
    await asyncio.sleep(0)
    finished = asyncio.Event()
    finished.set()
    await start("honest", "ghcr.io/team/app:1", finished)
    ended = [task for task in slow if task.done()]
    assert len(ended) == 1
    with pytest.raises(RegistryUnavailable, match="others wait for it"):
        await ended[0]
    waiting.set()
    await asyncio.gather(*slow, return_exceptions=True)
