"""The files of policies: the chart renders them, and they say what the code and the webhooks say."""

import pytest
import yaml

from extender.cluster.probe import PROBE_LABELS
from extender.placement.annotations import MODE, REASON, Mode
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.patch import pointer
from testbed.chart import NAME, POLICIES, objects_of, render


def test_the_policies_write_and_read_the_names_of_the_code() -> None:
    """The gate, its label, the annotations, and the words of the mode."""
    gate, account = ((POLICIES / f"{name}.yaml").read_text() for name in ("gate", "own-account"))
    assert f"[{{'name': '{GATE}'}}]" in gate
    assert f"path: '{pointer(['metadata', 'labels', GATED_LABEL])}', value: '{GATED}'" in gate
    assert f"path: '{pointer(['metadata', 'annotations', REASON])}'" in gate
    assert f"[?'{MODE}']" in gate
    assert f"mode in {[each.value for each in Mode]}" in gate
    assert f"variables.was.exists(gate, gate.name == '{GATE}')" in account


@pytest.mark.usefixtures("helm")
def test_the_chart_renders_the_files() -> None:
    """All fields are the same, but for labels and the account of a mode.

    The binding of the gate is for probes alone, and the service's to open.
    """
    second = {"enabled": True, "webhook": False, "namingPolicy": True}
    modes = {"webhook": {"enabled": False}, "policy": {"enabled": True}, "secondScheduler": second}
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in objects_of(render({"modes": modes}))}
    for file in POLICIES.iterdir():
        text = file.read_text().replace(f"{NAME}:multiarch-webhook'", f"{NAME}:{NAME}-policy'")
        for each in yaml.safe_load_all(text):
            found = rendered[each["kind"], each["metadata"]["name"]]
            del found["metadata"]["labels"]
            if (each["kind"], file.stem) == ("MutatingAdmissionPolicyBinding", "gate"):
                assert found["spec"].pop("matchResources") == {"objectSelector": {"matchLabels": PROBE_LABELS}}
            assert found == each


@pytest.mark.usefixtures("helm")
def test_webhooks_and_policies_look_at_the_same_namespaces() -> None:
    """Pods are held where the webhook looks at them, and named a scheduler for where its own webhook does so."""
    selector = {"matchLabels": {"a": "b"}}
    modes = {"policy": {"enabled": True}, "secondScheduler": {"enabled": True, "namingPolicy": True}}
    values = {"modes": modes, "namespaceSelector": selector, "probeNamespace": "shop"}
    objects = objects_of(render(values))
    webhooks = {
        each["name"].removesuffix(".multiarch-extender.io"): each["namespaceSelector"]
        for found in objects
        if found["kind"] == "MutatingWebhookConfiguration"
        for each in found["webhooks"]
    }
    policies = {
        each["metadata"]["name"]: each["spec"]["matchConstraints"]["namespaceSelector"]
        for each in objects
        if each["kind"] == "MutatingAdmissionPolicy"
    }
    assert webhooks[f"pods.{NAME}-webhook"] == webhooks[f"workloads.{NAME}-webhook"] == policies[f"{NAME}-gate"]
    by_label, not_ours = webhooks[f"pods.{NAME}-scheduler"]["matchExpressions"]
    named = policies[f"{NAME}-scheduler-name"]
    assert named == {"matchLabels": {by_label["key"]: by_label["values"][0]}, "matchExpressions": [not_ours]}
