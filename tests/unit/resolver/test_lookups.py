"""What a lookup asks a registry, how often, who waits for it, and what is counted."""

import asyncio
from collections.abc import Callable

import pytest

from extender import errors
from extender.credentials.keyring import Credential
from extender.images.content import Cause, Content, Evidence, Failure, content_of
from extender.images.failures import OVERDUE, OVERDUE_SECONDS
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.images.reference import digest_of
from extender.images.stated import NEVER_KNOWN, ImageRule, StatedImages
from extender.metrics import REGISTRY
from extender.resolver.image_cache import LOOKUPS, ImageQuery
from tests.unit.resolver.fake_registry import (
    APP,
    CALLER,
    OTHER,
    PUBLIC,
    REPOSITORY,
    TENANT,
    World,
    cause_of,
    index_of,
    keyring_of,
    make_resolver,
)

ARM64 = index_of("linux/arm64")
KNOWN = "ghcr.io/team/known:1"


async def test_a_new_name_takes_one_get_and_a_known_one_a_head(world: World) -> None:
    """A HEAD would save nothing where the GET follows anyway, and may save it where the digest is known."""
    world.push(APP, "linux/arm64")
    assert await world.ask() == ARM64
    assert world.requests == [("GET", APP, "anonymous")]
    world.advance(1000)
    await world.ask(revalidate=True)
    assert world.methods() == {"GET": 1, "HEAD": 1}


