"""The arithmetic behind published figures: a fault in it is a false claim, which no run of a benchmark would show."""

import base64
from typing import Any

import msgspec
import pytest

from benchmarks.cluster.measurements import Measurement, Pace, Sample, pace_of, summarize
from benchmarks.report import Claim
from benchmarks.siege.answers import NAMES, Judgement, judge_filter, judge_review, required, tolerated
from benchmarks.siege.calls import new_pod
from benchmarks.siege.images import AMD64, ARM64
from benchmarks.wrk import Load, LoadFailed, parse_output

PRINTED = """Requests/sec:   3167.41

{"requests":4,"microseconds":20000,"connect":0,"read":0,"write":0,"status":0,"timeout":0,\
"latencies":{"250":2,"300":1,"9000":1}}
"""
BOTH = (AMD64, ARM64)
POD = new_pod("team-1", 7, ["registry-1.honest.test/team-1/app-7:1"])


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        (Claim(what="", value=4, at_least=4), True),
        (Claim(what="", value=3.99, at_least=4), False),
        (Claim(what="", value=0.06, at_most=0.06), True),
        (Claim(what="", value=0.07, at_most=0.06), False),
        (Claim(what="", value=5, at_least=1, at_most=4), False),
    ],
)
def test_a_claim_holds_within_its_marks(claim: Claim, holds: bool) -> None:
    """A figure on the mark holds, and one beyond it does not."""
    assert claim.holds == holds


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        *((f'"{kind}":0', f'"{kind}":1', f"1 of {kind}") for kind in ("connect", "read", "write", "status", "timeout")),
        ('"300":1', '"300":2', "4 answers have 5 latencies"),
        (PRINTED, "unable to connect to 127.0.0.1:1", "unable to connect"),
    ],
)
def test_a_load_with_a_failure_gives_no_figures(old: str, new: str, said: str) -> None:
    """A quick 413 looks like a splendid benchmark."""
    with pytest.raises(LoadFailed, match=said):
        parse_output(PRINTED.replace(old, new), 1)


def test_latencies_are_as_they_were_seen() -> None:
    """What wrk adds for late answers is taken out: five answers in 4 ms over two connections are 2 ms each."""
    found = parse_output(PRINTED, 1)
    assert (found.requests_per_second, found.p50, found.p99) == (200.0, 0.25, 9.0)
    printed = PRINTED.replace('"requests":4', '"requests":5').replace("20000", "4000")
    corrected = '{"250":2,"300":1,"3000":2,"5000":2,"7000":1,"9000":1}'
    found = parse_output(printed.replace('{"250":2,"300":1,"9000":1}', corrected), 2)
    assert found.latencies == {250: 2, 300: 1, 5000: 1, 9000: 1}


@pytest.mark.parametrize(("percent", "milliseconds"), [(0.1, 0.001), (1, 0.001), (1.1, 0.002), (50, 0.05), (100, 0.1)])
def test_a_percentile_is_the_least_latency_not_exceeded_by_that_many(percent: float, milliseconds: float) -> None:
    """Of latencies from 1 to 100 µs, one each."""
    load = Load(requests=100, seconds=1.0, latencies=dict.fromkeys(range(1, 101), 1))
    assert load.percentile(percent) == milliseconds


def test_the_pace_leaves_out_start_and_end() -> None:
    """Two seconds of start-up, and the time from the last pod to the last reading."""
    readings = [(0.0, 0), (2.0, 0), (3.0, 100), (4.0, 300), (5.0, 500), (9.0, 520)]
    pace = pace_of([Sample(at, bound) for at, bound in readings])
    assert (pace.pods_per_second, pace.is_steady) == (200.0, True)


def test_ratios_are_of_one_round() -> None:
    """A cluster that is slow for both variants says nothing about either: 0.9, 2 and 3, though both medians are 100."""

    def measured(variant: str, pods_per_second: float) -> Measurement:
        pace = Pace(pods_per_second, is_steady=True)
        return Measurement(variant=variant, nodes=1000, pods=3000, pace=pace, created_per_second=900.0)

    ours = [measured("ours", pace) for pace in (90.0, 100.0, 300.0)]
    one, other = summarize(ours + [measured("null", pace) for pace in (100.0, 50.0, 100.0)])
    assert one.over(other) == 2.0


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
def test_the_siege_calls_wrong_what_is_wrong(platforms: tuple[str, ...]) -> None:
    """A review that adds what other images would, a filter answer that keeps every node, and what is no answer."""
    answer = review_answer(additions(platforms))
    assert judge_review(answer, POD, platforms) == Judgement.KNOWN
    others = [each for each in (BOTH, (AMD64,), (ARM64,)) if each != platforms]
    assert {judge_review(answer, POD, other) for other in others} == {Judgement.WRONG}
    assert judge_review(review_answer(additions(BOTH)[:1]), POD, platforms) == Judgement.UNKNOWN
    refused = review_answer(additions(platforms), allowed=False)
    assert {judge_review(each, POD, platforms) for each in (refused, b"{}", b"no JSON")} == {Judgement.WRONG}
    everything = {"NodeNames": NAMES, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
    expected = Judgement.KNOWN if platforms == BOTH else Judgement.WRONG
    assert judge_filter(msgspec.json.encode(everything), platforms) == expected
    assert judge_filter(b"[]", platforms) == Judgement.WRONG
