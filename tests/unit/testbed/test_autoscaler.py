"""What an autoscaler of the tests can buy, from which pools, and in which network it runs."""

import os
from pathlib import Path

import pytest

from testbed import network_namespace
from testbed.autoscaler.instance_types import ARM64_CHEAPER, SIZES, instance_types
from testbed.autoscaler.node_pools import documented_pools
from testbed.network_namespace import NamespaceMissing, own_network


def test_each_size_costs_what_its_cpus_cost() -> None:
    """For both architectures, of which arm64 is 20 % cheaper here."""
    prices = {found["name"]: found["offerings"][0]["Price"] for found in instance_types(ARM64_CHEAPER)}
    assert len(prices) == 2 * len(SIZES)
    assert all(prices[f"arm64-{size}"] == pytest.approx(0.8 * prices[f"amd64-{size}"]) for size in SIZES)


def test_the_documented_pools_are_for_both_architectures_and_apart() -> None:
    """The pool behind a taint has the greatest weight, or nothing would ever be bought for it."""
    pools = documented_pools()
    assert set(pools) == {"general", "arm64", "amd64"}
    [taint] = pools["arm64"]["spec"]["template"]["spec"]["taints"]
    assert taint == {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}
    assert pools["arm64"]["spec"]["weight"] > max(pools[name]["spec"]["weight"] for name in ("general", "amd64"))


def test_a_page_without_pools_is_refused(tmp_path: Path) -> None:
    """A test that applies no pool would prove nothing."""
    page = tmp_path / "page.md"
    page.write_text("```yaml\nkind: Pod\nmetadata: {name: p}\n```\n")
    with pytest.raises(ValueError, match="has 1 objects, of which 0 are different NodePools"):
        documented_pools(page)


def test_a_network_that_cannot_be_made_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, and the thread stays where it is."""
    before = os.stat("/proc/thread-self/ns/net").st_ino  # noqa: PTH116 - a link that leads nowhere
    monkeypatch.setattr(network_namespace, "_CLONE_NEWNET", 1)  # no namespace
    said = r"^a network namespace needs root with CAP_SYS_ADMIN \(unshare: .*\)$"
    with pytest.raises(NamespaceMissing, match=said), own_network():
        pass
    assert os.stat("/proc/thread-self/ns/net").st_ino == before  # noqa: PTH116
