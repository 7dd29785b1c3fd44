"""Children of indexes that registries do not have, found out beside the lookups."""

from collections.abc import AsyncIterator

import pytest

from extender.errors import EndpointUnavailable, ManifestNotFound, RegistryThrottled, RegistryUnavailable
from extender.images.content import Content
from extender.images.manifest import OCI_MANIFEST, Image, Kind, PlatformEntry
from extender.images.platform import Platform, parse_platform
from extender.images.platform_states import PlatformState
from extender.images.reference import ImageReference, digest_of
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import APP, FakeRegistry, ask, make_resolver, peek

AMD64, ARM64 = parse_platform("linux/amd64"), parse_platform("linux/arm64")


def child(text: str) -> str:
    return f"ghcr.io/team/app@{digest_of(text.encode())}"


_CHILDREN = {child(text) for text in ("linux/amd64", "linux/arm64", "linux/s390x")}


class Children:
    """A registry of which a test says which children it has; `platforms` are the cluster's."""

    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        self.platforms = frozenset({AMD64, ARM64})
        self.missing: set[str] = set()
        self.head_knows_none = False
        self.config: Platform | None = None
        self.fault: Exception | None = None
        registry.fault = self._fault
        registry.push(APP, "linux/amd64", "linux/arm64", "linux/s390x")
        for text in ("linux/amd64", "linux/arm64"):
            self.add(text, parse_platform(text))

    def add(self, text: str, stated: Platform | None) -> None:
        """Serves a child whose configuration states a platform, or words that none has."""
        digest = digest_of(text.encode())
        entries = (PlatformEntry(stated, digest, 1),) if stated else ()
        image = Image(digest=digest, media_type=OCI_MANIFEST, kind=Kind.MANIFEST, entries=entries)
        self.registry.add("ghcr.io/team/app", image)

    def asked(self) -> set[tuple[str, str]]:
        return {(method, name) for method, name, _ in self.registry.requests if name in _CHILDREN}

    def _fault(self, method: str, reference: ImageReference) -> Exception | None:
        name = str(reference)
        if name not in (child("linux/amd64"), child("linux/arm64")):
            return None
        if self.fault:
            return self.fault
        is_hidden = self.head_knows_none and method == "HEAD"
        return ManifestNotFound("no") if name in self.missing or is_hidden else None


@pytest.fixture
def children(registry: FakeRegistry) -> Children:
    return Children(registry)


@pytest.fixture
async def resolver(registry: FakeRegistry, clock: Clock, children: Children) -> AsyncIterator[Resolver]:
    resolver = make_resolver(registry, clock, cluster_platforms=lambda: children.platforms)
    yield resolver
    await resolver.close()


async def looked_up(resolver: Resolver) -> Content:
    await ask(resolver, revalidate=True)
    await resolver.child_checks.settle()
    answer = peek(resolver)
    assert isinstance(answer, Content)
    return answer


async def test_one_head_for_each_platform_of_the_cluster(resolver: Resolver, children: Children) -> None:
    """And none for s390x, of which the cluster has no node; nor again for an image that is known."""
    content = await looked_up(resolver)
    assert content.falsely_claimed == ()
    assert children.asked() == {("HEAD", child("linux/amd64")), ("HEAD", child("linux/arm64"))}
    before = len(children.registry.requests)
    assert await looked_up(resolver) == content
    assert len(children.registry.requests) == before


async def test_an_image_is_known_to_lie_before_the_first_arm64_node_joins(
    resolver: Resolver, children: Children
) -> None:
    """Nobody asks again for an image that is known, so children for both usual platforms are asked for at once."""
    children.platforms = frozenset({AMD64})
    children.missing = {child("linux/arm64")}
    content = await looked_up(resolver)
    assert (content.state_of(ARM64), AMD64 in content.platforms) == (PlatformState.MISSING, True)
    assert resolver.counts()["missing"] == 1


async def test_without_a_cluster_nothing_is_checked(resolver: Resolver, children: Children) -> None:
    """Nobody knows which platforms matter."""
    children.platforms = frozenset()
    await looked_up(resolver)
    assert children.asked() == set()


async def test_a_child_that_only_head_does_not_know_is_there(resolver: Resolver, children: Children) -> None:
    """Some caches answer HEAD from what they hold alone."""
    children.head_knows_none = True
    assert (await looked_up(resolver)).falsely_claimed == ()


@pytest.mark.parametrize(("stated", "false"), [(AMD64, [(ARM64, "contradictory", "linux/amd64")]), (None, [])])
async def test_a_child_whose_configuration_was_read_is_compared(
    resolver: Resolver, children: Children, stated: Platform | None, false: list[tuple[Platform, str, str]]
) -> None:
    """The GET that a 404 led to shows it; words that no platform has contradict nothing, as runtimes ignore them."""
    children.head_knows_none = True
    children.add("linux/arm64", stated)
    content = await looked_up(resolver)
    assert [(each.platform, each.state, each.detail) for each in content.falsely_claimed] == false


@pytest.mark.parametrize(
    "fault", [RegistryUnavailable("down"), EndpointUnavailable("down"), RegistryThrottled("later", 5.0)]
)
async def test_what_cannot_be_found_out_stays_claimed(resolver: Resolver, children: Children, fault: Exception) -> None:
    """A registry that fails denies nothing."""
    children.fault = fault
    assert (await looked_up(resolver)).falsely_claimed == ()


async def test_a_child_that_arrives_is_found_when_the_index_is_confirmed(
    resolver: Resolver, children: Children, clock: Clock
) -> None:
    """A node of that platform is refused no longer than the tag is fresh."""
    children.missing = {child("linux/arm64")}
    assert (await looked_up(resolver)).falsely_claimed
    children.missing = set()
    clock.advance(901)
    await looked_up(resolver)
    assert (await looked_up(resolver)).falsely_claimed == ()
    assert resolver.counts()["missing"] == 0


async def test_reading_the_index_again_does_not_make_a_missing_child_appear(
    resolver: Resolver, children: Children, registry: FakeRegistry
) -> None:
    """Another name of the same digest has the same content."""
    children.missing = {child("linux/arm64")}
    await looked_up(resolver)
    registry.tag("ghcr.io/team/app:2", APP)
    other = await ask(resolver, image="ghcr.io/team/app:2")
    assert isinstance(other, Content)
    assert other.state_of(ARM64) is PlatformState.MISSING


async def test_checks_end_with_the_resolver(resolver: Resolver, registry: FakeRegistry) -> None:
    """Even those that a registry does not answer."""
    await ask(resolver)
    registry.open.clear()
    await resolver.close()
    await resolver.child_checks.settle()
