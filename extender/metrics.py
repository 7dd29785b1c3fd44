"""The one metrics registry, and functions that make metrics whose labelled series all exist at zero from the start.

A metric is defined in the file that counts with it; names and labels are the public contract of docs/metrics.md.
Counting is on the hot path, so it is a plain addition. prometheus-client, which takes a lock for each addition, only
renders the sums.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

REGISTRY = CollectorRegistry(auto_describe=True)
_COUNTS: dict[str, Mapping[tuple[str, ...], "Count"]] = {}


class Count:
    """A sum that only grows. Only one thread may add to it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount


class Durations:
    """The number of observed durations in each histogram bucket, and their sum. Only one thread may add to it."""

    __slots__ = ("_bounds_seconds", "_counts", "_sum_seconds")

    def __init__(self, bounds_seconds: Sequence[float]) -> None:
        self._bounds_seconds = bounds_seconds
        self._counts = [0] * (len(bounds_seconds) + 1)
        self._sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds_seconds, seconds)] += 1
        self._sum_seconds += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        total, buckets = 0, list[tuple[str, float]]()
        for bound, number in zip((*map(str, self._bounds_seconds), "+Inf"), self._counts, strict=True):
            total += number
            buckets.append((bound, total))
        family.add_metric(labels, buckets, self._sum_seconds)


class _Collector(Collector):
    """A collector in `REGISTRY` that calls `collect` at each scrape."""

    def __init__(self, collect: Callable[[], Metric]) -> None:
        self._collect = collect
        REGISTRY.register(self)

    def collect(self) -> Iterable[Metric]:
        return [self._collect()]


def _register_counts(
    name: str, documentation: str, labels: Sequence[str], children: Mapping[tuple[str, ...], Count]
) -> None:
    _COUNTS[name] = children

    def collect() -> Metric:
        family = CounterMetricFamily(name, documentation, labels=labels)
        for values, child in children.items():
            family.add_metric(values, child.value)
        return family

    _Collector(collect)


def counter(name: str, documentation: str, label: str, values: tuple[str, ...]) -> Mapping[str, Count]:
    """The children of a counter with one label, by the label's value, all created at zero."""
    children = {value: Count() for value in values}
    _register_counts(name, documentation, [label], {(value,): child for value, child in children.items()})
    return children


def sums() -> dict[tuple[str, ...], float]:
    """The sums of all `Count`s of this process, by the counter's name and the labels' values."""
    return {(name, *values): child.value for name, children in _COUNTS.items() for values, child in children.items()}


def add_sums(increments: Mapping[tuple[str, ...], float]) -> None:
    """Adds what another process has counted. Ignores counters that this one does not have."""
    for (name, *values), amount in increments.items():
        child = _COUNTS.get(name, {}).get(tuple(values))
        if child:
            child.inc(amount)


def gauge_of(name: str, documentation: str, label: str, amounts: Callable[[], Mapping[str, float]]) -> None:
    """A gauge with one label whose amounts, by the label's value, are asked for at each scrape."""

    def collect() -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=[label])
        for value, amount in amounts().items():
            family.add_metric([value], amount)
        return family

    _Collector(collect)


def gauge(name: str, documentation: str, label: str, values: tuple[str, ...]) -> Mapping[str, Gauge]:
    """The children of a gauge with one label, by the label's value, all created at zero."""
    parent = Gauge(name, documentation, [label], registry=REGISTRY)
    return {value: parent.labels(value) for value in values}


def counters(
    name: str, documentation: str, first: tuple[str, tuple[str, ...]], second: tuple[str, tuple[str, ...]]
) -> Mapping[str, Mapping[str, Count]]:
    """The children of a counter with two labels, by the first label's value and then the second's, all at zero.

    `first` and `second` are each a label's name and its closed set of values.
    """
    children = {one: {two: Count() for two in second[1]} for one in first[1]}
    by_labels: dict[tuple[str, ...], Count] = {
        (one, two): child for one, seconds in children.items() for two, child in seconds.items()
    }
    _register_counts(name, documentation, [first[0], second[0]], by_labels)
    return children


def histogram(
    name: str, documentation: str, label: str, values: tuple[str, ...], bounds_seconds: tuple[float, ...]
) -> Mapping[str, Durations]:
    children = {value: Durations(bounds_seconds) for value in values}

    def collect() -> Metric:
        family = HistogramMetricFamily(name, documentation, labels=[label])
        for value, child in children.items():
            child.add_to(family, [value])
        return family

    _Collector(collect)
    return children
