"""The throughput benchmark without a cluster: its variants, its arithmetic, its claims."""

import msgspec
import pytest

from benchmarks.cluster.measurements import Measurement, Pace, Sample, pace_of, summarize
from benchmarks.cluster.scheduler_metrics import ATTEMPT, Quantiles, quantile, quantiles, scheduled
from benchmarks.cluster.throughput import Plan
from benchmarks.cluster.throughput_report import COMPARISONS, claims_of, report_of
from benchmarks.cluster.variants import QUICK, VARIANTS, ExtenderChoice, chosen, in_round
from benchmarks.report import Machine
from testbed.shipped_files import Mode, scheduler_configuration

METRICS = """
# TYPE scheduler_schedule_attempts_total counter
scheduler_schedule_attempts_total{profile="multiarch-scheduler",result="error"} 7
scheduler_schedule_attempts_total{profile="multiarch-scheduler",result="scheduled"} 40
scheduler_schedule_attempts_total{profile="other",result="scheduled"} 2
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.001"} 0
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.002"} 60
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.004"} 100
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="+Inf"} 100
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="unschedulable",le="0.001"} 900
scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="unschedulable",le="+Inf"} 900
"""


def measured(variant: str, pods_per_second: float, **changes: object) -> Measurement:
    """A measurement of that pace."""
    made = Measurement(
        variant=variant,
        nodes=1000,
        pods=3000,
        pace=Pace(pods_per_second, {"etcd": 0.5}, is_steady=True),
        created_per_second=900.0,
        algorithm=Quantiles(1.0, 4.0),
        attempt=None,
    )
    return msgspec.structs.replace(made, **changes)


def test_bound_pods_are_counted_over_all_profiles() -> None:
    """What failed is not among them, and before the first pod the counter is missing."""
    assert scheduled(METRICS) == 42
    assert scheduled("") == 0


def test_quantiles_are_of_the_series_asked_for() -> None:
    """Pods that were not scheduled would pull the median down."""
    found = quantiles(METRICS, ATTEMPT, label='result="scheduled"')
    assert found is not None
    assert found.p50 == pytest.approx(1 + 50 / 60)
    assert found.p99 == pytest.approx(2 + 2 * 39 / 40)
    assert quantiles(METRICS, "scheduler_another_duration_seconds") is None


@pytest.mark.parametrize(
    ("buckets", "part", "expected"),
    [
        ([(1.0, 10), (2.0, 10), (float("inf"), 10)], 0.5, 0.5),
        ([(1.0, 0), (2.0, 10), (float("inf"), 10)], 0.5, 1.5),
        ([(1.0, 5), (2.0, 5), (4.0, 10), (float("inf"), 10)], 0.75, 3.0),
        ([(1.0, 0), (2.0, 1), (float("inf"), 10)], 0.99, 2.0),
    ],
    ids=["first bucket", "second bucket", "after an empty bucket", "beyond the last bound"],
)
def test_a_quantile_is_linear_within_its_bucket(
    buckets: list[tuple[float, float]], part: float, expected: float
) -> None:
    """As histogram_quantile of Prometheus has it."""
    assert quantile(buckets, part) == pytest.approx(expected)


def test_the_pace_leaves_out_start_and_end() -> None:
    """Two seconds of start-up, and the time from the last pod to the last reading."""
    readings = [(0.0, 0), (2.0, 0), (3.0, 100), (4.0, 300), (5.0, 500), (9.0, 520)]
    pace = pace_of([Sample(at, bound, {"etcd": at / 10, "later": 1.0}) for at, bound in readings])
    assert (pace.pods_per_second, pace.is_steady) == (200.0, True)
    assert pace.cpu_milliseconds == {"etcd": pytest.approx(0.5), "later": 0.0}


def test_a_short_run_counts_its_start_and_says_so() -> None:
    """With one reading amid, nothing can be told of the pace alone."""
    pace = pace_of([Sample(0.0, 0, {"etcd": 1.0}), Sample(1.0, 30, {"etcd": 1.1}), Sample(2.0, 60, {"etcd": 1.3})])
    assert (pace.pods_per_second, pace.is_steady) == (30.0, False)
    assert pace.cpu_milliseconds == {"etcd": pytest.approx(5.0)}


def test_what_else_ran_on_the_machine_is_told_in_cores() -> None:
    """Of 4 busy seconds within 2 seconds of the clock, the process spent 1: the others kept 1.5 cores busy."""
    pace = pace_of([Sample(0.0, 0, {"etcd": 1.0}, 100.0), Sample(2.0, 10, {"etcd": 2.0}, 104.0)])
    assert pace.other_cores == pytest.approx(1.5)


def test_a_process_that_came_between_has_no_cost() -> None:
    """Only what was there at both ends can be told."""
    assert pace_of([Sample(0.0, 0, {}), Sample(1.0, 10, {"asked": 3.0})]).cpu_milliseconds == {}


def test_a_run_that_binds_nothing_has_no_pace() -> None:
    """Rather than a pace of zero."""
    with pytest.raises(ValueError, match="no pod was bound"):
        pace_of([Sample(0.0, 0, {}), Sample(1.0, 0, {})])


