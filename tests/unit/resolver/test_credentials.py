"""Which credentials are tried, who learns what, and credentials that have to be loaded first or may have changed."""

import asyncio

import pytest

from extender.credentials.keyring import Credential, CredentialId, Keyring
from extender.errors import InvalidManifest, RegistryDenied
from extender.images.content import Cause, Failure
from extender.images.reference import ImageReference
from extender.resolver.image_cache import ImageQuery
from extender.turns import NoTurn
from tests.unit.resolver.fake_registry import (
    APP,
    OTHER,
    PUBLIC,
    REPOSITORY,
    TENANT,
    World,
    cause_of,
    index_of,
    keyring_of,
)

SECOND = f"{REPOSITORY}:2"
CONTENT = index_of("linux/arm64")
OWN, FOREIGN = keyring_of(TENANT), keyring_of(OTHER)


class Loaded(Keyring):
    """A keyring whose logins come from elsewhere: `loads` counts how often, `open` lets loading go on.

    Once loaded it gives what it has until a denial, or until a test says that it is `due`.
    """

    def __init__(self, name: str, *elsewhere: Credential) -> None:
        super().__init__(tenant=name)
        self.logins: tuple[Credential, ...] = ()
        self.elsewhere = elsewhere
        self.due = True
        self.unread = False
        self.loads: list[bool] = []
        self.open = asyncio.Event()
        self.open.set()
        self.identity = name

    def own_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return tuple(login.id for login in self.logins)

    def is_due(self) -> bool:
        return self.due

    def is_unread(self) -> bool:
        return self.unread

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        self.loads.append(refresh)
        await self.open.wait()
        if self.due or refresh:
            self.logins = self.elsewhere
            self.due = False
        return self.logins


@pytest.fixture(autouse=True)
def digest(world: World) -> str:
    world.readers[REPOSITORY] = {"tenant"}
    return world.push(APP, "linux/arm64")


async def test_denied_to_all_is_denied_and_remembered(world: World) -> None:
    for _ in range(2):
        assert cause_of(await world.ask(FOREIGN)) is Cause.DENIED
    assert world.methods() == {"GET": 2}
    assert await world.ask(OWN) == CONTENT
    assert cause_of(world.peek(FOREIGN)) is Cause.DENIED


async def test_each_credential_proves_itself_with_one_head(world: World, digest: str) -> None:
    world.readers[REPOSITORY] = {"tenant", "other"}
    by_digest = f"{REPOSITORY}@{digest}"
    for image in (APP, by_digest):
        await world.ask(OWN, image)
    world.requests.clear()
    for image in (APP, by_digest):
        assert await world.ask(FOREIGN, image) == CONTENT
        assert cause_of(await world.ask(PUBLIC, image)) is Cause.DENIED
    assert [each for each in world.requests if each[2] == "other"] == [
        ("HEAD", APP, "other"),
        ("HEAD", by_digest, "other"),
    ]


async def test_a_digest_is_proven_by_get_where_there_is_no_head(world: World, digest: str) -> None:
    """The remembered fetch proves nothing, so the registry is asked, and denies or not."""
    world.knows_head = False
    world.readers[REPOSITORY] = {"tenant", "other"}
    image = f"{REPOSITORY}@{digest}"
    for keys in (OWN, FOREIGN):
        assert await world.ask(keys, image) == CONTENT
    assert world.requests[-1] == ("GET", image, "other")
    assert cause_of(await world.ask(PUBLIC, image)) is Cause.DENIED


async def test_what_is_public_or_opened_before_takes_no_loading_and_no_request(world: World) -> None:
    """A public image is looked up once for all; the same login in another namespace is the same credential."""
    await world.ask(Loaded("shop", TENANT))
    world.readers.clear()
    world.requests.clear()
    assert await world.ask(Loaded("bank", TENANT)) == CONTENT
    assert world.requests == []
    await world.ask()
    keys = Loaded("reader", OTHER)
    world.requests.clear()
    assert await world.ask(keys) == world.peek(FOREIGN) == CONTENT
    assert (keys.loads, world.requests) == ([], [])


