"""The metrics about registries, which the fetcher counts and the service shows.

They are declared here and not where they are counted: the service has them from its start, and imports none of that.
"""

from collections.abc import Mapping

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

_GAUGES = {"multiarch_registry_quota_limit": QUOTA_LIMIT, "multiarch_registry_quota_remaining": QUOTA_REMAINING}


def gauge_values() -> dict[tuple[str, str], float]:
    """The values of the gauges here, by metric and registry."""
    return {
        (metric, name): REGISTRY.get_sample_value(metric, {"registry": name}) or 0.0
        for metric, children in _GAUGES.items()
        for name in children
    }


def set_gauges(values: Mapping[tuple[str, str], float]) -> None:
    """Sets the gauges to the `gauge_values` of another process. Ignores names that are none of theirs."""
    for (metric, name), value in values.items():
        if child := _GAUGES.get(metric, {}).get(name):
            child.set(value)
