"""Who gets a connection or room for a body, and who loses one for it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import structlog

from extender.budgets import SCARCITY, declare_budget, use_of
from extender.server.callers import (
    OWN_IDLE_SECONDS,
    STRANGER_IDLE_SECONDS,
    BodyLimits,
    CallerConnection,
    Callers,
    Limits,
    Proof,
    caller_address,
)

CONNECTIONS = declare_budget("tests.callers.connections", unit="connections", total=12, most_each=6, why="a test")
BODIES = declare_budget("tests.callers.bodies", unit="bytes", total=100, most_each=50, why="a test")
STRANGERS = declare_budget("tests.callers.strangers", unit="bytes", total=20, most_each=10, why="a test")
ALL = BodyLimits(budget=BODIES, request_bytes=50, seconds=30.0)
FEW = BodyLimits(budget=STRANGERS, request_bytes=10, seconds=4.0)


@dataclass(eq=False)
class PeerState:
    """A peer whose state the test sets."""

    idle_since: float | None
    has_request: bool = True
    refused: int = 0

    def refuse_body(self) -> None:
        """Counts."""
        self.refused += 1


@dataclass
class World:
    """A listener's callers and a clock."""

    proof: Proof = Proof.NONE
    now: float = 1000.0
    closed: list[CallerConnection] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Makes the callers."""
        strangers = FEW if self.proof is Proof.TOKEN else None
        limits = Limits(connections=CONNECTIONS, proof=self.proof, bodies=ALL, strangers_bodies=strangers)
        self.callers = Callers("admission", limits, lambda: self.now)

    def open(self, host: str, *, has_request: bool = True) -> CallerConnection:
        """A connection that is admitted, and idles from now on."""
        connection = self.try_open(host, has_request=has_request)
        assert connection is not None
        return connection

    def try_open(self, host: str, *, has_request: bool = True) -> CallerConnection | None:
        """A connection, or None if it is not admitted. Time goes on a little."""
        self.now += 0.001
        connection = self.callers.admit(host)
        if connection:
            connection.peer = PeerState(self.now, has_request=has_request)
            connection.close = lambda: self.closed.append(connection)
        return connection

    def peer(self, connection: CallerConnection) -> PeerState:
        """The state to set."""
        assert isinstance(connection.peer, PeerState)
        return connection.peer


@pytest.fixture
def world() -> World:
    """A listener where nobody can show who they are."""
    return World()


@pytest.fixture
def token_world() -> World:
    """A listener where callers show who they are by a token."""
    return World(Proof.TOKEN)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    """The figures of the metrics are sums over objects, which tests leave behind."""
    for spec in (CONNECTIONS, BODIES, STRANGERS):
        use_of(spec).in_use = use_of(spec).refusals = 0


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_caller_is_an_address_or_the_network_of_one_machine(host: str, address: str) -> None:
    """Whoever has IPv6 has 64 bits of addresses to connect from."""
    assert caller_address(host) == address


def test_new_caller_displaces_the_longest_idle_connection_of_who_has_most(world: World) -> None:
    """And no one of anybody else."""
    others = [world.open("192.0.2.9")]
    flood = [world.open("192.0.2.1") for _ in range(6)] + [world.open("192.0.2.2") for _ in range(5)]
    world.peer(flood[0]).idle_since = world.now  # a moment ago; the second one idles longest
    world.open("192.0.2.3")
    assert world.closed == [flood[1]]
    assert (world.callers.count, use_of(CONNECTIONS).in_use, use_of(CONNECTIONS).refusals) == (12, 12, 1)
    assert others[0].is_counted
    assert not flood[1].is_counted


def test_connection_without_a_request_is_displaced_first(world: World) -> None:
    """However short it has been there: it has cost its caller nothing."""
    flood = [world.open("192.0.2.1") for _ in range(5)]
    silent = world.open("192.0.2.1", has_request=False)
    for _ in range(6):
        world.open("192.0.2.2")
    world.peer(flood[0]).idle_since = 0.0
    world.open("192.0.2.3")
    assert world.closed == [silent]


def test_handshake_that_has_not_ended_is_displaced_first(world: World) -> None:
    """It has no peer yet."""
    flood = [world.open("192.0.2.1") for _ in range(6)]
    flood[3].peer = None
    for _ in range(6):
        world.open("192.0.2.2")
    world.open("192.0.2.3")
    assert world.closed == [flood[3]]


def test_connection_that_is_answering_is_never_displaced(world: World) -> None:
    """Not even for who has none."""
    for host in ("192.0.2.1", "192.0.2.2"):
        for _ in range(6):
            world.peer(world.open(host)).idle_since = None
    world.now += 2 * STRANGER_IDLE_SECONDS
    assert world.try_open("192.0.2.3") is None
    assert world.closed == []


def test_who_has_its_fair_share_displaces_nobody_else(world: World) -> None:
    """The flood of one does not become that of the next."""
    for host in ("192.0.2.1", "192.0.2.2"):
        for _ in range(6):
            world.open(host)
    for _ in range(4):
        world.open("192.0.2.3")
    assert [each.caller.address for each in world.closed].count("192.0.2.1") == 2
    world.closed.clear()
    assert world.try_open("192.0.2.3") is None
    assert world.closed == []


def test_caller_with_its_share_gets_a_new_one_for_its_own_idle_one(world: World) -> None:
    """So that whoever shares an address with a flood comes in, between two of its connections."""
    own = [world.open("192.0.2.1") for _ in range(6)]
    other = world.open("192.0.2.2")
    assert world.try_open("192.0.2.1") is None
    world.now += OWN_IDLE_SECONDS
    world.open("192.0.2.1")
    assert world.closed == [own[0]]
    assert other.is_counted


def test_where_all_have_one_a_long_idle_one_is_displaced(world: World) -> None:
    """A thousand addresses with a connection each do not keep the next caller out for an hour."""
    flood = [world.open(f"192.0.2.{number}") for number in range(12)]
    assert world.try_open("198.51.100.1") is None
    world.now += STRANGER_IDLE_SECONDS
    for each in flood[1:]:
        world.peer(each).idle_since = world.now
    world.open("198.51.100.1")
    assert world.closed == [flood[0]]


def test_strangers_never_displace_who_is_proven(token_world: World) -> None:
    """However many of them there are, and however long those idle."""
    proven = [token_world.open("192.0.2.1") for _ in range(6)]
    for each in proven:
        each.set_proven()
        token_world.peer(each).idle_since = 0.0
    for number in range(1000):
        token_world.try_open(f"192.0.{2 + number // 200}.{number % 200}")
        token_world.now += 0.5
    assert all(each.is_counted and each.is_proven for each in proven)
    assert token_world.callers.count == 12
    assert {each.is_proven for each in token_world.closed} == {False}


def test_proven_and_strangers_at_one_address_are_two_callers(token_world: World) -> None:
    """What a stranger at the API server's address holds is not the API server's."""
    proven = token_world.open("192.0.2.1")
    proven.set_proven()
    for _ in range(6):
        token_world.open("192.0.2.1")
    token_world.now += OWN_IDLE_SECONDS
    token_world.peer(proven).idle_since = 0.0
    token_world.open("192.0.2.1")
    assert proven.is_counted
    assert len(token_world.closed) == 1


def test_callers_on_this_machine_are_proven() -> None:
    """On the scheduler's listener on loopback nobody is a stranger."""
    assert World(Proof.ADDRESS).open("127.0.0.1").is_proven


