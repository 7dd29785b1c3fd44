"""What `doctor` takes for wrong, rule by rule: of selectors, a scheduler's configuration and a certificate."""

from typing import Any

import pytest

from extender.cli.examination import judge_scheduler
from extender.cli.installation import CheckState, selector_text
from extender.cli.installation_objects import Certificate
from extender.cli.webhook_checks import judge_certificate
from extender.config.reading import read_config

ASKED = read_config(None, ["cache.url='memory:'", "scheduler.wait_seconds=0.1", "scheduler.pending=retry"])


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (None, ""),
        ({}, ""),
        ({"matchLabels": {"team": "shop", "a": "b"}}, "team=shop,a=b"),
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["shop", "b"]}]}, "team in (shop,b)"),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["shop"]}]}, "team notin (shop)"),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, "team"),
        ({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, "a=b,!team"),
    ],
)
def test_a_selector_is_written_as_the_api_server_reads_it(selector: Any, text: str) -> None:
    """k8s.io/apimachinery/pkg/labels/selector.go, Parse."""
    assert selector_text(selector) == text


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
        ({"httpTimeout": "1m30s"}, ""),
        ({"httpTimeout": 5}, ""),
    ],
)
def test_a_scheduler_has_to_ask_and_to_wait(changes: dict[str, Any], seen: str) -> None:
    """A verb that is left out is not asked, and only filter has to be."""
    extender = {"urlPrefix": "http://127.0.0.1:8880/scheduler", "filterVerb": "filter", **changes}
    [found] = judge_scheduler({"extenders": [extender]}, "file", ASKED)
    assert (found.state is CheckState.WRONG, seen in found.seen) == (bool(seen), True)


@pytest.mark.parametrize(
    ("changes", "states"),
    [({}, []), ({"days_left": 3}, ["ok"]), ({"days_left": -1}, ["wrong"]), ({"is_trusted": False}, ["wrong"]),
     ({"names": frozenset({"other"})}, ["wrong"])],
)  # fmt: skip
def test_a_certificate_is_trusted_current_and_for_the_name(changes: dict[str, Any], states: list[str]) -> None:
    """Each of them is told apart; in its last week there is an advice."""
    right = {"is_trusted": True, "names": frozenset({"w.n.svc"}), "days_left": 30, "where": "Secret"}
    found = judge_certificate("webhook", Certificate(**{**right, **changes}), ["w.n.svc"])
    assert [seen.state for seen in found if seen.remedy] == states
