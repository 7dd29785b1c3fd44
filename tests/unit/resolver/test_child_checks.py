"""Children of indexes that registries do not have, found out beside the lookups."""

from collections.abc import AsyncIterator

import pytest

from extender.errors import EndpointUnavailable, ManifestNotFound, RegistryThrottled, RegistryUnavailable
from extender.images.content import Content
from extender.images.manifest import OCI_MANIFEST, Image, Kind, PlatformEntry
from extender.images.platform import Platform, parse_platform
from extender.images.platform_states import PlatformState
from extender.images.reference import ImageReference, digest_of
from tests.unit.resolver.fake_registry import APP, REPOSITORY, World, make_resolver

AMD64, ARM64 = parse_platform("linux/amd64"), parse_platform("linux/arm64")


def child(text: str) -> str:
    return f"{REPOSITORY}@{digest_of(text.encode())}"


_CHILDREN = {child(text) for text in ("linux/amd64", "linux/arm64", "linux/s390x")}


class Children(World):
    """A registry of which a test says which children it has; `platforms` are the cluster's."""

    def __init__(self) -> None:
        super().__init__(cluster_platforms=lambda: self.platforms)
        self.platforms: frozenset[Platform] = frozenset({AMD64, ARM64})
        self.missing: set[str] = set()
        self.head_knows_none = False
        self.problem: Exception | None = None
        self.fault = self._fault
        self.push(APP, "linux/amd64", "linux/arm64", "linux/s390x")
        for platform in (AMD64, ARM64):
            self.add_child(str(platform), platform)

    def add_child(self, text: str, stated: Platform | None) -> None:
        """Serves a child whose configuration states a platform, or words that none has."""
        digest = digest_of(text.encode())
        entries = (PlatformEntry(stated, digest, 1),) if stated else ()
        self.add(REPOSITORY, Image(digest=digest, media_type=OCI_MANIFEST, kind=Kind.MANIFEST, entries=entries))

    def asked(self) -> set[tuple[str, str]]:
        return {(method, name) for method, name, _ in self.requests if name in _CHILDREN}

    async def looked_up(self) -> Content:
        await self.ask(revalidate=True)
        await self.resolver.child_checks.settle()
        answer = self.peek()
        assert isinstance(answer, Content)
        return answer

    def _fault(self, method: str, reference: ImageReference) -> Exception | None:
        name = str(reference)
        if name not in (child("linux/amd64"), child("linux/arm64")):
            return None
        if self.problem:
            return self.problem
        is_hidden = self.head_knows_none and method == "HEAD"
        return ManifestNotFound("no") if name in self.missing or is_hidden else None


@pytest.fixture
async def world() -> AsyncIterator[Children]:
    opened = Children()
    yield opened
    opened.open.set()
    await opened.resolver.close()


async def test_one_head_for_each_platform_of_the_cluster(world: Children) -> None:
    """None for s390x, of which it has no node, nor again for a known image; and none without a cluster."""
    content = await world.looked_up()
    assert content.falsely_claimed == ()
    assert world.asked() == {("HEAD", child("linux/amd64")), ("HEAD", child("linux/arm64"))}
    world.requests.clear()
    assert await world.looked_up() == content
    assert world.requests == []
    world.resolver, world.platforms = make_resolver(world, world.clock), frozenset()
    await world.looked_up()
    assert world.asked() == set()


async def test_an_image_is_known_to_lie_before_the_first_arm64_node_joins(world: Children) -> None:
    """Nobody asks again for an image that is known, so children for both usual platforms are asked for at once."""
    world.platforms = frozenset({AMD64})
    world.missing = {child("linux/arm64")}
    content = await world.looked_up()
    assert (content.state_of(ARM64), AMD64 in content.platforms) == (PlatformState.MISSING, True)
    assert world.resolver.counts()["missing"] == 1


@pytest.mark.parametrize(
    ("stated", "false"), [(ARM64, []), (AMD64, [(ARM64, "contradictory", "linux/amd64")]), (None, [])]
)
async def test_a_child_whose_configuration_was_read_is_compared(
    world: Children, stated: Platform | None, false: list[tuple[Platform, str, str]]
) -> None:
    """The GET that a 404 to a HEAD led to shows it; words that no platform has contradict nothing, as for runtimes."""
    world.head_knows_none = True
    world.add_child("linux/arm64", stated)
    content = await world.looked_up()
    assert [(each.platform, each.state, each.detail) for each in content.falsely_claimed] == false


@pytest.mark.parametrize(
    "fault", [RegistryUnavailable("down"), EndpointUnavailable("down"), RegistryThrottled("later", 5.0)]
)
async def test_what_cannot_be_found_out_stays_claimed(world: Children, fault: Exception) -> None:
    world.problem = fault
    assert (await world.looked_up()).falsely_claimed == ()


async def test_a_child_that_arrives_is_found_when_the_index_is_confirmed(world: Children) -> None:
    """A node of that platform is refused no longer than the tag is fresh."""
    world.missing = {child("linux/arm64")}
    assert (await world.looked_up()).falsely_claimed
    world.missing = set()
    world.advance(901)
    await world.looked_up()
    assert (await world.looked_up()).falsely_claimed == ()
    assert world.resolver.counts()["missing"] == 0


async def test_reading_the_index_again_does_not_make_a_missing_child_appear(world: Children) -> None:
    world.missing = {child("linux/arm64")}
    await world.looked_up()
    world.tag(f"{REPOSITORY}:2", APP)
    other = await world.ask(image=f"{REPOSITORY}:2")
    assert isinstance(other, Content)
    assert other.state_of(ARM64) is PlatformState.MISSING


async def test_checks_end_with_the_resolver(world: Children) -> None:
    """Even those that a registry does not answer."""
    await world.ask()
    world.open.clear()
    await world.resolver.close()
    await world.resolver.child_checks.settle()
