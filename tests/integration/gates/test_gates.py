"""The gate controller against a stand-in for the API server and an embedded registry: when pods are let go, and how."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from extender.cluster.client import ClusterClient, open_cluster
from extender.cluster.gated_pods import read_pod
from extender.cluster.leader_election import LeaderElection
from extender.cluster.pod_events import PodEvents
from extender.cluster.views import PODS
from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.gates.gate_controller import REMOVALS, GateController
from extender.placement.affinity import AffinityMode
from extender.placement.gate import GATE, GATED_LABEL, GateSettings, UnknownImages
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.ungating import Ungating, UngatingPlanner
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import policy_of
from extender.service.resolving import open_pod_resolver
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.machines import running_machine
from testbed.objects import kept_to
from tests.integration.cluster.api_server import (
    ApiServer,
    Document,
    Refusal,
    Request,
    serve_api,
    told,
    write_kubeconfig,
)

pytestmark = pytest.mark.usefixtures("simulated_time")
LIMIT_SECONDS = 6.0  # of the tests that let it pass
LATER_SECONDS = 400  # more than lie between two searches for pods without the label
OTHER = "example.com/quota"


class RecordingPlanner(UngatingPlanner):
    """The real decisions, with a record of what was asked: whose pod, and whether its time was over."""

    def __init__(self, policy: Policy) -> None:
        gate = GateSettings(unknown=UnknownImages.GATE)
        super().__init__(policy, AdmissionSettings(node_affinity=AffinityMode.REQUIRED, gate=gate))
        self.plans: list[tuple[str | None, bool]] = []

    def plan(self, resolved: ResolvedPod, *, expired: bool) -> Ungating:
        assert resolved.pod.metadata is not None
        self.plans.append((resolved.pod.metadata.name, expired))
        return super().plan(resolved, expired=expired)


async def run_alone(_: ClusterClient, controller: GateController) -> None:
    """Runs the controller as if this replica always led."""
    await asyncio.gather(controller.watch.run(), controller.run())


class Cluster:
    """The stand-in's pods, the registry and the controller's planner."""

    def __init__(self, api: ApiServer, registry: EmbeddedRegistry, folder: Path) -> None:
        self.api = api
        self.registry = registry
        self.planner: RecordingPlanner
        self.controller: GateController
        self.is_responsible: Callable[[], bool] = lambda: True
        self.is_ready = True
        self.ahead_seconds = 0.0  # of the controller's clock
        self._folder = folder
        self._removals = self._counted()

    def create(self, name: str, *images: str, uid: str = "", gates: Sequence[str] = (GATE,), **metadata: Any) -> None:
        """Creates a gated pod whose containers have these images of the registry."""
        spec = {
            "containers": [
                {"name": f"c{i}", "image": f"{self.registry.host}/{image}"} for i, image in enumerate(images)
            ],
            "schedulingGates": [{"name": gate} for gate in gates],
        }
        ours = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "labels": {GATED_LABEL: "true"}}
        self.api.put(PODS, {"metadata": ours | metadata, "spec": spec, "status": {"phase": "Pending"}})

    def stored(self, name: str) -> Document:
        """The pod as the API server has it."""
        return self.api.find(PODS, name)

    def gates(self, name: str) -> list[str]:
        return [gate["name"] for gate in self.stored(name)["spec"].get("schedulingGates", [])]

    def architectures(self, name: str) -> list[str]:
        return kept_to(self.stored(name)["spec"], "kubernetes.io/arch")

    def patches(self) -> list[Document]:
        return [json.loads(sent.body) for sent in self.api.received("send") if sent.method == "PATCH"]

    def removals(self) -> dict[str, float]:
        """What has been counted in this test."""
        return {name: count - self._removals[name] for name, count in self._counted().items()
                if count != self._removals[name]}  # fmt: skip

    async def is_released(self, *names: str) -> None:
        """Returns when our gate holds none of these pods, and the controller knows it."""
        await eventually(lambda: not any(GATE in self.gates(name) for name in names))
        await asyncio.sleep(0.1)

    async def is_told(self, reason: str) -> str:
        """The text of the first event with that reason."""
        events = await eventually(lambda: [each for each in told(self.api) if each["reason"] == reason])
        return str(events[0]["message"])

    @asynccontextmanager
    async def controlled(
        self,
        run: Callable[[ClusterClient, GateController], Coroutine[None, None, None]] = run_alone,
        limit_seconds: float = 300.0,
        stated: str = "[]",
    ) -> AsyncIterator[None]:
        """Runs the controller; `stated` is `placement.images`."""
        host = self.registry.host
        settings = ("admission.listen=''", f"registry.plain_http=['{host}']", f"registry.allow=['{host}']",
                    "cache.url='memory:'", f"placement.images={stated}")  # fmt: skip
        config = load_config(None, settings)
        self.planner = RecordingPlanner(policy_of(config))
        client = await open_cluster(
            "kubeconfig", str(write_kubeconfig(self.api, self._folder)), clock=asyncio.get_running_loop().time
        )
        view = ClusterView(annotations={"default": {}})
        machine = running_machine()
        async with (
            open_local_sources(config.registry, machine=machine) as sources,
            open_pod_resolver(sources, config, view, machine) as pod_resolver,
        ):
            events = PodEvents(client, instance="test", clock=machine.clock, wall_clock=machine.wall_clock)
            controller = self.controller = GateController(
                client,
                pod_resolver,
                self.planner,
                events,
                cluster_nodes=ClusterNodes,
                is_responsible=lambda: self.is_responsible(),  # noqa: PLW0108  # a test may change it
                is_ready=lambda: self.is_ready,
                limit_seconds=limit_seconds,
                clock=lambda: machine.clock() + self.ahead_seconds,
                wall_clock=machine.wall_clock,
                random=lambda: 0.5,
            )
            running = asyncio.gather(run(client, controller), events.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await client.close()

    @staticmethod
    def _counted() -> dict[str, float]:
        return {name: count.value for name, count in REMOVALS.items()}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster without pods, and a registry with an image of two platforms and one of arm64."""
    async with serve_api() as api, EmbeddedRegistry() as registry:
        registry.add_index("app", "1", ["linux/amd64", "linux/arm64"])
        registry.add_index("arm", "1", ["linux/arm64"])
        yield Cluster(api, registry, tmp_path)


