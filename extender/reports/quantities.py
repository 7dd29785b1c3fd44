"""Quantities as Kubernetes writes them (`100m`, `1.5Gi`, `2e3`), how people write sizes,
and what a pod requests of a node."""

import re
from collections.abc import Iterable

from extender.kubernetes.reported_v1 import Quantities, ReportedContainer, ReportedSpec, ResourceRequirements

# k8s.io/apimachinery/pkg/api/resource/quantity.go
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30}))(?:([eE][+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?", re.ASCII
)
_FACTORS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def parse_quantity(text: str | float) -> float:
    """The number that a quantity is; 0 for what is no quantity, which an API server refuses."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return 0.0
    number, exponent, suffix = found.groups()
    return float(number + (exponent or "")) * _FACTORS.get(suffix, 1.0)


def counted(number: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(size_bytes: float, *, is_decimal: bool = False) -> str:
    """The size for people: `512 MiB`, or as registries have it `1.1 KB`."""
    step, units = (1000, ("B", "KB", "MB", "GB", "TB")) if is_decimal else (1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    size, power = float(size_bytes), 0
    while size >= step and power < len(units) - 1:
        size, power = size / step, power + 1
    return f"{size:,.1f} {units[power]}" if power and size < 100 else f"{size:,.0f} {units[power]}"


def requested(spec: ReportedSpec, resource: str) -> float:
    """How much of the resource kube-scheduler reserves for a pod, in cores or bytes.

    What the pod itself requests (`spec.resources`) counts before its containers' sum. Init containers run one after the
    other, beside the sidecars that began before them (KEP-753). The overhead of a RuntimeClass is added.
    """
    own = _request(spec.resources, resource)
    total = own if own is not None else _of_containers(spec, resource)
    return total + parse_quantity((spec.overhead or {}).get(resource, 0))


def _of_containers(spec: ReportedSpec, resource: str) -> float:
    sidecars = peak = 0.0
    for container in spec.init_containers or ():
        amount = _request(container.resources, resource) or 0.0
        if container.restart_policy == "Always":
            sidecars += amount
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + amount)
    return max(peak, sidecars + _sum(spec.containers or (), resource))


def _sum(containers: Iterable[ReportedContainer], resource: str) -> float:
    return sum(_request(container.resources, resource) or 0.0 for container in containers)


def _request(resources: ResourceRequirements | None, resource: str) -> float | None:
    """The request, which is the limit where only that is given; None without either."""
    for quantities in (resources.requests, resources.limits) if resources else ():
        found = _find(quantities, resource)
        if found is not None:
            return found
    return None


def _find(quantities: Quantities | None, resource: str) -> float | None:
    return parse_quantity(quantities[resource]) if quantities and resource in quantities else None
