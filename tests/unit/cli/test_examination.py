"""What `doctor` asks of a cluster for each check, and that it calls fine only what it has seen."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

import pytest

from extender.cli import doctor
from extender.cli.examination import Examination
from extender.cli.installed_settings import GivenSettings
from extender.config.reading import read_config
from extender.reports.installation import CheckFinding, CheckName, CheckState
from tests.unit.cli.installed_cluster import (
    APPS,
    BINDINGS,
    CONFIG_MAP,
    DEPLOYMENTS,
    DRY_RUN,
    LEASE,
    NAMESPACES,
    NODES,
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


class Cluster(InstalledCluster):
    """Examined by `doctor`."""

    async def examine(self, *checks: CheckName, settings: tuple[str, ...] = ()) -> list[CheckFinding]:
        """What `doctor` finds of these checks."""
        config = read_config(None, ["cache.url='memory:'", *settings])
        given = GivenSettings(config, None, settings)
        return await Examination(self.client, given, "app=x", "", None, checks=set(checks)).findings()

    async def states(self, *checks: CheckName, settings: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        """The check and state of each finding."""
        return [(each.check, each.state) for each in await self.examine(*checks, settings=settings)]


ASKED: Mapping[CheckName, set[str]] = {
    CheckName.WORKLOADS: set(),
    CheckName.PODS: {OWN_PODS},
    CheckName.SETTINGS: set(),
    CheckName.RIGHTS: {REVIEWS},
    CheckName.SECRETS: set(),
    CheckName.WEBHOOK: {WEBHOOKS, NAMESPACES},
    CheckName.NAMESPACES: {WEBHOOKS, NAMESPACES},
    CheckName.TIMEOUT: {WEBHOOKS, NAMESPACES},
    CheckName.ORDER: {WEBHOOKS, NAMESPACES},
    CheckName.CERTIFICATE: {WEBHOOKS, NAMESPACES, SECRET},
    CheckName.PROBE: {WEBHOOKS, NAMESPACES, DRY_RUN},
    CheckName.GATES: {PODS, POLICIES, BINDINGS},
    CheckName.SCHEDULER: set(),
    CheckName.NODES: {NODES},
    CheckName.REGISTRIES: {PODS},
    CheckName.MIRRORS: set(),
}


@pytest.mark.parametrize("check", CheckName)
async def test_nothing_is_asked_that_the_check_does_not_take(check: CheckName) -> None:
    """However often it looks again: an account needs no right for what it was not asked."""
    cluster = Cluster()
    found = await cluster.examine(check)
    assert cluster.asked == READ_FIRST | ASKED[check]
    assert {each.check for each in found} <= {check, CheckName.WORKLOADS}


async def test_a_part_without_pods_was_not_seen() -> None:
    cluster = Cluster()
    cluster.lists[DEPLOYMENTS] = [deployment()]
    assert await cluster.states(CheckName.PODS) == [("pods", "unchecked")]


async def test_a_cluster_without_nodes_was_not_seen() -> None:
    cluster = Cluster()
    cluster.lists[NODES] = []
    assert await cluster.states(CheckName.NODES) == [("nodes", "unchecked")]


async def test_rights_are_not_known_where_settings_are_not() -> None:
    """Nor is whether pods are reviewed."""
    cluster = Cluster("nonsense: true")
    assert await cluster.states(CheckName.RIGHTS) == [("rights", "unchecked")]
    assert await cluster.states(CheckName.PROBE, CheckName.ORDER) == [("order", "unchecked"), ("probe", "unchecked")]
    assert REVIEWS not in cluster.asked


async def test_settings_that_may_not_be_read_are_not_wrong() -> None:
    """They may be all right."""
    cluster = Cluster()
    cluster.refused.add(CONFIG_MAP)
    assert await cluster.states(CheckName.SETTINGS) == [("settings", "unchecked")]


async def test_a_webhook_that_selects_nothing_cannot_be_proved() -> None:
    """Whoever asks for the probe is told."""
    cluster = Cluster()
    cluster.lists[NAMESPACES] = []
    assert await cluster.states(CheckName.PROBE) == [("probe", "unchecked")]


@pytest.mark.parametrize("check", [CheckName.PROBE, CheckName.CERTIFICATE, CheckName.ORDER, CheckName.WEBHOOK])
async def test_a_refusal_is_that_of_the_check_that_was_asked_for(check: CheckName) -> None:
    """And not of another one that reads the same objects first."""
    cluster = Cluster()
    cluster.refused.add(WEBHOOKS)
    assert await cluster.states(check) == [(check, "unchecked")]


GATING = SETTINGS.replace("listen:", "unknown: gate, listen:")


@pytest.mark.parametrize(
    ("renewed", "state"), [(None, "wrong"), ("2001-01-01T00:00:00Z", "wrong"), ("now", "fine")], ids=str
)
async def test_a_policy_is_fine_only_while_somebody_lets_its_pods_go(renewed: str | None, state: str) -> None:
    """The setting alone lets nobody go."""
    cluster = Cluster(GATING)
    cluster.lists |= {POLICIES: [gating_policy()], BINDINGS: [{"spec": {"policyName": "holding"}}]}
    if renewed:
        at = datetime.now(UTC).isoformat() if renewed == "now" else renewed
        cluster.objects[LEASE] = {"metadata": {}, "spec": {"holderIdentity": "a", "renewTime": at}}
    found = [each for each in await cluster.examine(CheckName.GATES) if "holding" in each.subject]
    assert [each.state for each in found] == [state]


def running(image: str) -> Document:
    status = {"phase": "Running", "containerStatuses": []}
    return {"metadata": {"name": "p", "namespace": "shop"}, "spec": {"containers": [{"name": "c", "image": image}]},
            "status": status}  # fmt: skip


async def test_without_running_pods_no_registry_was_asked() -> None:
    assert await Cluster().states(CheckName.REGISTRIES) == [("registries", "unchecked")]


@pytest.mark.parametrize(
    "settings", [("registry.allow=[other.example.com]",), ("registry.deny=['*.example.com']",)], ids=str
)
async def test_a_registry_that_is_not_asked_does_not_answer(settings: tuple[str, ...]) -> None:
    """By the operator's rules; which one is said."""
    cluster = Cluster()
    cluster.lists[PODS] = [running("registry.example.com/app:1")]
    [found] = await cluster.examine(CheckName.REGISTRIES, settings=settings)
    assert (found.subject, found.state) == ("registry registry.example.com", "unchecked")
    assert "it was not asked for registry.example.com/app:1" in found.seen


