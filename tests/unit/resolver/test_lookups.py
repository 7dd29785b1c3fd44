"""What a lookup asks a registry, how often, and who waits for it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from extender.errors import (
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnreachable,
)
from extender.images.content import Cause
from extender.images.reference import digest_of
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import (
    APP,
    CALLER,
    OTHER,
    PUBLIC,
    REPOSITORY,
    TENANT,
    FakeRegistry,
    ask,
    cause_of,
    index_of,
    keyring_of,
    make_resolver,
    peek,
)

ARM64 = index_of("linux/arm64")
KNOWN = "ghcr.io/team/known:1"
Finished = Callable[[], Awaitable[None]]


async def test_a_tag_takes_one_head_and_one_get(resolver: Resolver, registry: FakeRegistry) -> None:
    """HEAD, which Docker Hub does not count, tells the digest; the content is fetched by that."""
    digest = registry.push(APP, "linux/amd64", "linux/arm64")
    assert await ask(resolver) == index_of("linux/amd64", "linux/arm64")
    assert registry.requests == [("HEAD", APP, "anonymous"), ("GET", f"{REPOSITORY}@{digest}", "anonymous")]


async def test_without_head_first_a_tag_takes_one_get_while_it_was_never_known(
    registry: FakeRegistry, clock: Clock
) -> None:
    """A tag that was known is asked about by HEAD, which may save the GET."""
    resolver = make_resolver(registry, clock, head_first=False)
    registry.push(APP, "linux/arm64")
    assert await ask(resolver) == ARM64
    assert registry.requests == [("GET", APP, "anonymous")]
    clock.advance(1000)
    await ask(resolver, revalidate=True)
    assert registry.methods() == {"GET": 1, "HEAD": 1}
    await resolver.close()


@pytest.mark.parametrize(
    "refusal",
    [ManifestNotFound("no"), RegistryDenied("no"), RegistryRefusedImage("no", 406), RegistryFailed("no")],
    ids=lambda refusal: type(refusal).__name__,
)
async def test_no_to_a_head_is_not_believed_before_a_get(
    resolver: Resolver, registry: FakeRegistry, refusal: RegistryError
) -> None:
    """Some registries know their images by GET alone, as nodes that ask by GET find out."""
    registry.push(APP, "linux/arm64")
    registry.fault = lambda method, _: refusal if method == "HEAD" else None
    assert await ask(resolver) == ARM64
    assert registry.requests == [("HEAD", APP, "anonymous"), ("GET", APP, "anonymous")]


@pytest.mark.parametrize("refusal", [RegistryThrottled("later", 5), RegistryUnreachable("no")], ids=str)
async def test_nobody_is_asked_again_who_does_not_answer(
    resolver: Resolver, registry: FakeRegistry, refusal: RegistryError
) -> None:
    """Or who asks us to come back later."""
    registry.push(APP, "linux/arm64")
    registry.fault = lambda *_: refusal
    assert cause_of(await ask(resolver)) is not None
    assert registry.methods() == {"HEAD": 1}


async def test_what_is_known_is_not_asked_for_again(resolver: Resolver, registry: FakeRegistry) -> None:
    """Neither by the same text nor by another that means the same; a second tag of the digest takes only a HEAD."""
    registry.push("docker.io/library/debian:12", "linux/arm64")
    registry.push("docker.io/library/debian:bookworm", "linux/arm64")
    for image in ("debian:12", "debian:12", "docker.io/library/debian:12"):
        assert await ask(resolver, image=image) == ARM64
    assert peek(resolver, image="index.docker.io/debian:12") == ARM64
    assert registry.methods() == {"HEAD": 1, "GET": 1}
    assert await ask(resolver, image="debian:bookworm") == ARM64
    assert registry.methods() == {"HEAD": 2, "GET": 1}


async def test_another_repository_must_show_the_bytes_itself(resolver: Resolver, registry: FakeRegistry) -> None:
    """A repository that states a digest it does not have learns nothing of the image that has it."""
    digest = registry.push(APP, "linux/arm64")
    await ask(resolver)
    registry.push("ghcr.io/mallory/app:1", "linux/amd64")
    registry.stated["ghcr.io/mallory/app:1"] = digest
    assert await ask(resolver, image="ghcr.io/mallory/app:1") == index_of("linux/amd64")
    assert cause_of(await ask(resolver, image=f"ghcr.io/mallory/app@{digest}")) is Cause.MISSING


@pytest.mark.parametrize("error", [ManifestNotFound("x"), InvalidManifest("x")], ids=["missing", "other-bytes"])
async def test_where_the_stated_digest_leads_nowhere_the_tag_decides(
    resolver: Resolver, registry: FakeRegistry, error: Exception
) -> None:
    """Some registries state wrong digests, and a tag may move between two requests."""
    registry.push(APP, "linux/arm64")
    wrong = registry.stated[APP] = digest_of(b"something else")
    registry.fault = lambda method, reference: error if reference.digest == wrong else None
    assert await ask(resolver) == ARM64
    assert [each[:2] for each in registry.requests[1:]] == [("GET", f"{REPOSITORY}@{wrong}"), ("GET", APP)]


async def test_an_invalid_reference_costs_no_request(resolver: Resolver, registry: FakeRegistry) -> None:
    """Peek knows it at once, too."""
    failure = await ask(resolver, image="Not An Image")
    assert cause_of(failure) is Cause.INVALID_REFERENCE
    assert peek(resolver, image="Not An Image") == failure
    resolver.start(ImageQuery("Not An Image"), PUBLIC)
    assert (resolver.counts()["in_flight"], registry.requests) == (0, [])


async def test_five_hundred_who_ask_at_once_share_one_get(resolver: Resolver, registry: FakeRegistry) -> None:
    """A rollout of 500 replicas is one lookup."""
    registry.push(APP, "linux/arm64")
    assert await asyncio.gather(*(ask(resolver) for _ in range(500))) == [ARM64] * 500
    assert registry.methods() == {"HEAD": 1, "GET": 1}


async def test_tags_and_keyrings_that_meet_in_one_digest_share_its_get(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """Lookups that differ in tag or in further credentials are several flights up to the digest, and one from there."""
    images = [f"{REPOSITORY}:{tag}" for tag in ("1", "1.2", "latest")]
    for image in images:
        registry.push(image, "linux/arm64")
    registry.readers[REPOSITORY] = {"anonymous"}
    registry.open.clear()
    keyrings = (PUBLIC, keyring_of(TENANT), keyring_of(OTHER))
    calls = [asyncio.create_task(ask(resolver, keys, image)) for image in images for keys in keyrings]
    await registry.visited.wait()
    registry.open.set()
    assert await asyncio.gather(*calls) == [ARM64] * 9
    assert registry.count("GET", user="anonymous") == 1


async def test_a_flight_outlives_all_its_waiters(
    resolver: Resolver, registry: FakeRegistry, finished: Finished
) -> None:
    """Neither a caller that is cancelled nor a deadline takes the lookup along; what is known is answered beside it."""
    for image in (APP, KNOWN):
        registry.push(image, "linux/arm64")
    await ask(resolver, image=KNOWN)
    registry.open.clear()
    registry.visited.clear()
    caller = asyncio.create_task(ask(resolver))
    await registry.visited.wait()
    caller.cancel()
    for wait_seconds in (0, 0.001):
        queries = [ImageQuery(APP), ImageQuery(KNOWN)]
        assert await resolver.resolve_all(queries, PUBLIC, wait_seconds) == [None, ARM64]
    registry.open.set()
    await finished()
    assert caller.cancelled()
    assert peek(resolver) == ARM64
    assert registry.methods() == {"HEAD": 2, "GET": 2}


async def test_peek_starts_nothing_and_start_waits_for_nothing(
    resolver: Resolver, registry: FakeRegistry, finished: Finished
) -> None:
    """Prioritize and preempt only look; the watch on pending pods only starts."""
    registry.push(APP, "linux/arm64")
    assert peek(resolver) is None
    assert resolver.counts()["in_flight"] == 0
    for _ in range(2):
        resolver.start(ImageQuery(APP), PUBLIC)
        assert resolver.counts()["in_flight"] == 1
    await finished()
    resolver.start(ImageQuery(APP), PUBLIC)
    assert resolver.counts()["in_flight"] == 0
    assert registry.methods() == {"HEAD": 1, "GET": 1}


async def test_no_request_sees_the_context_of_whoever_asked_first(resolver: Resolver, registry: FakeRegistry) -> None:
    """The work is done for all who wait, under nobody's trace id."""
    registry.push(APP, "linux/arm64")
    CALLER.set("the first")
    await ask(resolver)
    assert registry.callers == {"nobody"}


