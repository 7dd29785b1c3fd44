"""What is kept of observed pods: by workload, within bounds, each tenant in its part."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kubernetes.core_v1 import CreatedPod
from extender.outlets.observations import OBSERVED_ADMISSIONS, ObservedPods
from extender.placement.mutation import AdmissionOutcome, ObservedOutcome
from extender.reports.observed import Observations
from testbed.clock import Clock

PATCHED = ObservedOutcome(AdmissionOutcome.PATCHED, ("linux/amd64",), "image app is built only for linux/amd64")
IMPOSSIBLE = ObservedOutcome(AdmissionOutcome.IMPOSSIBLE, (), "no platform is common to all images")
NOWHERE = ObservedOutcome(AdmissionOutcome.PATCHED, ("linux/s390x",), "built only for linux/s390x", is_nowhere=True)


def pod(name: str = "web-5d4f8c7b9f-abcde", owner: str = "ReplicaSet/web-5d4f8c7b9f") -> CreatedPod:
    """A pod of that owner, `Kind/name`."""
    kind, _, owner_name = owner.partition("/")
    owners = [{"kind": kind, "name": owner_name, "controller": True}] if owner else []
    return msgspec.convert({"metadata": {"name": name, "ownerReferences": owners}, "spec": {}}, CreatedPod)


@pytest.fixture
def clock() -> Clock:
    """Seconds since 1970 that stand still."""
    return Clock(1_700_000_000.0)


@pytest.fixture
def observed_pods(clock: Clock) -> ObservedPods:
    """An empty collection."""
    return ObservedPods(restricts=True, wall_clock=clock)


def test_pods_of_a_workload_are_one_row(observed_pods: ObservedPods, clock: Clock) -> None:
    """Counted by outcome; the last decision and its time stand."""
    counted = OBSERVED_ADMISSIONS["patched"].value
    observed_pods.note_review(pod(), "shop", IMPOSSIBLE)
    clock.advance(60)
    observed_pods.note_review(pod("web-6c5f8c7b9f-x", "ReplicaSet/web-6c5f8c7b9f"), "shop", PATCHED)
    observed_pods.note_review(pod(), "shop", NOWHERE)
    clock.advance(60)
    told = observed_pods.read()
    (row,) = told.workloads
    assert (row.namespace, row.kind, row.name) == ("shop", "Deployment", "web")
    assert row.is_refused
    assert (row.reviewed, row.refused, row.platforms) == ({"impossible": 1, "patched": 2}, 2, ["linux/s390x"])
    assert (row.first_seen, row.last_seen) == ("2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z")
    assert (told.since, told.until, told.left_out) == ("2023-11-14T22:13:20Z", "2023-11-14T22:15:20Z", 0)
    assert OBSERVED_ADMISSIONS["patched"].value == counted + 2


def test_a_namespace_is_told_by_itself(observed_pods: ObservedPods) -> None:
    """Nothing of another one is in it."""
    observed_pods.note_review(pod(), "shop", PATCHED)
    observed_pods.note_review(pod(), "bank", PATCHED)
    assert [row.namespace for row in observed_pods.read("shop").workloads] == ["shop"]
    assert [row.namespace for row in observed_pods.read().workloads] == ["bank", "shop"]
    assert observed_pods.read("other").workloads == []


def test_a_tenant_that_fills_the_table_loses_its_own_rows(observed_pods: ObservedPods) -> None:
    """Another namespace's row stays, and what was dropped is counted."""
    observed_pods.note_review(pod(), "shop", PATCHED)
    for number in range(6_000):
        observed_pods.note_review(pod(f"p{number}", ""), "loud", PATCHED)
    told = observed_pods.read()
    assert len(told.workloads) == 5_000
    assert told.left_out == 1_001
    assert [row.namespace for row in told.workloads].count("shop") == 1


def test_long_names_are_cut(observed_pods: ObservedPods) -> None:
    """A review may state anything, and no row grows with it."""
    stated: dict[str, Any] = {"name": "n" * 100_000, "generateName": "g" * 100_000}
    observed_pods.note_review(msgspec.convert({"metadata": stated}, CreatedPod), "s" * 100_000, PATCHED)
    (row,) = observed_pods.read().workloads
    assert len(row.namespace) + len(row.name) < 600


async def test_the_encoded_answer_is_what_is_read(observed_pods: ObservedPods) -> None:
    """Of nothing, of more workloads than are told at once, and of one namespace."""
    assert msgspec.json.decode(await observed_pods.encode(), type=Observations) == observed_pods.read()
    for number in range(450):
        observed_pods.note_review(
            pod(f"p{number}", ""), ("shop", "bank")[number % 2], (PATCHED, IMPOSSIBLE)[number % 2]
        )
    for namespace, rows in (("", 450), ("shop", 225), ("other", 0)):
        assert observed_pods.count(namespace) == rows
        told = msgspec.json.decode(await observed_pods.encode(namespace), type=Observations)
        assert told == observed_pods.read(namespace)
        assert len(told.workloads) == rows


async def test_others_have_their_turn_while_much_is_told(observed_pods: ObservedPods) -> None:
    """A full table takes 50 ms of processor time."""
    for number in range(1_000):
        observed_pods.note_review(pod(f"p{number}", ""), "shop", PATCHED)
    encoding = asyncio.create_task(observed_pods.encode())
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 5


def test_platforms_that_are_too_long_are_not_kept(observed_pods: ObservedPods) -> None:
    """A manifest may state words of 32 characters; those of real images are far shorter."""
    real = tuple(f"linux/arm/v{number}" for number in range(40))
    for name, platforms in (("real", real), ("hostile", tuple(f"{number:032}" * 3 for number in range(32)))):
        observed_pods.note_review(pod(name, ""), "shop", ObservedOutcome(AdmissionOutcome.PATCHED, platforms, "why"))
    hostile, kept = observed_pods.read().workloads
    assert (hostile.name, hostile.platforms, hostile.reason) == ("hostile", None, "why")
    assert kept.platforms == list(real)