def test_strangers_that_idle_for_long_are_closed_where_others_have_a_token(token_world: World) -> None:
    """Not one that answers, and not one whose body is arriving in time."""
    idle, answering, arriving, proven = (token_world.open("192.0.2.1") for _ in range(4))
    token_world.peer(answering).idle_since = None
    proven.set_proven()
    token_world.now += STRANGER_IDLE_SECONDS + 1
    fresh = token_world.open("192.0.2.1")
    arriving.hold(1)
    token_world.callers.close_idle()
    assert token_world.closed == [idle]
    token_world.now += FEW.seconds
    token_world.callers.close_idle()
    assert token_world.closed == [idle, arriving]
    assert fresh.is_counted


def test_where_nobody_can_show_who_they_are_all_may_idle(world: World) -> None:
    """The pool of an API server keeps its connections for an hour."""
    world.open("192.0.2.1")
    world.now += 3600
    world.callers.close_idle()
    assert world.closed == []


@pytest.fixture
def scarcity() -> Iterator[None]:
    """Whatever a test says of it, memory is not short afterwards."""
    yield
    SCARCITY.set_on(False)


@pytest.mark.usefixtures("scarcity")
def test_connections_that_are_too_many_when_memory_is_short_are_closed(token_world: World) -> None:
    """First those of strangers without a request ever, and those that have idled longest; a quarter is left."""
    api_server = [token_world.open("10.0.0.1") for _ in range(4)]
    for each in api_server:
        each.set_proven()
    with_request = [token_world.open("10.0.0.2") for _ in range(2)]
    answering = token_world.open("10.0.0.3")
    token_world.peer(answering).idle_since = None
    without = [token_world.open(f"10.0.0.{number}", has_request=False) for number in (4, 5)]
    token_world.callers.close_some()
    assert token_world.closed == []
    SCARCITY.set_on(True)
    token_world.callers.close_some()
    assert token_world.closed == [*without, *with_request, *api_server[:2]]
    assert token_world.callers.count == 3
    token_world.callers.close_some()
    assert token_world.callers.count == 3