async def test_a_denial_has_the_credential_s_other_tags_of_the_repository_confirmed(world: World) -> None:
    """They serve until the registry denies them as well; for other credentials they stay fresh."""
    world.push(SECOND, "linux/arm64")
    world.readers[REPOSITORY] = {"tenant", "other"}
    second = ImageQuery(SECOND)
    for keys in (OWN, FOREIGN):
        await world.resolver.resolve_all([ImageQuery(APP), second], keys, 60)
    world.readers[REPOSITORY] = {"other"}
    world.advance(100)
    assert cause_of(await world.ask(OWN, always=True, revalidate=True)) is Cause.DENIED
    assert world.resolver.cache.fresh([second], FOREIGN) == [CONTENT]
    assert world.resolver.cache.fresh([second], OWN) is None
    assert world.peek(OWN, SECOND) == CONTENT
    assert cause_of(await world.ask(OWN, SECOND, revalidate=True)) is Cause.DENIED
    assert cause_of(world.peek(OWN, SECOND)) is Cause.DENIED


async def test_one_denied_tag_leaves_the_others_of_its_repository(world: World) -> None:
    """A registry may deny a single tag, by a rule of its own."""
    world.readers.clear()
    world.push(SECOND, "linux/arm64")
    await world.ask(PUBLIC, SECOND)
    world.advance(100)
    world.fault = lambda _method, reference: RegistryDenied("403") if reference.tag == "1" else None
    assert cause_of(await world.ask()) is Cause.DENIED
    assert await world.ask(PUBLIC, SECOND, revalidate=True) == CONTENT
    assert world.resolver.cache.fresh([ImageQuery(SECOND)], PUBLIC) == [CONTENT]


async def test_after_a_denial_a_remembered_fetch_is_no_way_around_the_registry(world: World, digest: str) -> None:
    """Access to a digest must be proven anew even where its content is still at hand."""
    image = f"{REPOSITORY}@{digest}"
    assert await world.ask(OWN, image) == CONTENT
    world.readers[REPOSITORY] = set()
    world.advance(60)
    assert cause_of(await world.ask(OWN)) is Cause.DENIED
    assert cause_of(await world.ask(OWN, image, revalidate=True)) is Cause.DENIED
    world.readers[REPOSITORY] = {"tenant"}
    world.advance(300)
    assert await world.ask(OWN, image) == CONTENT
    assert world.count("GET", user="tenant") == 3


async def test_credentials_are_loaded_within_the_lookup(world: World) -> None:
    """Who asks and does not wait gets no answer yet, and starts the loading."""
    keys = Loaded("shop", TENANT)
    assert world.peek(keys) is None
    assert keys.loads == []
    keys.open.clear()
    assert await world.ask(keys, wait_seconds=0) is None
    keys.open.set()
    await world.finished()
    assert world.peek(keys) == CONTENT
    assert keys.loads == [False]


async def test_lookups_of_two_tenants_are_not_one_while_they_load(world: World) -> None:
    """Nothing of theirs is known to differ yet, and still neither may get the other's answer."""
    mine, theirs = Loaded("shop", TENANT), Loaded("bank", OTHER)
    for keys in (mine, theirs):
        keys.open.clear()
    tasks = [asyncio.create_task(world.ask(keys)) for keys in (mine, theirs)]
    await asyncio.sleep(0)
    for keys in (mine, theirs):
        keys.open.set()
    allowed, denied = await asyncio.gather(*tasks)
    assert allowed == CONTENT
    assert cause_of(denied) is Cause.DENIED


async def test_pods_alike_share_loading_and_lookup(world: World) -> None:
    """As many as there are; and tenants share what they ask alike, with secrets of their own for other registries."""
    keys = Loaded("shop", TENANT)
    assert await asyncio.gather(*(world.ask(keys) for _ in range(50))) == [CONTENT] * 50
    assert keys.loads == [False]
    world.readers.clear()
    tenants = [Loaded(f"tenant-{number}") for number in range(50)]
    assert await asyncio.gather(*(world.ask(keys) for keys in tenants)) == [CONTENT] * 50
    assert world.methods() == {"GET": 1, "HEAD": 1}


async def test_a_denial_loads_anew_and_tries_what_has_changed(world: World) -> None:
    """In the same lookup: a rotated secret costs one refused request."""
    keys = Loaded("shop", OTHER)
    keys.logins, keys.due, keys.elsewhere = (OTHER,), False, (TENANT,)
    assert await world.ask(keys) == CONTENT
    assert keys.loads == [False, True]
    assert world.count("GET", user="other") == 1