async def test_the_operators_word_lets_pods_go_as_it_says_and_asks_nobody(cluster: Cluster) -> None:
    """Also a pod whose image is never known: no wait would end."""
    cluster.create("app", "app:1")
    cluster.create("never", "arm:1")
    host = cluster.registry.host
    stated = f"[{{match: {host}/app:1, platforms: [linux/amd64]}}, {{match: {host}/arm:*, platforms: []}}]"
    async with cluster.controlled(stated=stated):
        await cluster.is_released("app", "never")
    assert kept_to(cluster.stored("app")["spec"], "kubernetes.io/arch") == ["amd64"]
    assert kept_to(cluster.stored("never")["spec"], "kubernetes.io/arch") == []
    assert cluster.registry.requests == {}


async def test_pods_that_are_there_and_pods_that_come_are_let_go(cluster: Cluster) -> None:
    """Each by one patch with uid and version; the label goes too, and other owners' gates stay."""
    cluster.create("old", "app:1", gates=[OTHER, GATE])
    async with cluster.controlled():
        await cluster.is_released("old")
        cluster.create("new", "arm:1")
        await cluster.is_released("new")
    assert cluster.removals() == {"known": 2}
    assert cluster.gates("old") == [OTHER]
    assert GATED_LABEL not in cluster.stored("new")["metadata"].get("labels", {})
    assert cluster.architectures("old") == ["amd64", "arm64"]
    assert cluster.architectures("new") == ["arm64"]
    assert [patch["metadata"]["uid"] for patch in cluster.patches()] == ["uid-old", "uid-new"]
    assert all("resourceVersion" in patch["metadata"] for patch in cluster.patches())
    assert told(cluster.api) == []  # nothing was held for as long as an event is worth


async def test_a_pod_is_held_by_the_gate_and_not_by_its_label(cluster: Cluster) -> None:
    """Whoever writes the label causes no lookup; whoever takes it off hides the pod from the watch alone."""
    cluster.create("labelled", "app:1", gates=[OTHER])
    cluster.create("others", "app:1", gates=[OTHER], labels={})
    cluster.create("unlabelled", "arm:1", labels={"app": "a"})
    async with cluster.controlled():
        await cluster.is_released("unlabelled")
    assert cluster.architectures("unlabelled") == ["arm64"]
    assert [patch["metadata"]["uid"] for patch in cluster.patches()] == ["uid-unlabelled"]


