"""Whose quotas are remembered."""

from yarl import URL

from extender.credentials.keyring import ANONYMOUS
from extender.registry.quota import Quotas
from extender.turns import Interest, set_interest
from testbed.clock import Clock

LOW = {"RateLimit-Limit": "100;w=21600", "RateLimit-Remaining": "3;w=21600"}


async def test_quotas_of_one_tenant_s_hosts_do_not_replace_another_s() -> None:
    """A quota that is forgotten would be spent on lookups instead of being left to the nodes."""
    quotas, hub = Quotas(clock=Clock(), random=lambda: 0.0), URL("https://registry-1.docker.io")
    set_interest(Interest("team", 0.0))
    quotas.note("docker.io", hub, ANONYMOUS.id, LOW)
    set_interest(Interest("flood", 0.0))
    for number in range(5000):
        quotas.note("other", URL(f"https://host-{number}.example"), ANONYMOUS.id, LOW)
    assert quotas.is_low(hub, ANONYMOUS.id)
