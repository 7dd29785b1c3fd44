"""Where a preference may pull: nodes by label and resource; and the pods that are left alone."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Node, NodeName, Pod
from extender.kubernetes.extender_v1 import ExtenderArgs, decode_args, encode_filter_result
from extender.placement.nodes import EVERY_NODE, NodeConditions, NodePlatforms, list_nodes
from extender.placement.policy import NO_PREFERENCE, PREFER, Overrides, Policy, PreferenceBy, overrides_of
from extender.placement.scheduling import filter_nodes, prioritize_nodes
from tests.builders import ARCH, MULTI, PREFERRED, Json, decoded, expression, node, pod
from tests.unit.placement.mutating import after, settings
from tests.unit.placement.scheduler_requests import decide

GPU = "nvidia.com/gpu"
ARM64, AMD64 = Platform("linux", "arm64"), Platform("linux", "amd64")
WITHOUT_GPU = NodeConditions(without_resources=(GPU, "amd.com/gpu"))
STRICT = Policy(preference={"arm64": 10}, preference_by=PreferenceBy.FILTER)


@pytest.mark.parametrize(
    ("conditions", "found", "spared"),
    [
        pytest.param(EVERY_NODE, node(capacity={GPU: "8"}), False, id="no condition"),
        pytest.param(WITHOUT_GPU, node(), False, id="no such resource"),
        pytest.param(WITHOUT_GPU, node(capacity={"cpu": "8", GPU: "1"}), True, id="the resource"),
        pytest.param(WITHOUT_GPU, node(capacity={"amd.com/gpu": "1"}), True, id="the other one"),
        pytest.param(WITHOUT_GPU, node(capacity={GPU: "0"}), True, id="none left of it"),
        pytest.param(WITHOUT_GPU, node(capacity={f"{GPU}.shared": "4"}), False, id="another resource"),
        pytest.param(WITHOUT_GPU, node(capacity=None), False, id="capacity null"),
        pytest.param(WITHOUT_GPU, node(labels={GPU: "yes"}), False, id="a label of that name"),
        pytest.param(WITHOUT_GPU, {"metadata": {"name": "n"}}, False, id="no status"),
        pytest.param(NodeConditions({"pool": "arm"}), node(labels={"pool": "arm"}), False, id="the label"),
        pytest.param(NodeConditions({"pool": "arm"}), node(labels={"pool": "x"}), True, id="another value"),
        pytest.param(NodeConditions({"pool": "arm"}), node(), True, id="no label"),
        pytest.param(NodeConditions({"a": "1", "b": "2"}), node(labels={"a": "1"}), True, id="one of two labels"),
    ],
)
def test_a_node_is_spared_unless_it_meets_every_condition(
    conditions: NodeConditions, found: Json, spared: bool
) -> None:
    assert conditions.excludes(decoded(found, Node)) is spared


NODES = {
    "amd": node("amd"),
    "arm": node("arm", "linux/arm64"),
    "grace": node("grace", "linux/arm64", capacity={"cpu": "144", GPU: "4"}),
    "new-arm": node("new-arm", "linux/arm64"),
}


def request_of(form: str, names: Iterable[str] = NODES) -> tuple[ExtenderArgs, NodePlatforms]:
    both = {"NodeNames": [*names], "Nodes": {"items": [NODES[name] for name in names]}}
    asked = {"NodeNames": None, "Nodes": None, form: both[form]}
    args = decode_args(json.dumps({"Pod": {"metadata": {"name": "p"}}, **asked}).encode())
    nodes = [decoded(each, Node) for each in NODES.values()]
    return args, list_nodes(nodes, WITHOUT_GPU)


@pytest.mark.parametrize("form", ["NodeNames", "Nodes"])
def test_no_preference_pulls_to_a_spared_node(form: str) -> None:
    """It has no score, and a strict preference leaves it out with the others, but it can run the pod."""
    args, nodes = request_of(form)
    scored = decide([MULTI], Policy(preference={"arm64": 10}))
    assert prioritize_nodes(args, nodes, scored).answer == {10: ["arm", "new-arm"]}
    assert filter_nodes(args, nodes, scored).answer == args.echo()
    answer = json.loads(encode_filter_result(filter_nodes(args, nodes, decide([MULTI], STRICT)).answer))
    kept = answer["NodeNames"] or [item["metadata"]["name"] for item in answer["Nodes"]["items"]]
    assert (kept, answer["FailedAndUnresolvableNodes"]) == (["arm", "new-arm"], {})


def test_spared_nodes_remain_where_no_preferred_one_is_asked_about() -> None:
    args, nodes = request_of("NodeNames", ("grace", "amd"))
    assert filter_nodes(args, nodes, decide([MULTI], STRICT)).answer == args.echo()


def test_a_node_that_gets_a_device_is_spared_from_then_on() -> None:
    """And no longer when it has lost it; views of other nodes keep what they know."""
    a, b, c, n = map(NodeName, "abcn")
    nodes = NodePlatforms({a: ARM64, b: ARM64}, {b})
    assert spared_in(nodes) == {a: False, b: True}
    nodes.put(a, ARM64, excluded=True)
    nodes.put(b, ARM64)
    assert spared_in(nodes) == {a: True, b: False}
    nodes.merge(NodePlatforms({c: ARM64, b: AMD64, n: None}, {c, n}))
    assert spared_in(nodes) == {a: True, b: False, c: True, n: False}
    assert (nodes.count(ARM64), nodes.count(AMD64), nodes.count(None)) == (2, 1, 1)
    nodes.drop(a)
    nodes.drop(c)
    assert nodes.distinct == {AMD64}


def spared_in(nodes: NodePlatforms) -> dict[str, bool]:
    return {name: name in nodes.excluded for name in nodes}


@pytest.mark.parametrize(
    ("spec", "annotations", "is_exempt"),
    [
        pytest.param({"containers": [{"resources": {"limits": {GPU: 1}}}]}, {}, True, id="asks for one"),
        pytest.param({"containers": [{"resources": {"limits": {"cpu": 1}}}]}, {}, False, id="asks for none"),
        pytest.param({"nodeSelector": {GPU: "true"}}, {}, True, id="selects"),
        pytest.param({"tolerations": [{"key": GPU, "operator": "Exists"}]}, {}, True, id="tolerates"),
        pytest.param({}, {"note": f'{{"{GPU}":1}}'}, False, id="in the text of an annotation"),
        pytest.param({"containers": [{"image": f"{GPU}:1"}]}, {}, False, id="in a reference"),
    ],
)
@pytest.mark.parametrize("prefer", [None, "arm64"])
def test_a_pod_that_names_the_resource_has_no_preference(
    spec: dict[str, Any], annotations: dict[str, str], is_exempt: bool, prefer: str | None
) -> None:
    """Not even its own; such overrides hold for the pod alone."""
    own = {PREFER: prefer} if prefer else {}
    raw_pod = msgspec.json.encode({"metadata": {"annotations": {**annotations, **own}}, "spec": spec})
    found = overrides_of(
        msgspec.json.decode(raw_pod, type=Pod), raw_pod, "shop", None, Policy(preferred_nodes=WITHOUT_GPU)
    )
    expected = Overrides(prefer=NO_PREFERENCE) if is_exempt else Overrides(prefer=prefer)
    assert found == expected


def test_preferred_affinity_names_the_labels_too() -> None:
    """Of the conditions only labels can be written into a pod; what was written can be taken back."""
    policy = Policy(preference={"arm64": 10}, preferred_nodes=NodeConditions({"pool": "spot", "disk": "ssd"}))
    admission = settings("preferred")
    patched = after(pod(), MULTI, admission=admission, policy=policy)
    [term] = patched["spec"]["affinity"]["nodeAffinity"][PREFERRED]
    requirements = [expression(ARCH, "arm64"), expression("disk", "ssd"), expression("pool", "spot")]
    assert term == {"weight": 100, "preference": {"matchExpressions": requirements}}
    assert "affinity" not in after(patched, MULTI, admission=settings("none"), policy=policy)["spec"]
