"""Node affinity as it ends up in a pod: which terms change, and what the author is told."""

from typing import Any

import pytest

from extender.images.content import Cause
from extender.placement.facts import Anywhere, ImageFact, Pending, Unknown
from extender.placement.mutation import AdmissionOutcome
from extender.placement.policy import ADDED, MODE, PREFER, REASON
from tests.builders import AMD64, ARCH, ARM64, MULTI, OS, PREFERRED, REQUIRED, built_for, expression, pod, with_terms
from tests.unit.placement.mutating import after, mutate, settings, terms_of

ONLY_REQUIRED = settings("required", rules=())
ONLY_PREFERRED = settings("preferred", rules=())
LINUX = expression(OS, "linux")
NO_NODE = {"key": "multiarch-extender.io/no-common-platform", "operator": "Exists"}
IN_AMD64 = expression(ARCH, "amd64")
IN_BOTH = expression(ARCH, "amd64", "arm64")
ZONE = expression("zone", "a", "b")
FIELD = {"matchFields": [expression("metadata.name", "n1")]}
PREFER_ARM64 = {"weight": 100, "preference": {"matchExpressions": [expression(ARCH, "arm64")]}}
EMPTY: tuple[Any, ...] = ({REQUIRED: None}, {REQUIRED: {}}, {REQUIRED: {"nodeSelectorTerms": []}})
WITHOUT_TERMS: list[Any] = [None, {}, *({"nodeAffinity": each} for each in (None, {}, *EMPTY))]
SELECTOR_REASON = "nodeSelector allows no node that the images run on: image app-0:1 is built only for linux/amd64"
NOTHING_IN_COMMON = (
    "no platform is common to all images: image app-0:1 is built only for linux/amd64 (and 1 more image)"
)


def expressions(*items: Any) -> dict[str, Any]:
    return {"matchExpressions": list(items)}


WHOLE = [expressions(IN_BOTH, LINUX)]


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        *(pytest.param(affinity, WHOLE, id=str(affinity)) for affinity in WITHOUT_TERMS),
        pytest.param(with_terms(expressions(ZONE)), [expressions(ZONE, IN_BOTH, LINUX)], id="one term"),
        pytest.param(
            with_terms({**expressions(ZONE), "future": 1}, FIELD, {"matchExpressions": None, **FIELD}),
            [{**expressions(ZONE, IN_BOTH, LINUX), "future": 1}, *[{**FIELD, **expressions(IN_BOTH, LINUX)}] * 2],
            id="every term",
        ),
    ],
)
def test_requirement_is_anded_to_every_term_that_matches_something(affinity: Any, expected: list[Any]) -> None:
    """Terms are ORed, so each has to say it, beside fields that nobody here has heard of."""
    document = pod(affinity=affinity)
    assert terms_of(after(document, MULTI, admission=ONLY_REQUIRED)) == expected
    assert mutate(document, MULTI, admission=ONLY_REQUIRED).warnings == ()


def test_platforms_that_are_no_product_become_several_terms() -> None:
    """Each existing term once with each of them, with everything else it holds."""
    fact = built_for("linux/amd64", "linux/arm64", "windows/amd64")
    linux, windows = [IN_BOTH, LINUX], [IN_AMD64, expression(OS, "windows")]
    assert terms_of(after(pod(), fact, admission=ONLY_REQUIRED)) == [expressions(*linux), expressions(*windows)]
    both = pod(affinity=with_terms({**expressions(ZONE), "x": 1}, FIELD))
    assert terms_of(after(both, fact, admission=ONLY_REQUIRED)) == [
        {**expressions(ZONE, *linux), "x": 1},
        {**expressions(ZONE, *windows), "x": 1},
        {**FIELD, **expressions(*linux)},
        {**FIELD, **expressions(*windows)},
    ]


def test_contradicted_term_allows_no_node_and_its_author_is_warned() -> None:
    """The other terms are served."""
    wrong = expression(ARCH, "s390x")
    document = pod(affinity=with_terms(expressions(wrong), expressions(ZONE)))
    expected = [expressions(wrong, NO_NODE), expressions(ZONE, IN_BOTH, LINUX)]
    assert terms_of(after(document, MULTI, admission=ONLY_REQUIRED)) == expected
    one = after(document, AMD64, admission=ONLY_REQUIRED)
    assert (terms_of(one), one["spec"]["nodeSelector"]) == (terms_of(document), {ARCH: "amd64", OS: "linux"})
    for fact in (MULTI, AMD64):
        (warning,) = mutate(document, fact, admission=ONLY_REQUIRED).warnings
        told = "1 of 2 terms of the pod's node affinity allow no node that the images run on: image app"
        assert warning.startswith(told)


CONTRADICTED = pod(nodeSelector={ARCH: "arm64"}, affinity=with_terms(expressions(ZONE)))


