"""Lookups with credentials that have to be loaded first, may have changed, and are on someone's account."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId, Keyring
from extender.errors import InvalidManifest, RegistryThrottled
from extender.images.content import Answer, Cause, Failure
from extender.images.reference import ImageReference
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from extender.turns import NoTurn
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import OTHER, TENANT, FakeRegistry, index_of, keyring_of

APP = "ghcr.io/team/app:1"
LOOKUP = ImageQuery(APP)
CONTENT = index_of("linux/arm64")
REFERENCE = ImageReference(domain="ghcr.io", path="team/app", tag="1", digest="")
Finished = Callable[[], Awaitable[None]]


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

    @property
    def identity(self) -> str:
        return self.tenant

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return (*(login.id for login in self.logins), ANONYMOUS.id)

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
def _private(registry: FakeRegistry) -> None:
    """An image that only the tenant may read."""
    registry.readers["ghcr.io/team/app"] = {"tenant"}
    registry.push(APP, "linux/arm64")


async def ask(resolver: Resolver, keys: Keyring, wait_seconds: float = 60) -> Answer:
    return (await resolver.resolve_all([LOOKUP], keys, wait_seconds))[0]


def cause_of(answer: Answer) -> Cause | None:
    return answer.cause if isinstance(answer, Failure) else None


async def test_credentials_are_loaded_within_the_lookup(resolver: Resolver, finished: Finished) -> None:
    """Who asks and does not wait gets no answer yet, and starts the loading."""
    keys = Loaded("shop", TENANT)
    assert resolver.peek(LOOKUP, keys) is None
    assert keys.loads == []
    keys.open.clear()
    assert await ask(resolver, keys, 0) is None
    keys.open.set()
    await finished()
    assert resolver.peek(LOOKUP, keys) == CONTENT
    assert keys.loads == [False]


async def test_what_is_known_takes_no_loading(resolver: Resolver, registry: FakeRegistry) -> None:
    """A public image is looked up once for all: nobody's credentials are loaded for it."""
    registry.readers.clear()
    await ask(resolver, keyring_of())
    keys = Loaded("shop", TENANT)
    assert await ask(resolver, keys) == CONTENT
    assert keys.loads == []


async def test_what_others_have_proven_takes_no_request_once_loaded(resolver: Resolver, registry: FakeRegistry) -> None:
    """The same login in another namespace is the same scope."""
    await ask(resolver, Loaded("shop", TENANT))
    registry.requests.clear()
    assert await ask(resolver, Loaded("bank", TENANT)) == CONTENT
    assert registry.requests == []


async def test_lookups_of_two_tenants_are_not_one_while_they_load(resolver: Resolver) -> None:
    """Nothing of theirs is known to differ yet, and still neither may get the other's answer."""
    mine, theirs = Loaded("shop", TENANT), Loaded("bank", OTHER)
    for keys in (mine, theirs):
        keys.open.clear()
    tasks = [asyncio.create_task(ask(resolver, keys)) for keys in (mine, theirs)]
    await asyncio.sleep(0)
    for keys in (mine, theirs):
        keys.open.set()
    allowed, denied = await asyncio.gather(*tasks)
    assert allowed == CONTENT
    assert cause_of(denied) is Cause.DENIED


async def test_pods_alike_share_loading_and_lookup(resolver: Resolver, registry: FakeRegistry) -> None:
    """As many as there are."""
    keys = Loaded("shop", TENANT)
    keys.open.clear()
    tasks = [asyncio.create_task(ask(resolver, keys)) for _ in range(50)]
    await asyncio.sleep(0)
    keys.open.set()
    assert await asyncio.gather(*tasks) == [CONTENT] * 50
    assert keys.loads == [False]
    assert registry.methods() == {"HEAD": 1, "GET": 1}


async def test_tenants_share_what_they_ask_alike(resolver: Resolver, registry: FakeRegistry) -> None:
    """A public image in fifty namespaces with secrets of their own for other registries is asked for once."""
    registry.readers.clear()
    tenants = [Loaded(f"tenant-{number}") for number in range(50)]
    assert await asyncio.gather(*(ask(resolver, keys) for keys in tenants)) == [CONTENT] * 50
    assert registry.methods() == {"HEAD": 1, "GET": 1}


