"""Where an answer comes from: digest, credential and age, without a request."""

from extender.images.content import Cause, Evidence, Failure
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import TENANT, FakeRegistry, index_of, keyring_of

APP = "ghcr.io/team/app:1"
PUBLIC = keyring_of()


async def test_an_answer_has_its_digest_credential_and_age(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """It is fresh, then stale; nothing is asked for it."""
    digest = registry.push(APP, "linux/amd64")
    await resolver.resolve_all([ImageQuery(APP)], PUBLIC, 60)
    requests = registry.count("HEAD") + registry.count("GET")
    clock.now += 5
    found = resolver.evidence(ImageQuery(APP), PUBLIC)
    assert found == Evidence(
        answer=index_of("linux/amd64"), digest=digest, credential="anonymous", age_seconds=5, is_fresh=True
    )
    clock.now += 10_000
    assert not resolver.evidence(ImageQuery(APP), PUBLIC).is_fresh
    assert registry.count("HEAD") + registry.count("GET") == requests


async def test_a_keyring_gets_no_other_s_evidence(resolver: Resolver, registry: FakeRegistry) -> None:
    """What one credential opened is nothing to another; whose it was is told without its content."""
    registry.push(APP, "linux/amd64")
    await resolver.resolve_all([ImageQuery(APP)], keyring_of(TENANT), 60)
    assert resolver.evidence(ImageQuery(APP), PUBLIC) == Evidence(answer=None)
    found = resolver.evidence(ImageQuery(APP), keyring_of(TENANT))
    assert found.credential == "login tenant"
    assert TENANT.password not in repr(found)


async def test_a_failure_has_no_evidence_but_itself(resolver: Resolver, registry: FakeRegistry) -> None:
    """Nor has a reference that is none."""
    await resolver.resolve_all([ImageQuery(APP)], PUBLIC, 60)
    failure = resolver.evidence(ImageQuery(APP), PUBLIC).answer
    assert isinstance(failure, Failure)
    assert failure.cause is Cause.MISSING
    invalid = resolver.evidence(ImageQuery("No Image"), PUBLIC).answer
    assert isinstance(invalid, Failure)