async def test_rights_are_those_of_the_settings() -> None:
    """Those on its own objects too, of which there are most."""
    text = SETTINGS.replace(
        "tls: {certificate: /tls/tls.crt, key: /tls/tls.key}", "tls: {self_managed: true}, unknown: gate"
    )
    text += "\ndrift: {events: true}"
    cluster = Cluster(f"{text}\n")
    cluster.objects[CONFIG_MAP]["data"]["config.yaml"] = text.replace(
        "self_managed: true}", "self_managed: true}, self_managed: {secret: own, configurations: [hook], names: [x]}"
    )
    assert await cluster.states(CheckName.RIGHTS) == [("rights", "fine")]
    asked = {(each["verb"], each["resource"], each["namespace"], each["name"]) for each in cluster.wanted}
    assert asked >= {
        ("get", "secrets", "ours", "own"),
        ("patch", "secrets", "ours", "own"),
        ("get", "leases", "ours", LEASE.rpartition("/")[2]),
        ("patch", "leases", "ours", LEASE.rpartition("/")[2]),
        ("create", "events", "", ""),
        ("patch", "mutatingwebhookconfigurations", "", "hook"),
        ("get", "replicasets", "", ""),
        ("watch", "nodes", "", ""),
        ("patch", "pods", "", ""),
    }


async def test_what_is_waited_for_is_told_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever ends the wait early, as Helm does, finds in the log what was wrong."""
    monkeypatch.setattr(doctor, "_PAUSE_SECONDS", 0.0)

    def pods(state: CheckState, seen: str) -> list[CheckFinding]:
        return [CheckFinding(CheckName.PODS, "Deployment a", state, seen)]

    none, one, both = (
        pods(state, f"{count} of 2 pods are ready")
        for count, state in enumerate((CheckState.WRONG, CheckState.WRONG, CheckState.FINE))
    )
    looks = iter([none, none, one, both])

    class Looking:
        async def findings(self) -> list[CheckFinding]:
            return next(looks)

    found = await doctor._look_until(cast("Examination", Looking()), {CheckState.WRONG}, 60.0)  # noqa: SLF001
    assert found == both
    assert capsys.readouterr().err.splitlines() == [
        "waiting: pods Deployment a: 0 of 2 pods are ready",
        "waiting: pods Deployment a: 1 of 2 pods are ready",
    ]
