"""What `doctor` asks of a cluster for each check, what it takes for wrong, and that ok is only what it has seen."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from extender.cli import doctor
from extender.cli.examination import examine
from extender.cli.installation import CheckName, CheckState, Diagnosis, selector_text
from extender.cli.installation_objects import Certificate
from extender.cli.webhook_checks import diagnose_certificate
from extender.cluster.client import ClusterRefused
from extender.errors import ConfigError
from extender.kubernetes.apps_v1 import LabelSelector
from tests.unit.cli.installed_cluster import (
    APPS,
    CONFIG_MAP,
    DEPLOYMENTS,
    DRY_RUN,
    NAMESPACES,
    OWN_PODS,
    SECRET,
    SETTINGS,
    WEBHOOKS,
    Document,
    InstalledCluster,
    deployment,
)

READ_FIRST = {DEPLOYMENTS, f"{APPS}/daemonsets", f"{APPS}/statefulsets", CONFIG_MAP}
READYZ = "/api/v1/namespaces/ours/pods/a:8882/proxy/readyz"
UNASKED = "/readyz of its pod cannot be asked: HTTP"
SAID = "[+]nodes ok: 3 s old\n[{}]certificate {}: a detail\nreadyz check passed\n"


class Cluster(InstalledCluster):
    """Examined by `doctor`."""

    async def examine(self, *checks: CheckName) -> list[tuple[CheckName, Diagnosis]]:
        return await examine(self.client, set(checks), selector="app=x")

    async def states(self, *checks: CheckName) -> list[tuple[str, str]]:
        return [(check, seen.state) for check, seen in await self.examine(*checks)]


ASKED: Mapping[CheckName, set[str]] = {
    CheckName.PODS: {OWN_PODS},
    CheckName.SETTINGS: set(),
    CheckName.SERVICE: {OWN_PODS},
    CheckName.WEBHOOK: {WEBHOOKS},
    CheckName.NAMESPACES: {WEBHOOKS, NAMESPACES},
    CheckName.CERTIFICATE: {WEBHOOKS, SECRET},
    CheckName.PROBE: {WEBHOOKS, NAMESPACES, DRY_RUN},
}


@pytest.mark.parametrize("check", CheckName)
async def test_each_check_says_what_it_has_seen_and_asks_for_nothing_else(check: CheckName) -> None:
    """An account needs no right for what it was not asked."""
    cluster = Cluster()
    found = await cluster.examine(check)
    assert cluster.asked == READ_FIRST | ASKED[check]
    assert {name for name, _ in found} == {check}


async def test_of_two_installations_one_has_to_be_chosen() -> None:
    """A tenant's look-alike is another one: nothing of it is examined."""
    cluster = Cluster()
    other = deployment(readyReplicas=1)
    other["metadata"]["namespace"] = "tenant"
    cluster.lists[DEPLOYMENTS] += [other]
    with pytest.raises(ConfigError, match="the namespaces ours, tenant have an installation; choose one"):
        await cluster.examine(*CheckName)
    assert not any("configmaps" in path for path in cluster.asked)


NO_PODS: dict[str, list[Document]] = {DEPLOYMENTS: [deployment()]}


def own_pod(restarts: int = 0, *, ready: bool = True) -> Document:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": {"name": "a"}, "status": {"conditions": conditions,
            "containerStatuses": [{"name": "c", "restartCount": restarts}]}}  # fmt: skip


@pytest.mark.parametrize(
    ("ready", "restarts", "state", "is_advised"),
    [(2, 0, "ok", False), (2, 3, "ok", False), (2, 4, "ok", True), (1, 0, "ok", True), (0, 0, "wrong", True)],
)
async def test_pods_are_counted(*, ready: int, restarts: int, state: str, is_advised: bool) -> None:
    """Without one that is ready nothing is done; what is done with fewer, or again and again, has an advice."""
    cluster = Cluster()
    cluster.lists |= {DEPLOYMENTS: [deployment(readyReplicas=ready)], OWN_PODS: [own_pod(restarts)]}
    cluster.lists[DEPLOYMENTS][0]["spec"]["replicas"] = 2
    [(_, seen)] = await cluster.examine(CheckName.PODS)
    assert (seen.state, bool(seen.remedy)) == (state, is_advised)


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (SAID.format("+", "ok"), [("ok", "a says: nodes ok: 3 s old; certificate ok: a detail")]),
        (SAID.format("-", "failed"), [("wrong", "a says: certificate failed: a detail")]),
        (
            ClusterRefused("x", 503, text=SAID.format("-", "failed")),
            [("wrong", "a says: certificate failed: a detail")],
        ),
        ("ok\n", [("not seen", "/readyz of a says nothing of any check")]),
        (ClusterRefused("HTTP 403", 403), [("not seen", f"{UNASKED} 403")]),
        (ClusterRefused("HTTP 502", 502, text="<html>"), [("not seen", f"{UNASKED} 502")]),
    ],
    ids=["all is well", "a check that readiness does not take", "unready", "no checks", "refused", "cut off"],
)
@pytest.mark.parametrize("ready", [True, False])
async def test_the_service_is_asked_for_what_it_knows(
    answer: str | ClusterRefused, seen: list[tuple[str, str]], *, ready: bool
) -> None:
    """Through the API server, which may not reach it: then it is not seen. One that is not ready can say why."""
    cluster = Cluster(f"{SETTINGS}\noperations: {{listen: ':8882'}}")
    other = own_pod(ready=False)
    other["metadata"]["name"] = "b"
    cluster.lists[OWN_PODS] = [other, own_pod()] if ready else [own_pod(ready=False), other]
    cluster.texts[READYZ] = answer
    found = await cluster.examine(CheckName.SERVICE)
    assert [(each.state, each.seen) for _, each in found] == seen