async def test_an_unresolved_image_is_looked_up_again_once_loading_is_due(world: World) -> None:
    """So a corrected secret is found although the failure still stands; an unchanged one costs no request."""
    keys = Loaded("shop", OTHER)
    for _ in range(2):
        assert cause_of(await world.ask(keys)) is Cause.DENIED
        assert (keys.loads, world.methods()) == ([False, True], {"GET": 2})
    keys.due = True
    assert cause_of(await world.ask(keys)) is Cause.DENIED
    assert world.methods() == {"GET": 2}
    keys.due, keys.elsewhere = True, (TENANT,)
    assert world.peek(keys) is None
    assert await world.ask(keys) == CONTENT


async def test_a_tag_is_renewed_with_credentials_loaded_anew(world: World) -> None:
    """Stale content serves meanwhile; a secret that is gone takes its access along."""
    keys = Loaded("shop", TENANT)
    await world.ask(keys)
    world.advance(900)
    keys.due, keys.elsewhere = True, ()
    assert await world.ask(keys) == CONTENT
    await world.finished()
    assert keys.loads == [False, False, True]
    assert cause_of(world.peek(keys)) is Cause.DENIED


async def test_a_public_image_is_confirmed_without_loading(world: World) -> None:
    """What the anonymous credential has opened it most likely opens again."""
    world.readers.clear()
    await world.ask()
    world.advance(900)
    keys = Loaded("shop", OTHER)
    assert await world.ask(keys) == CONTENT
    await world.finished()
    assert (keys.loads, world.methods()) == ([], {"GET": 1, "HEAD": 1})


async def test_a_turn_that_is_lost_at_a_source_says_nothing_about_the_image(world: World) -> None:
    """Nothing is remembered: the next request starts another lookup."""

    class Lost(Loaded):
        async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
            raise NoTurn("it was dropped")

    keys = Lost("shop")
    assert cause_of(await world.ask(keys)) is Cause.LOOKING_UP
    assert world.requests == []
    assert world.peek(keys) is None
    assert world.resolver.counts()["failed"] == 0


async def test_denied_to_a_keyring_that_could_not_be_read_is_unavailable(world: World) -> None:
    """The secret that opens it may be the one: so the pod waits, instead of passing as unknown."""
    keys = Loaded("shop")
    keys.unread = True
    for answer in (await world.ask(keys), world.peek(keys)):
        assert isinstance(answer, Failure)
        assert answer.cause is Cause.UNAVAILABLE
        assert "cannot be read" in answer.detail
    world.requests.clear()
    keys.due = True
    assert world.peek(keys) is None
    assert cause_of(await world.ask(keys)) is Cause.UNAVAILABLE
    assert world.requests == []
    keys.due, keys.unread, keys.elsewhere = True, False, (TENANT,)
    assert await world.ask(keys) == CONTENT


@pytest.mark.parametrize("error", [InvalidManifest("x"), None], ids=str)
async def test_what_another_credential_would_not_change_is_what_it_is(world: World, error: Exception | None) -> None:
    """Whether or not the keyring could be read. A public image needs no secret."""
    world.readers.clear()
    world.fault = lambda method, reference: error
    keys = Loaded("shop")
    keys.unread = True
    expected = Cause.INVALID if error else None
    assert cause_of(await world.ask(keys)) == cause_of(world.peek(keys)) == expected


async def test_a_queued_image_that_another_tenant_wants_gets_that_tenant_s_turn(world: World) -> None:
    """Whoever asks for an image first cannot hold it back from the others."""
    mallory, image = keyring_of(tenant="mallory"), "quick.example.com/app:1"
    world.push(image, "linux/arm64")
    hanging = world.open
    hanging.clear()
    for number in range(80):  # more than may send requests, and fewer than may be in flight
        world.resolver.start(ImageQuery(f"host-{number % 40}.example.com/app-{number}:1"), mallory)
    world.resolver.start(ImageQuery(image), mallory)
    for _ in range(20):
        await asyncio.sleep(0)  # until whatever has a turn hangs; what is sent from now on is answered
    world.open = asyncio.Event()
    world.open.set()
    assert await world.ask(mallory, image, 0.01) is None
    for other in (keyring_of(tenant="honest"), Loaded("reader")):
        assert await world.ask(other, image, 5) == CONTENT
    hanging.set()
