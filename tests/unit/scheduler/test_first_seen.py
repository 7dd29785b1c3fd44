"""For how long a pod has been waiting."""

from extender.kubernetes.core_v1 import PodUid
from extender.scheduler.verbs import FirstSeen
from testbed.clock import Clock


def test_a_pod_waits_from_the_first_request_about_it() -> None:
    """Each pod for itself."""
    clock = Clock(0.0)
    first_seen = FirstSeen(clock)
    assert first_seen.seconds(PodUid("a"), "shop") == 0.0
    clock.advance(20)
    assert first_seen.seconds(PodUid("b"), "shop") == 0.0
    clock.advance(20)
    assert [first_seen.seconds(PodUid(uid), "shop") for uid in "ab"] == [40.0, 20.0]


def test_pods_of_one_namespace_do_not_make_others_wait_anew() -> None:
    """Whoever creates 200,000 pods takes the times of their own."""
    clock = Clock(0.0)
    first_seen = FirstSeen(clock)
    first_seen.seconds(PodUid("quiet"), "shop")
    clock.advance(20)
    for number in range(200_000):
        first_seen.seconds(PodUid(f"flood-{number}"), "flood")
    assert first_seen.seconds(PodUid("quiet"), "shop") == 20.0
    assert first_seen.seconds(PodUid("flood-0"), "flood") == 0.0
