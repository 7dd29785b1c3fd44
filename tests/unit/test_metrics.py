"""What is counted is told as Prometheus wants it."""

from prometheus_client.metrics_core import HistogramMetricFamily

from extender.metrics import REGISTRY, Durations
from extender.server.routes import NAMES


def test_durations_are_told_as_cumulative_buckets() -> None:
    """A duration on a bound is within it; the last bucket holds all."""
    durations = Durations((0.001, 0.5))
    for seconds in (0.0005, 0.001, 0.002, 7.0):
        durations.observe(seconds)
    family = HistogramMetricFamily("m", "…", labels=["endpoint"])
    durations.add_to(family, ["filter"])
    told = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert told == {
        ("m_bucket", "0.001"): 2,
        ("m_bucket", "0.5"): 3,
        ("m_bucket", "+Inf"): 4,
        ("m_count", None): 4,
        ("m_sum", None): 7.0035,
    }


def test_every_series_is_there_before_anything_is_counted() -> None:
    """So that a rate can be taken from the first event on."""
    for endpoint in NAMES:
        assert REGISTRY.get_sample_value("multiarch_request_duration_seconds_count", {"endpoint": endpoint}) is not None