@pytest.mark.parametrize(
    ("document", "facts", "terms", "reason"),
    [
        pytest.param(CONTRADICTED, [AMD64], [expressions(ZONE, NO_NODE)], SELECTOR_REASON, id="nodeSelector"),
        pytest.param(pod(2), [AMD64, ARM64], [expressions(NO_NODE)], NOTHING_IN_COMMON, id="nothing in common"),
        pytest.param(
            pod(3),
            [AMD64, ARM64, Pending(Cause.LOOKING_UP, "x")],
            [expressions(NO_NODE)],
            NOTHING_IN_COMMON,
            id="whatever the third turns out to be",
        ),
    ],
)
def test_pod_that_no_node_can_run_waits_with_a_reason(
    document: Any, facts: list[ImageFact], terms: list[Any], reason: str
) -> None:
    """No node has the label, so no scheduler places it and no autoscaler buys for it; it is not held besides."""
    admission = settings("required", unknown="gate")
    mutation = mutate(document, *facts, admission=admission, may_hold=True)
    assert (mutation.outcome, mutation.reason, mutation.warnings) == (AdmissionOutcome.IMPOSSIBLE, reason, (reason,))
    patched = after(document, *facts, admission=admission, may_hold=True)
    assert terms_of(patched) == terms
    assert patched["metadata"]["annotations"][REASON] == reason
    assert "schedulingGates" not in patched["spec"]
    assert mutate(patched, *facts, admission=admission, may_hold=True).patch == b""


def test_impossible_pod_passes_where_the_operator_wants_it() -> None:
    """It is counted, and its author told."""
    admission = settings("required", impossible="pass")
    mutation = mutate(CONTRADICTED, AMD64, admission=admission)
    patched = after(CONTRADICTED, AMD64, admission=admission)
    assert patched["spec"] == CONTRADICTED["spec"]
    assert patched["metadata"]["annotations"] == {"team": "a/b~c", REASON: SELECTOR_REASON, ADDED: "{}"}
    assert (mutation.outcome, mutation.warnings) == (AdmissionOutcome.IMPOSSIBLE, (SELECTOR_REASON,))


@pytest.mark.parametrize("mode", ["none", "preferred", "required", "both"])
def test_impossible_pod_is_denied_where_the_operator_wants_it(mode: str) -> None:
    """Whatever affinity is written otherwise. A possible pod is not, and neither is one that is only observed."""
    admission = settings(mode, impossible="deny")
    mutation = mutate(CONTRADICTED, AMD64, admission=admission)
    assert (mutation.outcome, mutation.reason, mutation.patch) == (AdmissionOutcome.REFUSED, SELECTOR_REASON, b"")
    assert mutation.refusal == SELECTOR_REASON
    assert mutate(CONTRADICTED, ARM64, admission=admission).outcome is not AdmissionOutcome.REFUSED
    observed = mutate(CONTRADICTED, AMD64, admission=admission, namespace={MODE: "observe"})
    assert (observed.outcome, observed.patch) == (AdmissionOutcome.OBSERVED, b"")
    assert observed.audit_annotations["would-deny"] == SELECTOR_REASON
    assert not observed.refusal


@pytest.mark.parametrize("fact", [Unknown(Cause.DENIED, "x"), Pending(Cause.LOOKING_UP, "x"), Anywhere()])
def test_known_images_count_where_others_are_not_known(fact: ImageFact) -> None:
    """What they rule out stays ruled out, whatever the others turn out to be; the reason says so."""
    patched = after(pod(2), fact, AMD64, admission=settings("both"))
    assert patched["spec"]["nodeSelector"] == {ARCH: "amd64", OS: "linux"}
    assert "affinity" not in patched["spec"]
    assert patched["metadata"]["annotations"][REASON].endswith("image app-1:1 is built only for linux/amd64")
    assert patched["metadata"]["annotations"]["team"] == "a/b~c"


@pytest.mark.parametrize(
    ("facts", "prefer", "expected"),
    [
        pytest.param([MULTI], "", "arm64", id="multi-arch"),
        pytest.param([MULTI, Anywhere()], "", "arm64", id="beside a volume"),
        pytest.param([ARM64], "", None, id="one architecture"),
        pytest.param([built_for("linux/amd64", "windows/amd64")], "", None, id="two systems, one architecture"),
        pytest.param([MULTI, Unknown(Cause.DENIED, "x")], "", None, id="one unknown"),
        pytest.param([built_for("linux/amd64", "linux/s390x")], "", None, id="not the preferred architecture"),
        pytest.param([MULTI], "amd64", "amd64", id="the pod's own"),
        pytest.param([MULTI], "aarch64", "arm64", id="in another spelling"),
        pytest.param([MULTI], "s390x", None, id="which its images lack"),
        pytest.param([MULTI], "none", None, id="the pod wants none"),
    ],
)
def test_preference_is_written_for_multi_arch_pods(facts: list[ImageFact], prefer: str, expected: str | None) -> None:
    """Where all images are known and have two architectures in common; behind the author's own."""
    own = {"weight": 7, "preference": expressions(ZONE), "future": 1}
    annotations = {"annotations": {PREFER: prefer} if prefer else {}}
    document = pod(len(facts), annotations, affinity={"nodeAffinity": {PREFERRED: [own]}})
    patched = after(document, *facts, admission=ONLY_PREFERRED)
    ours = {"weight": 100, "preference": expressions(expression(ARCH, expected))} if expected else None
    assert patched["spec"]["affinity"]["nodeAffinity"][PREFERRED] == [own, *filter(None, [ours])]
    reason = patched["metadata"]["annotations"].get(REASON, "")
    assert reason.startswith("image app-1:1 is unknown (denied: x)") is isinstance(facts[-1], Unknown)


def test_both_write_both() -> None:
    """Required and preferred in one affinity that had neither."""
    patched = after(pod(), MULTI, admission=settings("both"))
    assert patched["spec"]["affinity"] == {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [expressions(IN_BOTH, LINUX)]}, PREFERRED: [PREFER_ARM64]}
    }
