"""Everything about one image."""

from extender.images.content import Cause, Failure
from extender.images.manifest import OCI_INDEX, Image, Kind
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import TENANT, FakeRegistry, index_of, keyring_of

APP = "ghcr.io/team/app:1"
PUBLIC = keyring_of()


async def test_an_image_is_described_by_the_lookup_that_finds_it(resolver: Resolver, registry: FakeRegistry) -> None:
    """One GET brings all details, and the service knows the image afterwards."""
    digest = registry.push(APP, "linux/amd64", "linux/arm64")
    image = await resolver.describe(APP, PUBLIC)
    assert isinstance(image, Image)
    assert (image.digest, image.media_type, image.kind) == (digest, OCI_INDEX, Kind.INDEX)
    assert [str(entry.platform) for entry in image.entries] == ["linux/amd64", "linux/arm64"]
    assert resolver.peek(ImageQuery(APP), PUBLIC) == index_of("linux/amd64", "linux/arm64")
    assert registry.methods() == {"GET": 1}


async def test_details_that_another_scope_fetched_are_fetched_again(resolver: Resolver, registry: FakeRegistry) -> None:
    """The tables hold the gist for all scopes, the details are each one's own."""
    registry.push(APP, "linux/arm64")
    await resolver.resolve_all([ImageQuery(APP)], keyring_of(TENANT), 60)
    image = await resolver.describe(APP, PUBLIC)
    assert isinstance(image, Image)
    assert registry.count("GET", user="anonymous") == 1


async def test_an_artifact_is_described_with_what_was_skipped(resolver: Resolver, registry: FakeRegistry) -> None:
    """It is an answer, not a failure."""
    registry.push(APP)
    image = await resolver.describe(APP, PUBLIC)
    assert isinstance(image, Image)
    assert image.kind is Kind.ARTIFACT


async def test_what_cannot_be_described_is_a_failure(resolver: Resolver, registry: FakeRegistry) -> None:
    """With the cause that the service would give, and no second request while it stands."""
    for _ in range(2):
        failure = await resolver.describe(APP, PUBLIC)
        assert isinstance(failure, Failure)
        assert failure.cause is Cause.MISSING
    assert registry.methods() == {"GET": 1}
    invalid = await resolver.describe("Not An Image", PUBLIC)
    assert isinstance(invalid, Failure)
    assert invalid.cause is Cause.INVALID_REFERENCE


async def test_a_description_is_never_stale(resolver: Resolver, registry: FakeRegistry, clock: Clock) -> None:
    """Whoever inspects an image wants to know what it is now."""
    registry.push(APP, "linux/amd64")
    await resolver.describe(APP, PUBLIC)
    clock.advance(1)
    digest = registry.push(APP, "linux/arm64")
    image = await resolver.describe(APP, PUBLIC)
    assert isinstance(image, Image)
    assert image.digest == digest
