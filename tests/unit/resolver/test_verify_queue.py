"""Images that are looked into in the background: which, in what order, how often, and what comes of it."""

import asyncio

import pytest

from extender.credentials.keyring import Keyring
from extender.errors import RegistryNotAsked, RegistryThrottled
from extender.fetcher.messages import Failed, PullAccess, Verified, Verify, failed_of
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.platform_states import FalselyClaimed, PlatformState
from extender.resolver.image_cache import MovedTag
from extender.resolver.lookups import Confirmed
from extender.resolver.resolver import Resolver
from extender.resolver.verify_queue import HOST_SECONDS, LOOKS, VerifyQueue
from extender.verifier.verification import Verification
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import APP, PUBLIC, FakeRegistry, ask, keyring_of, peek, target_of

AMD64, ARM64 = parse_platform("linux/amd64"), parse_platform("linux/arm64")
OTHER, FAR = "ghcr.io/team/other:1", "quay.io/team/far:1"


class Looks(FakeRegistry):
    """What looks inside: an image with `liar` in its name has an amd64 program for every platform."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.asked: list[tuple[float, str, str]] = []
        self.under_way = self.most_under_way = 0
        self.problem: Exception | None = None
        self._clock = clock

    async def verify(self, verify: Verify) -> Verified | Failed:
        reference, platform = verify.reference, verify.platform
        self.asked.append((self._clock(), reference.path, str(platform)))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.problem:
            return failed_of(self.problem)
        if "liar" in reference.path and platform != AMD64:
            state = PlatformState.REFUTED
            return Verified(verification=Verification(platform=platform, state=state, program="/app", detail="x86-64"))
        state = PlatformState.CLAIMED if "odd" in reference.path else PlatformState.VERIFIED
        return Verified(verification=Verification(platform=platform, state=state, detail="why"))


class Background:
    """A resolver whose images are looked into while the test waits."""

    def __init__(self, registry: FakeRegistry, resolver: Resolver, clock: Clock) -> None:
        self.registry, self.resolver, self.clock = registry, resolver, clock
        self.looks = Looks(clock)
        self.queue = VerifyQueue(
            self.looks, resolver.cache, lambda: frozenset({AMD64, ARM64}), clock=clock, sleep=self._sleep
        )
        resolver.tell_of_confirmed(self.queue.note)

    async def _sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    async def look_up(self, *names: str, keys: Keyring = PUBLIC) -> None:
        for name in names:
            await ask(self.resolver, keys, name, revalidate=True)

    async def work_off(self) -> None:
        working = asyncio.create_task(self.queue.run())
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(self.queue) == 0
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    def content(self, name: str) -> Content:
        found = peek(self.resolver, image=name)
        assert isinstance(found, Content)
        return found


@pytest.fixture
async def background(registry: FakeRegistry, resolver: Resolver, clock: Clock) -> Background:
    for name in (APP, OTHER, FAR, "ghcr.io/team/liar:1", "ghcr.io/team/odd:1"):
        registry.push(name, "linux/amd64", "linux/arm64", "linux/s390x", f"linux/{name.split('/')[2][:-2]}")
    return Background(registry, resolver, clock)


async def test_an_image_is_verified_once_for_the_platforms_of_the_cluster(background: Background) -> None:
    """And what is known is what the next decision gets."""
    await background.look_up(APP)
    await background.work_off()
    assert [each[1:] for each in background.looks.asked] == [("team/app", "linux/amd64"), ("team/app", "linux/arm64")]
    assert background.content(APP).verified == {AMD64, ARM64}
    background.clock.advance(1000)
    await background.look_up(APP)
    await background.work_off()
    assert len(background.looks.asked) == 2
    assert background.resolver.counts()["verified"] == 1


async def test_a_lie_is_a_no_from_then_on(background: Background) -> None:
    """Also for the store, and for whoever follows what images lose."""
    moved: list[MovedTag] = []
    background.resolver.cache.tell_of_moves(moved.append)
    await background.look_up("ghcr.io/team/liar:1")
    await background.work_off()
    found = background.content("ghcr.io/team/liar:1")
    assert found.falsely_claimed == (FalselyClaimed(ARM64, PlatformState.REFUTED, "/app", "x86-64"),)
    assert (ARM64 in found.platforms, AMD64 in found.verified) == (False, True)
    (move,) = moved
    assert (str(move.target.reference), move.before.digest) == ("ghcr.io/team/liar:1", move.after.digest)


async def test_one_image_at_a_time_and_hosts_have_peace(background: Background) -> None:
    """The oldest first; a host that has peace does not hold up another."""
    await background.look_up(APP, OTHER, FAR)
    await background.work_off()
    assert background.looks.most_under_way == 1
    order = [(at, path) for at, path, platform in background.looks.asked if platform == "linux/amd64"]
    assert [path for _, path in order] == ["team/app", "team/far", "team/other"]
    assert order[2][0] - order[0][0] >= HOST_SECONDS


async def test_namespaces_take_turns(background: Background) -> None:
    """One that names image after image delays no other's by more than one."""
    for tenant, numbers in (("flood", range(4)), ("team", range(2)), ("flood", range(4, 6))):
        for number in numbers:
            name = f"{tenant}{number}.example/{tenant}/{number}:1"
            background.registry.push(name, "linux/amd64")
            await background.look_up(name, keys=keyring_of(tenant=tenant))
    await background.work_off()
    order = [path for _, path, _ in background.looks.asked]
    assert order == ["flood/0", "team/0", "flood/1", "team/1", "flood/2", "flood/3", "flood/4", "flood/5"]


