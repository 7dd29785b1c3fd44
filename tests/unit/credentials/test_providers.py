"""What providers hand out: how long it is kept, for what else it holds, and who waits for whom."""

import asyncio
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import aiohttp
import pytest
from structlog.testing import capture_logs

import extender.credentials
from extender.credential_sources import Cloud, Source
from extender.credentials.cloud_api import CloudAccess
from extender.credentials.credential_provider_v1 import CacheKeyType
from extender.credentials.logins import Login
from extender.credentials.operator_keyring import open_cloud
from extender.credentials.providers import CredentialsUnavailable, ProvidedCredentials, ProviderLogins
from extender.images.reference import ImageReference, parse_reference
from testbed.clock import Clock
from tests.unit.credentials.conftest import settle

APP = parse_reference("quay.io/team/app:1")
OTHER_APP = parse_reference("quay.io/team/other:1")
ELSEWHERE = parse_reference("ghcr.io/team/app:1")


class Provider:
    """Gives a new password every time, as a test says for how long and for what. `ring` asks it."""

    source = Source.PROVIDER
    name = "test"
    principal = "node"

    def __init__(self, cache_key_type: CacheKeyType = CacheKeyType.REGISTRY) -> None:
        self.cache_key_type = cache_key_type
        self.requested: list[str] = []
        self.fails = False
        self.open = asyncio.Event()
        self.open.set()
        clock = Clock()
        self.advance, self.ring = clock.advance, ProviderLogins(self, clock=clock)

    def serves(self, repository: str) -> bool:
        return repository.startswith(("quay.io/", "ghcr.io/"))

    async def provide(self, repository: str) -> ProvidedCredentials:
        self.requested.append(repository)
        await self.open.wait()
        if self.fails:
            raise CredentialsUnavailable("it is down")
        password = f"password-{len(self.requested)}"
        logins = tuple(Login(host, "node", password) for host in ("quay.io", "ghcr.io"))
        return ProvidedCredentials(logins, 100.0, self.cache_key_type)


def image_of(number: int) -> ImageReference:
    return parse_reference(f"quay.io/team/app-{number}:1")


@pytest.mark.parametrize(
    ("cache_key_type", "requested"),
    [
        pytest.param(CacheKeyType.IMAGE, ["quay.io/team/app", "quay.io/team/other", "ghcr.io/team/app"], id="image"),
        pytest.param(CacheKeyType.REGISTRY, ["quay.io/team/app", "ghcr.io/team/app"], id="registry"),
        pytest.param(CacheKeyType.GLOBAL, ["quay.io/team/app"], id="global"),
    ],
)
async def test_an_answer_serves_as_far_as_it_reaches(cache_key_type: CacheKeyType, requested: list[str]) -> None:
    """The provider says whether its answer is for the image, for the registry, or for everything."""
    provider = Provider(cache_key_type)
    for reference in (APP, APP, OTHER_APP, ELSEWHERE, APP, OTHER_APP):
        assert await provider.ring.load(reference)
    assert provider.requested == requested


async def test_an_answer_is_kept_until_it_expires() -> None:
    """Even if it is denied: who may cause denials must not make programs run."""
    provider = Provider()
    await provider.ring.load(APP)
    provider.advance(99.9)
    (kept,) = await provider.ring.load(APP)
    assert kept.password == "password-1"
    provider.advance(0.1)
    assert provider.ring.at_hand(APP) is None
    (renewed,) = await provider.ring.load(APP)
    assert renewed.password == "password-2"


async def test_those_who_ask_at_the_same_time_share_an_answer() -> None:
    provider = Provider()
    provider.open.clear()
    loads = [asyncio.create_task(provider.ring.load(reference)) for reference in (APP, OTHER_APP) for _ in range(20)]
    await asyncio.sleep(0)
    provider.open.set()
    assert {found[0].password for found in await asyncio.gather(*loads)} == {"password-1"}
    assert provider.requested == ["quay.io/team/app"]


async def test_a_failure_is_tried_again_after_ten_seconds() -> None:
    """Until then there is nothing to present, and the log says why once."""
    provider = Provider()
    provider.fails = True
    with capture_logs() as lines:
        assert await provider.ring.load(APP) == ()
        assert await provider.ring.load(OTHER_APP) == ()
    assert [(line["event"], line["provider"], line["why"]) for line in lines] == [
        ("provider.failed", "test", "it is down")
    ]
    provider.fails = False
    assert provider.ring.at_hand(APP) is None
    provider.advance(10)
    assert await provider.ring.load(APP)


