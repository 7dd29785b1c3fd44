"""The metrics about registries, which the fetcher counts and the service shows.

They are declared here and not where they are counted: the service has them from its start, and imports none of that.
"""

from collections.abc import Mapping

from prometheus_client import Gauge

from extender.metrics import REGISTRY, counter, gauge

CODES = ("2xx", "3xx", "401", "403", "404", "429", "4xx", "5xx", "error")
# Docker Hub is the only registry known to state a quota. Others share a label, with the value stated last.
QUOTA_NAMES = ("docker.io", "other")

REQUESTS = counter(
    "multiarch_registry_requests_total", "Requests to registries and token servers, by status code.", "code", CODES
)
MIRRORS = counter(
    "multiarch_mirror_requests_total",
    "Requests to mirrors; missing: it lacks or denies the image; resting: it failed lately and was not asked.",
    "outcome",
    ("answered", "missing", "failed", "resting"),
)
QUOTA_LIMIT = gauge(
    "multiarch_registry_quota_limit",
    "Requests that the registry allows in its window; 0: it has not said.",
    "registry",
    QUOTA_NAMES,
)
QUOTA_REMAINING = gauge(
    "multiarch_registry_quota_remaining",
    "Requests that are left of them.",
    "registry",
    QUOTA_NAMES,
)
WITHHELD = counter(
    "multiarch_registry_withheld_total",
    "Manifests not asked for, to leave the quota to nodes.",
    "registry",
    QUOTA_NAMES,
)

# By family and registry; the registry is empty where the family has no label.
_GAUGES: Mapping[tuple[str, str], Gauge] = {
    **{("multiarch_registry_quota_limit", name): child for name, child in QUOTA_LIMIT.items()},
    **{("multiarch_registry_quota_remaining", name): child for name, child in QUOTA_REMAINING.items()},
}


def gauge_values() -> dict[tuple[str, str], float]:
    """Returns the values of the gauges here, by family and registry."""
    return {
        (family, name): REGISTRY.get_sample_value(family, {"registry": name} if name else {}) or 0.0
        for family, name in _GAUGES
    }


def set_gauges(values: Mapping[tuple[str, str], float]) -> None:
    """Sets the gauges to what `gauge_values` has returned in another process. Ignores names that are none of theirs."""
    for key, value in values.items():
        if key in _GAUGES:
            _GAUGES[key].set(value)
