"""A share of a workload's pods that has a preference: it is decided once, whoever asks and however often."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from extender.kubernetes.core_v1 import CreatedPod, Pod
from extender.placement.annotations import ADDED, NO_PREFERENCE, PREFER, PREFER_SHARE, overrides_of
from extender.placement.facts import images_of
from extender.placement.mutation import Mutator
from extender.placement.nodes import ClusterNodes
from extender.placement.policy import Policy
from extender.placement.resolved_pod import ResolvedPod
from tests.builders import MULTI, PREFERRED, decoded, platforms, pod
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import settings

PODS = 400
POLICY = Policy(preference={"arm64": 10})
OWNER = {"kind": "ReplicaSet", "name": "web-5d4f8c7b9", "controller": True}
CLUSTER = ClusterNodes(platforms("linux/amd64", "linux/arm64"))


def reviewed(document: Any, mode: str, key: str, namespace: Mapping[str, str]) -> Any:
    created = decoded(document, CreatedPod)
    overrides = overrides_of(created, "shop", namespace, POLICY.overrides, key=key)
    resolved = ResolvedPod(created, images_of(created), [MULTI], overrides, CLUSTER)
    mutation = Mutator(POLICY, settings(mode)).mutate(resolved)
    return apply(document, mutation.patch)


def is_preferring(document: Any, namespace: Mapping[str, str]) -> bool:
    """What the verbs make of the stored pod."""
    return overrides_of(decoded(document, Pod), "shop", namespace, POLICY.overrides).prefer != NO_PREFERENCE


@pytest.mark.parametrize("mode", ["preferred", "both", "required", "none"])
@pytest.mark.parametrize("share", [{PREFER_SHARE: "20%"}, {PREFER_SHARE: "20%", PREFER: "arm64"}], ids=str)
def test_webhook_and_verbs_together_give_the_share(mode: str, share: dict[str, str]) -> None:
    """Of pods that have no name yet when the webhook sees them, which it may see twice.

    Beside required affinity it writes the preference of who names an architecture.
    """
    found, writes = [], mode in ("preferred", "both") or (mode == "required" and PREFER in share)
    for number in range(PODS):
        created = pod(metadata={"name": None, "generateName": "web-5d4f8c7b9-", "ownerReferences": [OWNER]})
        first = reviewed(created, mode, f"first-{number}", share)
        assert reviewed(first, mode, f"second-{number}", share) == first
        first["metadata"]["name"] = f"web-5d4f8c7b9-{number:05x}"
        prefers = PREFERRED in (first["spec"].get("affinity") or {}).get("nodeAffinity", {})
        found.append(is_preferring(first, share))
        assert prefers is (writes and is_preferring(first, share))
        assert is_preferring(first, {PREFER_SHARE: "0%"}) is prefers or not writes
    assert abs(sum(found) - PODS / 5) < PODS / 15


@pytest.mark.parametrize(
    ("mode", "prefer", "architectures"),
    [("required", "arm64", ["arm64"]), ("required", "none", []), ("required", "", []), ("none", "arm64", []),
     ("both", "amd64", ["amd64"]), ("both", "none", [])],
)  # fmt: skip
def test_an_architecture_that_an_author_names_is_preferred_wherever_affinity_is_written(
    mode: str, prefer: str, architectures: list[str]
) -> None:
    """By the pod's own annotation or its namespace's; nobody else's pods get a preference where none is written."""
    asked = {PREFER: prefer} if prefer else {}
    for metadata, namespace in (({"name": "web", "annotations": asked}, {}), ({"name": "web"}, asked)):
        first = reviewed(pod(metadata=metadata), mode, "uid", namespace)
        terms = (first["spec"].get("affinity") or {}).get("nodeAffinity", {}).get(PREFERRED, [])
        assert [each["preference"]["matchExpressions"][0]["values"] for each in terms] == [
            [each] for each in architectures
        ]
        assert reviewed(first, mode, "again", namespace) == first


@pytest.mark.parametrize("text", ["", "{", "[]", '{"isPreferring":1}', "{}", '{"isPreferring":null}', "x" * 20_000])
def test_a_record_that_says_nothing_leaves_it_to_the_name(text: str) -> None:
    named = pod(metadata={"name": "web-1", "annotations": {ADDED: text}})
    share = {PREFER_SHARE: "50%"}
    assert is_preferring(named, share) is is_preferring(pod(metadata={"name": "web-1"}), share)


@pytest.mark.parametrize("metadata", [{"name": "web"}, {"name": "db-0", "ownerReferences": [{**OWNER, "name": "db"}]}])
def test_nothing_is_recorded_where_the_name_says_it(metadata: dict[str, Any]) -> None:
    """A pod that is applied twice has a name."""
    stored = reviewed(pod(metadata=metadata), "preferred", "uid", {PREFER_SHARE: "50%"})
    record = stored["metadata"].get("annotations", {}).get(ADDED, "{}")
    assert "isPreferring" not in msgspec.json.decode(record)