def test_rounds_become_medians_with_their_spread() -> None:
    """Of each variant and size; what was not measured stays away."""
    found = [measured("none", pace) for pace in (400.0, 500.0, 440.0)]
    [small, large] = summarize([*found, measured("none", 90.0, nodes=5000)])
    assert (small.pods_per_second, small.paces) == (440.0, (400.0, 500.0, 440.0))
    assert (small.algorithm, small.attempt) == (Quantiles(1.0, 4.0), None)
    assert (large.nodes, large.pods_per_second) == (5000, 90.0)


def test_ratios_are_of_one_round() -> None:
    """A cluster that is slow for both variants says nothing about either: 0.9, 2 and 3, though both medians are 100."""
    ours = [measured("ours", pace) for pace in (90.0, 100.0, 300.0)]
    null = [measured("null", pace) for pace in (100.0, 50.0, 100.0)]
    one, other = summarize(ours + null)
    assert one.over(other) == 2.0


def test_claims_are_ratios_against_their_marks() -> None:
    """0.85 of an extender that does nothing, 1.1 of the typed one; what was not measured is not claimed."""
    found = [measured("null", 300.0), measured("typed", 200.0), measured("ours", 250.0), measured("none", 500.0)]
    claims = {claim.what: claim for claim in claims_of(1000, summarize(found))}
    over_null = claims["1,000 nodes, multi-arch pods: pods/s of ours / null"]
    over_typed = claims["1,000 nodes, multi-arch pods: pods/s of ours / typed"]
    assert over_null.value == pytest.approx(250 / 300)
    assert not over_null.holds
    assert (over_typed.value, over_typed.holds) == (1.25, True)
    assert len(claims) == 2


def test_the_report_has_a_row_for_each_variant_and_a_plot_for_each_size() -> None:
    """Every row has a cell for each column; runs that were too short are named."""
    unsteady = measured("none", 100.0, nodes=5000, pace=Pace(100.0, {}, is_steady=False))
    machine = Machine(processor="", cores=2, kernel="", python="", commit="", packages={})
    report = report_of([measured("none", 500.0), measured("ours", 250.0), unsteady], machine, ["a note"])
    assert [[row[0] for row in table.rows] for table in report.tables] == [["none", "ours"]] * 2 + [["none"]] * 2
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert len(set(report.tables[1].columns)) == len(report.tables[1].columns)
    assert [plot.name for plot in report.plots] == ["throughput-1000", "throughput-5000"]
    assert report.notes[-1].endswith("none (5,000)")


def test_every_comparison_is_of_variants_there_are_and_that_every_round_measures() -> None:
    """A claim of medians takes all rounds; `--quick` measures what the claims take and nothing else."""
    compared = {name for each in COMPARISONS for name in (each.variant, each.over)}
    assert compared <= {variant.name for variant in VARIANTS if variant.claimed}
    assert set(QUICK) == compared
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)


def test_compared_extenders_are_asked_the_same_verbs_about_the_same_pods() -> None:
    """Otherwise the ratio would be of two different things."""
    by_name = {variant.name: variant for variant in VARIANTS}
    for each in COMPARISONS[:5]:
        ours, other = by_name[each.variant], by_name[each.over]
        assert ours.extender is ExtenderChoice.OURS
        assert (ours.verbs, ours.pods, ours.by_names) == (other.verbs, other.pods, other.by_names)
        assert ours.pods is each.pods


def test_a_variant_changes_only_what_it_says_in_the_shipped_entry() -> None:
    """A verb that is not asked is absent, as kube-scheduler wants it."""
    by_name = {variant.name: variant for variant in VARIANTS}
    entries = {
        name: scheduler_configuration(Mode.SECOND, "http://x", by_name[name].entry())["extenders"][0]
        for name in ("ours", "ours filter", "ours prioritize", "ours whole")
    }
    shipped = scheduler_configuration(Mode.SECOND, "http://x")["extenders"][0]
    assert entries["ours"] == shipped
    assert entries["ours whole"] == {**shipped, "nodeCacheCapable": False}
    assert "prioritizeVerb" not in entries["ours filter"]
    assert "filterVerb" not in entries["ours prioritize"]


def test_whole_nodes_are_sent_for_fewer_pods() -> None:
    """At ten pods a second three thousand take five minutes."""
    [whole] = chosen(["ours whole"])
    [names] = chosen(["ours"])
    assert (whole.count(3000), whole.count(3), names.count(3000)) == (300, 1, 3000)


def test_an_unknown_variant_is_named_beside_those_there_are() -> None:
    """A typing error must not measure nothing."""
    with pytest.raises(ValueError, match="no such variant: theirs; there are none, "):
        chosen(["ours", "theirs"])


def test_rounds_measure_what_is_claimed_and_go_back_and_forth() -> None:
    """So that what drifts in the course of a round does not always fall on the same variant."""
    variants = chosen([])
    plan = Plan(nodes=(1000, 5000), pods=3000, rounds=3, variants=variants)
    first, second, third = (in_round(variants, number) for number in range(3))
    assert first == variants
    assert second == third[::-1] == [variant for variant in variants if variant.claimed][::-1]
    assert plan.runs == 2 * (len(first) + len(second) + len(third))
