"""The siege judges answers rightly, counts what was lost, and compares figures with marks."""

import base64
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.payloads import architecture
from benchmarks.siege.answers import NAMES, Judgement, apply_patch, judge_filter, judge_review, required, tolerated
from benchmarks.siege.attacks import ATTACKS, forged_pod
from benchmarks.siege.calls import filter_of, new_pod, review_of
from benchmarks.siege.figures import COLUMNS, Phase, marks_row, percentile
from benchmarks.siege.images import AMD64, ARM64, Manifests, honest_image, platforms_of, platforms_of_image
from benchmarks.siege.siege import planned
from benchmarks.siege.tenants import PodRecord, read_pods
from extender.images.digest import digest_of

BOTH = (AMD64, ARM64)
POD = new_pod("team-1", 7, ["registry-1.honest.test/team-1/app-7:1"])


def pod_record(**fields: Any) -> PodRecord:
    """A pod that was answered rightly at the first call, unless `fields` say otherwise."""
    usual: dict[str, Any] = {
        "at": 1.0,
        "late_seconds": 0.001,
        "review_seconds": 0.1,
        "filter_seconds": [0.001],
        "answers": ["known", "known"],
        "known_seconds": 0.2,
    }
    return PodRecord(**(usual | fields))


def review_answer(patch: list[dict[str, Any]], *, allowed: bool = True) -> bytes:
    """An AdmissionReview with a response."""
    packed = base64.b64encode(msgspec.json.encode(patch)).decode()
    return msgspec.json.encode({"response": {"allowed": allowed, "patchType": "JSONPatch", "patch": packed}})


def additions(platforms: tuple[str, ...]) -> list[dict[str, Any]]:
    """The operations by which a pod gets what images of these platforms earn, and its scheduler."""
    selector = {key: value for key, [value] in required(platforms).items()}
    return [
        {"op": "replace", "path": "/spec/schedulerName", "value": "multiarch-scheduler"},
        *([{"op": "add", "path": "/spec/nodeSelector", "value": selector}] if selector else []),
        *({"op": "add", "path": "/spec/tolerations/-", "value": {"key": key}} for key in sorted(tolerated(platforms))),
    ]


@pytest.mark.parametrize("platforms", [BOTH, (AMD64,), (ARM64,)])
def test_a_review_is_right_if_it_adds_what_the_images_allow(platforms: tuple[str, ...]) -> None:
    """And wrong if it adds what other images would."""
    answer = review_answer(additions(platforms))
    assert judge_review(answer, POD, platforms) == Judgement.KNOWN
    others = [each for each in (BOTH, (AMD64,), (ARM64,)) if each != platforms]
    assert {judge_review(answer, POD, other) for other in others} == {Judgement.WRONG}


def test_a_review_that_adds_nothing_does_not_know_the_image() -> None:
    """It still names the scheduler; a refusal, and anything that is no review, is wrong."""
    assert judge_review(review_answer(additions(BOTH)[:1]), POD, BOTH) == Judgement.UNKNOWN
    assert judge_review(review_answer([]), POD, BOTH) == Judgement.WRONG
    assert judge_review(review_answer(additions(BOTH), allowed=False), POD, BOTH) == Judgement.WRONG
    assert judge_review(b"{}", POD, BOTH) == judge_review(b"no JSON", POD, BOTH) == Judgement.WRONG


@pytest.mark.parametrize("platforms", [BOTH, (AMD64,), (ARM64,)])
def test_a_filter_answer_is_right_if_it_keeps_the_suited_nodes(platforms: tuple[str, ...]) -> None:
    """All of them, and no other; an image for one platform on every node is wrong."""
    suited = [name for index, name in enumerate(NAMES) if f"linux/{architecture(index)}" in platforms]
    refused = {name: "why" for name in NAMES if name not in suited}
    answer = {"NodeNames": suited, "FailedNodes": {}, "FailedAndUnresolvableNodes": refused, "Error": ""}
    assert judge_filter(msgspec.json.encode(answer), platforms) == Judgement.KNOWN
    passed = msgspec.json.encode(answer | {"NodeNames": NAMES, "FailedAndUnresolvableNodes": {}})
    assert judge_filter(passed, platforms) == (Judgement.KNOWN if platforms == BOTH else Judgement.WRONG)
    assert judge_filter(msgspec.json.encode({"Error": "pending"}), platforms) == Judgement.UNKNOWN
    assert judge_filter(b"[]", platforms) == Judgement.WRONG


def test_patches_are_applied_in_order() -> None:
    """To a copy."""
    document = {"a": [1, 3], "b/c": {"~": 1}, "d": 0}
    patch: list[dict[str, Any]] = [
        {"op": "add", "path": "/a/1", "value": 2},
        {"op": "replace", "path": "/a/0", "value": 0},
        {"op": "remove", "path": "/a/2"},
        {"op": "add", "path": "/b~1c/~0", "value": 5},
        {"op": "remove", "path": "/d"},
    ]
    assert apply_patch(document, patch) == {"a": [0, 2], "b/c": {"~": 5}}
    assert document["d"] == 0


def test_honest_images_are_all_new_and_of_every_kind() -> None:
    """Half of them are tags of a repository that all namespaces share; some of both halves come through the mirror."""
    images = [honest_image(number % 10, number) for number in range(960)]
    assert len(set(images)) == 960
    assert {platforms_of_image(image) for image in images} == {BOTH, (AMD64,), (ARM64,)}
    shared = [image for image in images if "/shared/" in image]
    assert len(shared) == 480
    assert {each.partition("/")[0] for each in shared} == {each.partition("/")[0] for each in images}
    assert len({each.partition("/")[0] for each in images}) == 9