async def test_a_denial_loads_anew_and_tries_what_has_changed(resolver: Resolver, registry: FakeRegistry) -> None:
    """In the same lookup: a rotated secret costs one refused request."""
    keys = Loaded("shop", OTHER)
    await keys.load(REFERENCE)
    keys.elsewhere = (TENANT,)
    keys.loads.clear()
    assert await ask(resolver, keys) == CONTENT
    assert keys.loads == [False, True]
    assert registry.count("HEAD", user="other") == 1


async def test_a_denial_without_a_change_is_the_answer(resolver: Resolver, registry: FakeRegistry) -> None:
    """Nothing is asked twice, and it stands until loading is due again."""
    keys = Loaded("shop", OTHER)
    assert cause_of(await ask(resolver, keys)) is Cause.DENIED
    assert registry.methods() == {"HEAD": 2, "GET": 2}
    assert cause_of(await ask(resolver, keys)) is Cause.DENIED
    assert keys.loads == [False, True]


async def test_an_unresolved_image_is_looked_up_again_once_loading_is_due(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """So a corrected secret is found although the failure still stands; an unchanged one costs no request."""
    keys = Loaded("shop", OTHER)
    await ask(resolver, keys)
    registry.requests.clear()
    keys.due = True
    assert cause_of(await ask(resolver, keys)) is Cause.DENIED
    assert registry.requests == []
    keys.due, keys.elsewhere = True, (TENANT,)
    assert resolver.peek(LOOKUP, keys) is None
    assert await ask(resolver, keys) == CONTENT


async def test_a_tag_is_renewed_with_credentials_loaded_anew(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, finished: Finished
) -> None:
    """Stale content serves meanwhile; a secret that is gone takes its scope along."""
    keys = Loaded("shop", TENANT)
    await ask(resolver, keys)
    clock.advance(900)
    keys.due, keys.elsewhere = True, ()
    assert await ask(resolver, keys) == CONTENT
    await finished()
    assert keys.loads == [False, False, True]
    assert cause_of(resolver.peek(LOOKUP, keys)) is Cause.DENIED


async def test_a_public_image_is_confirmed_without_loading(
    resolver: Resolver, registry: FakeRegistry, clock: Clock, finished: Finished
) -> None:
    """What the anonymous credential has opened it most likely opens again."""
    registry.readers.clear()
    await ask(resolver, keyring_of())
    clock.advance(900)
    plugin = Loaded("plugin", OTHER)
    plugin.open.clear()
    assert await ask(resolver, plugin) == CONTENT
    await finished()
    assert plugin.loads == []
    assert resolver.peek(LOOKUP, keyring_of()) == CONTENT


async def test_a_turn_that_is_lost_at_a_source_says_nothing_about_the_image(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """Nothing is remembered: the next request starts another lookup."""

    class Lost(Loaded):
        async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
            raise NoTurn("it was dropped")

    keys = Lost("shop")
    assert cause_of(await ask(resolver, keys)) is Cause.LOOKING_UP
    assert registry.requests == []
    assert resolver.peek(LOOKUP, keys) is None
    assert resolver.counts()["failed"] == 0


async def test_denied_to_a_keyring_that_could_not_be_read_is_unavailable(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """The secret that opens it may be the one: so the pod waits, instead of passing as unknown."""
    keys = Loaded("shop")
    keys.unread = True
    for answer in (await ask(resolver, keys), resolver.peek(LOOKUP, keys)):
        assert cause_of(answer) is Cause.UNAVAILABLE
        assert isinstance(answer, Failure)
        assert "cannot be read" in answer.detail
    registry.requests.clear()
    keys.due = True
    assert resolver.peek(LOOKUP, keys) is None
    assert cause_of(await ask(resolver, keys)) is Cause.UNAVAILABLE
    assert registry.requests == []
    keys.due, keys.unread, keys.elsewhere = True, False, (TENANT,)
    assert await ask(resolver, keys) == CONTENT


async def test_what_a_keyring_that_could_not_be_read_opens_is_known(resolver: Resolver, registry: FakeRegistry) -> None:
    """A public image needs no secret, and one that is known already is not doubted."""
    registry.readers.clear()
    keys = Loaded("shop")
    keys.unread = True
    assert await ask(resolver, keys) == CONTENT
    assert resolver.peek(LOOKUP, keys) == CONTENT


@pytest.mark.parametrize("error", [RegistryThrottled("x", 5.0), InvalidManifest("x")], ids=["throttled", "invalid"])
async def test_what_another_credential_would_not_change_is_what_it_is(
    resolver: Resolver, registry: FakeRegistry, error: Exception
) -> None:
    """Whether or not the keyring could be read."""
    registry.fault = lambda method, reference: error
    keys = Loaded("shop")
    keys.unread = True
    assert cause_of(await ask(resolver, keys)) in (Cause.THROTTLED, Cause.INVALID)


@contextlib.contextmanager
def all_hang(registry: FakeRegistry) -> Iterator[Callable[[], Awaitable[None]]]:
    """Requests hang until the end, except those that are sent after the function has returned."""
    hanging = registry.open
    hanging.clear()

    async def answer_from_now_on() -> None:
        for _ in range(20):
            await asyncio.sleep(0)  # until whatever has a turn hangs
        assert registry.requests
        registry.open = asyncio.Event()
        registry.open.set()

    yield answer_from_now_on
    hanging.set()


async def test_tenants_whose_registries_hang_leave_room_for_a_new_image(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """Lookups that send requests are shared out over tenants, and not in the order in which they were wanted."""
    registry.push("quick.example.com/app:1", "linux/arm64")
    with all_hang(registry) as answer_from_now_on:
        for tenant in ("mallory", "eve", "trudy"):
            for number in range(256):
                query = ImageQuery(f"{tenant}-{number % 40}.example.com/app-{number}:1")
                resolver.start(query, keyring_of(tenant=tenant))
        await answer_from_now_on()
        honest = keyring_of(tenant="honest")
        (answer,) = await resolver.resolve_all([ImageQuery("quick.example.com/app:1")], honest, 5)
        assert answer == index_of("linux/arm64")


async def test_a_tenant_whose_images_fill_one_host_leaves_turns_there(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """Images that are slow at a host that others use as well."""
    registry.push("shared.example.com/app:1", "linux/arm64")
    with all_hang(registry) as answer_from_now_on:
        for number in range(256):
            resolver.start(ImageQuery(f"shared.example.com/slow-{number}:1"), keyring_of(tenant="mallory"))
        await answer_from_now_on()
        honest = keyring_of(tenant="honest")
        (answer,) = await resolver.resolve_all([ImageQuery("shared.example.com/app:1")], honest, 5)
        assert answer == index_of("linux/arm64")


async def test_a_queued_image_that_another_tenant_wants_gets_that_tenant_s_turn(
    resolver: Resolver, registry: FakeRegistry
) -> None:
    """Whoever asks for an image first cannot hold it back from the others."""
    registry.push("quick.example.com/app:1", "linux/arm64")
    mallory, query = keyring_of(tenant="mallory"), ImageQuery("quick.example.com/app:1")
    with all_hang(registry) as answer_from_now_on:
        for number in range(80):  # more than may send requests, and fewer than may be in flight
            resolver.start(ImageQuery(f"host-{number % 40}.example.com/app-{number}:1"), mallory)
        resolver.start(query, mallory)
        assert resolver.counts()["in_flight"] == 81
        await answer_from_now_on()
        (answer,) = await resolver.resolve_all([query], mallory, 0.01)
        assert answer is None
        for other in (keyring_of(tenant="honest"), Loaded("reader")):
            (answer,) = await resolver.resolve_all([query], other, 5)
            assert answer == index_of("linux/arm64")
