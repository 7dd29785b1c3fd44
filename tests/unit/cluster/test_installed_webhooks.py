"""The selectors of installed webhooks, as those of the shipped files."""

import copy
from typing import Any

import pytest
import yaml

from extender.cluster.installed_webhooks import fetch_webhook_reach
from extender.placement.webhook_reach import WebhookReach
from tests.unit.cluster.scripted_api import ListedApi
from tools.docs.pages import PROJECT

PATH, NAMESPACES = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "/api/v1/namespaces"
NAMES = ("shop", "kube-system", "multiarch-extender")


def shipped() -> dict[str, Any]:
    documents = yaml.safe_load_all((PROJECT / "deploy/manifests/webhook.yaml").read_text())
    [found] = [each for each in documents if each["kind"] == "MutatingWebhookConfiguration"]
    return dict(found)


def namespaces(*names: str) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}} for name in names]


async def reached(*webhooks: dict[str, Any]) -> list[str]:
    """The namespaces whose pods get something, where these are installed."""
    api = ListedApi({PATH: list(webhooks), NAMESPACES: namespaces(*NAMES)})
    reach = await fetch_webhook_reach(api)
    assert reach.webhooks is not None
    return [name for name in NAMES if reach.includes(name, {})]


async def test_the_shipped_webhook_reaches_what_its_selector_lets_through() -> None:
    """All of its conditions are known here; the webhook of workloads gives pods nothing."""
    assert await reached(shipped()) == ["shop"]
    assert next(each["rules"][0]["resources"] for each in shipped()["webhooks"]) == ["pods"]


async def test_a_selector_that_was_changed_counts() -> None:
    """So does a condition of which nobody knows what it is: then nothing is said."""
    changed = copy.deepcopy(shipped())
    changed["webhooks"][0]["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    assert await reached(changed) == ["kube-system"]
    assert await reached(changed, shipped()) == ["shop", "kube-system"]
    changed["webhooks"][0]["matchConditions"].append({"name": "only-mine", "expression": "false"})
    assert await reached(changed) == []


async def test_a_webhook_that_keeps_pods_from_being_created_is_called_for_all_but_critical_ones() -> None:
    """The chart gives it a condition more, which names priority classes: the cluster's, and the operator's."""
    rendered = yaml.safe_load((PROJECT / "tests/data/chart/gate.yaml").read_text())
    given = rendered["MutatingWebhookConfiguration multiarch-extender-webhook"]
    assert given["/webhooks/0/failurePolicy"] == "Fail"
    failing = shipped()
    conditions = failing["webhooks"][0]["matchConditions"] = given["/webhooks/0/matchConditions"]
    api = ListedApi({PATH: [failing], NAMESPACES: namespaces(*NAMES)})
    reach = await fetch_webhook_reach(api)
    classes = (None, "", "high", "system-node-critical", "system-cluster-critical", "storage")
    assert [reach.includes("shop", {}, each) for each in classes] == [True] * 3 + [False] * 3
    conditions[-1]["expression"] += " && true"  # somebody's own
    assert not (await fetch_webhook_reach(api)).includes("shop", {})


@pytest.mark.parametrize("status", [403, 404])
async def test_without_a_webhook_that_can_be_read_nothing_is_known_of_it(status: int) -> None:
    for refused in (PATH, NAMESPACES):
        api = ListedApi({PATH: [shipped()], NAMESPACES: []}, {refused: status})
        assert await fetch_webhook_reach(api) == WebhookReach()
    assert await fetch_webhook_reach(ListedApi({PATH: [], NAMESPACES: []})) == WebhookReach()
