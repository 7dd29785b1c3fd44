"""Images that are looked into in the background: which, in what order, how often, and what comes of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.credentials.keyring import Keyring
from extender.errors import RegistryNotAsked, RegistryThrottled
from extender.fetcher.messages import Failed, PullAccess, Verified, Verify, failed_of
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.platform_states import FalselyClaimed, PlatformState
from extender.resolver.lookups import Confirmed
from extender.resolver.verify_queue import HOST_SECONDS, LOOKS, VerifyQueue
from extender.verifier.verification import Verification
from tests.unit.resolver.fake_registry import APP, PUBLIC, World, keyring_of, target_of

AMD64, ARM64 = parse_platform("linux/amd64"), parse_platform("linux/arm64")
OTHER, FAR = "ghcr.io/team/other:1", "quay.io/team/far:1"
LIAR, ODD = "ghcr.io/team/liar:1", "ghcr.io/team/odd:1"


class Background(World):
    """Images are looked into while the test waits; one with `liar` in its name is for amd64 on every platform."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, str, str]] = []
        self.under_way = self.most_under_way = 0
        self.problem: Exception | None = None
        self.queue = VerifyQueue(
            self, self.resolver.cache, lambda: frozenset({AMD64, ARM64}), clock=self.clock, sleep=self._sleep
        )
        self.resolver.report_confirmed(self.queue.note)
        for name in (APP, OTHER, FAR, LIAR, ODD):
            self.push(name, "linux/amd64", "linux/arm64", "linux/s390x", f"linux/{name.split('/')[2][:-2]}")

    async def verify(self, verify: Verify) -> Verified | Failed:
        reference, platform = verify.reference, verify.platform
        self.asked.append((self.clock(), reference.path, str(platform)))
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

    async def _sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)

    async def look_up(self, *names: str, keys: Keyring = PUBLIC) -> None:
        for name in names:
            await self.ask(keys, name, revalidate=True)

    async def work_off(self) -> None:
        working = asyncio.create_task(self.queue.run())
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(self.queue) == 0
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    def content(self, name: str) -> Content:
        found = self.peek(image=name)
        assert isinstance(found, Content)
        return found


@pytest.fixture
async def world() -> AsyncIterator[Background]:
    opened = Background()
    yield opened
    await opened.resolver.close()


async def test_an_image_is_verified_once_for_the_platforms_of_the_cluster(world: Background) -> None:
    await world.look_up(APP)
    await world.work_off()
    assert [each[1:] for each in world.asked] == [("team/app", "linux/amd64"), ("team/app", "linux/arm64")]
    assert world.content(APP).verified == {AMD64, ARM64}
    world.advance(1000)
    await world.look_up(APP)
    await world.work_off()
    assert len(world.asked) == 2
    assert world.resolver.counts()["verified"] == 1


async def test_a_lie_is_a_no_from_then_on(world: Background) -> None:
    await world.look_up(LIAR)
    await world.work_off()
    found = world.content(LIAR)
    assert found.falsely_claimed == (FalselyClaimed(ARM64, PlatformState.REFUTED, "/app", "x86-64"),)
    assert (ARM64 in found.platforms, AMD64 in found.verified) == (False, True)


async def test_one_image_at_a_time_and_hosts_have_peace(world: Background) -> None:
    """The oldest first; a host that has peace does not hold up another."""
    await world.look_up(APP, OTHER, FAR)
    await world.work_off()
    assert world.most_under_way == 1
    order = [(at, path) for at, path, platform in world.asked if platform == "linux/amd64"]
    assert [path for _, path in order] == ["team/app", "team/far", "team/other"]
    assert order[2][0] - order[0][0] >= HOST_SECONDS


async def test_namespaces_take_turns(world: Background) -> None:
    """One that names image after image delays no other's by more than one."""
    for tenant, numbers in (("flood", range(4)), ("team", range(2)), ("flood", range(4, 6))):
        for number in numbers:
            name = f"{tenant}{number}.example/{tenant}/{number}:1"
            world.push(name, "linux/amd64")
            await world.look_up(name, keys=keyring_of(tenant=tenant))
    await world.work_off()
    order = [path for _, path, _ in world.asked]
    assert order == ["flood/0", "team/0", "flood/1", "team/1", "flood/2", "flood/3", "flood/4", "flood/5"]


async def test_a_namespace_has_only_so_many_images_wait(world: Background) -> None:
    """Those beyond are counted, and noted when they are confirmed the next time."""
    content, dropped = Content(Kind.INDEX, frozenset({AMD64}), states_platforms=True), LOOKS["dropped"].value
    for number in range(302):
        target, digest = target_of(f"ghcr.io/flood/{number}:1"), f"sha256:{number:064x}"
        world.queue.note(Confirmed(target, digest, content, PullAccess(), "flood"))
    assert (len(world.queue), LOOKS["dropped"].value) == (300, dropped + 2)
    world.queue.note(Confirmed(target_of(APP), f"sha256:{0:064x}", content, PullAccess(), "team"))
    assert len(world.queue) == 301


async def test_an_image_that_no_pod_asks_for_is_left_alone(world: Background) -> None:
    """Though it is known and unverified; it is looked into once it is used again."""
    world.resolver.report_confirmed(None)
    await world.look_up(APP, OTHER)
    world.resolver.report_confirmed(world.queue.note)
    world.advance(1000)
    await world.look_up(OTHER)
    await world.work_off()
    assert {path for _, path, _ in world.asked} == {"team/other"}


@pytest.mark.parametrize(
    ("name", "fault", "asked"),
    [(APP, RegistryThrottled("later", 5.0), 2), (APP, RegistryNotAsked("it ended"), 1), (ODD, None, 2)],
)
async def test_a_look_that_finds_nothing_out_denies_nothing(
    world: Background, name: str, fault: Exception | None, asked: int
) -> None:
    """It is not made again, but for one that was only too early, when the image is confirmed again."""
    for world.problem in (fault, fault and RegistryNotAsked("it ended")):
        await world.look_up(name)
        await world.work_off()
        world.advance(1000)
    assert len(world.asked) == asked
    assert (world.content(name).falsely_claimed, world.content(name).verified) == ((), frozenset())


async def test_an_image_by_digest_is_confirmed_until_it_is_verified(world: Background) -> None:
    """Such an image of the public would not be asked for again otherwise, and one of the store never be looked into."""
    digest = world.push("ghcr.io/team/pinned:1", "linux/amd64", "linux/arm64")
    name = f"ghcr.io/team/pinned@{digest}"
    world.resolver.report_confirmed(None)
    await world.look_up(name)
    world.advance(1000)
    requests = len(world.requests)
    await world.look_up(name)
    assert len(world.requests) == requests
    world.resolver.report_confirmed(world.queue.note)
    await world.look_up(name)
    assert len(world.requests) == requests + 1
    await world.work_off()
    assert world.content(name).verified == {AMD64, ARM64}
    world.advance(1000)
    await world.look_up(name)
    assert len(world.requests) == requests + 1
