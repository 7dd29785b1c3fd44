"""What is left of a registry's quota is for the nodes."""

import pytest
from yarl import URL

from extender.credentials.keyring import ANONYMOUS
from extender.registry.quota import Quotas
from testbed.clock import Clock

HUB = (URL("https://registry-1.docker.io"), ANONYMOUS.id)
SECONDS = 21_600


class Hub:
    """Docker Hub, which allows a hundred requests in six hours, and the readings of what it says."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.quotas = Quotas(clock=self.clock, random=lambda: 0.0)
        self.left = 100
        self.state()

    def state(self) -> None:
        headers = {"RateLimit-Limit": f"100;w={SECONDS}", "RateLimit-Remaining": f"{self.left};w={SECONDS}"}
        self.quotas.note("docker.io", *HUB, headers)

    def ask(self, most: int = 1000) -> int:
        for number in range(most):
            if self.quotas.is_reserved(*HUB):
                return number
            self.left -= 1
            self.state()
        return most


def test_the_last_tenth_is_the_nodes() -> None:
    hub = Hub()
    assert hub.ask() == 90
    assert hub.left == 10
    assert hub.ask() == 0


@pytest.mark.parametrize(("seconds", "sent"), [(SECONDS - 1, 0), (SECONDS, 1)])
def test_a_reading_whose_window_has_passed_reserves_nothing(seconds: float, sent: int) -> None:
    hub = Hub()
    hub.ask()
    hub.clock.advance(seconds)
    assert hub.ask(1) == sent
