"""What `doctor` asks of a cluster for each check, what it takes for wrong, and that ok is only what it has seen."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from extender.cli import doctor
from extender.cli.examination import examine, judge_scheduler
from extender.cli.installation import CheckName, CheckState, Seen, selector_text
from extender.cli.installation_objects import Certificate
from extender.cli.installed_settings import GivenSettings
from extender.cli.webhook_checks import judge_certificate
from extender.cluster.client import ClusterRefused
from extender.config.reading import read_config
from tests.unit.cli.installed_cluster import (
    APPS,
    BINDINGS,
    CONFIG_MAP,
    DEPLOYMENTS,
    DRY_RUN,
    LEASE,
    NAMESPACES,
    OWN_PODS,
    PODS,
    POLICIES,
    REVIEWS,
    SECRET,
    SETTINGS,
    WEBHOOKS,
    Document,
    InstalledCluster,
    deployment,
    gating_policy,
)

READ_FIRST = {DEPLOYMENTS, f"{APPS}/daemonsets", f"{APPS}/statefulsets", CONFIG_MAP}
READYZ = "/api/v1/namespaces/ours/pods/a:8882/proxy/readyz"
UNASKED = "/readyz of its pod cannot be asked: HTTP"
SAID = "[+]nodes ok: 3 s old\n[{}]canary {}: a detail\nreadyz check passed\n"
GATING = SETTINGS.replace("listen:", "unknown: gate, listen:")


class Cluster(InstalledCluster):
    """Examined by `doctor`."""

    async def examine(self, *checks: CheckName, settings: tuple[str, ...] = ()) -> list[tuple[CheckName, Seen]]:
        config = read_config(None, ["cache.url='memory:'", *settings])
        given = GivenSettings(config, None, settings)
        return await examine(self.client, given, set(checks), selector="app=x")

    async def states(self, *checks: CheckName, settings: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        return [(check, seen.state) for check, seen in await self.examine(*checks, settings=settings)]


ASKED: Mapping[CheckName, set[str]] = {
    CheckName.WORKLOADS: set(),
    CheckName.PODS: {OWN_PODS},
    CheckName.SETTINGS: set(),
    CheckName.SERVICE: {OWN_PODS},
    CheckName.RIGHTS: {REVIEWS},
    CheckName.SECRETS: set(),
    CheckName.WEBHOOK: {WEBHOOKS},
    CheckName.NAMESPACES: {WEBHOOKS, NAMESPACES},
    CheckName.TIMEOUT: {WEBHOOKS},
    CheckName.ORDER: {WEBHOOKS},
    CheckName.CERTIFICATE: {WEBHOOKS, SECRET},
    CheckName.PROBE: {WEBHOOKS, NAMESPACES, DRY_RUN},
    CheckName.GATES: {PODS, POLICIES, BINDINGS},
    CheckName.SCHEDULER: set(),
    CheckName.REGISTRIES: {PODS},
    CheckName.MIRRORS: set(),
}


@pytest.mark.parametrize("check", CheckName)
async def test_nothing_is_asked_that_the_check_does_not_take(check: CheckName) -> None:
    """However often it looks again: an account needs no right for what it was not asked."""
    cluster = Cluster()
    found = await cluster.examine(check)
    assert cluster.asked == READ_FIRST | ASKED[check]
    assert {name for name, _ in found} <= {check, CheckName.WORKLOADS}


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
        (SAID.format("+", "ok"), [("ok", "a says: nodes ok: 3 s old; canary ok: a detail")]),
        (SAID.format("-", "failed"), [("wrong", "a says: canary failed: a detail")]),
        (ClusterRefused("x", 503, text=SAID.format("-", "failed")), [("wrong", "a says: canary failed: a detail")]),
        (ClusterRefused("HTTP 403", 403), [("not seen", f"{UNASKED} 403")]),
        (ClusterRefused("HTTP 502", 502, text="<html>"), [("not seen", f"{UNASKED} 502")]),
    ],
    ids=["all is well", "a check that readiness does not take", "unready", "refused", "cut off"],
)
async def test_the_service_is_asked_for_what_it_knows(
    answer: str | ClusterRefused, seen: list[tuple[str, str]]
) -> None:
    """Through the API server, which may not reach it: then it is not seen."""
    cluster = Cluster(f"{SETTINGS}\noperations: {{listen: ':8882'}}")
    cluster.lists[OWN_PODS] = [own_pod(ready=False), own_pod()]
    cluster.texts[READYZ] = answer
    found = await cluster.examine(CheckName.SERVICE)
    assert [(each.state, each.seen) for _, each in found] == seen


async def test_namespaces_whose_pull_secrets_are_not_read_are_told() -> None:
    """Each by name, with a pod; a service that has logins of its own may do without."""
    cluster = Cluster(SETTINGS.replace("mirrors: ''", "mirrors: '', pull_secrets: [shop]"))
    pods = [("shop", "a"), ("team", "two"), ("team", "one")]
    cluster.lists[PODS] = [
        {"metadata": {"name": name, "namespace": namespace}, "spec": {"imagePullSecrets": [{"name": "s"}]}}
        for namespace, name in pods
    ]
    [(_, seen)] = await cluster.examine(CheckName.SECRETS)
    assert (seen.subject, seen.state) == ("namespace team", "ok")
    assert "pods that name pull secrets: 2, one among them" in seen.seen
    assert "registry.pull_secrets" in seen.remedy


@pytest.mark.parametrize(("timeout", "states"), [(1, [("timeout", "wrong")]), (2, []), (None, [])])
async def test_the_api_server_waits_longer_than_the_service(timeout: int | None, states: list[tuple[str, str]]) -> None:
    """Ten seconds where nothing is said."""
    cluster = Cluster(SETTINGS.replace("listen:", "wait_seconds: 1.5, listen:"))
    cluster.lists[WEBHOOKS][0]["webhooks"][0] |= {"timeoutSeconds": timeout}
    assert await cluster.states(CheckName.TIMEOUT) == states


def registered(name: str, resource: str = "pods") -> Document:
    rule = {"apiGroups": [""], "operations": ["CREATE"], "resources": [resource]}
    return {"metadata": {"name": name}, "webhooks": [{"name": f"w.{name}", "rules": [rule]}]}


@pytest.mark.parametrize(
    ("policy", "other", "is_wrong"),
    [
        ("Never", registered("z"), True),
        ("Never", registered("z", "*"), True),
        ("IfNeeded", registered("z"), False),
        ("Never", registered("a"), False),
        ("Never", registered("z", "services"), False),
    ],
)
async def test_who_comes_later_may_add_containers(policy: str, other: Document, is_wrong: bool) -> None:
    """Unless ours is called again, or the other one sees no new pods."""
    cluster = Cluster()
    ours = cluster.lists[WEBHOOKS][0]
    ours["webhooks"][0]["reinvocationPolicy"] = policy
    cluster.lists |= {f"{WEBHOOKS}?app=x": [ours], WEBHOOKS: [ours, other]}
    assert bool(await cluster.states(CheckName.ORDER)) is is_wrong


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
        pytest.param("service", SETTINGS, {OWN_PODS: [own_pod(ready=False)]}, "", id="no ready pod to ask"),
        pytest.param("rights", "nonsense: true", {}, "", id="settings that are wrong, by which rights are known"),
        pytest.param("order probe", "nonsense: true", {}, "", id="whether pods are reviewed, by wrong settings"),
        pytest.param("settings", SETTINGS, {}, CONFIG_MAP, id="settings that may not be read"),
        pytest.param("probe", SETTINGS, {NAMESPACES: []}, "", id="a webhook that selects nothing"),
        pytest.param("registries", SETTINGS, {}, "", id="registries of no running pod"),
        *(pytest.param(check, SETTINGS, {}, WEBHOOKS, id=f"{check}, for lack of rights")
          for check in ("probe", "certificate", "order", "webhook")),
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
    assert settings == SETTINGS or REVIEWS not in cluster.asked


@pytest.mark.parametrize(
    ("renewed", "state"), [(None, "wrong"), ("2001-01-01T00:00:00Z", "wrong"), ("now", "ok")], ids=str
)
async def test_a_policy_is_fine_only_while_somebody_lets_its_pods_go(renewed: str | None, state: str) -> None:
    cluster = Cluster(GATING)
    cluster.lists |= {POLICIES: [gating_policy()], BINDINGS: [{"spec": {"policyName": "holding"}}]}
    if renewed:
        at = datetime.now(UTC).isoformat() if renewed == "now" else renewed
        cluster.objects[LEASE] = {"metadata": {}, "spec": {"holderIdentity": "a", "renewTime": at}}
    found = [seen for _, seen in await cluster.examine(CheckName.GATES) if "holding" in seen.subject]
    assert [seen.state for seen in found] == [state]


def running(image: str) -> Document:
    status = {"phase": "Running", "containerStatuses": []}
    return {"metadata": {"name": "p", "namespace": "shop"}, "spec": {"containers": [{"name": "c", "image": image}]},
            "status": status}  # fmt: skip


@pytest.mark.parametrize(
    "settings", [("registry.allow=[other.example.com]",), ("registry.deny=['*.example.com']",)], ids=str
)
async def test_a_registry_that_is_not_asked_does_not_answer(settings: tuple[str, ...]) -> None:
    cluster = Cluster()
    cluster.lists[PODS] = [running("registry.example.com/app:1")]
    [(_, found)] = await cluster.examine(CheckName.REGISTRIES, settings=settings)
    assert (found.subject, found.state) == ("registry registry.example.com", "not seen")
    assert "it was not asked for registry.example.com/app:1" in found.seen


async def test_rights_are_those_of_the_settings() -> None:
    text = SETTINGS.replace(
        "tls: {certificate: /tls/tls.crt, key: /tls/tls.key}", "tls: {self_managed: [x]}, unknown: gate"
    )
    text += "\ninstallation: own"
    cluster = Cluster(f"{text}\n")
    assert await cluster.states(CheckName.RIGHTS) == [("rights", "ok")]
    asked = {(each["verb"], each["resource"], each["namespace"], each["name"]) for each in cluster.wanted}
    assert asked >= {
        ("get", "secrets", "ours", "own-identity"),
        ("patch", "secrets", "ours", "own-identity"),
        ("get", "leases", "ours", LEASE.rpartition("/")[2]),
        ("patch", "leases", "ours", LEASE.rpartition("/")[2]),
        ("create", "events", "", ""),
        ("patch", "mutatingwebhookconfigurations", "", "own"),
        ("watch", "nodes", "", ""),
        ("patch", "pods", "", ""),
    }


async def test_what_is_waited_for_is_told_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever ends the wait early, as Helm does, finds in the log what was wrong."""
    monkeypatch.setattr(doctor, "_PAUSE_SECONDS", 0.0)

    def pods(state: CheckState, seen: str) -> list[tuple[CheckName, Seen]]:
        return [(CheckName.PODS, Seen("Deployment a", state, seen))]

    none, one, both = (
        pods(state, f"{count} of 2 pods are ready")
        for count, state in enumerate((CheckState.WRONG, CheckState.WRONG, CheckState.OK))
    )
    looks = iter([none, none, one, both])

    async def look() -> list[tuple[CheckName, Seen]]:
        return next(looks)

    found = await doctor._look_until(look, {CheckState.WRONG}, 60.0)  # noqa: SLF001
    assert found == both
    assert capsys.readouterr().err.splitlines() == [
        "waiting: pods Deployment a: 0 of 2 pods are ready",
        "waiting: pods Deployment a: 1 of 2 pods are ready",
    ]


ASKING = read_config(None, ["cache.url='memory:'", "scheduler.wait_seconds=0.1", "scheduler.pending=retry"])


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
    [found] = judge_scheduler({"extenders": [extender]}, "file", ASKING)
    assert (found.state is CheckState.WRONG, seen in found.seen) == (bool(seen), True)


@pytest.mark.parametrize(
    ("changes", "states"),
    [({}, []), ({"days_left": 3}, ["ok"]), ({"days_left": -1}, ["wrong"]), ({"is_trusted": False}, ["wrong"]),
     ({"names": frozenset({"other"})}, ["wrong"])],
)  # fmt: skip
def test_a_certificate_is_trusted_current_and_for_the_name(changes: dict[str, Any], states: list[str]) -> None:
    right = {"is_trusted": True, "names": frozenset({"w.n.svc"}), "days_left": 30, "where": "Secret"}
    found = judge_certificate("webhook", Certificate(**{**right, **changes}), ["w.n.svc"])
    assert [seen.state for seen in found if seen.remedy] == states
