"""Which credentials are tried, and who learns what."""

import asyncio

import pytest

from extender.credentials.keyring import Keyring
from extender.errors import RegistryDenied
from extender.images.content import Answer, Cause, Failure
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import OTHER, TENANT, FakeRegistry, index_of, keyring_of

APP = "ghcr.io/team/app:1"
REPOSITORY = "ghcr.io/team/app"
LOOKUP = ImageQuery(APP)
CONTENT = index_of("linux/arm64")


async def ask(resolver: Resolver, keys: Keyring, lookup: ImageQuery = LOOKUP, **options: bool) -> Answer:
    return (await resolver.resolve_all([lookup], keys, 60, **options))[0]


def cause_of(answer: Answer) -> Cause | None:
    return answer.cause if isinstance(answer, Failure) else None


@pytest.fixture
def digest(registry: FakeRegistry) -> str:
    """A private image that only the tenant may read."""
    registry.readers[REPOSITORY] = {"tenant"}
    return registry.push(APP, "linux/arm64")


@pytest.mark.usefixtures("digest")
async def test_denied_to_all_is_denied(resolver: Resolver, registry: FakeRegistry) -> None:
    """And remembered, so that the next pod with the same credentials costs no request."""
    keys = keyring_of(OTHER)
    assert cause_of(await ask(resolver, keys)) is Cause.DENIED
    assert cause_of(await ask(resolver, keys)) is Cause.DENIED
    assert cause_of(resolver.peek(LOOKUP, keys)) is Cause.DENIED
    assert registry.methods() == {"HEAD": 2, "GET": 2}


