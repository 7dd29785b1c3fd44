"""`fix` and the webhook give the golden workloads the same, in clusters of one, two and three platforms."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import CreatedPod
from extender.kubernetes.pod_templates import pod_templates
from extender.placement.annotations import Mode, read_overrides
from extender.placement.facts import facts_of, images_of
from extender.placement.mutation import AdmissionOutcome, Mutator
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.templates import Templates
from tests.builders import decoded, index, platforms
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import ARM_RULE, BOTH_RULE, settings

POLICY = Policy(preference={"arm64": 10})
CLUSTERS = {
    "one": platforms("linux/amd64"),
    "two": platforms("linux/amd64", "linux/arm64"),
    "two systems": platforms("linux/amd64", "windows/amd64"),
    "three": platforms("linux/amd64", "linux/arm64", "linux/s390x"),
}
IMAGES: dict[str, Answer] = {
    "multi": index("linux/amd64", "linux/arm64"),
    "all": index("linux/amd64", "linux/arm64", "linux/s390x"),
    "amd": index("linux/amd64"),
    "arm": index("linux/arm64"),
    "artifact": Content(Kind.ARTIFACT, frozenset(), states_platforms=False),
}
ROWS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parents[2] / "data/audit/golden.yaml").read_text())
GONE = Failure(Cause.MISSING, "x")


def answer_of(reference: str) -> Answer:
    return IMAGES.get(reference, GONE)


def pods_of(row: dict[str, Any]) -> int:
    return max(int(row["pods"]), 1)


@pytest.mark.parametrize("nodes", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("mode", ["required", "both", "preferred"])
def test_what_fix_writes_is_what_the_webhook_gives(nodes: frozenset[Platform], mode: str) -> None:
    """And the webhook gives the pods of a fixed template nothing more, in the same cluster."""
    cluster, admission = ClusterNodes(nodes), settings(mode, rules=(BOTH_RULE, ARM_RULE))
    compared = 0
    for row in ROWS:
        if row["kind"] != "DaemonSet":  # whose controller chooses nodes by the template
            compared += pods_of(row) * compare(row, cluster, admission)
    assert compared >= 200


def compare(row: dict[str, Any], cluster: ClusterNodes, admission: AdmissionSettings) -> bool:
    """Whether there is something to compare: pods that both see, whose images are known and have a node."""
    containers = [{"name": f"c{number}", "image": image} for number, image in enumerate(row["images"])]
    written = {"metadata": {"annotations": row.get("annotations", {})}}
    written["spec"] = {"containers": containers, **row.get("spec", {})}
    document = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": row["name"]}, "template": written}
    templates = Templates(POLICY, admission, cluster=cluster)
    [found] = pod_templates(document)
    question = templates.question(found, None)
    facts = facts_of(question.images, [answer_of(each.reference) for each in question.images], may_be_pending=False)
    change = templates.fix(found, question, facts)
    template: Any = msgspec.to_builtins(found.template)
    fixed: Any = apply(template, msgspec.json.encode(change.operations))
    alone, again = (patched(each, admission, cluster) for each in (template, fixed))
    if question.overrides.mode is not Mode.ENFORCE or change.unknown or alone[0] in _IMPOSSIBLE:
        assert fixed == template
        return False
    assert alone[1]["spec"] == fixed["spec"], row["why"]
    assert again[1] == fixed, row["why"]
    return True


_IMPOSSIBLE = (AdmissionOutcome.IMPOSSIBLE, AdmissionOutcome.REFUSED)


def patched(template: Any, admission: AdmissionSettings, cluster: ClusterNodes) -> tuple[AdmissionOutcome, Any]:
    """What the webhook makes of a pod of the template."""
    pod = decoded(template, CreatedPod)
    overrides = read_overrides(pod.annotations, None)
    images = images_of(pod)
    facts = facts_of(images, [answer_of(each.reference) for each in images], may_be_pending=True)
    mutator = Mutator(POLICY, admission)
    mutation = mutator.skip(pod, overrides) or mutator.mutate(ResolvedPod(pod, images, facts, overrides, cluster))
    return mutation.outcome, apply(template, mutation.patch)