async def test_a_provider_that_hangs_is_asked_eight_times_at_once() -> None:
    """What is held is given meanwhile, and the others have their answers when it goes on."""
    provider = Provider(CacheKeyType.IMAGE)
    await provider.ring.load(APP)
    provider.open.clear()
    hanging = [asyncio.create_task(provider.ring.load(image_of(number))) for number in range(100)]
    await settle()
    assert len(provider.requested) == 1 + 8
    async with asyncio.timeout(5):
        assert await provider.ring.load(APP)
    provider.open.set()
    assert all(await asyncio.gather(*hanging))
    assert len(provider.requested) == 1 + 100


async def test_many_images_of_one_provider_evict_answers_and_no_more() -> None:
    provider = Provider(CacheKeyType.IMAGE)
    await provider.ring.load(APP)
    for number in range(3_000):
        await provider.ring.load(image_of(number))
    assert provider.ring.at_hand(image_of(2_999))
    assert provider.ring.at_hand(APP) is None
    assert await provider.ring.load(APP)


@pytest.mark.parametrize(("seconds", "retry_seconds"), [(0.0, 10.0), (20.0, 20.0), (60.0, 30.0)])
async def test_a_failure_for_one_image_is_not_repeated_for_the_others(seconds: float, retry_seconds: float) -> None:
    """Nor for those whose answers have expired, nor for those that wait: for as long as it took, within 10 to 30 s."""
    provider = Provider(CacheKeyType.IMAGE)
    images = [image_of(number) for number in range(100)]
    for image in images[:50]:
        await provider.ring.load(image)
    provider.advance(100)
    provider.requested.clear()
    provider.open.clear()
    provider.fails = True
    loads = [asyncio.create_task(provider.ring.load(image)) for image in images]
    await settle()
    provider.advance(seconds)
    provider.open.set()
    assert await asyncio.gather(*loads) == [()] * 100
    assert len(provider.requested) == 8
    assert provider.ring.at_hand(images[99]) is None
    provider.advance(retry_seconds - 0.1)
    assert await provider.ring.load(images[0]) == ()
    assert provider.ring.at_hand(images[0]) is None
    assert len(provider.requested) == 8
    provider.fails = False
    provider.advance(0.1)
    assert await provider.ring.load(images[0])
    assert provider.ring.at_hand(images[0]) is not None


async def test_a_failure_for_one_registry_leaves_the_others() -> None:
    """Whoever chooses a registry for which the provider fails keeps no other's credentials back."""
    provider = Provider(CacheKeyType.GLOBAL)
    await provider.ring.load(APP)
    provider.advance(100)
    provider.fails = True
    assert await provider.ring.load(APP) == ()
    provider.fails = False
    assert await provider.ring.load(ELSEWHERE)


async def test_a_fresh_answer_for_everything_is_not_hidden_by_an_expired_one() -> None:
    """Neither while the provider fails for the registry whose answer has expired."""
    provider = Provider(CacheKeyType.REGISTRY)
    await provider.ring.load(APP)
    provider.advance(100)
    provider.fails = True
    assert await provider.ring.load(APP) == ()
    provider.fails, provider.cache_key_type = False, CacheKeyType.GLOBAL
    assert await provider.ring.load(ELSEWHERE)
    assert await provider.ring.load(APP)
    assert provider.ring.at_hand(APP) is not None


async def test_registries_of_others_are_none_of_its_business() -> None:
    provider = Provider()
    hub = parse_reference("redis")
    assert provider.ring.at_hand(hub) == ()
    assert provider.ring.at_hand(hub) is not None
    assert await provider.ring.load(hub) == ()
    assert provider.requested == []


def provider_sources() -> Iterator[object]:
    room = extender.credentials
    for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        for kind in vars(import_module(module.name)).values():
            if isinstance(kind, type) and kind.__module__ == module.name and hasattr(kind, "provide"):
                yield vars(kind)["source"]


def test_every_provider_is_declared() -> None:
    """A source that is named in its own file alone fails here, before it fails where it is opened."""
    sources = [source for source in provider_sources() if not isinstance(source, property)]  # that is the protocol's
    assert all(isinstance(source, Source | Cloud) for source in sources)
    assert sorted(sources, key=str) == sorted([Source.HELPER, Source.PROVIDER, *Cloud], key=str)


@pytest.mark.parametrize("cloud", Cloud)
async def test_every_cloud_opens_its_own_provider(cloud: Cloud) -> None:
    async with aiohttp.ClientSession() as session:
        provider = open_cloud(cloud, CloudAccess(session, {}, lambda: 0.0))
    assert provider.source is cloud
    assert provider.name == cloud.value
    assert not provider.serves("registry.example.com/team/app")
