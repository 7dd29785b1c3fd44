"""What a lookup asks a registry, and how often."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from extender.credentials.keyring import Keyring
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
from extender.images.content import Cause, Failure
from extender.images.reference import digest_of
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import CALLER, OTHER, TENANT, FakeRegistry, index_of, keyring_of

APP = "ghcr.io/team/app:1"
PUBLIC = keyring_of()


async def resolve(resolver: Resolver, reference: str, keys: Keyring = PUBLIC) -> object:
    """The answer for one image, however long it takes."""
    return (await resolver.resolve_all([ImageQuery(reference)], keys, 60))[0]


async def test_a_tag_takes_one_head_and_one_get(resolver: Resolver, registry: FakeRegistry) -> None:
    """HEAD, which Docker Hub does not count, tells the digest; the content is fetched by that."""
    digest = registry.push(APP, "linux/amd64", "linux/arm64")
    assert await resolve(resolver, APP) == index_of("linux/amd64", "linux/arm64")
    assert registry.requests == [
        ("HEAD", "ghcr.io/team/app:1", "anonymous"),
        ("GET", f"ghcr.io/team/app@{digest}", "anonymous"),
    ]


async def test_without_head_first_a_tag_takes_one_get_while_it_was_never_known(
    registry: FakeRegistry, clock: Clock
) -> None:
    """A tag that was known is asked about by HEAD, which may save the GET."""
    resolver = Resolver(registry, size=1000, tag_seconds=900, stale_seconds=86_400, clock=clock, head_first=False)
    registry.push(APP, "linux/arm64")
    assert await resolve(resolver, APP) == index_of("linux/arm64")
    assert registry.requests == [("GET", APP, "anonymous")]
    clock.advance(1000)
    await resolver.resolve_all([ImageQuery(APP)], PUBLIC, 60, revalidate=True)
    assert registry.methods() == {"GET": 1, "HEAD": 1}
    await resolver.close()


async def test_a_digest_takes_one_get(resolver: Resolver, registry: FakeRegistry) -> None:
    """There is nothing that HEAD could tell."""
    digest = registry.push(APP, "linux/arm64")
    assert await resolve(resolver, f"ghcr.io/team/app@{digest}") == index_of("linux/arm64")
    assert registry.methods() == {"GET": 1}


async def test_a_tag_beside_a_digest_is_not_asked_for(resolver: Resolver, registry: FakeRegistry) -> None:
    """The kubelet pulls by the digest, so a tag that has moved on says nothing."""
    digest = registry.push(APP, "linux/arm64")
    registry.push(APP, "linux/amd64")
    assert await resolve(resolver, f"{APP}@{digest}") == index_of("linux/arm64")


async def test_where_head_tells_nothing_the_tag_is_fetched_once(resolver: Resolver, registry: FakeRegistry) -> None:
    """The body that came by tag is what the fetch by digest would bring, so that is not made."""
    registry.knows_head = False
    registry.push(APP, "linux/arm64")
    assert await resolve(resolver, APP) == index_of("linux/arm64")
    assert registry.requests[1:] == [("GET", APP, "anonymous")]


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
    assert await resolve(resolver, APP) == index_of("linux/arm64")
    assert registry.requests == [("HEAD", APP, "anonymous"), ("GET", APP, "anonymous")]


@pytest.mark.parametrize(
    "refusal", [RegistryThrottled("later", 5), RegistryUnreachable("no")], ids=lambda refusal: type(refusal).__name__
)
async def test_nobody_is_asked_again_who_does_not_answer(
    resolver: Resolver, registry: FakeRegistry, refusal: RegistryError
) -> None:
    """Or who asks us to come back later."""
    registry.push(APP, "linux/arm64")
    registry.fault = lambda *_: refusal
    assert isinstance(await resolve(resolver, APP), Failure)
    assert registry.methods() == {"HEAD": 1}


async def test_what_is_known_is_not_asked_for_again(resolver: Resolver, registry: FakeRegistry) -> None:
    """Neither by the same text nor by another that means the same."""
    registry.push("docker.io/library/debian:12", "linux/amd64")
    await resolve(resolver, "debian:12")
    registry.requests.clear()
    assert await resolve(resolver, "debian:12") == index_of("linux/amd64")
    assert await resolve(resolver, "docker.io/library/debian:12") == index_of("linux/amd64")
    assert resolver.peek(ImageQuery("index.docker.io/debian:12"), PUBLIC) == index_of("linux/amd64")
    assert registry.requests == []


async def test_a_second_tag_of_the_same_digest_takes_only_a_head(resolver: Resolver, registry: FakeRegistry) -> None:
    """`1`, `1.2` and `1.2.3` are one content, and one pull where pulls are counted."""
    registry.push(APP, "linux/arm64")
    registry.push("ghcr.io/team/app:1.2", "linux/arm64")
    await resolve(resolver, APP)
    assert await resolve(resolver, "ghcr.io/team/app:1.2") == index_of("linux/arm64")
    assert registry.methods() == {"HEAD": 2, "GET": 1}


async def test_another_repository_must_show_the_bytes_itself(resolver: Resolver, registry: FakeRegistry) -> None:
    """A repository that states a digest it does not have learns nothing of the image that has it."""
    digest = registry.push(APP, "linux/arm64")
    await resolve(resolver, APP)
    registry.push("ghcr.io/mallory/app:1", "linux/amd64")
    registry.stated["ghcr.io/mallory/app:1"] = digest
    assert await resolve(resolver, "ghcr.io/mallory/app:1") == index_of("linux/amd64")
    failure = await resolve(resolver, f"ghcr.io/mallory/app@{digest}")
    assert isinstance(failure, Failure)
    assert failure.cause is Cause.MISSING


@pytest.mark.parametrize("error", [ManifestNotFound("x"), InvalidManifest("x")], ids=["missing", "other-bytes"])
async def test_where_the_stated_digest_leads_nowhere_the_tag_decides(
    resolver: Resolver, registry: FakeRegistry, error: Exception
) -> None:
    """Some registries state wrong digests, and a tag may move between two requests."""
    registry.push(APP, "linux/arm64")
    wrong = registry.stated[APP] = digest_of(b"something else")
    registry.fault = lambda method, reference: error if reference.digest == wrong else None
    assert await resolve(resolver, APP) == index_of("linux/arm64")
    assert registry.requests[1:] == [
        ("GET", f"ghcr.io/team/app@{wrong}", "anonymous"),
        ("GET", APP, "anonymous"),
    ]


async def test_an_invalid_reference_costs_no_request(resolver: Resolver, registry: FakeRegistry) -> None:
    """Peek knows it at once, too."""
    failure = await resolve(resolver, "Not An Image")
    assert isinstance(failure, Failure)
    assert failure.cause is Cause.INVALID_REFERENCE
    assert resolver.peek(ImageQuery("Not An Image"), PUBLIC) == failure
    resolver.start(ImageQuery("Not An Image"), PUBLIC)
    assert resolver.counts()["in_flight"] == 0
    assert registry.requests == []


async def test_five_hundred_who_ask_at_once_share_one_get(resolver: Resolver, registry: FakeRegistry) -> None:
    """A rollout of 500 replicas is one lookup."""
    registry.push(APP, "linux/arm64")
    answers = await asyncio.gather(*(resolve(resolver, APP) for _ in range(500)))
    assert answers == [index_of("linux/arm64")] * 500
    assert registry.methods() == {"HEAD": 1, "GET": 1}


async def test_a_thousand_pods_over_a_hundred_images_cost_a_hundred_gets(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """As many as there are images, however the pods are mixed."""
    images = [f"ghcr.io/team/app-{number}:1" for number in range(100)]
    for number, image in enumerate(images):
        registry.push(image, "linux/arm64", f"linux/made-up-{number}")
    pods = [[ImageQuery(images[number % 100]), ImageQuery(images[number * 7 % 100])] for number in range(1000)]
    await asyncio.gather(*(resolver.resolve_all(pod, PUBLIC, 60) for pod in pods))
    assert registry.methods() == {"HEAD": 100, "GET": 100}


async def test_tags_and_keyrings_that_meet_in_one_digest_share_its_get(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """Lookups that differ in tag or in further credentials are several flights up to the digest, and one from there."""
    for tag in ("1", "1.2", "latest"):
        registry.push(f"ghcr.io/team/app:{tag}", "linux/arm64")
    registry.readers["ghcr.io/team/app"] = {"anonymous"}
    registry.open.clear()
    calls = [
        asyncio.create_task(resolve(resolver, f"ghcr.io/team/app:{tag}", keys))
        for tag in ("1", "1.2", "latest")
        for keys in (PUBLIC, keyring_of(TENANT), keyring_of(OTHER))
    ]
    await registry.visited.wait()
    registry.open.set()
    assert await asyncio.gather(*calls) == [index_of("linux/arm64")] * 9
    assert registry.count("GET", user="anonymous") == 1


async def test_cancelling_the_first_waiter_changes_nothing(resolver: Resolver, registry: FakeRegistry) -> None:
    """Nor cancelling all of them: the flight lands, and its content is known afterwards."""
    registry.push(APP, "linux/arm64")
    registry.open.clear()
    callers = [asyncio.create_task(resolve(resolver, APP)) for _ in range(3)]
    await registry.visited.wait()
    callers[0].cancel()
    registry.open.set()
    assert await callers[1] == await callers[2] == index_of("linux/arm64")
    assert callers[0].cancelled()
    assert registry.methods() == {"HEAD": 1, "GET": 1}


async def test_a_flight_outlives_all_its_waiters(
    resolver: Resolver, registry: FakeRegistry, finished: Callable[[], Awaitable[None]]
) -> None:
    """The last to leave does not take the fetch along, in whichever request it is."""
    digest = registry.push(APP, "linux/arm64")
    stop = asyncio.Event()
    registry.open = stop
    caller = asyncio.create_task(resolve(resolver, f"ghcr.io/team/app@{digest}"))
    await registry.visited.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    stop.set()
    await finished()
    assert resolver.peek(ImageQuery(f"ghcr.io/team/app@{digest}"), PUBLIC) == index_of("linux/arm64")
    assert registry.methods() == {"GET": 1}


async def test_a_deadline_gives_none_and_the_lookup_goes_on(
    resolver: Resolver, registry: FakeRegistry, finished: Callable[[], Awaitable[None]]
) -> None:
    """Whoever comes back finds the answer; what is known is answered beside what is not."""
    registry.push(APP, "linux/arm64")
    registry.push("ghcr.io/team/known:1", "linux/amd64")
    await resolve(resolver, "ghcr.io/team/known:1")
    registry.open.clear()
    for wait_seconds in (0, 0.001):
        assert await resolver.resolve_all(
            [ImageQuery(APP), ImageQuery("ghcr.io/team/known:1")], PUBLIC, wait_seconds
        ) == [
            None,
            index_of("linux/amd64"),
        ]
    registry.open.set()
    await finished()
    assert resolver.peek(ImageQuery(APP), PUBLIC) == index_of("linux/arm64")
    assert registry.count("GET", APP) == 0
    assert registry.methods() == {"HEAD": 2, "GET": 2}


async def test_peek_starts_nothing_and_start_waits_for_nothing(
    resolver: Resolver, registry: FakeRegistry, finished: Callable[[], Awaitable[None]]
) -> None:
    """Prioritize and preempt only look; the watch on pending pods only starts."""
    registry.push(APP, "linux/arm64")
    assert resolver.peek(ImageQuery(APP), PUBLIC) is None
    assert resolver.counts()["in_flight"] == 0
    resolver.start(ImageQuery(APP), PUBLIC)
    resolver.start(ImageQuery(APP), PUBLIC)
    assert resolver.counts()["in_flight"] == 1
    await finished()
    assert resolver.peek(ImageQuery(APP), PUBLIC) == index_of("linux/arm64")
    resolver.start(ImageQuery(APP), PUBLIC)
    assert resolver.counts()["in_flight"] == 0
    assert registry.methods() == {"HEAD": 1, "GET": 1}


async def test_no_request_sees_the_context_of_whoever_asked_first(resolver: Resolver, registry: FakeRegistry) -> None:
    """The work is done for all who wait, under nobody's trace id."""
    registry.push(APP, "linux/arm64")
    CALLER.set("the first")
    await resolve(resolver, APP)
    assert registry.callers == {"nobody"}


