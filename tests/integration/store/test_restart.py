"""What a restart costs: nothing that the store has kept."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import RegistryUnavailable
from extender.images.content import Answer, Content
from extender.images.reference import ImageReference
from extender.resolver.image_cache import ImageQuery
from extender.resolver.persistence import Persistence, PersistenceLimits
from extender.resolver.resolver import Resolver
from extender.store.sqlite import SqliteStore
from testbed.eventually import eventually
from tests.unit.resolver.fake_registry import TENANT, FakeRegistry, WithLogins, make_resolver

IMAGES = 400
PLATFORMS = ["linux/amd64", "linux/arm64", "linux/s390x", "linux/ppc64le"]
LOOKUPS = [
    ImageQuery(f"ghcr.io/{'private' if number % 2 else 'public'}/app-{number // 10}:v{number}")
    for number in range(IMAGES)
]


class Matching(WithLogins):
    """A login that is for the private half only, as pull secrets are for some repositories."""

    def own_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return super().own_ids_for(reference) if reference.path.startswith("private/") else ()

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        return self.credentials if reference.path.startswith("private/") else ()


KEYS = Matching(TENANT)
NOW = 1_700_000_000.0

Start = Callable[..., Resolver]


@pytest.fixture
def registry() -> FakeRegistry:
    """Half of its images are public and half the tenant's alone; their platforms differ."""
    registry = FakeRegistry()
    for number, lookup in enumerate(LOOKUPS):
        registry.push(lookup.reference, *PLATFORMS[: 1 + number % 4])
        if number % 2:
            registry.readers[lookup.reference.rpartition(":")[0]] = {"tenant"}
    return registry


@pytest.fixture
async def start(registry: FakeRegistry, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts the resolver again over one file, with another monotonic clock each time."""
    running: list[Resolver] = []

    def start_it(*, private: bool = True, seconds_later: float = 0.0) -> Resolver:
        booted = 1000.0 * len(running)
        persistence = Persistence(
            SqliteStore(tmp_path / "images.sqlite", size=100_000),
            persist_private=private,
            clock=lambda: booted,
            wall_clock=lambda: NOW + seconds_later,
            limits=PersistenceLimits(read_seconds=60),
        )
        running.append(make_resolver(registry, lambda: booted, size=100_000, persistence=persistence))
        return running[-1]

    yield start_it
    for resolver in running:
        await resolver.close()


async def fill(start: Start, *, private: bool = True) -> list[Answer]:
    resolver = start(private=private)
    await resolver.load(60)
    answers = await resolver.resolve_all(LOOKUPS, KEYS, 60)
    assert all(isinstance(answer, Content) for answer in answers)
    await resolver.close()
    return answers


async def test_every_answer_is_as_before_with_the_registry_down(start: Start, registry: FakeRegistry) -> None:
    """Hundreds of images, private ones too, straight from memory and without a single request."""
    before = await fill(start)
    registry.requests.clear()
    registry.fault = lambda method, reference: RegistryUnavailable("the registry is down")
    resolver = start()
    await resolver.load(60)
    assert [resolver.peek(lookup, KEYS) for lookup in LOOKUPS] == before
    assert registry.requests == []


async def test_with_the_registry_up_a_restart_costs_no_get(start: Start, registry: FakeRegistry) -> None:
    """Hours later every tag is confirmed with a HEAD, which is free where GETs are counted."""
    before = await fill(start)
    registry.requests.clear()
    resolver = start(seconds_later=20 * 3600)
    await resolver.load(60)
    assert await resolver.resolve_all(LOOKUPS, KEYS, 60, revalidate=True) == before
    assert registry.methods() == {"HEAD": IMAGES}


async def test_without_a_key_file_the_public_half_survives(start: Start, registry: FakeRegistry) -> None:
    """Scopes of the private half mean nothing to the next process."""
    before = await fill(start, private=False)
    registry.requests.clear()
    resolver = start(private=False)
    await resolver.load(60)
    assert [resolver.peek(lookup, KEYS) for lookup in LOOKUPS] == [
        None if number % 2 else answer for number, answer in enumerate(before)
    ]
    assert await resolver.resolve_all(LOOKUPS, KEYS, 60) == before
    assert {reference.split("/")[1] for _, reference, _ in registry.requests} == {"private"}


async def test_rows_are_on_disk_soon_after_they_were_learned(start: Start, tmp_path: Path) -> None:
    await start().resolve_all(LOOKUPS[:10], KEYS, 60)
    store = SqliteStore(tmp_path / "images.sqlite", size=100_000)
    await eventually(lambda: store.get("ghcr.io/public/app-0", "v8", [ANONYMOUS.id]))
    await store.close()
