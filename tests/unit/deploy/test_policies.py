"""The files in deploy/policies are what the command prints, and say the same as the manifests beside them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from extender.admission_policies.files import OWN_ACCOUNT, Name, PolicyFile
from extender.cli.policies import to_yaml
from extender.outlets.jobs import QUEUE_LABEL
from extender.service.outlets import JOBS
from testbed.chart import CHART_POLICIES, HelmMissing, chart_policies, find_helm, objects_of, render, shipped_policies

DEPLOY = Path(__file__).parents[3] / "deploy"


def files() -> dict[Name, PolicyFile]:
    """The files with the shipped names, for a cluster that can have all of them."""
    return {file.name: file for file in shipped_policies()}


def webhook_of(mode: str) -> dict[str, Any]:
    """The only webhook of a mode's manifests."""
    documents = yaml.safe_load_all((DEPLOY / "manifests" / f"{mode}.yaml").read_text())
    (found,) = (each for each in documents if each["kind"] == "MutatingWebhookConfiguration")
    (webhook,) = found["webhooks"]
    return dict(webhook)


@pytest.mark.parametrize("name", Name)
def test_each_file_is_what_the_command_prints(name: Name) -> None:
    """Each is a part of `multiarch-extender policies --kubernetes 1.36 --scheduler-name multiarch-scheduler`."""
    assert (DEPLOY / "policies" / f"{name}.yaml").read_text() == to_yaml([files()[name]])


def test_the_charts_policies_are_those_of_the_command() -> None:
    """`make manifests` writes them."""
    assert CHART_POLICIES.read_text() == chart_policies()


def test_the_chart_renders_what_the_command_prints() -> None:
    """With the account's name of the files, names and fields are the same but for labels."""
    try:
        find_helm()
    except HelmMissing as exc:
        pytest.skip(str(exc))
    second = {"enabled": True, "outage": {"namedBy": "policy"}}
    policy = {"enabled": True, "name": OWN_ACCOUNT[1]}
    modes = {"webhook": {"enabled": False}, "policy": policy, "secondScheduler": second}
    rendered = {(each["kind"], each["metadata"]["name"]): each for each in objects_of(render({"modes": modes}))}
    for name in Name:
        for each in yaml.safe_load_all((DEPLOY / "policies" / f"{name}.yaml").read_text()):
            found = rendered[each["kind"], each["metadata"]["name"]]
            del found["metadata"]["labels"]
            assert found == each


def test_there_are_no_other_files() -> None:
    """A file without a policy in the code would be applied and never compared."""
    assert {path.name for path in (DEPLOY / "policies").iterdir()} == {f"{name}.yaml" for name in Name}


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
    assert differing == {"name", "failurePolicy", "reinvocationPolicy"}


def test_the_webhook_of_jobs_is_called_for_jobs_with_a_queue_at_the_path_that_answers() -> None:
    """The label is the one that the outlet looks for, and the Service is the webhook's."""
    jobs, pods = webhook_of("jobs-webhook"), webhook_of("webhook")
    assert jobs["clientConfig"]["service"] == {**pods["clientConfig"]["service"], "path": JOBS}
    assert jobs["objectSelector"]["matchExpressions"] == [{"key": QUEUE_LABEL, "operator": "Exists"}]
    assert jobs["namespaceSelector"] == pods["namespaceSelector"]
    assert jobs["timeoutSeconds"] == pods["timeoutSeconds"]


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
