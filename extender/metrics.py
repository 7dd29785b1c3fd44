"""The one metrics registry, and how a metric is made so that every labelled series exists at zero from the start.

A metric is defined in the file that counts with it; names and labels are the public contract of the README's table.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry(auto_describe=True)


def counter(name: str, documentation: str, label: str, values: tuple[str, ...]) -> Mapping[str, Counter]:
    """The children of a counter with one label, by the label's value, all created at zero."""
    parent = Counter(name, documentation, [label], registry=REGISTRY)
    return {value: parent.labels(value) for value in values}


def gauge(name: str, documentation: str, label: str, values: tuple[str, ...]) -> Mapping[str, Gauge]:
    """The children of a gauge with one label, by the label's value, all created at zero."""
    parent = Gauge(name, documentation, [label], registry=REGISTRY)
    return {value: parent.labels(value) for value in values}


def counters(
    name: str, documentation: str, first: tuple[str, tuple[str, ...]], second: tuple[str, tuple[str, ...]]
) -> Mapping[str, Mapping[str, Counter]]:
    """The children of a counter with two labels, by the first label's value and then the second's, all at zero.

    `first` and `second` are each a label's name and its closed set of values.
    """
    parent = Counter(name, documentation, [first[0], second[0]], registry=REGISTRY)
    return {one: {two: parent.labels(one, two) for two in second[1]} for one in first[1]}


def histogram(
    name: str, documentation: str, label: str, values: tuple[str, ...], buckets_seconds: tuple[float, ...]
) -> Mapping[str, Histogram]:
    """The children of a histogram of seconds with one label, by the label's value."""
    parent = Histogram(name, documentation, [label], registry=REGISTRY, buckets=buckets_seconds)
    return {value: parent.labels(value) for value in values}
