"""What is left of a registry's quota is for the nodes, and for those who have not had their share."""

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

    def ask(self, tenant: str, most: int = 1000) -> int:
        for number in range(most):
            if self.quotas.is_reserved(*HUB, tenant):
                return number
            self.quotas.count(*HUB, tenant)
            self.left -= 1
            self.state()
        return most


def test_half_is_for_whoever_comes_first_and_the_rest_for_those_who_had_less() -> None:
    """With one tenant, there might be another one; the last tenth is the nodes'."""
    hub = Hub()
    assert hub.ask("greedy") == 50
    assert [hub.ask("shop"), hub.ask("team")] == [30, 10]
    assert hub.left == 10
    assert [hub.ask(tenant) for tenant in ("greedy", "shop", "team", "another")] == [0] * 4


@pytest.mark.parametrize(("seconds", "sent"), [(SECONDS - 1, 0), (SECONDS, 1)])
def test_window_that_has_passed_counts_for_nobody(seconds: float, sent: int) -> None:
    hub = Hub()
    hub.ask("greedy")
    hub.clock.advance(seconds)
    assert hub.ask("greedy", 1) == sent
