"""For how long a pod has been tried."""

from extender.kubernetes.core_v1 import PodUid
from extender.scheduler.verbs import TriedPods
from testbed.clock import Clock


def test_a_pod_is_tried_from_the_first_request_about_it() -> None:
    """Each pod for itself."""
    clock = Clock(0.0)
    tried = TriedPods(clock, away_seconds=30)
    assert tried.note(PodUid("a"), "shop").seconds == 0.0
    clock.advance(20)
    assert tried.note(PodUid("b"), "shop").seconds == 0.0
    assert tried.note(PodUid("a"), "shop").seconds == 20.0
    clock.advance(30)
    assert [tried.note(PodUid(uid), "shop").seconds for uid in "ab"] == [50.0, 30.0]


def test_the_time_of_a_pod_that_was_away_counts_anew() -> None:
    """It was among the unschedulable pods meanwhile, and nobody looked its images up."""
    clock = Clock(0.0)
    tried = TriedPods(clock, away_seconds=30)
    found = []
    for seconds in (0, 20, 300, 20, 31):
        clock.advance(seconds)
        row = tried.note(PodUid("a"), "shop")
        found.append((row.seconds, row.returns))
    assert found == [(0.0, 0), (20.0, 0), (0.0, 1), (20.0, 1), (0.0, 2)]


def test_pods_of_one_namespace_do_not_make_others_wait_anew() -> None:
    """Whoever creates 200,000 pods takes the times of their own."""
    clock = Clock(0.0)
    tried = TriedPods(clock, away_seconds=30)
    tried.note(PodUid("quiet"), "shop")
    clock.advance(20)
    for number in range(200_000):
        tried.note(PodUid(f"flood-{number}"), "flood")
    assert tried.note(PodUid("quiet"), "shop").seconds == 20.0
    assert tried.note(PodUid("flood-0"), "flood").seconds == 0.0
