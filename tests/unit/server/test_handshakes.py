"""Whose TLS handshakes begin, and when."""

import pytest

from extender.server.handshakes import BURST, EACH_BURST, EACH_PER_SECOND, KNOWN_SECONDS, PER_SECOND, Handshakes
from testbed.clock import Clock

OURS, FLOOD = "10.0.0.1", "10.6.6.6"


class Scene:
    """Handshakes, and which of them have begun."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.handshakes = Handshakes(self.clock)
        self.begun: list[str] = []
        self._number = 0

    def add(self, address: str, count: int = 1) -> None:
        """Connections from an address."""
        for _ in range(count):
            self._number += 1
            self.handshakes.add(address, self._number, lambda: self.begun.append(address))

    def later(self, seconds: float, late_seconds: float = 0.0) -> None:
        """Time passes, as the acceptor lets it."""
        self.clock.advance(seconds)
        self.handshakes.begin_some(late_seconds)


@pytest.fixture
def scene() -> Scene:
    """Nobody has come yet."""
    return Scene()


def test_a_flood_of_one_address_is_held_back(scene: Scene) -> None:
    """Its first handshakes begin at once, and then so many a second."""
    scene.add(FLOOD, 500)
    assert len(scene.begun) == EACH_BURST
    for _ in range(20):
        scene.later(0.05)
    assert len(scene.begun) == pytest.approx(EACH_BURST + EACH_PER_SECOND, abs=1)


def test_a_flood_of_many_addresses_is_held_back(scene: Scene) -> None:
    """There is an allowance for all of them together."""
    for number in range(250):
        scene.add(f"10.6.6.{number}", 20)
    assert len(scene.begun) <= BURST
    scene.later(1.0)
    assert len(scene.begun) <= BURST + PER_SECOND


def test_fewer_begin_while_the_event_loop_is_busy(scene: Scene) -> None:
    """Requests that memory can answer come first."""
    for number in range(250):
        scene.add(f"10.6.6.{number}", 20)
    for _ in range(100):
        scene.later(0.05, late_seconds=0.01)
    assert BURST < len(scene.begun) <= BURST + 5 * PER_SECOND / 4 + 10


def test_a_newcomer_among_them_gets_its_turn(scene: Scene) -> None:
    """One of each address before a second of any."""
    for number in range(6):
        scene.add(f"10.6.6.{number}", 1000)
    scene.later(0.0)
    assert len(scene.begun) == BURST
    scene.add(OURS, 3)
    assert OURS not in scene.begun
    scene.later(7 / PER_SECOND)
    assert scene.begun.count(OURS) == 1
    scene.handshakes.note_known(OURS)
    assert scene.begun.count(OURS) == 3
    scene.add(OURS, 600)
    assert scene.begun.count(OURS) == 603


def test_a_caller_is_known_for_an_hour(scene: Scene) -> None:
    """After that it is as any other."""
    scene.handshakes.note_known(OURS)
    scene.add(OURS, 200)
    assert len(scene.begun) == 200
    scene.clock.advance(KNOWN_SECONDS)
    scene.add(OURS, 200)
    assert len(scene.begun) == 200 + EACH_BURST


def test_what_has_ended_does_not_begin(scene: Scene) -> None:
    """Nor does it take the place of what waits."""
    scene.add(FLOOD, EACH_BURST)
    scene.handshakes.add(FLOOD, "ended", lambda: scene.begun.append("ended"))
    scene.handshakes.remove(FLOOD, "ended")
    assert not scene.handshakes
    scene.later(10.0)
    assert "ended" not in scene.begun


def test_all_begin_when_nobody_comes_after_them(scene: Scene) -> None:
    """The listener closes, and loses none that it has accepted."""
    scene.add(FLOOD, 500)
    scene.handshakes.begin_all()
    assert len(scene.begun) == 500
