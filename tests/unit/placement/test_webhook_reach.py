"""For which pods a webhook is called: the selectors of Kubernetes, and what every shipped webhook leaves out."""

from typing import Any

import msgspec
import pytest

from extender.kubernetes.apps_v1 import LabelSelector
from extender.placement.webhook_reach import CalledFor, WebhookReach, is_selected

NAME = "kubernetes.io/metadata.name"
EVERYTHING = LabelSelector()


def selector(document: Any) -> LabelSelector:
    return msgspec.convert(document, LabelSelector)


@pytest.mark.parametrize(
    ("document", "labels", "matches"),
    [
        ({}, {}, True),
        ({"matchLabels": None, "matchExpressions": None}, {"a": "b"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "c"}, False),
        ({"matchLabels": {"a": "b"}}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {"a": "b"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}, {"a": "b"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {}, True),
        ({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}, {"a": "b"}, False),
    ],
)
def test_a_selector_matches_all_that_it_asks(document: Any, labels: dict[str, str], matches: bool) -> None:
    assert is_selected(labels, selector(document)) is matches


def test_without_a_known_webhook_what_every_one_leaves_out_gets_nothing() -> None:
    reach = WebhookReach()
    left_out = ("kube-system", "kube-public", "kube-node-lease", "multiarch-extender")
    assert [reach.includes(each, {}) for each in (*left_out, "shop", "")] == [False] * 4 + [True] * 2
    assert not reach.includes("shop", {"app.kubernetes.io/name": "multiarch-extender"})


def test_one_webhook_that_is_called_is_enough() -> None:
    """By the labels of the namespace and of the pod; one whose labels are not known is not said to be reached."""
    opt_in = CalledFor(selector({"matchLabels": {"arch": "any"}}), EVERYTHING)
    not_system = {"matchExpressions": [{"key": NAME, "operator": "NotIn", "values": ["kube-system"]}]}
    by_object = CalledFor(selector(not_system), selector({"matchLabels": {"arch": "any"}}))
    names = ("shop", "kube-system", "old")
    labels = {name: {NAME: name, **({} if name == "old" else {"arch": "any"})} for name in names}
    for webhooks, of_pod, found in (
        ([opt_in], {}, ["shop", "kube-system"]),
        ([by_object], {}, []),
        ([by_object], {"arch": "any"}, ["shop", "old"]),
        ([by_object, opt_in], {"arch": "any"}, ["shop", "kube-system", "old"]),
        ([], {}, []),
    ):
        reach = WebhookReach(webhooks, labels)
        assert [name for name in (*names, "unseen") if reach.includes(name, of_pod)] == found
