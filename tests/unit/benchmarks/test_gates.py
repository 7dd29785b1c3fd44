"""What the benchmark of the gate controller makes of its figures."""

from benchmarks.cluster.gates import Burst, Cold, Sample, report_of

COLD = Cold(held=[float(held) for held in range(250, 300)], lookup=255.0)


def test_rate_and_growth_are_claimed() -> None:
    """The rate is that of the burst; memory counts from a tenth of the pods on, when tables have their usual size."""
    samples = [Sample(2_000, 70.0), Sample(10_000, 85.0), Sample(50_000, 90.0), Sample(100_000, 92.0)]
    report = report_of(COLD, Burst(pods=1_000, seconds=2.0, cpu_seconds=0.5), samples)
    beyond, rate, growth = report.claims
    assert (beyond.value, beyond.at_most, beyond.holds) == (19.5, 50.0, True)
    assert (rate.value, rate.at_least, rate.holds) == (500.0, 400.0, True)
    assert growth.value == 7.0
    assert "from 10,000 to 100,000 pods" in growth.what
    assert report.tables[1].rows == [["1,000", 2.0, 500.0, 0.5]]


def test_short_run_has_a_report_too() -> None:
    """One round is all there is."""
    report = report_of(COLD, Burst(pods=10, seconds=1.0, cpu_seconds=0.1), [Sample(10, 70.0)])
    assert [claim.holds for claim in report.claims] == [True, False, True]
