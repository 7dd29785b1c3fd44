"""A tenant that fills the resolver's tables does so at its own cost."""

import pytest

from extender.credentials.keyring import CredentialId
from extender.images.content import Cause, Failure
from extender.resolver.failures import Failures
from extender.resolver.image_cache import ImageQuery, References, Target
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import FakeRegistry, index_of, keyring_of

SIZE = 1_000  # of the fixture's tables, and of the failures too
BATCH = 100
A = CredentialId("a")


async def resolve(resolver: Resolver, tenant: str, references: list[str]) -> None:
    """Looks the images up for a pod of the tenant's namespace."""
    keyring = keyring_of(tenant=tenant)
    for first in range(0, len(references), BATCH):
        queries = [ImageQuery(reference) for reference in references[first : first + BATCH]]
        assert None not in await resolver.resolve_all(queries, keyring, 60)


async def test_images_of_one_tenant_outlast_a_flood_of_another(resolver: Resolver, registry: FakeRegistry) -> None:
    """An image of a quiet namespace is answered from memory, though its pods have not asked for it since."""
    honest = [f"ghcr.io/team/app:{number}" for number in range(SIZE // 3)]
    flood = [f"ghcr.io/flood/app-{number}:1" for number in range(2 * SIZE)]
    for reference in honest + flood:
        registry.push(reference, "linux/arm64")
    await resolve(resolver, "team", honest)
    await resolve(resolver, "flood", flood)
    registry.requests.clear()
    keyring = keyring_of(tenant="team")
    answers = resolver.peek_all([ImageQuery(reference) for reference in honest], keyring)
    assert answers == [index_of("linux/arm64")] * len(honest)
    assert registry.requests == []


async def test_failures_of_one_tenant_outlast_a_flood_of_another(resolver: Resolver, registry: FakeRegistry) -> None:
    """Otherwise images that are missing would be asked for at each request of theirs."""
    honest = [f"ghcr.io/team/missing:{number}" for number in range(SIZE // 3)]
    await resolve(resolver, "team", honest)
    await resolve(resolver, "flood", [f"ghcr.io/flood/missing-{number}:1" for number in range(2 * SIZE)])
    answers = resolver.peek_all([ImageQuery(reference) for reference in honest], keyring_of(tenant="team"))
    assert {answer.cause for answer in answers if isinstance(answer, Failure)} == {Cause.MISSING}
    assert len(answers) == len(honest)
    assert resolver.counts()["failed"] == SIZE


@pytest.mark.parametrize(("path", "tag", "rows"), [(40, 10, 100), (200, 2, 50), (250, 128, 25)])
def test_failures_of_long_names_are_fewer(path: int, tag: int, rows: int, clock: Clock) -> None:
    """A path may have 255 characters, and a tag 128."""
    failures, references = Failures(100, clock, lambda: 0.0), References(1)
    for number in range(100, 300):
        target = references.target_of(f"ghcr.io/{'p' * (path - 4)}/{number}:{'t' * tag}")
        assert isinstance(target, Target)
        failures.put(target, [A], Failure(Cause.MISSING, "x"))
    assert len(failures) == rows
