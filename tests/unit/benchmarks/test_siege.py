"""The siege judges answers rightly, counts what was lost, and measures what it says."""

import base64
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from benchmarks.payloads import architecture
from benchmarks.report import Report, Table, print_report
from benchmarks.siege.answers import NAMES, Judgement, apply_patch, judge_filter, judge_review, required, tolerated
from benchmarks.siege.attacks import ATTACKS, TenantsAttack, chosen, forged_pod
from benchmarks.siege.images import AMD64, ARM64, Manifests, honest_image, platforms_of, platforms_of_image
from benchmarks.siege.name_server import resolution_of
from benchmarks.siege.network import ATTACKING_REGISTRY, HONEST_REGISTRIES
from benchmarks.siege.outcome import COLUMNS, MARKS, Outcome, Window, joined, percentile, ratio, window_of
from benchmarks.siege.pods import filter_of, new_pod, review_of
from benchmarks.siege.records import (
    GENERATOR,
    AttackRecord,
    DelayRecord,
    HoldRecord,
    PodRecord,
    Record,
    encode_record,
    read_records,
)
from extender.images.digest import digest_of

BOTH = (AMD64, ARM64)
POD = new_pod("team-1", 7, ["registry-1.honest.test/team-1/app-7:1"])


def pod_record(at: float, **fields: Any) -> PodRecord:
    """A pod that was answered rightly at the first call, unless `fields` say otherwise."""
    usual: dict[str, Any] = {
        "review_seconds": 0.1,
        "review": "known",
        "filter_seconds": (0.001,),
        "filters": ("known",),
        "settled_seconds": 0.001,
    }
    return PodRecord(at=at, **(usual | fields))


def hold(seconds: float, **fields: Any) -> HoldRecord:
    """A hold of the event loop at time 1."""
    usual: dict[str, Any] = {"at": 1.0, "waited_seconds": 0.0, "cpu_seconds": seconds, "collected_seconds": 0.0}
    return HoldRecord(**(usual | {"held_seconds": seconds, "cause": "a.py:f"} | fields))


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
    """Half of them are tags of a repository that all namespaces share; each registry serves some of both halves."""
    images = [honest_image(number % 10, number) for number in range(960)]
    assert len(set(images)) == 960
    assert {platforms_of_image(image) for image in images} == {BOTH, (AMD64,), (ARM64,)}
    shared = [image for image in images if "/shared/" in image]
    assert len(shared) == 480
    assert len({image.partition("/")[0] for image in shared}) == len(HONEST_REGISTRIES)


def test_manifests_are_made_from_names_and_found_by_digest() -> None:
    """A hostile one has 64 platforms, whose names no other has."""
    manifests = Manifests()
    usual, hostile = manifests.make("team/app", "1"), manifests.make("team/app", "1", hostile=True)
    for manifest in (usual, hostile):
        assert manifests.find(manifest.digest) == manifest
        assert digest_of(manifest.body) == manifest.digest
    assert manifests.find(digest_of(b"")) is None
    entries = msgspec.json.decode(usual.body)["manifests"]
    assert [f"linux/{each['platform']['architecture']}" for each in entries] == list(platforms_of("team/app", "1"))
    names = {each["platform"]["architecture"] for each in msgspec.json.decode(hostile.body)["manifests"]}
    others = msgspec.json.decode(manifests.make("team/app", "2", hostile=True).body)["manifests"]
    assert len(names) == 64
    assert names & {each["platform"]["architecture"] for each in others} == {"amd64"}
    assert max(map(len, names)) == 256


def test_names_resolve_as_their_zones_do() -> None:
    """Honest ones at once."""
    assert resolution_of("registry-3.honest.test").address == HONEST_REGISTRIES[2]
    assert resolution_of("registry-99.honest.test").code == 3
    assert resolution_of("r1.hang.attack.test").address == ATTACKING_REGISTRY
    assert resolution_of("r1.silent.attack.test").after_seconds is None
    assert (resolution_of("r1.late.attack.test").after_seconds or 0) > 1
    assert resolution_of("r1.failing.attack.test").code == 2
    assert resolution_of("example.com").code == 3


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if isinstance(attack, TenantsAttack)])
def test_tenants_attack_with_new_images_from_their_own_namespaces(name: str) -> None:
    """Their secrets are their namespaces' own."""
    attack = ATTACKS[name]
    assert isinstance(attack, TenantsAttack)
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


def test_attacks_are_chosen_by_name() -> None:
    """All of them without a name."""
    assert chosen([]) == list(ATTACKS)
    assert chosen(["idle"]) == ["idle"]
    with pytest.raises(ValueError, match="nothing: there are forged, "):
        chosen(["idle", "nothing"])