@pytest.mark.usefixtures("scarcity")
def test_a_caller_that_comes_while_memory_is_short_finds_room(token_world: World) -> None:
    """As soon as those that are too many have been closed."""
    for number in range(12):
        token_world.open(f"10.0.1.{number % 2}", has_request=False)
    SCARCITY.set_on(True)
    token_world.callers.close_some()
    assert token_world.callers.count == 3
    token_world.open("10.0.0.1").set_proven()
    assert token_world.callers.count == 3
    SCARCITY.set_on(False)
    for number in range(9):
        token_world.open(f"10.0.2.{number}")


@pytest.mark.usefixtures("scarcity")
def test_bodies_have_less_room_when_memory_is_short(world: World) -> None:
    """A quarter of what a caller may hold otherwise."""
    connection = world.open("10.0.0.1")
    SCARCITY.set_on(True)
    assert connection.hold(12)
    assert not connection.hold(1)
    assert world.peer(connection).refused == 1


def test_caller_over_its_share_of_bytes_loses_its_own_slowest_body(world: World) -> None:
    """What was held is free at once, and nobody else notices."""
    other = world.open("192.0.2.2")
    assert other.hold(40)
    slow, quick = world.open("192.0.2.1"), world.open("192.0.2.1")
    assert slow.hold(30)
    world.now += 1
    assert quick.hold(30)
    assert (world.peer(slow).refused, slow.body_bytes, quick.body_bytes) == (1, 0, 30)
    assert not quick.hold(21)
    assert (world.peer(quick).refused, quick.body_bytes, other.body_bytes) == (1, 0, 40)
    assert (use_of(BODIES).in_use, use_of(BODIES).refusals) == (40, 2)
    assert world.closed == []


def test_when_all_bytes_are_spent_who_holds_most_loses_a_body(world: World) -> None:
    """Not who comes with a small one."""
    one, two, three = (world.open(f"192.0.2.{number}") for number in range(3))
    assert one.hold(40)
    assert two.hold(45)
    assert three.hold(20)
    assert [world.peer(each).refused for each in (one, two, three)] == [0, 1, 0]
    assert use_of(BODIES).in_use == 60


def test_body_that_is_being_answered_is_not_refused(world: World) -> None:
    """It is whole, so its caller has done its part."""
    one, two, three = (world.open(f"192.0.2.{number}") for number in range(3))
    assert one.hold(50)
    assert two.hold(45)
    world.peer(one).idle_since = None
    assert not three.hold(20)
    assert [world.peer(each).refused for each in (one, two, three)] == [0, 0, 1]


def test_bytes_go_with_their_caller_when_it_is_proven(token_world: World) -> None:
    """Strangers' bytes are free again for strangers."""
    connection = token_world.open("192.0.2.1")
    assert connection.body_limits is FEW
    assert connection.hold(8)
    connection.set_proven()
    assert connection.body_limits is ALL
    assert (use_of(STRANGERS).in_use, use_of(BODIES).in_use) == (0, 8)
    assert connection.hold(40)
    assert token_world.open("192.0.2.1").hold(10)


def test_refusals_are_logged_once_a_minute(world: World) -> None:
    """With who is refused and what it holds; a flood is one line."""
    with structlog.testing.capture_logs() as logs:
        for _ in range(10):
            world.try_open("192.0.2.1")
        assert [(line["event"], line["of"], line["address"], line["connections"]) for line in logs] == [
            ("callers.refused", "connections", "192.0.2.1", 6)
        ]
        world.now += 60
        for _ in range(10):
            world.try_open("192.0.2.1")
    assert len(logs) == 2
    assert use_of(CONNECTIONS).refusals == 14


@pytest.mark.parametrize("seed", range(20))
def test_figures_are_the_sums_of_what_is_held(seed: int) -> None:
    """After any connections, bodies, proofs and ends, and all of them are back at zero when everybody has left."""
    chance = random.Random(seed)
    world = World(chance.choice(list(Proof)))
    opened: list[CallerConnection] = []
    for _ in range(1000):
        world.now += chance.random()
        opened = [each for each in opened if each.is_counted]
        connection = chance.choice(opened) if opened else None
        match chance.randrange(6):
            case 0 | 1:
                made = world.try_open(f"192.0.2.{chance.randrange(5)}", has_request=chance.random() < 0.5)
                opened += [made] if made else []
            case 2 if connection:
                connection.hold(chance.randrange(1, 30))
            case 3 if connection:
                connection.give_back()
            case 4 if connection:
                connection.set_proven()
            case 5 if connection:
                connection.leave()
        opened = [each for each in opened if each.is_counted]
        assert world.callers.count == use_of(CONNECTIONS).in_use == len(opened) <= CONNECTIONS.total
        assert use_of(BODIES).in_use + use_of(STRANGERS).in_use == sum(each.body_bytes for each in opened)
        assert use_of(BODIES).in_use <= 2 * BODIES.total
    for each in opened:
        each.leave()
        each.leave()
    assert (world.callers.count, use_of(CONNECTIONS).in_use, use_of(BODIES).in_use) == (0, 0, 0)
    assert use_of(STRANGERS).in_use == 0
