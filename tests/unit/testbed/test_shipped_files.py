"""What the tests run is what `deploy/` ships: only addresses, identities and leader election are changed."""

import base64
from typing import Any

import pytest
import yaml

from testbed.shipped_files import (
    DEPLOY,
    Mode,
    identity_manifests,
    scheduler_configuration,
    scheduler_flags,
    selected_labels,
    service_configuration,
    shipped_manifests,
    webhook_configuration,
)

SHIPPED_SCHEDULERS = pytest.mark.parametrize("mode", [Mode.SECOND, Mode.DEFAULT])


def without(changed: dict[str, Any], *names: str) -> dict[str, Any]:
    """The mapping, less these keys."""
    return {name: value for name, value in changed.items() if name not in names}


@SHIPPED_SCHEDULERS
def test_a_scheduler_runs_with_the_shipped_file_but_for_address_and_election(mode: Mode) -> None:
    """Timeouts, weights, verbs and everything else are the file's own."""
    shipped = yaml.safe_load((DEPLOY / "scheduler" / f"{mode}.yaml").read_text())
    made = scheduler_configuration(mode, "http://127.0.0.1:7")
    [before], [after] = shipped["extenders"], made["extenders"]
    assert without(made, "extenders", "leaderElection") == without(shipped, "extenders", "leaderElection")
    assert without(after, "urlPrefix") == without(before, "urlPrefix")
    assert after["urlPrefix"] == "http://127.0.0.1:7/scheduler"
    assert made["leaderElection"] == {"leaderElect": False}


@SHIPPED_SCHEDULERS
def test_an_entrys_fields_are_overridden_or_taken_away(mode: Mode) -> None:
    """A test that needs another time-out, or no preempt verb, says that and nothing else."""
    made = scheduler_configuration(
        mode, "http://127.0.0.1:7", {"httpTimeout": "3s", "preemptVerb": None}, parallelism=1
    )
    [entry] = made["extenders"]
    assert entry["httpTimeout"] == "3s"
    assert "preemptVerb" not in entry
    assert made["parallelism"] == 1


def test_without_an_address_there_is_no_extender() -> None:
    """As in a cluster that has only the webhook."""
    assert "extenders" not in scheduler_configuration(Mode.DEFAULT, "")


def test_the_second_scheduler_gets_its_manifests_feature_gates() -> None:
    """They are flags, which the configuration file cannot hold; the default scheduler's are its cluster's business."""
    assert scheduler_flags(Mode.SECOND) == ["--feature-gates=SchedulerPopFromBackoffQ=false"]
    assert scheduler_flags(Mode.DEFAULT) == []


@pytest.mark.parametrize("mode", [Mode.SECOND, Mode.WEBHOOK])
def test_a_webhook_is_the_shipped_one_at_another_address(mode: Mode) -> None:
    """Failure policy, time-out, conditions and selectors are the manifest's own."""
    [shipped] = [each for each in shipped_manifests(mode) if each["kind"] == "MutatingWebhookConfiguration"]
    made = webhook_configuration(mode, "https://127.0.0.1:7", b"PEM")
    [before], [after] = shipped["webhooks"], made["webhooks"]
    assert without(made, "webhooks") == without(shipped, "webhooks")
    assert without(after, "clientConfig") == without(before, "clientConfig")
    assert after["clientConfig"]["url"] == "https://127.0.0.1:7/admission/pods"
    assert base64.b64decode(after["clientConfig"]["caBundle"]) == b"PEM"
    chosen = webhook_configuration(mode, "https://127.0.0.1:7", b"PEM", {"matchLabels": {"a": "b"}})
    assert chosen["webhooks"][0]["namespaceSelector"] == {"matchLabels": {"a": "b"}}


@pytest.mark.parametrize("mode", Mode)
def test_the_services_account_has_the_shipped_role_and_no_other(mode: Mode) -> None:
    """kube-scheduler's own roles, which the same account may have, are not the service's."""
    kinds = [found["kind"] for found in identity_manifests(mode)]
    assert sorted(kinds) == ["ClusterRole", "ClusterRoleBinding", "Namespace", "ServiceAccount"]


def test_each_modes_settings_are_its_config_maps() -> None:
    """The second scheduler retries, the default one assumes."""
    assert service_configuration(Mode.SECOND)["scheduler"]["pending"] == "retry"
    assert service_configuration(Mode.DEFAULT)["scheduler"]["pending"] == "assume"


def test_labels_that_a_selector_chooses() -> None:
    """The first value of each In and every matchLabel; a NotIn needs nothing."""
    expressions = [
        {"key": "scheduler", "operator": "In", "values": ["ours", "other"]},
        {"key": "name", "operator": "NotIn", "values": ["kube-system"]},
    ]
    selector = {"matchExpressions": expressions, "matchLabels": {"team": "shop"}}
    assert selected_labels(selector) == {"scheduler": "ours", "team": "shop"}
    assert selected_labels({}) == {}
