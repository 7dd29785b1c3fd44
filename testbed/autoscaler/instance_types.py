"""The machines that Karpenter's provider of fake nodes can buy, at prices that a test sets. This module is pure."""

from collections.abc import Mapping
from typing import Any

ZONE = "test-zone-a"
SIZES = (1, 2, 4, 8, 16, 32)
ARM64_CHEAPER: Mapping[str, float] = {"amd64": 1.0, "arm64": 0.8}
AMD64_CHEAPER: Mapping[str, float] = {"amd64": 0.8, "arm64": 1.0}


def instance_types(prices: Mapping[str, float]) -> list[dict[str, Any]]:
    """Returns machines of 1 to 32 CPUs for each architecture; `prices` are those of one CPU.

    Karpenter keeps a tenth of a CPU of each for the system.
    """
    return [_instance_type(architecture, size, price) for architecture, price in prices.items() for size in SIZES]


def _instance_type(architecture: str, cpus: int, price_of_cpu: float) -> dict[str, Any]:
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [ZONE]},
    ]
    return {
        "name": f"{architecture}-{cpus}",
        "architecture": architecture,
        "operatingSystems": ["linux"],
        "resources": {"cpu": str(cpus), "memory": f"{4 * cpus}Gi", "ephemeral-storage": "20Gi", "pods": "110"},
        "offerings": [{"Price": price_of_cpu * cpus, "Available": True, "Requirements": requirements}],
    }