def test_requests_are_about_the_pod() -> None:
    """The review about its creation, the filter request about all nodes by name."""
    review, arguments = msgspec.json.decode(review_of(POD)), msgspec.json.decode(filter_of(POD))
    assert review["request"]["namespace"] == "team-1"
    assert review["request"]["object"]["spec"] == arguments["Pod"]["spec"] == POD["spec"]
    assert arguments["NodeNames"] == NAMES


def test_a_pod_counts_in_the_window_in_which_it_was_created() -> None:
    """Holds and delays count when they were noted."""
    pods = [pod_record(0.5), pod_record(1.5), pod_record(2.0)]
    others: list[Record] = [hold(0.03), AttackRecord("idle", {"done": 3}), DelayRecord(1.2, GENERATOR, (0.001, 0.002))]
    window = window_of([*pods, *others], 1.0, 2.0)
    assert [pod.at for pod in window.pods] == [1.5]
    assert len(window.holds) == 1
    assert window.late_ms(GENERATOR) == [1.0, 2.0]
    assert [pod.at for pod in joined([window, window]).pods] == [1.5, 1.5]


def test_images_are_known_in_time_by_the_first_retry() -> None:
    """Not by the second, not after two seconds, and not if they never are."""
    retried = pod_record(0, filters=("unknown", "known"), filter_seconds=(0.1, 0.1), settled_seconds=1.2)
    late = pod_record(0, filters=("known",), settled_seconds=2.5)
    again = pod_record(0, filters=("unknown", "lost: x", "known"), settled_seconds=1.9)
    never = pod_record(0, filters=("unknown",) * 4, settled_seconds=None)
    assert Window([pod_record(0), retried, late, again, never], [], []).known_percent == 40
    assert Window([], [], []).known_percent == 0


def test_every_mark_that_is_missed_is_named() -> None:
    """And none that holds."""
    quiet = Window([pod_record(number) for number in range(100)], [], [])
    assert Outcome(words="calm", window=quiet, megabytes=100).missed(quiet) == []
    slow = pod_record(0, review_seconds=0.3, filter_seconds=(0.1,), filters=("wrong",), settled_seconds=None)
    lost = pod_record(0, review_seconds=None, review="lost: timed out")
    bad = Outcome(words="bad", window=Window([slow, lost], [], [hold(0.05)]), megabytes=500)
    assert bad.missed(quiet) == [
        "review p99 against quiet 3 > 2",
        "filter p99 against quiet 100 > 2",
        "wrong answers 1 > 0",
        "lost answers 1 > 0",
        "RSS in MB 500 > 400",
        "hold of the event loop in ms 50 > 20",
        "known in time 50.00 % < 99 %",
    ]


def test_without_any_answer_the_marks_are_missed() -> None:
    """A service that is gone has no latency, which is not a good one."""
    quiet = Window([pod_record(0)], [], [])
    gone = Outcome(words="gone", window=Window([], [], []))
    assert [words.partition(" inf")[0] for words in gone.missed(quiet)[:2]] == [
        "review p99 against quiet",
        "filter p99 against quiet",
    ]
    assert percentile([], 99) == ratio(1.0, 0.0) == math.inf


def test_the_table_has_the_marks_below_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """A collection that took most of a hold is named as its cause."""
    quiet = Window([pod_record(0)], [], [])
    held = hold(0.05, collected_seconds=0.04, cause="secrets.py:read")
    outcome = Outcome(words="64 secrets", window=Window([pod_record(0)], [], [held]), megabytes=123.0, deaths=1)
    assert len(outcome.row(quiet)) == len(MARKS) == len(COLUMNS)
    table = Table("t", COLUMNS, [outcome.row(quiet), MARKS])
    print_report(Console(width=230), Report(name="siege", question="?", tables=[table]))
    lines = capsys.readouterr().out.splitlines()
    [row] = [line for line in lines if line.startswith("64 secrets")]
    assert "garbage collection in secrets.py:read" in row
    assert row.split()[2:13] == ["100", "100", "1", "1", "1", "100", "0", "0", "123", "1", "50"]
    assert any(line.startswith("mark") and "≥ 99" in line for line in lines)


def test_records_are_read_back_without_a_last_line_that_is_not_whole(tmp_path: Path) -> None:
    """A process may be killed while it writes."""
    records: list[Record] = [
        *(pod_record(1.0), hold(0.02)),
        *(DelayRecord(1.0, GENERATOR, (0.1,)), AttackRecord("idle", {"opened": 2})),
    ]
    path = tmp_path / "records"
    path.write_bytes(b"".join(map(encode_record, records)) + b'{"type":"pod"')
    assert list(read_records(path)) == records
    assert list(read_records(tmp_path / "none")) == []
