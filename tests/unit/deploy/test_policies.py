"""The files of policies: the command prints them, the chart renders them, and they say what the code says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.cli.shipped_policies import (
    OWN_ACCOUNT,
    SHIPPED_SCHEDULER,
    Name,
    PoliciesImpossible,
    PolicyChoice,
    PolicyFile,
    SelectedNamespaces,
    Way,
    policy_files,
    to_yaml,
)
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.patch import pointer
from extender.placement.policy import MODE, REASON, Mode
from extender.service.endpoints import WORKLOADS
from testbed.chart import COPY, POLICIES, HelmMissing, find_helm, objects_of, render

DEPLOY = Path(__file__).parents[3] / "deploy"
ALONE = PolicyChoice(way=Way.ALONE)
SHIPPED = PolicyChoice(scheduler=SHIPPED_SCHEDULER)


def files() -> dict[Name, PolicyFile]:
    """The files with the shipped names, for a cluster that can have all of them."""
    return {file.name: file for file in policy_files(SHIPPED, has_mutating=True)}


def webhook_of(mode: str) -> dict[str, Any]:
    """The pods' webhook of a mode's manifests."""
    documents = yaml.safe_load_all((DEPLOY / "manifests" / f"{mode}.yaml").read_text())
    (found,) = (each for each in documents if each["kind"] == "MutatingWebhookConfiguration")
    return dict(found["webhooks"][0])


@pytest.mark.parametrize("name", Name)
def test_each_file_is_what_the_command_prints(name: Name) -> None:
    """Each is a part of `multiarch-extender policies --kubernetes 1.36 --scheduler-name multiarch-scheduler`."""
    assert (POLICIES / f"{name}.yaml").read_text() == to_yaml([files()[name]])


def test_the_charts_copies_are_those_of_the_package() -> None:
    """`make manifests` writes them."""
    assert {path.name for path in COPY.iterdir()} == {f"{name}.yaml" for name in Name}
    for path in COPY.iterdir():
        assert path.read_text() == (POLICIES / path.name).read_text()


def test_the_policies_write_and_read_the_names_of_the_code() -> None:
    """The gate, its label, the annotations, and the words of the mode."""
    gate, account = (to_yaml([files()[name]]) for name in (Name.GATE, Name.OWN_ACCOUNT))
    assert f"[{{'name': '{GATE}'}}]" in gate
    assert f"path: '{pointer(['metadata', 'labels', GATED_LABEL])}', value: '{GATED}'" in gate
    assert f"path: '{pointer(['metadata', 'annotations', REASON])}'" in gate
    assert f"[?'{MODE}']" in gate
    assert f"mode in {[each.value for each in Mode]}" in gate
    assert f"variables.was.exists(gate, gate.name == '{GATE}')" in account


@pytest.mark.parametrize(
    ("choice", "has_mutating", "expected"),
    [
        (ALONE, True, [Name.OWN_ACCOUNT, Name.GATE]),
        (PolicyChoice(), True, [Name.OWN_ACCOUNT, Name.GATE]),
        (PolicyChoice(), False, [Name.OWN_ACCOUNT]),
        (SHIPPED, True, [Name.OWN_ACCOUNT, Name.GATE, Name.SCHEDULER_NAME]),
    ],
)
def test_a_cluster_gets_what_it_can_have(choice: PolicyChoice, has_mutating: bool, expected: list[Name]) -> None:
    """The account is held first, then pods. Where the policy is not served, the webhook adds the gate itself."""
    assert [file.name for file in policy_files(choice, has_mutating=has_mutating)] == expected


@pytest.mark.parametrize(
    ("choice", "saying"),
    [
        (ALONE, "--mode alone: it needs MutatingAdmissionPolicy, which Kubernetes serves from 1.36 on"),
        (SHIPPED, "--scheduler-name: it needs MutatingAdmissionPolicy"),
    ],
)
def test_what_an_older_cluster_cannot_have_is_an_error_that_says_why(choice: PolicyChoice, saying: str) -> None:
    """Nothing is printed that would be refused, or would do half."""
    with pytest.raises(PoliciesImpossible, match=saying):
        policy_files(choice, has_mutating=False)


def test_what_is_chosen_is_filled_in() -> None:
    """In the expressions, the selectors and the comment, and nothing of what is shipped stays."""
    accounts = [("one", "a"), ("two", "b")]
    namespaces = SelectedNamespaces({"team": "shop"}, [name for name, _ in accounts])
    choice = PolicyChoice(accounts=accounts, namespaces=namespaces, scheduler="mine")
    printed = to_yaml(policy_files(choice, has_mutating=True))
    assert "in ['system:serviceaccount:one:a', 'system:serviceaccount:two:b']" in printed
    assert "value: 'mine'" in printed
    assert "# Names the scheduler mine " in printed
    assert printed.count("team: shop") == 2
    assert SHIPPED_SCHEDULER not in printed
    assert OWN_ACCOUNT[1] not in printed


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("team", {}, False),
        ("team", {"hold": "no"}, False),
        ("team", {"hold": "yes", "more": "x"}, True),
        ("kube-system", {"hold": "yes"}, False),
        ("multiarch-extender", {"hold": "yes"}, False),
    ],
)
def test_selected_namespaces_have_the_labels_and_are_not_the_systems(
    name: str, labels: dict[str, str], expected: bool
) -> None:
    """The proof looks for a namespace in the way in which the API server selects it."""
    assert SelectedNamespaces({"hold": "yes"}).selects(name, labels) is expected


def test_the_chart_renders_what_the_command_prints() -> None:
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
    for name in Name:
        for each in yaml.safe_load_all((POLICIES / f"{name}.yaml").read_text()):
            if (each["kind"], name) == ("MutatingAdmissionPolicyBinding", Name.GATE):
                continue
            found = rendered[each["kind"], each["metadata"]["name"]]
            del found["metadata"]["labels"]
            assert found == each


def test_pods_are_held_in_the_namespaces_of_the_webhook() -> None:
    """The selectors are the same: for all namespaces, and for those that ask for the second scheduler."""
    gate, scheduler = (files()[name].objects[0]["spec"] for name in (Name.GATE, Name.SCHEDULER_NAME))
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


@pytest.mark.parametrize("word", ["y", "N", "1e3", "0o7", "on", "2026-01-01"])
def test_the_command_quotes_what_kubectl_would_read_as_no_text(word: str) -> None:
    """A label's value that is a number or a boolean without its quotes ends `kubectl apply`."""
    printed = to_yaml([PolicyFile(Name.GATE, "", [{"values": [word]}])])
    assert printed.endswith(f"- '{word}'\n")
