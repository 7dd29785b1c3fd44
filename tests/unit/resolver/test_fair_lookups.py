"""Honest tenants' images, while others' names and registries do what they can, in simulated time."""

import asyncio
import random
from collections.abc import Callable

import pytest

from extender import errors
from extender.credentials.keyring import Credential
from extender.images.content import Cause
from extender.images.manifest import OCI_INDEX, Image, Kind, PlatformEntry
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, digest_of
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.memory_network import run_in_memory
from tests.unit.resolver.fake_registry import LocalLooks, World, cause_of, index_of, keyring_of, make_resolver

SHARED = "shared.example.com"
ANSWER_SECONDS = 0.1
Outcome = Callable[[], Exception]

# What a tenant's names can make a registry do that it shares with others, and what its own can do besides.
ELSEWHERE: tuple[Outcome, ...] = (
    lambda: errors.ManifestNotFound("x"),
    lambda: errors.RegistryDenied("x"),
    lambda: errors.RegistryRefusedImage("x", 412),
    lambda: errors.RegistryFailed("5xx"),
    lambda: errors.RegistryUnavailable("a slow body"),
    lambda: errors.InvalidManifest("x"),
    lambda: errors.UnsupportedManifest("x"),
)
OWN: tuple[Outcome, ...] = (
    *ELSEWHERE,
    lambda: errors.RegistryThrottled("x", 60.0),
    lambda: errors.RegistryUnreachable("x"),
    lambda: errors.NameUnresolved("x"),
)


class Registries(LocalLooks):
    """Names with `good` are described soon; others fail, soon or when the caller's time is over."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.ended_at_shared = 0
        self.begun_after: dict[str, int] = {}  # how many requests had ended at the shared host
        self._chance = chance

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        raise AssertionError("a new name takes no HEAD")

    async def describe(self, reference: ImageReference, credential: Credential) -> Image:
        self.begun_after[str(reference)] = self.ended_at_shared
        try:
            if "good" in reference.path:
                await asyncio.sleep(ANSWER_SECONDS)
                return _IMAGE
            await asyncio.sleep(self._chance.choice([0.0, ANSWER_SECONDS, 3600.0]))  # or until the time is over
            fail = self._chance.choice(ELSEWHERE if reference.domain == SHARED else OWN)
            raise fail()
        finally:
            self.ended_at_shared += reference.domain == SHARED


_IMAGE = Image(
    digest=digest_of(b"x"),
    media_type=OCI_INDEX,
    kind=Kind.INDEX,
    entries=(PlatformEntry(parse_platform("linux/arm64"), digest_of(b"y"), 500),),
    states_platforms=True,
)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_others_do_an_image_at_a_host_that_answers_is_known_within_a_turn_of_each(seed: int) -> None:
    """Tenants fill the same host and hosts of their own with names that fail and hang, again and again."""
    chance = random.Random(seed)
    attackers = chance.choice([1, 3, 10, 20])

    async def attack(resolver: Resolver, tenant: str) -> None:
        keys = keyring_of(tenant=tenant)
        for number in range(3_000):
            host = chance.choice([SHARED, f"{tenant}-{number % 50}.example.com"])
            name = number if chance.random() < 0.9 else chance.randrange(10)
            resolver.start(ImageQuery(f"{host}/{tenant}/bad-{name}:1"), keys)
            if not number % 200:
                await asyncio.sleep(chance.random() * 3)

    async def ask_honestly(resolver: Resolver, registries: Registries) -> None:
        keys = keyring_of(tenant="honest")
        for number in range(12):
            await asyncio.sleep(chance.random() * 3)
            image = f"{SHARED}/honest/good-{number}:1"
            asked_after = registries.ended_at_shared
            (answer,) = await resolver.resolve_all([ImageQuery(image)], keys, 1e9)
            assert answer == index_of("linux/arm64")
            assert registries.begun_after[image] - asked_after <= attackers + 2

    async def run() -> None:
        registries, clock = Registries(chance), asyncio.get_running_loop().time
        resolver = make_resolver(registries, clock, size=100_000, random=chance.random)
        attacks = [asyncio.create_task(attack(resolver, f"mallory-{number}")) for number in range(attackers)]
        await ask_honestly(resolver, registries)
        for each in attacks:
            each.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
        await resolver.close()

    run_in_memory(lambda _: run())


@pytest.mark.parametrize("seed", range(4))
def test_no_answer_of_one_name_keeps_another_from_being_asked_for(seed: int) -> None:
    """Whoever it is that names them, and in whatever order they fail: each is asked for at once."""
    chance = random.Random(seed)

    async def run() -> None:
        registries, clock = Registries(chance), asyncio.get_running_loop().time
        resolver = make_resolver(registries, clock)
        for number in range(100):
            keys = keyring_of(tenant=chance.choice(["shop", "bank"]))
            image = f"{SHARED}/team-{number % 7}/bad-{number}:1"
            await resolver.resolve_all([ImageQuery(image)], keys, 1e9)
            assert image in registries.begun_after
        keys = keyring_of(tenant="shop")
        (answer,) = await resolver.resolve_all([ImageQuery(f"{SHARED}/team-1/good:1")], keys, 1e9)
        assert answer == index_of("linux/arm64")
        await resolver.close()

    run_in_memory(lambda _: run())


@pytest.mark.parametrize("exist", [True, False], ids=["images", "failures"])
async def test_what_is_known_for_one_tenant_outlasts_a_flood_of_another(world: World, exist: bool) -> None:
    """A quiet namespace is answered from memory, of images that are missing too, though nobody has asked since."""
    honest = [ImageQuery(f"ghcr.io/team/app:{number}") for number in range(333)]
    flood = [ImageQuery(f"ghcr.io/flood/app-{number}:1") for number in range(2000)]
    for query in (honest + flood) if exist else ():
        world.push(query.reference, "linux/arm64")
    for tenant, queries in (("team", honest), ("flood", flood)):
        for first in range(0, len(queries), 100):
            assert None not in await world.resolver.resolve_all(
                queries[first : first + 100], keyring_of(tenant=tenant), 60
            )
    for answer in world.resolver.peek_all(honest, keyring_of(tenant="team")):
        assert answer == index_of("linux/arm64") if exist else cause_of(answer) is Cause.MISSING
    assert world.resolver.counts()["known" if exist else "failed"] == 1000