async def test_pod_waits_until_its_image_is_pushed(cluster: Cluster) -> None:
    """It is held with an event that says why, and let go with another soon after the push."""
    async with cluster.controlled():
        cluster.create("early", "late:1")
        text = await cluster.is_told("WaitingForImagePlatforms")
        assert text.startswith("held: ")
        assert f"{cluster.registry.host}/late:1" in text
        assert GATE in cluster.gates("early")
        cluster.registry.add_index("late", "1", ["linux/arm64"])
        await cluster.is_released("early")
        assert (await cluster.is_told("ImagePlatformsKnown")).startswith("gate removed (known): image ")
    assert cluster.architectures("early") == ["arm64"]


async def test_held_pods_of_one_template_share_a_lookup(cluster: Cluster) -> None:
    """A hundred pods wait for one image, which is asked for at its own pace; then all go."""
    names = [f"pod-{number}" for number in range(100)]
    async with cluster.controlled():
        for name in names:
            cluster.create(name, "late:1")
        await cluster.is_told("WaitingForImagePlatforms")
        judged, asked = len(cluster.planner.plans), cluster.registry.requests.total()
        await eventually(lambda: cluster.registry.requests.total() > asked)
        assert len(cluster.planner.plans) <= judged + len(names)  # judged again only as the answer changes
        cluster.registry.add_index("late", "1", ["linux/amd64"])
        await cluster.is_released(*names)
    assert len(cluster.patches()) == len(names)


async def test_limit_lets_a_pod_go_with_a_warning(cluster: Cluster) -> None:
    """After it the decision is told that the pod's time is over, and the log tells pod and image."""
    with capture_logs() as lines:
        async with cluster.controlled(limit_seconds=LIMIT_SECONDS):
            cluster.create("unlucky", "app:1", "never:1")
            created_at = asyncio.get_running_loop().time()
            await cluster.is_released("unlucky")
            assert asyncio.get_running_loop().time() - created_at == pytest.approx(LIMIT_SECONDS, abs=2)
            assert (await cluster.is_told("ImagePlatformsUnresolved")).startswith("gate removed (passed): ")
    assert [cluster.planner.plans[at] for at in (0, -1)] == [("unlucky", False), ("unlucky", True)]
    [line] = [line for line in lines if line["event"] == "gate.limit_reached"]
    assert (line["pod"], line["image"]) == ("default/unlucky", f"{cluster.registry.host}/never:1")


