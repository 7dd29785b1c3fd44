"""Leader election against a stand-in for the API server: one leader, its loss, its release, and who knows of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.background import in_background
from extender.cluster import leader_election
from extender.cluster.client import ClusterClient
from extender.cluster.leader_election import (
    FRESH_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    STEP_DOWN_SECONDS,
    LeaderElection,
)
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, Refusal

COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


class Replica:
    """A replica whose time passes when `tick` says so, and what it does as the leader."""

    def __init__(self, client: ClusterClient, identity: str, clock: Clock) -> None:
        self.election = LeaderElection(
            client,
            namespace="default",
            name="gates",
            identity=identity,
            clock=clock,
            wall_clock=lambda: 1_700_000_000.0 + clock.now,
            sleep=self._sleep,
        )
        self.is_able = True
        self.terms = 0
        self.is_working = False
        self._ticks: asyncio.Queue[None] = asyncio.Queue()
        self._is_idle = asyncio.Event()

    async def lead(self) -> None:
        self.terms += 1
        self.is_working = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False

    async def tick(self) -> None:
        """Ends one sleep of the replica, and returns when it sleeps again."""
        await self.is_asleep()
        self._is_idle.clear()
        self._ticks.put_nowait(None)
        await self.is_asleep()

    async def is_asleep(self) -> None:
        async with asyncio.timeout(5):
            await self._is_idle.wait()
        await asyncio.sleep(0)  # for the task that leads

    async def _sleep(self, seconds: float) -> None:
        assert seconds == RENEW_SECONDS
        self._is_idle.set()
        await self._ticks.get()


@asynccontextmanager
async def running(client: ClusterClient, identity: str, clock: Clock) -> AsyncIterator[Replica]:
    """A replica that takes part, and releases what it holds at the end."""
    replica = Replica(client, identity, clock)
    async with in_background(replica.election.run(replica.lead, lambda: replica.is_able)):
        await replica.is_asleep()
        yield replica


def stored(api: ApiServer) -> dict[str, Any]:
    spec: dict[str, Any] = api.find(COLLECTION, "gates")["spec"]
    return spec


def hold(api: ApiServer, holder: str, renewed: str) -> None:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}
    api.put(COLLECTION, {"metadata": {"name": "gates"}, "spec": spec})


async def test_first_replica_leads_and_the_second_knows(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """One of two leads; the other counts the lease as fresh."""
    async with running(client, "a", clock) as first, running(client, "b", clock) as second:
        assert (first.is_working, second.is_working) == (True, False)
        assert (first.election.is_led(), second.election.is_led()) == (True, True)
        clock.advance(RENEW_SECONDS)
        await first.tick()
        await second.tick()
        assert second.election.is_led()
        assert not second.election.is_leader
        assert stored(api)["holderIdentity"] == "a"
        assert stored(api)["leaseTransitions"] == 0
    assert (first.terms, second.terms) == (1, 0)


async def test_leadership_counts_from_before_the_request(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """A server that answers late has written what others may count from earlier than its answer."""
    async with running(client, "a", clock) as replica:
        clock.advance(RENEW_SECONDS)
        api.change_seconds = 0.05
        sent = len(api.received("send"))
        ticking = asyncio.create_task(replica.tick())
        await eventually(lambda: len(api.received("send")) > sent)
        clock.advance(5)
        await ticking
        assert replica.election.is_leader
        clock.advance(STEP_DOWN_SECONDS - 5)
        assert not replica.election.is_leader


async def test_lease_that_nobody_renews_is_not_fresh(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """A Lease that a dead leader has left behind proves nothing to a replica that starts."""
    hold(api, "gone", "2026-01-01T00:00:00.000000Z")
    async with running(client, "a", clock) as replica:
        for _ in range(int(LEASE_SECONDS // RENEW_SECONDS)):
            clock.advance(RENEW_SECONDS)
            await replica.tick()
            assert not replica.election.is_led()
            assert not replica.is_working
        clock.advance(RENEW_SECONDS)
        await replica.tick()
        assert replica.is_working
        assert replica.election.is_led()
        assert stored(api)["leaseTransitions"] == 1


@pytest.mark.parametrize(
    ("stated", "is_led", "leads"),
    [
        ("22:30:05Z", True, False),  # the other clock is ahead
        ("22:29:55.000000Z", True, False),
        ("22:29:39.000000Z", False, False),
        ("22:29:05Z", False, False),
        ("22:28:55Z", True, True),
        ("at noon", False, False),
    ],
)
async def test_what_a_lease_says_of_its_holder_counts_at_the_start(
    api: ApiServer, client: ClusterClient, clock: Clock, stated: str, *, is_led: bool, leads: bool
) -> None:
    """At 22:30:00 a replica replaces one that was killed: soon after it, somebody leads; a minute later it does."""
    hold(api, "killed", f"2023-11-14T{stated}")
    async with running(client, "a", clock) as replica:
        assert (replica.election.is_led(), replica.election.is_leader) == (is_led, leads)


async def test_standby_takes_over_from_a_leader_that_is_killed(
    api: ApiServer, client: ClusterClient, clock: Clock
) -> None:
    """Within LEASE_SECONDS and two looks; meanwhile the standby still counts the lease as fresh."""
    async with running(client, "a", clock) as first, running(client, "b", clock) as second:
        clock.advance(RENEW_SECONDS)
        await first.tick()  # its last: it is frozen from here on
        killed_at = clock.now
        for _ in range(int(LEASE_SECONDS // RENEW_SECONDS) + 2):
            clock.advance(RENEW_SECONDS)
            await second.tick()
            assert second.election.is_led()
            if second.is_working:
                break
        assert second.is_working
        assert clock.now - killed_at <= LEASE_SECONDS + 2 * RENEW_SECONDS
        assert stored(api)["holderIdentity"] == "b"
        assert not first.election.is_leader  # by its own clock, before it could ask anybody
        await first.tick()
        assert not first.is_working
        assert stored(api)["holderIdentity"] == "b"


async def test_leader_that_stops_releases_the_lease(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """The next look of a standby takes it; a standby that stops releases nothing."""
    async with running(client, "b", clock) as second_leader:
        async with running(client, "c", clock):
            pass
        assert stored(api)["holderIdentity"] == "b"
        assert second_leader.is_working
    assert stored(api)["holderIdentity"] == ""
    async with running(client, "d", clock) as third:
        assert third.is_working
        assert stored(api)["holderIdentity"] == "d"


async def test_leader_that_is_not_able_gives_way(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """Nobody is said to lead until another one does; when both are able again the first one leads on."""
    async with running(client, "a", clock) as first, running(client, "b", clock) as second:
        first.is_able = second.is_able = False
        for replica in (first, second):
            clock.advance(RENEW_SECONDS)
            await replica.tick()
        assert (first.is_working, second.is_working) == (False, False)
        assert (first.election.is_led(), second.election.is_led()) == (False, False)
        assert stored(api)["holderIdentity"] == ""
        async with running(client, "c", clock) as third:  # it is able
            assert third.is_working
            first.is_able = second.is_able = True
            for replica in (first, second):
                await replica.tick()
                assert (replica.is_working, replica.election.is_led()) == (False, True)
    assert (first.terms, second.terms, third.terms) == (1, 0, 1)


async def test_leader_without_an_api_server_stops_before_another_may_begin(
    api: ApiServer, client: ClusterClient, clock: Clock
) -> None:
    """What it does is cancelled at its own deadline, and the lease counts as fresh only for a while."""
    async with running(client, "a", clock) as replica:
        while replica.is_working and clock.now < 1000 + LEASE_SECONDS:
            api.refusals.append(("send", Refusal(503)))
            clock.advance(RENEW_SECONDS)
            await replica.tick()
        assert clock.now - 1000 < LEASE_SECONDS
        assert replica.election.is_led()
        clock.advance(FRESH_SECONDS)
        assert not replica.election.is_led()


async def test_leader_survives_a_lost_answer(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """A renewal that was made, but whose answer was lost, leads to a conflict and then to a look: it still leads."""
    async with running(client, "a", clock) as replica:
        api.put(COLLECTION, {"metadata": {"name": "gates", "labels": {"by": "somebody"}}, "spec": stored(api)})
        for _ in range(3):
            clock.advance(RENEW_SECONDS)
            await replica.tick()
        assert replica.is_working
        assert replica.terms == 1
        assert api.find(COLLECTION, "gates")["metadata"]["labels"] == {"by": "somebody"}


async def test_deleted_lease_is_made_again(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """By the leader itself, which goes on leading."""
    async with running(client, "a", clock) as replica:
        api.remove(COLLECTION, "gates")
        for _ in range(2):
            clock.advance(RENEW_SECONDS)
            await replica.tick()
        assert stored(api)["holderIdentity"] == "a"
        assert replica.terms == 1


async def test_forbidden_election_is_reported_once(api: ApiServer, client: ClusterClient, clock: Clock) -> None:
    """Without the right to read leases nobody leads, and nobody crashes."""
    clock = Clock()
    api.refusals += [("get", Refusal(403))] * 3
    async with running(client, "a", clock) as replica:
        for _ in range(2):
            await replica.tick()
        assert not replica.election.is_leader
        await replica.tick()
        assert replica.election.is_leader


@pytest.mark.parametrize("error", [ZeroDivisionError(), None], ids=["an exception", "a return"])
async def test_what_a_leader_does_must_not_end(
    api: ApiServer, client: ClusterClient, clock: Clock, error: Exception | None
) -> None:
    """Its end is that of the election, so that the process can say so; the lease is released."""

    async def lead() -> None:
        if error:
            raise error

    replica = Replica(client, "a", clock)
    with pytest.raises(type(error) if error else RuntimeError):
        await replica.election.run(lead)
    assert not replica.election.is_leader
    assert not replica.election.is_led()
    assert stored(api)["holderIdentity"] == ""


def test_periods_fit_together() -> None:
    """A leader stops before a standby may begin, and a takeover ends while the lease still counts as fresh."""
    assert 2 * RENEW_SECONDS < leader_election.STEP_DOWN_SECONDS < LEASE_SECONDS
    assert LEASE_SECONDS + 2 * RENEW_SECONDS + leader_election._REQUEST_SECONDS < FRESH_SECONDS  # noqa: SLF001