async def test_many_hosts_at_once_are_each_asked_once(resolver: Resolver, registry: FakeRegistry) -> None:
    """256 lookups may ask at one moment, the others queue, and none is dropped or repeated on the way."""
    images = [f"registry-{number % 60}.example.com/app-{number}:1" for number in range(900)]
    for image in images:
        registry.push(image, "linux/arm64")
    registry.open.clear()
    await resolver.resolve_all([ImageQuery(image) for image in images], PUBLIC, 0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(registry.requests) == 256
    registry.open.set()
    answers = await resolver.resolve_all([ImageQuery(image) for image in images], PUBLIC, 60)
    assert answers == [index_of("linux/arm64")] * 900
    assert registry.methods() == {"HEAD": 900, "GET": 900}


async def test_closing_ends_lookups_under_way_and_memory_answers_on(resolver: Resolver, registry: FakeRegistry) -> None:
    """Who waits gets what is known; nothing is asked any more."""
    registry.push(APP, "linux/arm64")
    registry.push("ghcr.io/team/known:1", "linux/amd64")
    await resolve(resolver, "ghcr.io/team/known:1")
    registry.open.clear()
    registry.visited.clear()
    caller = asyncio.create_task(resolve(resolver, APP))
    describer = asyncio.create_task(resolver.describe(APP, PUBLIC))
    await registry.visited.wait()
    await resolver.close()
    assert await caller is None
    ended = await describer
    assert isinstance(ended, Failure)
    assert ended.cause is Cause.LOOKING_UP
    assert resolver.is_closed
    requests = list(registry.requests)
    assert await resolve(resolver, APP) is None
    assert await resolve(resolver, "ghcr.io/team/known:1") == index_of("linux/amd64")
    assert isinstance(await resolver.describe("ghcr.io/team/known:1", PUBLIC), Failure)
    assert registry.requests == requests