@pytest.mark.parametrize(("timeout", "state"), [(1, "wrong"), (2, "ok"), (None, "ok")])
async def test_the_api_server_waits_longer_than_the_service(timeout: int | None, state: str) -> None:
    """Ten seconds where nothing is said."""
    cluster = Cluster(SETTINGS.replace("listen:", "wait_seconds: 1.5, listen:"))
    cluster.lists[WEBHOOKS][0]["webhooks"][0] |= {"timeoutSeconds": timeout}
    assert await cluster.states(CheckName.WEBHOOK) == [("webhook", state)]


async def test_namespaces_are_selected_by_the_api_server() -> None:
    """By the webhook's selector, as a query; `default` is probed first."""
    cluster = Cluster()
    names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
    cluster.lists[WEBHOOKS][0]["webhooks"][0]["namespaceSelector"] = {"matchExpressions": [names]}
    selected = f"{NAMESPACES}?kubernetes.io/metadata.name notin (kube-system)"
    cluster.lists[selected] = [{"metadata": {"name": name}} for name in ("a", "default")]
    [(_, seen)] = await cluster.examine(CheckName.PROBE)
    assert "namespace default" in seen.seen


@pytest.mark.parametrize(
    ("checks", "settings", "lists", "refused"),
    [
        pytest.param("pods", SETTINGS, NO_PODS, "", id="a part that is scaled to nothing"),
        pytest.param("service", SETTINGS, {}, "", id="no pod to ask"),
        pytest.param("service", "nonsense: true", {}, "", id="settings that are wrong, by which its port is known"),
        pytest.param("webhook probe", "nonsense: true", {}, "", id="whether pods are reviewed, by wrong settings"),
        pytest.param("webhook probe", "admission: {listen: ''}", {}, "", id="a webhook, where none is served"),
        pytest.param("certificate probe", SETTINGS, {WEBHOOKS: []}, "", id="a webhook that is not registered"),
        pytest.param("settings", SETTINGS, {}, CONFIG_MAP, id="settings that may not be read"),
        pytest.param("probe", SETTINGS, {NAMESPACES: []}, "", id="a webhook that selects nothing"),
        *(pytest.param(check, SETTINGS, {}, WEBHOOKS, id=f"{check}, for lack of rights")
          for check in ("probe", "certificate", "namespaces", "webhook")),
    ],
)  # fmt: skip
async def test_what_was_not_seen_is_neither_ok_nor_wrong(
    checks: str, settings: str, lists: dict[str, list[Document]], refused: str
) -> None:
    """Whoever asks for a check is told, and a refusal is that of this check, not of one that reads the same first."""
    cluster = Cluster(settings)
    cluster.lists |= lists
    cluster.refused.add(refused)
    assert await cluster.states(*map(CheckName, checks.split())) == [(check, "not seen") for check in checks.split()]


async def test_what_is_waited_for_is_told_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever ends the wait early, as Helm does, finds in the log what was wrong."""
    monkeypatch.setattr(doctor, "_PAUSE_SECONDS", 0.0)

    def pods(state: CheckState, seen: str) -> list[tuple[CheckName, Diagnosis]]:
        return [(CheckName.PODS, Diagnosis("Deployment a", state, seen))]

    none, one, both = (
        pods(state, f"{count} of 2 pods are ready")
        for count, state in enumerate((CheckState.WRONG, CheckState.WRONG, CheckState.OK))
    )
    looks = iter([none, none, one, both])

    async def look() -> list[tuple[CheckName, Diagnosis]]:
        return next(looks)

    found = await doctor._examine_until(look, {CheckState.WRONG}, 60.0)  # noqa: SLF001
    assert found == both
    assert capsys.readouterr().err.splitlines() == [
        "waiting: pods Deployment a: 0 of 2 pods are ready",
        "waiting: pods Deployment a: 1 of 2 pods are ready",
    ]


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
    assert selector_text(msgspec.convert(selector, LabelSelector | None)) == text


@pytest.mark.parametrize(
    ("changes", "states"),
    [({}, ["ok"]), ({"days_left": 3}, ["ok"]), ({"days_left": -1, "is_valid": False}, ["wrong"]),
     ({"is_valid": False}, ["wrong"]), ({"is_trusted": False}, ["wrong"]),
     ({"names": frozenset({"other"})}, ["wrong"])],
)  # fmt: skip
def test_a_certificate_is_trusted_current_and_for_the_name(changes: dict[str, Any], states: list[str]) -> None:
    names = frozenset({"w.n.svc"})
    right = {"is_trusted": True, "names": names, "is_valid": True, "days_left": 30, "where": "Secret"}
    found = diagnose_certificate("webhook", Certificate(**{**right, **changes}), "w.n.svc")
    assert [seen.state for seen in found] == states