async def test_a_pod_whose_limit_comes_while_it_is_decided_about_gets_what_is_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers are exact to a millisecond, so that its last decision may begin just before."""

    def plan(resolved: ResolvedPod, *, expired: bool) -> Ungating:
        cluster.ahead_seconds = LIMIT_SECONDS
        return UngatingPlanner.plan(cluster.planner, resolved, expired=expired)

    async with cluster.controlled(limit_seconds=LIMIT_SECONDS):
        monkeypatch.setattr(cluster.planner, "plan", plan)
        cluster.create("late", "arm:1", "never:1")
        await cluster.is_released("late")
    assert cluster.architectures("late") == ["arm64"]


async def test_a_removal_that_fails_at_the_limit_is_tried_again_with_what_is_known(cluster: Cluster) -> None:
    cluster.api.refusals += [("patch", Refusal(503))] * 2
    async with cluster.controlled(limit_seconds=LIMIT_SECONDS):
        cluster.create("stubborn", "arm:1", "never:1")
        await cluster.is_released("stubborn")
    assert cluster.architectures("stubborn") == ["arm64"]
    assert len(cluster.patches()) == 3


async def test_limit_counts_while_a_registry_does_not_answer(cluster: Cluster) -> None:
    """By then nothing is known of the image, and the lookup goes on."""
    cluster.registry.delay_seconds = LIMIT_SECONDS + 1
    async with cluster.controlled(limit_seconds=LIMIT_SECONDS):
        cluster.create("unlucky", "app:1")
        assert (await cluster.is_told("ImagePlatformsUnresolved")).startswith("gate removed (passed): ")
    assert cluster.planner.plans[-1] == ("unlucky", True)


@pytest.mark.parametrize("uid", ["", "other"], ids=["changed", "created anew"])
async def test_pod_is_judged_by_the_image_that_it_has_now(cluster: Cluster, uid: str) -> None:
    """The image of a held pod may change, and its version with it; a pod of the same name is another one."""
    async with cluster.controlled():
        cluster.create("pod", "late:1")
        await cluster.is_told("WaitingForImagePlatforms")
        if uid:
            cluster.api.remove(PODS, "pod")
        cluster.create("pod", "arm:1", uid=uid)
        await cluster.is_released("pod")
    assert cluster.architectures("pod") == ["arm64"]
    assert [patch["metadata"]["uid"] for patch in cluster.patches()] == [uid or "uid-pod"]


async def test_conflict_leads_to_another_look(cluster: Cluster) -> None:
    """409: the pod is read and judged again; nothing of the old judgement is written."""
    cluster.api.refusals.append(("send", Refusal(409, "the object has been modified")))
    cluster.create("busy", "app:1")
    async with cluster.controlled():
        await cluster.is_released("busy")
    assert cluster.removals() == {"conflict": 1, "known": 1}
    assert [request.path for request in cluster.api.received("get")] == ["/api/v1/namespaces/default/pods/busy"]
    assert len(cluster.planner.plans) == 2


POLICY = "pods \"odd\" is forbidden: ValidatingAdmissionPolicy 'pools' with binding 'pools' denied request: no"
GATEKEEPER = 'admission webhook "validation.gatekeeper.sh" denied the request: [pools] no toleration may be added'
KYVERNO = 'admission webhook "validate.kyverno.svc-fail" denied the request: no affinity'


@pytest.mark.parametrize(
    ("status", "said", "outcome"),
    [
        (422, "spec: Forbidden: " + "x\n" * 5_000, "invalid"),
        (403, POLICY, "forbidden"),
        (403, GATEKEEPER, "forbidden"),
        (400, KYVERNO, "forbidden"),
    ],
    ids=["invalid", "policy", "Gatekeeper", "Kyverno"],
)
async def test_patch_that_would_be_refused_each_time_leads_to_the_gate_alone(
    cluster: Cluster, status: int, said: str, outcome: str
) -> None:
    """Else the pod would be held for ever: past its limit too. An event with a short text says so."""
    cluster.api.refusals.append(("patch", Refusal(status, said)))
    cluster.create("odd", "app:1")
    async with cluster.controlled():
        await cluster.is_released("odd")
        text = await cluster.is_told("ImagePlatformsUnresolved")
    assert ("Forbidden: ValidatingAdmissionPolicy" if said is POLICY else f"HTTP {status}") in text
    assert (len(text) <= 512, "\n" in text) == (True, False)
    assert "affinity" not in cluster.stored("odd")["spec"]
    assert len(cluster.patches()) == 2
    assert cluster.removals() == {outcome: 1, "bare": 1}


async def test_pod_that_may_not_be_let_go_says_so(cluster: Cluster) -> None:
    """A rule denies the gate alone as well: an event tells, once for all tries."""
    cluster.api.refusals += [("patch", Refusal(403, POLICY))] * 6
    cluster.create("odd", "app:1")
    async with cluster.controlled():
        await cluster.is_released("odd")
        await cluster.is_told("ImagePlatformsKnown")
    [event] = [each for each in told(cluster.api) if each["reason"] == "WaitingForImagePlatforms"]
    assert event["type"] == "Warning"
    assert "refuses to have its gate removed" in event["message"]
    assert "denied request: no" in event["message"]


@pytest.mark.parametrize(
    ("status", "change", "counted"),
    [
        (422, "image", {"invalid": 1, "known": 1}),
        (409, "uid", {"conflict": 1, "known": 1}),
        (409, "gone", {"conflict": 1}),
    ],
)
@pytest.mark.parametrize("is_deaf", [True, False], ids=["deaf", "told by the watch"])
async def test_what_is_read_after_a_refusal_is_judged_as_it_is_now(
    cluster: Cluster, status: int, change: str, counted: dict[str, float], *, is_deaf: bool
) -> None:
    """Another image, another pod of that name, or none."""

    async def change_and_refuse(_: Request) -> None:
        cluster.api.on_patch = None
        if is_deaf:
            cluster.api.cut_off(PODS)
        if change != "image":
            cluster.api.remove(PODS, "pod")
        if change != "gone":
            cluster.create("pod", "arm:1", uid="other" if change == "uid" else "")
        await asyncio.sleep(1)
        raise Refusal(status)

    cluster.api.on_patch = change_and_refuse
    cluster.create("pod", "app:1")
    async with cluster.controlled():
        await asyncio.sleep(60)
    assert cluster.removals() == counted
    if change != "gone":
        assert cluster.architectures("pod") == ["arm64"]


async def test_a_replica_forgets_pods_without_the_label_that_another_one_has_taken_over(cluster: Cluster) -> None:
    """No watch shows it what becomes of them."""
    cluster.create("unlabelled", "late:1", gates=[GATE, OTHER], labels={})
    async with cluster.controlled():
        await eventually(lambda: cluster.controller.held == 1)
        cluster.is_responsible = lambda: False
        await eventually(lambda: cluster.controller.held == 0)
        cluster.is_responsible = lambda: True
        await eventually(lambda: cluster.controller.held == 1)


async def test_a_defect_of_ours_and_a_failed_search_hold_no_pod_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in the log, and tried again."""
    cluster.api.refusals += [("list", Refusal(503))] * 2  # of the watch and of the search for pods without the label
    cluster.create("pod", "app:1")
    cluster.create("unlabelled", "app:1", labels={})
    with capture_logs() as lines:
        async with cluster.controlled():
            monkeypatch.setattr(cluster.planner, "skip", Mock(side_effect=chain([ZeroDivisionError], repeat(None))))
            await asyncio.sleep(LATER_SECONDS)
    assert cluster.removals() == {"known": 2}
    assert {"gate.failed", "gate.search_failed"} <= {line["event"] for line in lines}