async def test_many_hosts_at_once_are_each_asked_once(resolver: Resolver, registry: FakeRegistry) -> None:
    """256 lookups may ask at one moment, the others queue, and none is dropped or repeated on the way."""
    queries = [ImageQuery(f"registry-{number % 60}.example.com/app-{number}:1") for number in range(900)]
    for query in queries:
        registry.push(query.reference, "linux/arm64")
    registry.open.clear()
    await resolver.resolve_all(queries, PUBLIC, 0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(registry.requests) == 256
    registry.open.set()
    assert await resolver.resolve_all(queries, PUBLIC, 60) == [ARM64] * 900
    assert registry.methods() == {"HEAD": 900, "GET": 900}


async def test_closing_ends_lookups_under_way_and_memory_answers_on(resolver: Resolver, registry: FakeRegistry) -> None:
    """Who waits gets what is known; nothing is asked any more."""
    for image in (APP, KNOWN):
        registry.push(image, "linux/arm64")
    await ask(resolver, image=KNOWN)
    registry.open.clear()
    registry.visited.clear()
    caller, describer = asyncio.create_task(ask(resolver)), asyncio.create_task(resolver.describe(APP, PUBLIC))
    await registry.visited.wait()
    await resolver.close()
    assert await caller is None
    assert cause_of(await describer) is Cause.LOOKING_UP
    requests = list(registry.requests)
    assert await ask(resolver) is None
    assert await ask(resolver, image=KNOWN) == ARM64
    assert cause_of(await resolver.describe(KNOWN, PUBLIC)) is not None
    assert registry.requests == requests
