"""What is wrong with an installation: the rules, one by one."""

from typing import Any

import pytest

from extender.reports.installation import (
    Certificate,
    CheckState,
    InstalledPart,
    Label,
    PartSettings,
    judge_certificate,
    judge_order,
    judge_part,
    judge_scheduler,
    judge_unread_secrets,
    judge_webhook,
    seconds_of,
    selected,
    selects,
)

REVIEWING = PartSettings(serves_reviews=True, review_wait=1.5)
ASKED = PartSettings(serves_scheduler=True, filter_wait=0.1, retries=("scheduler.pending: retry",))


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"team": "shop"}}, True),
        ({"matchLabels": {"team": "other"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["shop"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["shop"]}]}, False),
        ({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["shop"]}]}, True),
        ({"matchExpressions": [{"key": "none", "operator": "In", "values": ["shop"]}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}, {"key": "none", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "team", "operator": "Near"}]}, False),
    ],
)
def test_a_selector_selects_as_the_api_server_says(selector: Any, is_selected: bool) -> None:
    """LabelSelector, apimachinery/pkg/apis/meta/v1/types.go."""
    assert selects(selector, {"team": "shop"}) is is_selected


def test_a_namespace_has_its_name_as_a_label_and_default_comes_first() -> None:
    """Even where the cluster does not say so."""
    names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    webhook = {"namespaceSelector": {"matchExpressions": [names]}}
    labels = [Label("a", {}), Label("default", {}), Label("kube-system", {})]
    assert selected(webhook, labels) == ["default", "a"]


@pytest.mark.parametrize(
    ("wanted", "ready", "restarts", "state"),
    [
        (2, 2, 0, "fine"),
        (2, 1, 0, "warning"),
        (2, 0, 0, "wrong"),
        (0, 0, 0, "unchecked"),
        (2, 2, 3, "fine"),
        (2, 2, 4, "warning"),
    ],
)
def test_pods_are_counted(wanted: int, ready: int, restarts: int, state: str) -> None:
    """A part that is scaled to nothing is nobody's mistake."""
    part = InstalledPart(kind="Deployment", namespace="n", name="w", wanted=wanted, ready=ready, restarts=restarts)
    assert [finding.state for finding in judge_part(part)] == [state]


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({}, ""),
        ({"urlPrefix": "http://127.0.0.1:8880/other"}, "no entry"),
        ({"filterVerb": ""}, "filterVerb is ''"),
        ({"prioritizeVerb": "prioritise"}, "prioritizeVerb is 'prioritise'"),
        ({"prioritizeVerb": ""}, ""),
        ({"ignorable": True}, "errors of scheduler.pending: retry"),
        ({"httpTimeout": "100ms"}, "httpTimeout is 0.1 s"),
        ({"httpTimeout": "1m"}, ""),
    ],
)
def test_a_scheduler_has_to_ask_and_to_wait(changes: dict[str, Any], seen: str) -> None:
    """A verb that is left out is not asked, and only filter has to be."""
    extender = {"urlPrefix": "http://127.0.0.1:8880/scheduler", "filterVerb": "filter", **changes}
    [finding] = judge_scheduler({"extenders": [extender]}, "file", ASKED)
    assert (finding.state is CheckState.WRONG, seen in finding.seen) == (bool(seen), True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1m30s", 90.0), ("100ms", 0.1), ("1.5s", 1.5), ("2h", 7200.0), ("5", None), ("s", None), (5, None)],
)
def test_durations_are_those_of_go(text: Any, seconds: float | None) -> None:
    """time.ParseDuration; what it refuses is nothing to compare with."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(("timeout", "is_wrong"), [(1, True), (2, False), (None, False)])
def test_the_api_server_waits_longer_than_the_service(timeout: int | None, is_wrong: bool) -> None:
    """Ten seconds where nothing is said."""
    webhook = {"name": "w", **({} if timeout is None else {"timeoutSeconds": timeout})}
    found = list(judge_webhook(webhook, "c", [Label("default", {})], REVIEWING))
    assert [finding.check for finding in found] == (["timeout"] if is_wrong else [])


def registered(name: str, policy: str, resource: str = "pods") -> dict[str, Any]:
    """A configuration with one webhook."""
    rule = {"apiGroups": [""], "operations": ["CREATE"], "resources": [resource]}
    webhook = {"name": f"w.{name}", "rules": [rule], "reinvocationPolicy": policy}
    return {"metadata": {"name": name}, "webhooks": [webhook]}


@pytest.mark.parametrize(
    ("policy", "other", "is_wrong"),
    [
        ("Never", registered("z", "Never"), True),
        ("Never", registered("z", "Never", "*"), True),
        ("IfNeeded", registered("z", "Never"), False),
        ("Never", registered("a", "Never"), False),
        ("Never", registered("z", "Never", "services"), False),
    ],
)
def test_who_comes_later_may_add_containers(policy: str, other: dict[str, Any], is_wrong: bool) -> None:
    """Unless ours is called again, or the other one sees no new pods."""
    assert bool(list(judge_order([registered("m", policy)], [other]))) is is_wrong


@pytest.mark.parametrize(
    ("certificate", "states"),
    [
        (Certificate(is_trusted=True, names=frozenset({"w.n.svc"}), days_left=30, where="Secret"), []),
        (Certificate(is_trusted=True, names=frozenset({"w.n.svc"}), days_left=3, where="Secret"), ["warning"]),
        (Certificate(is_trusted=True, names=frozenset({"w.n.svc"}), days_left=-1, where="Secret"), ["wrong"]),
        (Certificate(is_trusted=False, names=frozenset({"w.n.svc"}), days_left=30, where="Secret"), ["wrong"]),
        (Certificate(is_trusted=True, names=frozenset({"other"}), days_left=30, where="Secret"), ["wrong"]),
    ],
)
def test_a_certificate_is_trusted_current_and_for_the_name(certificate: Certificate, states: list[str]) -> None:
    """Each of them is told apart."""
    found = judge_certificate({"name": "w"}, "c", certificate, ["w.n.svc"])
    assert [finding.state for finding in found] == states


def test_namespaces_whose_pull_secrets_are_not_read_are_warned_of() -> None:
    """Each by name, with a pod."""
    pods = {"b": ["two", "one"], "a": ["x"]}
    warned = list(judge_unread_secrets(pods))
    assert [(each.subject, each.state) for each in warned] == [("namespace a", "warning"), ("namespace b", "warning")]
    assert "pods that name pull secrets: 2, one among them" in warned[1].seen