async def test_pod_that_goes_while_it_is_judged_waits_no_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its lookup going for ever."""

    async def read_and_remove(client: ClusterClient, namespace: str, name: str) -> bytes | None:
        found = await read_pod(client, namespace, name)
        cluster.api.remove(PODS, name)
        await asyncio.sleep(1)  # the watch tells of it
        return found

    monkeypatch.setattr("extender.gates.held_pods._DOCUMENT_BYTES", 0)
    monkeypatch.setattr("extender.gates.gate_controller.read_pod", read_and_remove)
    cluster.create("short", "late:1")
    async with cluster.controlled():
        await asyncio.sleep(60)
    assert len(cluster.api.received("get")) == 1
    assert cluster.registry.requests == {}


async def test_pod_that_is_gone_is_forgotten(cluster: Cluster) -> None:
    """404: nothing is left to do, and nothing is tried again."""
    cluster.api.refusals.append(("send", Refusal(404)))
    cluster.create("gone", "app:1")
    async with cluster.controlled():
        await asyncio.sleep(60)
    assert cluster.removals() == {"gone": 1}
    assert len(cluster.patches()) == 1


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_failed_patch_is_sent_again(cluster: Cluster, status: int) -> None:
    """Later and later, but a pod is not forgotten."""
    cluster.api.refusals += [("patch", Refusal(status))] * 3
    cluster.create("stubborn", "app:1")
    async with cluster.controlled():
        await cluster.is_released("stubborn")
    assert len(cluster.patches()) == 4


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_pod_that_cannot_be_read_is_read_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Later and later; no gate is removed unseen meanwhile."""
    monkeypatch.setattr("extender.gates.held_pods._DOCUMENT_BYTES", 0)
    cluster.api.refusals += [("get", Refusal(status))] * 3
    cluster.create("unread", "app:1")
    async with cluster.controlled():
        await cluster.is_released("unread")
    assert len(cluster.api.received("get")) >= 4
    assert cluster.architectures("unread") == ["amd64", "arm64"]


async def test_watch_that_is_compacted_loses_no_pod(cluster: Cluster) -> None:
    """410: the list shows what came meanwhile."""
    async with cluster.controlled():
        cluster.create("first", "app:1")
        await cluster.is_released("first")
        cluster.api.send(PODS, ConnectionError())
        cluster.create("second", "app:1")
        cluster.api.faults.compact()
        await cluster.is_released("second")


async def test_tag_that_a_slow_registry_has_just_told_is_not_asked_for_again(cluster: Cluster) -> None:
    """Each of its two answers, the meaning of the tag and the content, takes 1.5 s."""
    cluster.registry.delay_seconds = 1.5
    async with cluster.controlled():
        cluster.create("held", "arm:1")
        await cluster.is_released("held")
    assert cluster.registry.requests.total() <= 2