def test_manifests_are_made_from_names_and_found_by_digest() -> None:
    """A hostile one has 64 platforms, whose names no other has; a fat one is large."""
    manifests = Manifests()
    usual, hostile, fat = (manifests.make(kind, "team/app", "1") for kind in ("", "hostile", "fat"))
    for kind, manifest in (("", usual), ("hostile", hostile), ("fat", fat)):
        assert manifests.find(kind, manifest.digest) == manifest
        assert digest_of(manifest.body) == manifest.digest
    assert manifests.find("", digest_of(b"")) is None
    assert len(fat.body) > 900_000
    entries = msgspec.json.decode(usual.body)["manifests"]
    assert [f"linux/{each['platform']['architecture']}" for each in entries] == list(platforms_of("team/app", "1"))
    names = {each["platform"]["architecture"] for each in msgspec.json.decode(hostile.body)["manifests"]}
    others = msgspec.json.decode(manifests.make("hostile", "team/app", "2").body)["manifests"]
    assert len(names) == 64
    assert names & {each["platform"]["architecture"] for each in others} == {"amd64"}


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.image])
def test_tenants_attack_with_new_images_from_their_own_namespaces(name: str) -> None:
    """Their secrets are their namespaces' own."""
    attack = ATTACKS[name]
    pods = [attack.pod(number) for number in range(10)]
    images = [each["image"] for pod in pods for each in pod["spec"]["containers"]]
    assert len(set(images)) == len(images) == 10 * attack.images_each
    assert {pod["metadata"]["namespace"] for pod in pods} == {f"besieger-{number}" for number in range(5)}
    assert all(len(pod["spec"].get("imagePullSecrets", [])) == attack.secrets for pod in pods)


def test_forged_reviews_name_secrets_of_others() -> None:
    """In the namespaces of honest tenants, with new images."""
    pods = [forged_pod(number) for number in range(10)]
    assert {pod["metadata"]["namespace"] for pod in pods} == {f"team-{number}" for number in range(10)}
    assert all(pod["spec"]["imagePullSecrets"] == [{"name": "login"}] for pod in pods)
    assert len({pod["spec"]["containers"][0]["image"] for pod in pods}) == 10


def test_requests_are_about_the_pod() -> None:
    """The review about its creation, the filter request about all nodes by name."""
    review, arguments = msgspec.json.decode(review_of(POD)), msgspec.json.decode(filter_of(POD))
    assert review["request"]["namespace"] == "team-1"
    assert review["request"]["uid"] == POD["metadata"]["uid"]
    assert review["request"]["object"]["spec"] == arguments["Pod"]["spec"] == POD["spec"]
    assert arguments["NodeNames"] == NAMES


def test_a_siege_lasts_ten_minutes() -> None:
    """Quiet comes first, and what is named alone is made with it."""
    assert sum(plan.seconds for plan in planned([], 15.0)) < 500  # each phase also starts a service
    assert [plan.name for plan in planned(["idle", "103"], 5.0)] == ["quiet", "103", "idle", "together"]
    assert [plan.name for plan in planned(["idle", "103"], 5.0, skips_together=True)] == ["quiet", "103", "idle"]
    [_, killed] = planned(["killed"], 15.0)
    assert (killed.kills, killed.seconds, killed.attacks) == (True, 60.0, ())


def test_every_mark_that_is_missed_is_named() -> None:
    """And none that holds."""
    quiet = Phase(words="quiet", seconds=1.0, pods=[pod_record() for _ in range(100)], megabytes=100.0)
    assert quiet.missed(quiet) == []
    slow = pod_record(review_seconds=0.4, filter_seconds=[0.1], answers=["known", "wrong"], known_seconds=None)
    lost = pod_record(answers=["lost: timed out", "known"], known_seconds=31.0)
    pods = [slow, lost, pod_record(), pod_record()]
    bad = Phase(words="bad", seconds=1.0, pods=pods, megabytes=300, both_megabytes=500, hold_seconds=0.06)
    assert bad.missed(quiet) == [
        "known % 50, not ≥ 99",
        "wrong 1, not ≤ 0",
        "lost 1, not ≤ 0",
        "× quiet 4, not ≤ 3",
        "filter p99 ms 100, not ≤ 20",
        "service MB 300, not ≤ 200",
        "both MB 500, not ≤ 450",
        "hold ms 60, not ≤ 50",
    ]
    assert bad.faults == 2
    assert len(bad.row(quiet)) == len(marks_row()) == len(COLUMNS)


def test_without_any_answer_the_marks_are_missed() -> None:
    """A service that is gone has no latency, which is not a good one."""
    quiet = Phase(words="quiet", seconds=1.0, pods=[pod_record()])
    gone = Phase(words="gone", seconds=1.0, pods=[])
    assert {words.split()[0] for words in gone.missed(quiet)} == {"known", "×", "filter"}
    assert percentile([], 99) == math.inf


def test_records_are_read_back_without_a_last_line_that_is_not_whole(tmp_path: Path) -> None:
    """A process may be killed while it writes."""
    path = tmp_path / "pods"
    path.write_bytes(msgspec.json.encode(pod_record()) + b'\n{"at":')
    assert list(read_pods(path)) == [pod_record()]