async def test_a_namespace_has_only_so_many_images_wait(background: Background) -> None:
    """Those beyond are counted, and noted when they are confirmed the next time."""
    content, dropped = Content(Kind.INDEX, frozenset({AMD64}), states_platforms=True), LOOKS["dropped"].value
    for number in range(302):
        target, digest = target_of(f"ghcr.io/flood/{number}:1"), f"sha256:{number:064x}"
        background.queue.note(Confirmed(target, digest, content, PullAccess(), "flood"))
    assert (len(background.queue), LOOKS["dropped"].value) == (300, dropped + 2)
    background.queue.note(Confirmed(target_of(APP), f"sha256:{0:064x}", content, PullAccess(), "team"))
    assert len(background.queue) == 301


async def test_an_image_that_no_pod_asks_for_is_left_alone(background: Background) -> None:
    """Though it is known and unverified; it is looked into once it is used again."""
    background.resolver.tell_of_confirmed(None)
    await background.look_up(APP, OTHER)
    background.resolver.tell_of_confirmed(background.queue.note)
    background.clock.advance(1000)
    await background.look_up(OTHER)
    await background.work_off()
    assert {path for _, path, _ in background.looks.asked} == {"team/other"}


async def test_what_cannot_be_found_out_is_not_tried_again(background: Background) -> None:
    """It stays claimed."""
    await background.look_up("ghcr.io/team/odd:1")
    await background.work_off()
    background.clock.advance(1000)
    await background.look_up("ghcr.io/team/odd:1")
    await background.work_off()
    assert len(background.looks.asked) == 2
    assert background.content("ghcr.io/team/odd:1").verified == frozenset()


@pytest.mark.parametrize(("fault", "asked"), [(RegistryThrottled("later", 5.0), 2), (RegistryNotAsked("it ended"), 1)])
async def test_a_look_that_fails_denies_nothing(background: Background, fault: Exception, asked: int) -> None:
    """One that was only too early is made again when the image is confirmed again."""
    background.looks.problem = fault
    await background.look_up(APP)
    await background.work_off()
    background.looks.problem = RegistryNotAsked("it ended")
    background.clock.advance(1000)
    await background.look_up(APP)
    await background.work_off()
    assert len(background.looks.asked) == asked
    assert background.content(APP).falsely_claimed == ()


async def test_an_image_by_digest_is_confirmed_until_it_is_verified(background: Background) -> None:
    """Such an image of the public would not be asked for again otherwise, and one of the store never be looked into."""
    digest = background.registry.push("ghcr.io/team/pinned:1", "linux/amd64", "linux/arm64")
    name = f"ghcr.io/team/pinned@{digest}"
    background.resolver.tell_of_confirmed(None)
    await background.look_up(name)
    background.clock.advance(1000)
    requests = len(background.registry.requests)
    await background.look_up(name)
    assert len(background.registry.requests) == requests
    background.resolver.tell_of_confirmed(background.queue.note)
    await background.look_up(name)
    assert len(background.registry.requests) == requests + 1
    await background.work_off()
    assert background.content(name).verified == {AMD64, ARM64}
    background.clock.advance(1000)
    await background.look_up(name)
    assert len(background.registry.requests) == requests + 1
