"""Which images end fetchers is found out by asking for each alone; fetchers are simulated here."""

import asyncio
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from extender.credentials.keyring import ANONYMOUS
from extender.errors import ManifestNotFound, RegistryNotAsked, RegistryUnavailable
from extender.fetcher import fetcher_client
from extender.fetcher.child import MAIN, SECOND, FetcherEnded
from extender.fetcher.fetcher_client import FetcherClient, open_fetcher
from extender.fetcher.messages import Describe, DigestStated, Provide, StateDigest, ToQuestion, failure_of
from extender.fetcher.settings import FetcherSettings
from extender.images.reference import digest_of, parse_reference

DIGEST = digest_of(b"one")


class SimulatedChild:
    """A fetcher that some images end: `large` ones by its size, `fatal` ones otherwise; `slow` ones get no answer."""

    questions: ClassVar[list[tuple[str, str]]] = []
    living: ClassVar[set["SimulatedChild"]] = set()

    def __init__(self, settings: FetcherSettings, name: str) -> None:
        self.name = name
        self.cause = ""
        self._ended = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        return bool(self.cause)

    async def start(self) -> None:
        self.living.add(self)

    async def wait_end(self) -> None:
        if self in self.living:
            await self._ended.wait()
            self.living.discard(self)

    async def end(self) -> None:
        self.die("ended")
        await self.wait_end()

    def die(self, cause: str) -> None:
        self.cause = self.cause or cause
        self._ended.set()

    async def ask(self, question: StateDigest | Describe | Provide) -> ToQuestion:
        assert isinstance(question, StateDigest)
        image = question.reference.path
        self.questions.append((self.name, image))
        await asyncio.sleep(0.01)
        if image in ("large", "fatal"):
            self.die("over" if image == "large" else "ended")
        if self.has_ended:
            raise FetcherEnded(self.cause)
        if image == "slow":
            await asyncio.wait([asyncio.ensure_future(self._ended.wait())], timeout=question.seconds)
            if self.has_ended:
                raise FetcherEnded(self.cause)
            return failure_of(RegistryUnavailable("it did not answer"), question.id)
        if image == "missing":
            return failure_of(ManifestNotFound("no"), question.id)
        return DigestStated(question.id, DIGEST)


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FetcherClient]:
    """A client of simulated fetchers, which are waited for less than real ones."""
    SimulatedChild.questions.clear()
    monkeypatch.setattr(fetcher_client, "FetcherChild", SimulatedChild)
    monkeypatch.setattr(fetcher_client, "_WELL_SECONDS", 0.0)
    monkeypatch.setattr(fetcher_client, "_ALONE_SECONDS", 0.05)
    async with open_fetcher(FetcherSettings(timeout_seconds=1)) as opened:
        yield opened
    assert not SimulatedChild.living


async def look(client: FetcherClient, image: str, tenant: str = "team", seconds: float = 5) -> str | None:
    """The digest of an image at some registry."""
    reference = parse_reference(f"quay.io/{image}:1")
    return await client.state_digest(reference, ANONYMOUS, tenant=tenant, seconds=seconds)


def asked_alone() -> list[str]:
    """What the second fetcher was asked, in order."""
    return [image for name, image in SimulatedChild.questions if name == SECOND]


@pytest.mark.parametrize(("image", "times"), [("large", 1), ("fatal", 2)])
async def test_image_that_ends_fetchers_fails_alone(client: FetcherClient, image: str, times: int) -> None:
    """What was asked for beside it is known; its size ends the second fetcher once, another end may be chance."""
    looks = [look(client, f"app-{number}", f"tenant-{number % 3}") for number in range(9)]
    bad, *good = await asyncio.gather(look(client, image, "mallory"), *looks, return_exceptions=True)
    assert type(bad) is RegistryUnavailable
    assert good == [DIGEST] * 9
    assert asked_alone().count(image) == times


async def test_image_that_has_ended_fetchers_ends_no_more_that_others_use(client: FetcherClient) -> None:
    """For some minutes it is asked for alone at once."""
    for _ in range(3):
        with pytest.raises(RegistryUnavailable):
            await look(client, "large", "mallory")
    assert [name for name, image in SimulatedChild.questions if image == "large"] == [MAIN, SECOND, SECOND, SECOND]
    assert await look(client, "app") == DIGEST


async def test_suspect_that_is_cleared_is_asked_for_beside_others_again(client: FetcherClient) -> None:
    """A failure that its registry tells clears it as well."""
    await asyncio.gather(look(client, "fatal"), look(client, "app"), look(client, "missing"), return_exceptions=True)
    SimulatedChild.questions.clear()
    with pytest.raises(ManifestNotFound):
        await look(client, "missing")
    assert await look(client, "app") == DIGEST
    assert {name for name, _ in SimulatedChild.questions} == {MAIN}


async def test_suspect_without_an_answer_stays_one(client: FetcherClient) -> None:
    """It may be what holds memory: the main fetcher is asked for it no more."""
    await asyncio.gather(look(client, "fatal"), look(client, "slow"), return_exceptions=True)
    SimulatedChild.questions.clear()
    with pytest.raises(RegistryUnavailable):
        await look(client, "slow")
    assert SimulatedChild.questions == [(SECOND, "slow")]


async def test_many_slow_suspects_of_one_tenant_keep_no_other_waiting(client: FetcherClient) -> None:
    """A tenant's first suspect waits for one of each other tenant."""
    await asyncio.gather(look(client, "fatal"), look(client, "slow"), return_exceptions=True)
    slow = [asyncio.create_task(look(client, "slow", "mallory", 2)) for _ in range(30)]
    await asyncio.sleep(0)
    bad, good = await asyncio.gather(look(client, "fatal", "m"), look(client, "app", "shop", 1), return_exceptions=True)
    assert (type(bad), good) == (RegistryUnavailable, DIGEST)
    outcomes = await asyncio.gather(*slow, return_exceptions=True)
    assert {type(each) for each in outcomes} <= {RegistryUnavailable, RegistryNotAsked}


async def test_caller_waits_no_longer_than_it_said(client: FetcherClient) -> None:
    """Whose turn does not come in time was not asked for, and no host is to blame."""
    await asyncio.gather(look(client, "fatal"), look(client, "slow"), return_exceptions=True)
    slow = [look(client, "slow", seconds=0.2) for _ in range(30)]
    outcomes = await asyncio.gather(*slow, return_exceptions=True)
    assert RegistryNotAsked in {type(each) for each in outcomes}