@pytest.mark.usefixtures("digest")
async def test_tenants_who_ask_at_the_same_time_each_get_their_own_answer(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """A flight is shared only among those who present the same credentials."""
    registry.open.clear()
    both = [asyncio.create_task(ask(resolver, keys)) for keys in (keyring_of(TENANT), keyring_of(OTHER))]
    await registry.visited.wait()
    registry.open.set()
    allowed, denied = await asyncio.gather(*both)
    assert allowed == CONTENT
    assert cause_of(denied) is Cause.DENIED


async def test_a_second_scope_proves_itself_with_one_head(
    resolver: Resolver, registry: FakeRegistry, digest: str
) -> None:
    """By tag and by digest alike; the content it then shares."""
    registry.readers[REPOSITORY] = {"tenant", "other"}
    by_digest = ImageQuery(f"{REPOSITORY}@{digest}")
    for lookup in (LOOKUP, by_digest):
        await ask(resolver, keyring_of(TENANT), lookup)
    registry.requests.clear()
    assert await ask(resolver, keyring_of(OTHER)) == CONTENT
    assert await ask(resolver, keyring_of(OTHER), by_digest) == CONTENT
    assert registry.requests == [("HEAD", APP, "other"), ("HEAD", f"{REPOSITORY}@{digest}", "other")]


async def test_a_digest_known_to_others_is_denied_to_who_may_not_read_it(
    resolver: Resolver, registry: FakeRegistry, digest: str
) -> None:
    """Knowing the digest is no right to know what it runs on."""
    by_digest = ImageQuery(f"{REPOSITORY}@{digest}")
    assert await ask(resolver, keyring_of(TENANT), by_digest) == CONTENT
    assert cause_of(await ask(resolver, keyring_of(OTHER), by_digest)) is Cause.DENIED


async def test_a_digest_is_proven_by_get_where_there_is_no_head(
    resolver: Resolver, registry: FakeRegistry, digest: str
) -> None:
    """The remembered fetch proves nothing, so the registry is asked, and denies or not."""
    registry.knows_head = False
    registry.readers[REPOSITORY] = {"tenant", "other"}
    by_digest = ImageQuery(f"{REPOSITORY}@{digest}")
    assert await ask(resolver, keyring_of(TENANT), by_digest) == CONTENT
    assert await ask(resolver, keyring_of(OTHER), by_digest) == CONTENT
    assert registry.requests[-1] == ("GET", f"{REPOSITORY}@{digest}", "other")
    assert cause_of(await ask(resolver, keyring_of(), by_digest)) is Cause.DENIED


async def test_anonymous_facts_serve_everybody_who_lists_anonymous(resolver: Resolver, registry: FakeRegistry) -> None:
    """A public image is looked up once for all, whatever secrets pods carry besides."""
    registry.push(APP, "linux/arm64")
    assert await ask(resolver, keyring_of()) == CONTENT
    registry.requests.clear()
    assert await ask(resolver, keyring_of(TENANT)) == CONTENT
    assert resolver.peek(LOOKUP, keyring_of(OTHER)) == CONTENT
    assert registry.requests == []


async def test_one_tenant_s_failure_is_not_another_s(resolver: Resolver, registry: FakeRegistry, digest: str) -> None:
    """A wrong secret asked first does not spoil the right one."""
    assert cause_of(await ask(resolver, keyring_of(OTHER))) is Cause.DENIED
    assert await ask(resolver, keyring_of(TENANT)) == CONTENT
    assert cause_of(resolver.peek(LOOKUP, keyring_of(OTHER))) is Cause.DENIED


@pytest.mark.usefixtures("digest")
async def test_a_denial_has_the_credential_s_other_tags_of_the_repository_confirmed(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """They serve until the registry denies them as well; for other credentials they stay fresh."""
    registry.push("ghcr.io/team/app:2", "linux/arm64")
    registry.readers[REPOSITORY] = {"tenant", "other"}
    second = ImageQuery("ghcr.io/team/app:2")
    for keys in (keyring_of(TENANT), keyring_of(OTHER)):
        await resolver.resolve_all([LOOKUP, second], keys, 60)
    registry.readers[REPOSITORY] = {"other"}
    clock.advance(100)
    often = ImageQuery(APP, always=True)
    assert cause_of(await ask(resolver, keyring_of(TENANT), often, revalidate=True)) is Cause.DENIED
    assert resolver.cache.fresh([second], keyring_of(OTHER)) == [CONTENT]
    assert resolver.cache.fresh([second], keyring_of(TENANT)) is None
    assert resolver.peek(second, keyring_of(TENANT)) == CONTENT
    assert cause_of(await ask(resolver, keyring_of(TENANT), second, revalidate=True)) is Cause.DENIED
    assert cause_of(resolver.peek(second, keyring_of(TENANT))) is Cause.DENIED


async def test_one_denied_tag_leaves_the_others_of_its_repository(
    resolver: Resolver, registry: FakeRegistry, clock: Clock
) -> None:
    """A registry may deny a single tag, by a rule of its own."""
    registry.push("ghcr.io/team/app:2", "linux/arm64")
    second = ImageQuery("ghcr.io/team/app:2")
    await ask(resolver, keyring_of(), second)
    clock.advance(100)
    registry.fault = lambda _method, reference: RegistryDenied("403") if reference.tag == "1" else None
    assert cause_of(await ask(resolver, keyring_of())) is Cause.DENIED
    assert await ask(resolver, keyring_of(), second, revalidate=True) == CONTENT
    assert resolver.cache.fresh([second], keyring_of()) == [CONTENT]


async def test_after_a_denial_a_remembered_fetch_is_no_way_around_the_registry(
    resolver: Resolver, registry: FakeRegistry, digest: str, clock: Clock
) -> None:
    """Access to a digest must be proven anew even where its content is still at hand."""
    by_digest = ImageQuery(f"{REPOSITORY}@{digest}")
    assert await ask(resolver, keyring_of(TENANT), by_digest) == CONTENT
    registry.readers[REPOSITORY] = set()
    clock.advance(60)
    assert cause_of(await ask(resolver, keyring_of(TENANT))) is Cause.DENIED
    assert cause_of(await ask(resolver, keyring_of(TENANT), by_digest, revalidate=True)) is Cause.DENIED
    registry.readers[REPOSITORY] = {"tenant"}
    clock.advance(300)
    assert await ask(resolver, keyring_of(TENANT), by_digest) == CONTENT
    assert registry.count("GET", user="tenant") == 3


async def test_a_remembered_fetch_is_no_proof_even_when_the_tables_forgot(
    registry: FakeRegistry, digest: str, clock: Clock
) -> None:
    """The short-term memory of fetches may outlast the tables' rows."""
    resolver = Resolver(registry, size=1, tag_seconds=900, stale_seconds=86_400, clock=clock)
    by_digest = ImageQuery(f"{REPOSITORY}@{digest}")
    registry.push("ghcr.io/team/filler:1", "linux/amd64")
    assert await ask(resolver, keyring_of(TENANT), by_digest) == CONTENT
    await ask(resolver, keyring_of(), ImageQuery("ghcr.io/team/filler:1"))
    assert resolver.peek(by_digest, keyring_of(TENANT)) is None
    registry.readers[REPOSITORY] = set()
    assert cause_of(await ask(resolver, keyring_of(TENANT), by_digest)) is Cause.DENIED
    await resolver.close()
