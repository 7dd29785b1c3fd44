"""What holds for every pod: idempotence, taking back exactly, validity of the result, and nothing from the unknown."""

import copy
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from extender.images.content import RETRYABLE, Cause
from extender.images.platform import parse_platform
from extender.placement.additions import read_record, take_back
from extender.placement.annotations import ADDED, Overrides
from extender.placement.facts import Anywhere, ImageFact, Pending, Unknown, images_of
from extender.placement.mutation import Mutator
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.tolerations import TolerationRule
from tests.builders import ARCH, OS, PREFERRED, REQUIRED, built_for, created
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import ARM_RULE, ARM_TOLERATION, BOTH_RULE, NOT_READY, POLICY, after, settings
from tests.unit.placement.terms import NO_NODE

RULES: tuple[TolerationRule, ...] = (BOTH_RULE, ARM_RULE)
KNOWN = st.sets(
    st.sampled_from(["linux/amd64", "linux/arm64", "windows/amd64", "linux/arm/v6", "linux/amd64/v3"]), min_size=1
).map(lambda texts: built_for(*texts))
UNRESOLVED: st.SearchStrategy[ImageFact] = st.sampled_from(
    [*(Pending(cause, "x") for cause in RETRYABLE), *(Unknown(cause, "x") for cause in Cause)]
)
FACTS: st.SearchStrategy[ImageFact] = KNOWN | UNRESOLVED | st.just(Anywhere())
PREFERRING = msgspec.structs.replace(POLICY, preference={"arm64": 3})
LEVELS = ["linux/amd64", "linux/arm64", "linux/amd64/v2", "linux/amd64/v3", "linux/arm/v7", "windows/amd64"]
PLATFORMS = st.sets(st.sampled_from(LEVELS)).map(lambda texts: frozenset(map(parse_platform, texts)))
CLUSTERS = st.builds(ClusterNodes, PLATFORMS)
LEVELLED_FACTS = FACTS | st.sets(st.sampled_from(LEVELS), min_size=1).map(lambda texts: built_for(*texts))
PLAIN = {"metadata": {}, "spec": {"containers": [{"image": "a:1"}, {"image": "b:1"}]}}
OLD_ARM = ClusterNodes(frozenset(map(parse_platform, ("linux/amd64", "linux/arm", "linux/arm/v6"))))


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return strategy | st.none() | st.just(...)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects of these fields, some of them missing, null, or beside one never heard of."""
    return st.fixed_dictionaries(fields, optional={"future": st.just({"x": [None]})}).map(
        lambda found: {key: value for key, value in found.items() if value is not ...}
    )


LABELS = [
    (ARCH, ["amd64"]), (ARCH, ["amd64", "arm64"]), (ARCH, ["s390x"]), (OS, ["linux"]), (f"beta.{ARCH}", ["arm64"]),
    ("zone", ["a"]),
]  # fmt: skip
EXPRESSIONS = st.builds(
    lambda label, operator: {
        "key": label[0], "operator": operator, **({"values": label[1]} if operator in ("In", "NotIn") else {})
    },
    st.sampled_from(LABELS),
    st.sampled_from(["In", "In", "NotIn", "Exists"]),
)  # fmt: skip
TERMS = objects(
    matchExpressions=maybe(st.lists(EXPRESSIONS, max_size=3)), matchFields=maybe(st.lists(EXPRESSIONS, max_size=1))
)
PREFERENCES = st.builds(lambda weight, term: {"weight": weight, "preference": term}, st.integers(1, 100), TERMS)
REQUIREMENTS = objects(nodeSelectorTerms=maybe(st.lists(TERMS, max_size=3)))
AFFINITIES = objects(
    podAffinity=maybe(st.just({})),
    nodeAffinity=maybe(objects(**{REQUIRED: maybe(REQUIREMENTS), PREFERRED: maybe(st.lists(PREFERENCES, max_size=2))})),
)
TOLERATIONS = st.sampled_from(
    [
        {"operator": "Exists"},
        ARM_TOLERATION,
        {"key": "multi", "operator": "Exists", "future": 1},
        {**NOT_READY, "tolerationSeconds": 300},
    ]
)
PODS = objects(
    metadata=objects(annotations=maybe(st.dictionaries(st.sampled_from(["a", "b/c~d"]), st.text(max_size=3)))),
    spec=objects(
        containers=st.just([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]),
        tolerations=maybe(st.lists(TOLERATIONS, max_size=3)),
        affinity=maybe(AFFINITIES),
        nodeSelector=maybe(st.sampled_from([{}, {ARCH: "amd64"}, {ARCH: "arm64", OS: "linux"}, {"disk": "ssd"}])),
        schedulerName=maybe(st.sampled_from(["", "default-scheduler", "volcano", "multiarch"])),
    ),
)
SETTINGS = st.builds(
    settings,
    st.sampled_from(["none", "required", "preferred", "both"]),
    st.sampled_from(["", "multiarch"]),
    st.sampled_from([(), RULES]),
)


def pruned(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: pruned(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner not in ({}, [], None)}
    return [pruned(inner) for inner in value] if isinstance(value, list) else value


@given(PODS, LEVELLED_FACTS, LEVELLED_FACTS, LEVELLED_FACTS, SETTINGS, CLUSTERS)
@example(PLAIN, built_for("linux/arm/v7"), Anywhere(), Anywhere(), settings("required"), OLD_ARM)
def test_whatever_is_written_can_be_read_and_taken_back(
    document: Any,
    kept: ImageFact,
    before: ImageFact,
    then: ImageFact,
    admission: AdmissionSettings,
    cluster: ClusterNodes,
) -> None:
    """Exactly, but for lists and maps that are empty, which mean as much as missing ones.

    Labels of levels, and preferences, too.
    """

    def passed(pod: Any, other: ImageFact) -> Any:
        decoded = created(pod)
        mutator = Mutator(PREFERRING, admission)
        mutation = mutator.mutate(ResolvedPod(decoded, images_of(decoded), (kept, other), Overrides(), cluster))
        return apply(pod, mutation.patch)

    patched = passed(document, before)
    text = (patched["metadata"].get("annotations") or {}).get(ADDED)
    record = read_record(text)
    assert text is None or record is not None
    assert passed(patched, before) == patched
    assert pruned(passed(patched, then)) == pruned(passed(document, then))
    own, taken = take_back(
        patched, record, [rule.toleration for rule in admission.tolerations], admission.scheduler_name
    )
    assert pruned(own) == pruned(document)
    assert record is None or taken == record


@given(PODS, KNOWN, FACTS)
def test_result_is_what_an_api_server_accepts(document: Any, first: ImageFact, second: ImageFact) -> None:
    """No `In` without values, no weight outside 1-100, no list of terms without any, unless its author wrote them."""
    patched = after(document, first, second, admission=settings("both", "multiarch", RULES))
    own, terms = _terms(document), _terms(patched)
    assert bool(terms) or not own
    assert sum(not _expressions(term) for term in terms) == sum(not _expressions(term) for term in own)
    present = [item for term in own for item in _expressions(term)]
    added = [item for term in terms for item in _expressions(term) if item not in present]
    ours = [item for item in added if item != NO_NODE]
    assert all(item["operator"] == "In" and item["values"] and item["key"] in (ARCH, OS) for item in ours)
    if _node_affinity(patched) != _node_affinity(document) and REQUIRED in _node_affinity(patched):
        assert terms or _node_affinity(patched)[REQUIRED] == _node_affinity(document).get(REQUIRED)
    for term in _node_affinity(patched).get(PREFERRED) or []:
        assert 1 <= term["weight"] <= 100
    annotations = (patched.get("metadata") or {}).get("annotations") or {}
    assert all(isinstance(value, str) for value in annotations.values())


@given(PODS, KNOWN, KNOWN, st.binary(max_size=40) | st.sampled_from([b"{}", b'{"was":{}}', b'{"required":[]}']))
def test_any_text_as_a_record_is_harmless(document: Any, first: ImageFact, second: ImageFact, text: bytes) -> None:
    """The pod comes out as if it had not been there."""
    document["metadata"]["annotations"] = {"a": "b"}
    claiming = copy.deepcopy(document)
    claiming["metadata"]["annotations"][ADDED] = text.decode("latin-1")
    admission = settings("both", "multiarch", RULES)
    assert pruned(after(claiming, first, second, admission=admission)) == pruned(
        after(document, first, second, admission=admission)
    )


def _node_affinity(document: Any) -> dict[str, Any]:
    return (document["spec"].get("affinity") or {}).get("nodeAffinity") or {}


def _terms(document: Any) -> list[dict[str, Any]]:
    return (_node_affinity(document).get(REQUIRED) or {}).get("nodeSelectorTerms") or []


def _expressions(term: dict[str, Any]) -> list[Any]:
    return [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]
