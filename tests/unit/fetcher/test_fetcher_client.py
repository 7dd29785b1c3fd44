"""Which images end fetchers is found out by asking for each alone; fetchers are simulated here."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from extender.config.registry_section import RegistryConfig
from extender.credentials.keyring import ANONYMOUS
from extender.errors import ConfigError, ManifestNotFound, RegistryNotAsked, RegistryUnavailable
from extender.fetcher import fetcher_client
from extender.fetcher.child import ALONE, MAIN, FetcherEnded
from extender.fetcher.fetcher_client import ENDS, FetcherClient, open_fetcher
from extender.fetcher.messages import Look, SeenImage, ToQuestion, failed_of
from extender.fetcher.settings import FetcherSettings
from extender.images.content import Cause
from extender.images.failures import failure_of
from extender.images.reference import digest_of, parse_reference
from testbed.clock import Clock
from testbed.eventually import eventually

DIGEST = digest_of(b"one")
NOT_ASKED, UNAVAILABLE = "not asked", Cause.UNAVAILABLE


class SimulatedChild:
    """A fetcher that `fatal` images end; `slow` ones get no answer in time, and `mute` ones none at all.

    The next `faults` come of their starts.
    """

    questions: ClassVar[list[tuple[str, str]]] = []
    starts: ClassVar[list[str]] = []
    faults: ClassVar[list[Exception]] = []
    living: ClassVar[set["SimulatedChild"]] = set()

    def __init__(self, settings: FetcherSettings, name: str) -> None:
        self.name = name
        self.cause = ""
        self._ended = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        return bool(self.cause)

    async def start(self, mirrors: object = ()) -> None:
        self.starts.append(self.name)
        if self.faults and self.name == ALONE:
            self.cause = "unstarted"
            raise self.faults.pop()
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

    async def ask(self, question: Look) -> ToQuestion:
        image = question.reference.path
        self.questions.append((self.name, image))
        await asyncio.sleep(0.01)
        if image == "fatal":
            self.die("over")
        if self.has_ended:
            raise FetcherEnded(self.cause)
        if image == "mute":
            await self._ended.wait()
            raise FetcherEnded(self.cause)
        if image == "slow":
            await asyncio.wait([asyncio.ensure_future(self._ended.wait())], timeout=question.seconds)
            if self.has_ended:
                raise FetcherEnded(self.cause)
            return failed_of(RegistryUnavailable("it did not answer"))
        if image == "missing":
            return failed_of(ManifestNotFound("no"))
        return SeenImage(by=ANONYMOUS.id, digest=DIGEST)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fetcher_client, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[FetcherClient]:
    for each in (SimulatedChild.questions, SimulatedChild.starts, SimulatedChild.faults):
        each.clear()
    monkeypatch.setattr(fetcher_client, "FetcherChild", SimulatedChild)
    monkeypatch.setattr(fetcher_client, "_WELL_SECONDS", 0.0)
    monkeypatch.setattr(fetcher_client, "_ALONE_SECONDS", 0.05)
    monkeypatch.setattr(fetcher_client, "PATIENCE_SECONDS", 0.0)
    async with open_fetcher(RegistryConfig(timeout_seconds=1)) as opened:
        yield opened
    assert not SimulatedChild.living


async def look(client: FetcherClient, image: str, tenant: str = "team", seconds: float = 5) -> str:
    reference = parse_reference(f"quay.io/{image}:1")
    answer = await client.look(Look(tenant=tenant, reference=reference, kubelet_name=reference, seconds=seconds))
    if isinstance(answer, SeenImage):
        return answer.digest
    return NOT_ASKED if answer.failure == failure_of(RegistryNotAsked("")) else answer.failure.cause


def asked_alone() -> list[str]:
    return [image for name, image in SimulatedChild.questions if name == ALONE]


async def test_image_that_ends_fetchers_fails_alone(client: FetcherClient) -> None:
    """What was asked for beside it is known; an end alone may be chance, so it is tried once more."""
    looks = [look(client, f"app-{number}", f"tenant-{number % 3}") for number in range(9)]
    bad, *good = await asyncio.gather(look(client, "fatal", "mallory"), *looks)
    assert bad == UNAVAILABLE
    assert good == [DIGEST] * 9
    assert asked_alone().count("fatal") == 2


async def test_all_are_asked_for_again_at_once_after_one_end(client: FetcherClient) -> None:
    """However many there are: no image is asked for alone, and none waits for another."""
    looks = [asyncio.create_task(look(client, f"app-{number}")) for number in range(200)]
    await eventually(lambda: len(SimulatedChild.questions) == 200)
    (first,) = SimulatedChild.living
    first.die("ended")
    assert await asyncio.gather(*looks) == [DIGEST] * 200
    assert asked_alone() == []
    assert SimulatedChild.starts == [MAIN] * 2


async def test_what_was_under_way_at_a_second_end_is_asked_for_alone(client: FetcherClient) -> None:
    looks = []
    for image, times in (("old", 1), ("new", 2)):
        looks.append(asyncio.create_task(look(client, image)))
        while SimulatedChild.questions.count((MAIN, "old")) < times or (MAIN, image) not in SimulatedChild.questions:
            await asyncio.sleep(0)
        (living,) = SimulatedChild.living
        living.die("ended")
    assert await asyncio.gather(*looks) == [DIGEST] * 2
    assert asked_alone() == ["old"]


@pytest.mark.parametrize("fault", [FetcherEnded("ended"), OSError(24, "no descriptors"), ConfigError("no")])
async def test_starts_that_fail_are_counted_and_follow_each_other_slower_and_slower(
    client: FetcherClient, clock: Clock, fault: Exception
) -> None:
    """The image is not asked for, which is no fault of its host."""
    SimulatedChild.faults += [fault] * 6
    before, found = ENDS["unstarted"].value, []
    with capture_logs() as logs:
        for _ in range(7):
            found.append(await look(client, "fatal"))
            clock.advance(60)
    assert found == [NOT_ASKED] * 6 + [UNAVAILABLE]
    assert [line["next_seconds"] for line in logs if line.get("process") == ALONE][:6] == [1, 2, 4, 8, 10, 10]
    assert ENDS["unstarted"].value - before == 6


async def test_image_that_has_ended_fetchers_ends_no_more_that_others_use(client: FetcherClient) -> None:
    """For some minutes it is asked for alone at once."""
    for _ in range(3):
        assert await look(client, "fatal", "mallory") == UNAVAILABLE
    assert [name for name, _ in SimulatedChild.questions] == [MAIN] * 2 + [ALONE] * 6
    assert await look(client, "app") == DIGEST


async def test_suspect_that_is_cleared_is_asked_for_beside_others_again(client: FetcherClient) -> None:
    """A failure that its registry tells clears it as well."""
    await asyncio.gather(look(client, "fatal"), look(client, "app"), look(client, "missing"))
    SimulatedChild.questions.clear()
    assert await look(client, "missing") == Cause.MISSING
    assert await look(client, "app") == DIGEST
    assert {name for name, _ in SimulatedChild.questions} == {MAIN}


async def test_suspect_without_an_answer_stays_one(client: FetcherClient) -> None:
    """It may be what holds memory: the main fetcher is asked for it no more."""
    await asyncio.gather(look(client, "fatal"), look(client, "slow"))
    SimulatedChild.questions.clear()
    assert await look(client, "slow") == UNAVAILABLE
    assert SimulatedChild.questions == [(ALONE, "slow")]


async def test_many_slow_suspects_of_one_tenant_keep_no_other_waiting(client: FetcherClient) -> None:
    """A tenant's first suspect waits for one of each other tenant."""
    await asyncio.gather(look(client, "fatal"), look(client, "slow"))
    slow = [asyncio.create_task(look(client, "slow", "mallory", 2)) for _ in range(30)]
    await asyncio.sleep(0)
    bad, good = await asyncio.gather(look(client, "fatal", "m"), look(client, "app", "shop", 1))
    assert (bad, good) == (UNAVAILABLE, DIGEST)
    outcomes = await asyncio.gather(*slow)
    assert set(outcomes) <= {UNAVAILABLE, NOT_ASKED}


async def test_fetcher_that_lives_and_never_answers_is_waited_for_no_longer(client: FetcherClient) -> None:
    async with asyncio.timeout(60):
        assert await look(client, "mute", seconds=0.05) == NOT_ASKED


async def test_caller_waits_no_longer_than_it_said(client: FetcherClient) -> None:
    """Whose turn does not come in time was not asked for, and no host is to blame."""
    await asyncio.gather(look(client, "fatal"), look(client, "slow"))
    slow = [look(client, "slow", seconds=0.2) for _ in range(30)]
    outcomes = await asyncio.gather(*slow)
    assert NOT_ASKED in outcomes