async def test_tag_that_moves_while_its_pod_is_held_is_asked_for_again(cluster: Cluster) -> None:
    """The pod waits for another image; what its first tag meant when it was created does not count."""
    cluster.registry.add_index("moving", "1", ["linux/amd64"])
    async with cluster.controlled():
        cluster.create("before", "moving:1")
        await cluster.is_released("before")
        cluster.create("held", "moving:1", "late:1")
        await cluster.is_told("WaitingForImagePlatforms")
        cluster.registry.add_index("moving", "1", ["linux/arm64"])
        await asyncio.sleep(2.1)
        cluster.registry.add_index("late", "1", ["linux/amd64", "linux/arm64"])
        await cluster.is_released("held")
    assert cluster.architectures("before") == ["amd64"]
    assert cluster.architectures("held") == ["arm64"]


async def test_ignored_pod_is_let_go_without_a_lookup(cluster: Cluster) -> None:
    """A policy may have gated it; `mode: ignore` means that nobody looks at its images."""
    cluster.create("ignored", "app:1", annotations={"multiarch-extender.io/mode": "ignore"})
    async with cluster.controlled():
        await cluster.is_released("ignored")
    assert cluster.planner.plans == []
    assert cluster.registry.requests == {}


async def test_namespace_that_waits_for_too_many_images_is_judged_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods beyond its share look nothing up before their limit, and go when others of it have gone."""
    names = [f"pod-{number}" for number in range(4)]
    monkeypatch.setattr("extender.gates.image_waits._WAITS_EACH", 1)
    async with cluster.controlled():
        for number, name in enumerate(names):
            cluster.create(name, f"late-{number}:1")
        await cluster.is_told("WaitingForImagePlatforms")
        for number in range(len(names)):
            cluster.registry.add_index(f"late-{number}", "1", ["linux/arm64"])
        await cluster.is_released(*names)
    assert {name: cluster.architectures(name) for name in names} == {name: ["arm64"] for name in names}


async def test_a_pod_beyond_the_share_of_its_namespace_is_looked_up_at_its_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may have asked for its image before, or not since it was missing."""
    monkeypatch.setattr("extender.gates.image_waits._WAITS_EACH", 1)
    async with cluster.controlled(limit_seconds=LIMIT_SECONDS):
        cluster.create("first", "never:1", gates=[GATE, "example.com/other"])
        await cluster.is_told("WaitingForImagePlatforms")
        cluster.create("beyond", "arm:1")
        await cluster.is_released("beyond")
    assert cluster.architectures("beyond") == ["arm64"]


async def test_documents_beyond_the_budget_are_read_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace of huge pods takes no memory beyond its share; its pods are let go all the same."""
    names = [f"huge-{number}" for number in range(5)]
    monkeypatch.setattr("extender.gates.held_pods._DOCUMENT_BYTES_EACH", 40_000)
    async with cluster.controlled():
        for name in names:
            cluster.create(name, "app:1", annotations={"example.com/long": "x" * 30_000})
        await cluster.is_released(*names)
    assert 1 <= len(cluster.api.received("get")) <= 2 * len(names)  # for the first look, and when its image is known


async def test_leader_sends_no_more_patches_than_leave_room_for_its_lease(cluster: Cluster) -> None:
    """A slow API server: renewals would wait behind all patches, and the leader would step down again and again."""
    names = [f"pod-{number}" for number in range(60)]
    terms = 0

    async def run_elected(client: ClusterClient, controller: GateController) -> None:
        async def lead() -> None:
            nonlocal terms
            terms += 1
            await asyncio.Event().wait()

        machine = running_machine()
        election = LeaderElection(
            client, namespace="default", name="gates", identity="us", clock=machine.clock, wall_clock=machine.wall_clock
        )
        cluster.is_responsible = lambda: election.is_leader
        await asyncio.gather(election.run(lead, controller.is_able), run_alone(client, controller))

    for name in names:
        cluster.create(name, "app:1")
    cluster.api.change_seconds = 0.2
    async with cluster.controlled(run_elected):
        await cluster.is_released(*names)
        cluster.api.change_seconds = 0.0
    assert terms == 1