@pytest.mark.parametrize(
    ("refusal", "gets"),
    [(errors.ManifestNotFound("no"), 1), (errors.RegistryDenied("no"), 1), (errors.RegistryRefusedImage("no", 406), 1),
     (errors.RegistryFailed("no"), 1), (errors.RegistryUnavailable("it broke off"), 1),
     (errors.RegistryThrottled("later"), 0), (errors.RegistryUnreachable("no"), 0)],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
async def test_no_to_a_head_is_not_believed_before_a_get(
    world: World, refusal: errors.RegistryError, gets: int
) -> None:
    """Some registries know images by GET alone; one that has no connection or wants peace is not asked again."""
    world.push(APP, "linux/arm64")
    await world.ask()
    world.advance(900)
    world.requests.clear()
    world.fault = lambda method, _: refusal if method == "HEAD" else None
    assert await world.ask(revalidate=True) == ARM64
    assert world.resolver.evidence(ImageQuery(APP), PUBLIC).is_fresh == bool(gets)
    assert world.requests == [("HEAD", APP, "anonymous"), ("GET", APP, "anonymous")][: 1 + gets]


async def test_what_is_known_is_not_asked_for_again(world: World) -> None:
    """Neither by the same text nor by another that means the same."""
    world.push("docker.io/library/debian:12", "linux/arm64")
    for image in ("debian:12", "debian:12", "docker.io/library/debian:12"):
        assert await world.ask(image=image) == ARM64
    assert world.peek(image="index.docker.io/debian:12") == ARM64
    assert world.methods() == {"GET": 1}


@pytest.mark.parametrize(("registry", "methods"), [("docker.io", {"GET": 1, "HEAD": 1}), ("ghcr.io", {"GET": 2})])
async def test_another_tag_of_a_known_repository_takes_a_head_where_gets_are_counted(
    world: World, registry: str, methods: dict[str, int]
) -> None:
    """On Docker Hub, where it is often another name of a digest that is known, by whichever tag."""
    for tag, platform in (("1", "amd64"), ("2", "arm64"), ("latest", "amd64")):
        world.push(f"{registry}/team/app:{tag}", f"linux/{platform}")
    await world.ask(image=f"{registry}/team/app:1")
    assert await world.ask(image=f"{registry}/team/app:latest") == index_of("linux/amd64")
    assert world.methods() == methods
    assert await world.ask(image=f"{registry}/team/app:2") == ARM64


async def test_nothing_is_asked_about_an_image_of_which_the_operator_says_what_it_is(world: World) -> None:
    """Not in the background nor to confirm it, nor where it is to be described; its siblings are asked for."""
    other = "ghcr.io/team/app:2"
    for image in (APP, other, KNOWN):
        world.push(image, "linux/arm64")
    rules = [ImageRule(match=APP, platforms=("linux/amd64",)), ImageRule(match=KNOWN, platforms=())]
    world.resolver = make_resolver(world, world.clock, stated=StatedImages(rules))
    said = Content(Kind.STATED, frozenset({Platform("linux", "amd64")}), states_platforms=True)
    for image, answer in ((APP, said), (KNOWN, NEVER_KNOWN)):
        query = ImageQuery(image, always=True)
        world.resolver.start(query, PUBLIC)
        assert await world.ask(image=image, always=True, revalidate=True) == answer
        assert world.peek(image=image) == answer
        assert world.resolver.evidence(query, PUBLIC) == Evidence(answer=answer)
        await world.resolver.confirm_all([query], PUBLIC, 0, 60)
        described = await world.resolver.describe(image, PUBLIC)
        assert (described if isinstance(described, Failure) else content_of(described)) == answer
    assert await world.resolver.resolve_all([ImageQuery(APP), ImageQuery(other)], PUBLIC, 60) == [said, ARM64]
    assert world.requests == [("GET", other, "anonymous")]


async def test_another_repository_must_show_the_bytes_itself(world: World) -> None:
    """A repository that states a digest it does not have learns nothing of the image that has it."""
    digest = world.push(APP, "linux/arm64")
    await world.ask()
    world.push("ghcr.io/mallory/app:1", "linux/amd64")
    world.stated["ghcr.io/mallory/app:1"] = digest
    assert await world.ask(image="ghcr.io/mallory/app:1") == index_of("linux/amd64")
    assert cause_of(await world.ask(image=f"ghcr.io/mallory/app@{digest}")) is Cause.MISSING


@pytest.mark.parametrize(
    "error", [errors.ManifestNotFound("x"), errors.InvalidManifest("x")], ids=["missing", "other-bytes"]
)
async def test_where_the_stated_digest_leads_nowhere_the_tag_decides(world: World, error: Exception) -> None:
    """Some registries state wrong digests, and a tag may move between two requests."""
    world.push(APP, "linux/amd64")
    await world.ask()
    world.advance(900)
    world.requests.clear()
    world.push(APP, "linux/arm64")
    wrong = world.stated[APP] = digest_of(b"something else")
    world.fault = lambda method, reference: error if reference.digest == wrong else None
    assert await world.ask(revalidate=True) == ARM64
    assert [each[:2] for each in world.requests[1:]] == [("GET", f"{REPOSITORY}@{wrong}"), ("GET", APP)]


async def test_an_invalid_reference_costs_no_request(world: World) -> None:
    failure = await world.ask(image="Not An Image")
    assert cause_of(failure) is Cause.INVALID_REFERENCE
    assert world.peek(image="Not An Image") == failure
    world.resolver.start(ImageQuery("Not An Image"), PUBLIC)
    assert (world.resolver.counts()["in_flight"], world.requests) == (0, [])


async def test_a_flight_outlives_all_its_waiters(world: World) -> None:
    """Neither a caller that is cancelled nor a deadline takes the lookup along; what is known is answered beside it."""
    for image in (APP, KNOWN):
        world.push(image, "linux/arm64")
    await world.ask(image=KNOWN)
    world.open.clear()
    world.visited.clear()
    caller = asyncio.create_task(world.ask())
    await world.visited.wait()
    caller.cancel()
    for wait_seconds in (0, 0.001):
        queries = [ImageQuery(APP), ImageQuery(KNOWN)]
        assert await world.resolver.resolve_all(queries, PUBLIC, wait_seconds) == [None, ARM64]
    world.open.set()
    await world.finished()
    assert caller.cancelled()
    assert world.peek() == ARM64
    assert world.methods() == {"GET": 2}


async def test_peek_starts_nothing_and_start_waits_for_nothing(world: World) -> None:
    """Prioritize and preempt only look; the watch on pending pods only starts."""
    world.push(APP, "linux/arm64")
    assert world.peek() is None
    assert world.resolver.counts()["in_flight"] == 0
    for _ in range(2):
        world.resolver.start(ImageQuery(APP), PUBLIC)
        assert world.resolver.counts()["in_flight"] == 1
    await world.finished()
    world.resolver.start(ImageQuery(APP), PUBLIC)
    assert world.resolver.counts()["in_flight"] == 0
    assert world.methods() == {"GET": 1}


async def test_no_request_sees_the_context_of_whoever_asked_first(world: World) -> None:
    """The work is done for all who wait, under nobody's trace id."""
    world.push(APP, "linux/arm64")
    CALLER.set("the first")
    await world.ask()
    assert world.callers == {"nobody"}


async def test_many_hosts_at_once_are_each_asked_once(world: World) -> None:
    """256 lookups may ask at one moment, the others queue, and none is dropped or repeated on the way."""
    queries = [ImageQuery(f"registry-{number % 60}.example.com/app-{number}:1") for number in range(900)]
    for query in queries:
        world.push(query.reference, "linux/arm64")
    world.open.clear()
    await world.resolver.resolve_all(queries, PUBLIC, 0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(world.requests) == 256
    world.open.set()
    assert await world.resolver.resolve_all(queries, PUBLIC, 60) == [ARM64] * 900
    assert world.methods() == {"GET": 900}


async def test_closing_ends_lookups_under_way_and_memory_answers_on(world: World) -> None:
    for image in (APP, KNOWN):
        world.push(image, "linux/arm64")
    await world.ask(image=KNOWN)
    world.open.clear()
    world.visited.clear()
    caller, describer = asyncio.create_task(world.ask()), asyncio.create_task(world.resolver.describe(APP, PUBLIC))
    await world.visited.wait()
    await world.resolver.close()
    assert await caller is None
    assert cause_of(await describer) is Cause.LOOKING_UP
    requests = list(world.requests)
    assert await world.ask() is None
    assert await world.ask(image=KNOWN) == ARM64
    assert cause_of(await world.resolver.describe(KNOWN, PUBLIC)) is not None
    assert world.requests == requests


@pytest.fixture
def counted() -> Callable[[], dict[str, float]]:
    before = {result: count.value for result, count in LOOKUPS.items()}
    return lambda: {each: LOOKUPS[each].value - before[each] for each in before if LOOKUPS[each].value != before[each]}


NOTHING = dict.fromkeys(("known", "failed", "in_flight"), 0)


def images() -> dict[str, float | None]:
    return {state: REGISTRY.get_sample_value("multiarch_images", {"state": state}) for state in NOTHING}


async def test_every_answer_counts_once(world: World, counted: Callable[[], dict[str, float]]) -> None:
    """By what answered: a lookup of its own, one under way, memory fresh or stale, or a failure that stands."""
    world.push(APP, "linux/arm64")
    await asyncio.gather(*(world.ask() for _ in range(3)))
    assert counted() == {"fetched": 1, "shared": 2}
    await world.resolver.resolve_all([ImageQuery(APP)] * 2, PUBLIC, 60)
    world.peek()
    assert counted() == {"fetched": 1, "shared": 2, "hit": 3}
    world.advance(900)
    await world.ask(wait_seconds=0)
    world.peek()
    await world.finished()
    assert counted() == {"fetched": 2, "shared": 2, "hit": 3, "stale": 2}
    for _ in range(2):
        await world.ask(image="ghcr.io/team/missing:1")
    assert counted() == {"fetched": 2, "shared": 2, "hit": 3, "stale": 2, "error": 1, "negative": 1}


async def test_a_lookup_s_duration_is_measured_from_start_to_end(world: World) -> None:
    before = REGISTRY.get_sample_value("multiarch_lookup_duration_seconds_sum") or 0.0
    world.push(APP, "linux/arm64")
    world.open.clear()
    caller = asyncio.create_task(world.ask())
    await world.visited.wait()
    world.advance(3)
    world.open.set()
    await caller
    assert REGISTRY.get_sample_value("multiarch_lookup_duration_seconds_sum") == before + 3


@pytest.mark.parametrize(
    ("image", "credentials", "tenants", "seconds"),
    [
        pytest.param("evil.example/team/app:1", (), (), 0, id="any-registry"),
        pytest.param("evil.example/team/app:1", (), (TENANT,), 0, id="any-registry-with-a-pull-secret"),
        pytest.param("docker.io/team/app:1", (), (TENANT,), 0, id="docker-hub-with-a-pull-secret"),
        pytest.param("docker.io/team/app:1", (), (), 90, id="docker-hub"),
        pytest.param("ghcr.io/team/app:1", (OTHER,), (), 90, id="the-operators-login"),
        pytest.param("ghcr.io/team/app:1", (OTHER,), (TENANT,), 0, id="a-pull-secret-beside-it"),
    ],
)
async def test_throttling_shows_if_it_is_the_operators(
    world: World, image: str, credentials: tuple[Credential, ...], tenants: tuple[Credential, ...], seconds: float
) -> None:
    """Whoever writes a pod may name registries and logins that are throttled for ever, and raises no alert by that."""
    world.fault = lambda method, reference: errors.RegistryThrottled("later", 90.0)
    world.use_operator_logins(dict.fromkeys(["ghcr.io"] * len(credentials), ("other", "secret")))
    keyring = keyring_of(*tenants, tenant="team", operator=lambda: world.operator_id)
    await world.ask(keyring, image)
    assert REGISTRY.get_sample_value("multiarch_registry_throttled_seconds") == seconds
    world.advance(90)
    assert REGISTRY.get_sample_value("multiarch_registry_throttled_seconds") == 0


async def test_images_are_counted_by_state_when_they_are_asked_for(world: World) -> None:
    """Known digests, failed names, lookups in flight; all zero when the resolver has gone."""
    world.push(APP, "linux/arm64")
    await world.resolver.resolve_all([ImageQuery(APP), ImageQuery("ghcr.io/team/missing:1")], PUBLIC, 60)
    world.open.clear()
    await world.ask(image="ghcr.io/team/slow:1", wait_seconds=0)
    assert images() == world.resolver.counts() == NOTHING | {"known": 1, "failed": 1, "in_flight": 1}
    await world.resolver.close()
    assert images() == NOTHING


async def test_lookups_beyond_the_bound_stay_pending_and_count_as_refused(
    world: World, counted: Callable[[], dict[str, float]]
) -> None:
    """They are looked up when they are asked for again and there is room."""
    images = [ImageQuery(f"ghcr.io/team/app:{number}") for number in range(117)]
    for image in images:
        world.push(image.reference, "linux/arm64")
    shop = keyring_of(tenant="shop")
    world.open.clear()
    assert await world.resolver.resolve_all(images, shop, 0) == [None] * 117
    assert world.resolver.counts()["in_flight"] == 116
    assert counted() == {"refused": 1}
    world.open.set()
    assert None not in await world.resolver.resolve_all(images[:116], shop, 60)
    assert None not in await world.resolver.resolve_all(images, shop, 60)
    await world.resolver.close()
    assert isinstance(await world.resolver.describe(images[0].reference, shop), Failure)
    assert counted()["refused"] == 2


async def test_a_lookup_that_takes_its_time_is_overdue_until_it_ends(world: World) -> None:
    """Callers that wait still wait for its end; what is known meanwhile beats it, and so does what it finds."""
    world.push(APP, "linux/arm64")
    world.open.clear()
    assert (await world.ask(wait_seconds=0), world.peek()) == (None, None)
    await world.visited.wait()
    world.advance(OVERDUE_SECONDS + 0.1)
    assert await world.ask(wait_seconds=0) == world.peek() == OVERDUE
    asking = asyncio.create_task(world.ask())
    await asyncio.sleep(0.01)
    assert not asking.done()
    world.open.set()
    assert await asking == world.peek() == ARM64
    world.open.clear()
    world.advance(1000)
    world.resolver.start(ImageQuery(APP), PUBLIC)
    world.advance(OVERDUE_SECONDS + 0.1)
    assert world.peek() == ARM64
    world.open.set()


async def test_a_pod_s_login_is_tried_where_the_public_is_throttled(world: World) -> None:
    """Though the public has opened the image before, so that no secret was read; without a login it is throttled."""
    world.push(APP, "linux/arm64")
    pods = keyring_of(TENANT)
    assert await world.ask() == ARM64
    throttled = errors.RegistryThrottled("later", 30.0)
    world.fault = lambda *_: throttled if world.requests[-1][2] == "anonymous" else None
    world.advance(86_401)
    assert cause_of(await world.ask()) is Cause.THROTTLED
    assert await world.ask(pods) == ARM64
    assert world.requests[-1][2] == "tenant"
