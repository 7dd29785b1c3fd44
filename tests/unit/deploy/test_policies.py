"""The files of policies: the chart renders them, and they say what the code says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.patch import pointer
from extender.placement.policy import MODE, REASON, Mode
from extender.service.endpoints import WORKLOADS
from testbed.chart import POLICIES, HelmMissing, find_helm, objects_of, render

DEPLOY = Path(__file__).parents[3] / "deploy"
OWN_ACCOUNT = ("multiarch-extender", "multiarch-webhook")
"""The namespace and the name of the account under which the shipped manifests run webhook and gate controller."""


def text_of(name: str) -> str:
    """The file of that name."""
    return (POLICIES / f"{name}.yaml").read_text()


def policy_of(name: str) -> Any:
    """The spec of the policy in that file."""
    return next(yaml.safe_load_all(text_of(name)))["spec"]


def webhook_of(mode: str) -> dict[str, Any]:
    """The pods' webhook of a mode's manifests."""
    documents = yaml.safe_load_all((DEPLOY / "manifests" / f"{mode}.yaml").read_text())
    (found,) = (each for each in documents if each["kind"] == "MutatingWebhookConfiguration")
    return dict(found["webhooks"][0])


def test_the_policies_write_and_read_the_names_of_the_code() -> None:
    """The gate, its label, the annotations, and the words of the mode."""
    gate, account = (text_of(name) for name in ("gate", "own-account"))
    assert f"[{{'name': '{GATE}'}}]" in gate
    assert f"path: '{pointer(['metadata', 'labels', GATED_LABEL])}', value: '{GATED}'" in gate
    assert f"path: '{pointer(['metadata', 'annotations', REASON])}'" in gate
    assert f"[?'{MODE}']" in gate
    assert f"mode in {[each.value for each in Mode]}" in gate
    assert f"variables.was.exists(gate, gate.name == '{GATE}')" in account


def test_the_chart_renders_the_files() -> None:
    """With the account's name of the files, names and fields are the same but for labels.

    The binding of the gate is the service's to make.
    """
    try:
        find_helm()
    except HelmMissing as exc:
        pytest.skip(str(exc))
    second = {"enabled": True, "webhook": False, "outage": {"namedBy": "policy"}}
    policy = {"enabled": True, "name": OWN_ACCOUNT[1]}
    modes = {"webhook": {"enabled": False}, "policy": policy, "secondScheduler": second}
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in objects_of(render({"modes": modes}))}
    for file in POLICIES.iterdir():
        for each in yaml.safe_load_all(file.read_text()):
            if (each["kind"], file.stem) == ("MutatingAdmissionPolicyBinding", "gate"):
                continue
            found = rendered[each["kind"], each["metadata"]["name"]]
            del found["metadata"]["labels"]
            assert found == each


def test_pods_are_held_in_the_namespaces_of_the_webhook() -> None:
    """The selectors are the same: for all namespaces, and for those that ask for the second scheduler."""
    gate, scheduler = (policy_of(name) for name in ("gate", "scheduler-name"))
    assert selected(gate) == terms(webhook_of("webhook")["namespaceSelector"])
    assert selected(scheduler) == terms(webhook_of("second-scheduler")["namespaceSelector"])


def selected(spec: Any) -> set[tuple[str, str, frozenset[str]]]:
    """The terms of a policy's namespace selector."""
    return terms(spec["matchConstraints"]["namespaceSelector"])


def terms(selector: Any) -> set[tuple[str, str, frozenset[str]]]:
    """A label selector as a set of its terms; a label is a term with one value."""
    labels = {(key, "In", frozenset([value])) for key, value in selector.get("matchLabels", {}).items()}
    expressions = selector["matchExpressions"]
    return labels | {(each["key"], each["operator"], frozenset(each["values"])) for each in expressions}


def test_the_webhook_that_names_the_scheduler_differs_from_the_other_in_what_it_promises() -> None:
    """The same pods of the same namespaces, from the same Service; it fails closed, at the path that only names."""
    naming, other = webhook_of("scheduler-name-webhook"), webhook_of("second-scheduler")
    assert naming["failurePolicy"] == "Fail"
    assert naming["clientConfig"]["service"].pop("path") == "/admission/scheduler-names"
    assert other["clientConfig"]["service"].pop("path") == "/admission/pods"
    differing = {key for key in naming.keys() | other.keys() if naming.get(key) != other.get(key)}
    assert differing == {"name", "failurePolicy", "reinvocationPolicy", "matchConditions"}
    asked = {each["name"] for each in naming["matchConditions"]} - {each["name"] for each in other["matchConditions"]}
    assert asked == {"not-of-a-daemonset"}


def test_the_webhook_of_templates_is_called_at_the_path_that_answers_and_never_stands_in_the_way() -> None:
    """For the namespaces and by the Service of the pods' webhook; two writes of no owner, and no dry run fails."""
    documents = yaml.safe_load_all((DEPLOY / "manifests" / "webhook.yaml").read_text())
    (found,) = (each for each in documents if each["kind"] == "MutatingWebhookConfiguration")
    pods, workloads = found["webhooks"]
    assert workloads["clientConfig"]["service"] == {**pods["clientConfig"]["service"], "path": WORKLOADS}
    assert workloads["namespaceSelector"] == pods["namespaceSelector"]
    assert (workloads["failurePolicy"], workloads["timeoutSeconds"], workloads["sideEffects"]) == ("Ignore", 3, "None")
    assert [each["name"] for each in workloads["matchConditions"]] == [
        "no-controlling-owner",
        "spec-changed",
        "not-ignored",
    ]
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in workloads["rules"])
    assert [rule["apiGroups"] for rule in workloads["rules"] if rule["resources"] != ["*"]] == [[""]]


def test_the_account_that_is_held_is_the_webhooks() -> None:
    """Namespace and name are those of the ServiceAccount in webhook.yaml."""
    documents = yaml.safe_load_all((DEPLOY / "manifests" / "webhook.yaml").read_text())
    (account,) = (each["metadata"] for each in documents if each["kind"] == "ServiceAccount")
    assert (account["namespace"], account["name"]) == OWN_ACCOUNT
    assert f"system:serviceaccount:{':'.join(OWN_ACCOUNT)}'" in text_of("own-account")
