"""The gate controller against a stand-in for the API server and an embedded registry: when pods are let go, and how."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from extender.cluster import leader_election
from extender.cluster.client import ClusterClient, open_cluster
from extender.cluster.leader_election import LeaderElection
from extender.cluster.pod_events import PodEvents
from extender.cluster.views import PODS
from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.gates.gate_controller import REMOVALS, GateController
from extender.kubernetes.core_v1 import CreatedPod
from extender.metrics import Count
from extender.placement.affinity import AffinityMode
from extender.placement.facts import ImageFact, PodImage
from extender.placement.gate import GATE, GATED_LABEL, GateSettings, UnknownImages
from extender.placement.nodes import NO_NODES, ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Overrides, Policy
from extender.placement.ungating import Ungating, UngatingPlanner
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import policy_of
from extender.service.resolving import open_pod_resolver
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, Document, Refusal, serve_api, write_kubeconfig

EVENTS = "/api/v1/namespaces/default/events"
SPEED = 20.0  # times as fast as the wall clock


class RecordingPlanner(UngatingPlanner):
    """The real decisions, with a record of what was asked: whose pod, and whether its time was over."""

    def __init__(self, policy: Policy) -> None:
        gate = GateSettings(unknown=UnknownImages.GATE)
        super().__init__(policy, AdmissionSettings(node_affinity=AffinityMode.REQUIRED, gate=gate))
        self.plans: list[tuple[str, bool]] = []

    def plan(
        self,
        pod: CreatedPod,
        images: Sequence[PodImage],
        facts: Sequence[ImageFact],
        overrides: Overrides,
        cluster: ClusterNodes = NO_NODES,
        *,
        expired: bool,
    ) -> Ungating:
        """The real release."""
        assert pod.metadata is not None
        self.plans.append((pod.metadata.name or "", expired))
        return super().plan(pod, images, facts, overrides, cluster, expired=expired)


class Everywhere(dict[str, Mapping[str, str]]):
    """Every namespace has these annotations, whenever they are asked for."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._annotations = annotations

    def __missing__(self, _namespace: str) -> Mapping[str, str]:
        return dict(self._annotations)

    def get(self, namespace: str, _default: object = None) -> Mapping[str, str]:
        return self[namespace]


class Cluster:
    """The stand-in's pods, the annotations of its namespaces, the registry and the controller's planner."""

    def __init__(self, api: ApiServer, registry: EmbeddedRegistry) -> None:
        self.api = api
        self.registry = registry
        self.annotations: dict[str, str] = {}
        self.planner: RecordingPlanner

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
        """The names of the pod's gates."""
        return [gate["name"] for gate in self.stored(name)["spec"]["schedulingGates"]]

    def architectures(self, name: str) -> list[str]:
        """The architectures that the pod's required affinity allows."""
        required = self.stored(name)["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        [term] = required["nodeSelectorTerms"]
        [values] = [each["values"] for each in term["matchExpressions"] if each["key"] == "kubernetes.io/arch"]
        found: list[str] = values
        return found

    def patches(self) -> list[Document]:
        """The patches that were sent so far."""
        return [json.loads(sent.body) for sent in self.api.received("send") if sent.method == "PATCH"]

    def told(self) -> list[tuple[str, str, str]]:
        """Reason, type and text of each event."""
        events = self.api.objects(EVENTS).values()
        return [(event["reason"], event["type"], event["message"]) for event in events]

    async def is_released(self, *names: str, seconds: float = 5.0) -> None:
        """Returns when our gate holds none of these pods."""
        await eventually(lambda: not any(GATE in self.gates(name) for name in names), seconds=seconds)

    async def is_told(self, reason: str) -> str:
        """The text of the first event with that reason."""
        found = await eventually(lambda: [text for each, _, text in self.told() if each == reason])
        return found[0]


async def reached(count: Count, value: float) -> None:
    """Returns when the counter has this value: the controller has read an answer."""
    await eventually(lambda: count.value >= value)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster without pods or images."""
    async with serve_api() as api, EmbeddedRegistry() as registry:
        registry.add_index("app", "1", ["linux/amd64", "linux/arm64"])
        registry.add_index("arm", "1", ["linux/arm64"])
        yield Cluster(api, registry)


async def run_alone(_: ClusterClient, controller: GateController) -> None:
    """Runs the controller as if this replica always led."""
    await controller.run()


@asynccontextmanager
async def controlled(
    cluster: Cluster,
    folder: Path,
    *,
    limit_seconds: float = 300.0,
    run: Callable[[ClusterClient, GateController], Coroutine[None, None, None]] = run_alone,
) -> AsyncIterator[GateController]:
    """Runs the controller, whose time passes `SPEED` times as fast."""
    loop, host = asyncio.get_running_loop(), cluster.registry.host
    settings = [
        "admission.listen=''",
        f"registry.plain_http=['{host}']",
        f"registry.allow=['{host}']",
        "cache.url='memory:'",
    ]
    config = load_config(None, settings)
    cluster.planner = RecordingPlanner(policy_of(config))
    client: ClusterClient = await open_cluster("kubeconfig", str(write_kubeconfig(cluster.api, folder)))

    def clock() -> float:
        return loop.time() * SPEED

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / SPEED)

    view = ClusterView(annotations=Everywhere(cluster.annotations))
    async with open_pod_resolver(config, view, open_local_sources) as pod_resolver:
        events = PodEvents(client, instance="test", clock=clock, wall_clock=lambda: 1.7e9, sleep=sleep)
        controller = GateController(
            client,
            pod_resolver,
            cluster.planner,
            events,
            cluster_nodes=ClusterNodes,
            is_ready=lambda: True,
            limit_seconds=limit_seconds,
            clock=clock,
            wall_clock=lambda: 1.7e9,
            random=lambda: 0.5,
            sleep=sleep,
        )
        running = asyncio.gather(run(client, controller), events.run())
        try:
            yield controller
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()


async def test_pods_that_are_there_and_pods_that_come_are_let_go(cluster: Cluster, tmp_path: Path) -> None:
    """Each by one patch with uid and version; the label goes too, and other owners' gates stay."""
    before = REMOVALS["known"].value
    cluster.create("old", "app:1", gates=["example.com/quota", GATE])
    async with controlled(cluster, tmp_path):
        await cluster.is_released("old")
        cluster.create("new", "arm:1")
        await cluster.is_released("new")
        await reached(REMOVALS["known"], before + 2)
    assert cluster.gates("old") == ["example.com/quota"]
    assert GATED_LABEL not in cluster.stored("new")["metadata"]["labels"]
    assert cluster.architectures("old") == ["amd64", "arm64"]
    assert cluster.architectures("new") == ["arm64"]
    assert [patch["metadata"]["uid"] for patch in cluster.patches()] == ["uid-old", "uid-new"]
    assert all("resourceVersion" in patch["metadata"] for patch in cluster.patches())
    assert cluster.told() == []  # nothing was held for as long as an event is worth


async def test_label_without_the_gate_holds_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Whoever writes the label on a pod causes no lookup and no patch."""
    cluster.create("labelled", "app:1", gates=["example.com/quota"])
    cluster.create("held", "app:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_released("held")
    assert [patch["metadata"]["uid"] for patch in cluster.patches()] == ["uid-held"]


@pytest.mark.slow
async def test_pod_waits_until_its_image_is_pushed(cluster: Cluster, tmp_path: Path) -> None:
    """It is held with an event that says why, and let go with another soon after the push."""
    async with controlled(cluster, tmp_path):
        cluster.create("early", "late:1")
        text = await cluster.is_told("WaitingForImagePlatforms")
        assert text.startswith("held: ")
        assert f"{cluster.registry.host}/late:1" in text
        assert GATE in cluster.gates("early")
        cluster.registry.add_index("late", "1", ["linux/arm64"])
        await cluster.is_released("early", seconds=10)
        assert (await cluster.is_told("ImagePlatformsKnown")).startswith("gate removed (known): image ")
    assert cluster.architectures("early") == ["arm64"]


@pytest.mark.slow
async def test_held_pods_of_one_template_share_a_lookup(cluster: Cluster, tmp_path: Path) -> None:
    """A hundred pods wait for one image, which is asked for at its own pace; then all go."""
    names = [f"pod-{number}" for number in range(100)]
    async with controlled(cluster, tmp_path):
        for name in names:
            cluster.create(name, "late:1")
        await cluster.is_told("WaitingForImagePlatforms")
        judged, asked = len(cluster.planner.plans), cluster.registry.requests.total()
        await eventually(lambda: cluster.registry.requests.total() > asked)
        assert len(cluster.planner.plans) <= judged + len(names)  # judged again only as the answer changes
        cluster.registry.add_index("late", "1", ["linux/amd64"])
        await cluster.is_released(*names, seconds=10)
    assert len(cluster.patches()) == len(names)


async def test_limit_lets_a_pod_go_with_a_warning(cluster: Cluster, tmp_path: Path) -> None:
    """After it the decision is told that the pod's time is over."""
    async with controlled(cluster, tmp_path, limit_seconds=4.0):
        cluster.create("unlucky", "never:1")
        await cluster.is_released("unlucky")
        assert (await cluster.is_told("ImagePlatformsUnresolved")).startswith("gate removed (passed): ")
    assert cluster.planner.plans[-1] == ("unlucky", True)
    assert cluster.planner.plans[0] == ("unlucky", False)


async def test_limit_counts_while_a_registry_does_not_answer(cluster: Cluster, tmp_path: Path) -> None:
    """By then nothing is known of the image, and the lookup goes on."""
    cluster.registry.delay_seconds = 3.0
    async with controlled(cluster, tmp_path, limit_seconds=4.0):
        cluster.create("unlucky", "app:1")
        assert (await cluster.is_told("ImagePlatformsUnresolved")).startswith("gate removed (passed): ")
    assert cluster.planner.plans == [("unlucky", True)]


async def test_limit_is_told_in_the_log_with_pod_and_image(cluster: Cluster, tmp_path: Path) -> None:
    """One line for each pod that is let go unexamined."""
    with capture_logs() as lines:
        async with controlled(cluster, tmp_path, limit_seconds=4.0):
            cluster.create("unlucky", "app:1", "never:1")
            await cluster.is_released("unlucky")
            await cluster.is_told("ImagePlatformsUnresolved")
    [line] = [line for line in lines if line["event"] == "gate.limit_reached"]
    assert line["pod"] == "default/unlucky"
    assert line["image"] == f"{cluster.registry.host}/never:1"


async def test_limit_counts_only_while_no_other_gate_holds_the_pod(cluster: Cluster, tmp_path: Path) -> None:
    """Waiting in another owner's queue costs nothing, so that the pod is not let go unexamined meanwhile."""
    async with controlled(cluster, tmp_path, limit_seconds=4.0):
        cluster.create("queued", "never:1", gates=["example.com/quota", GATE])
        cluster.create("alone", "never:1")
        await cluster.is_released("alone")
        cluster.create("later", "never:1")
        await cluster.is_released("later")  # after twice the limit
        assert cluster.gates("queued") == ["example.com/quota", GATE]
        cluster.create("queued", "never:1", gates=[GATE])
        await cluster.is_released("queued")
    assert cluster.planner.plans[-1] == ("queued", True)


async def test_pod_older_than_its_limit_is_looked_up_first(cluster: Cluster, tmp_path: Path) -> None:
    """Whoever was away for longer than the limit comes back to pods that nobody has looked at."""
    cluster.create("waited", "app:1", creationTimestamp="2020-01-01T00:00:00Z")
    async with controlled(cluster, tmp_path):
        await cluster.is_released("waited")
    assert cluster.planner.plans == [("waited", False)]


async def test_changed_pod_is_judged_by_its_new_image(cluster: Cluster, tmp_path: Path) -> None:
    """The image of a held pod may change, and its version with it."""
    async with controlled(cluster, tmp_path):
        cluster.create("changing", "late:1")
        await cluster.is_told("WaitingForImagePlatforms")
        cluster.create("changing", "arm:1")
        await cluster.is_released("changing")
    assert cluster.architectures("changing") == ["arm64"]


async def test_conflict_leads_to_another_look(cluster: Cluster, tmp_path: Path) -> None:
    """409: the pod is read and judged again; nothing of the old judgement is written."""
    before = REMOVALS["conflict"].value
    cluster.api.refusals.append(("send", Refusal(409, "the object has been modified")))
    cluster.create("busy", "app:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_released("busy")
    assert REMOVALS["conflict"].value == before + 1
    assert [request.path for request in cluster.api.received("get")] == ["/api/v1/namespaces/default/pods/busy"]
    assert len(cluster.planner.plans) == 2


async def test_invalid_patch_leads_to_the_gate_alone(cluster: Cluster, tmp_path: Path) -> None:
    """422: only the gate is taken off, and an event with a short text says so."""
    before = REMOVALS["bare"].value, REMOVALS["invalid"].value
    cluster.api.refusals.append(("send", Refusal(422, "spec: Forbidden: " + "x\n" * 5_000)))
    cluster.create("odd", "app:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_released("odd")
        text = await cluster.is_told("ImagePlatformsUnresolved")
    assert "HTTP 422" in text
    assert len(text) <= 512
    assert "\n" not in text
    assert "affinity" not in cluster.stored("odd")["spec"]
    assert (REMOVALS["bare"].value, REMOVALS["invalid"].value) == (before[0] + 1, before[1] + 1)


DENIALS = [
    (403, "pods \"odd\" is forbidden: ValidatingAdmissionPolicy 'pools' with binding 'pools' denied request: no"),
    (403, 'admission webhook "validation.gatekeeper.sh" denied the request: [pools] no toleration may be added'),
    (400, 'admission webhook "validate.kyverno.svc-fail" denied the request: no affinity'),
]


@pytest.mark.parametrize(("status", "said"), DENIALS)
async def test_patch_that_the_clusters_own_rules_deny_leads_to_the_gate_alone(
    cluster: Cluster, tmp_path: Path, status: int, said: str
) -> None:
    """It would be denied each time, and the pod held for ever: past its limit too."""
    before = REMOVALS["bare"].value, REMOVALS["forbidden"].value
    cluster.api.refusals += [("patch", Refusal(status, said))]
    cluster.create("odd", "app:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_released("odd")
        text = await cluster.is_told("ImagePlatformsUnresolved")
    assert f"HTTP {status}" in text
    assert "affinity" not in cluster.stored("odd")["spec"]
    assert len(cluster.patches()) == 2
    assert (REMOVALS["bare"].value, REMOVALS["forbidden"].value) == (before[0] + 1, before[1] + 1)


async def test_pod_that_may_not_be_let_go_says_so(cluster: Cluster, tmp_path: Path) -> None:
    """A rule denies the gate alone as well: an event tells, once for all tries."""
    cluster.api.refusals += [("patch", Refusal(*DENIALS[0]))] * 6
    cluster.create("odd", "app:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_told("WaitingForImagePlatforms")
        await cluster.is_released("odd")
        await cluster.is_told("ImagePlatformsKnown")
    [(kind, text)] = [(kind, text) for reason, kind, text in cluster.told() if reason == "WaitingForImagePlatforms"]
    assert kind == "Warning"
    assert "refuses to have its gate removed" in text
    assert "denied request: no" in text


async def test_recreated_pod_is_another_pod(cluster: Cluster, tmp_path: Path) -> None:
    """Of the same name, with another image: what was decided about the first does not reach it."""
    cluster.create("twin", "late:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_told("WaitingForImagePlatforms")
        cluster.api.remove(PODS, "twin")
        cluster.create("twin", "arm:1", uid="other")
        await cluster.is_released("twin")
    assert [patch["metadata"]["uid"] for patch in cluster.patches()] == ["other"]


async def test_pod_that_is_gone_by_the_end_of_its_judgement_waits_no_more(cluster: Cluster, tmp_path: Path) -> None:
    """It would keep its lookup going for ever."""
    cluster.create("short", "late:1")
    async with controlled(cluster, tmp_path) as controller:
        await cluster.is_told("WaitingForImagePlatforms")
        [held] = controller._pods  # noqa: SLF001
        question = controller._waits._wait_of[held].question  # noqa: SLF001
        assert question
        cluster.api.remove(PODS, "short")
        await eventually(lambda: held not in controller._pods)  # noqa: SLF001
        assert controller._answers(held, question) is None  # noqa: SLF001  # as it is judged
        assert held not in controller._waits  # noqa: SLF001


async def test_pod_that_is_gone_is_forgotten(cluster: Cluster, tmp_path: Path) -> None:
    """404: nothing is left to do, and nothing is tried again."""
    before = REMOVALS["gone"].value
    cluster.api.refusals.append(("send", Refusal(404)))
    cluster.create("gone", "app:1")
    async with controlled(cluster, tmp_path):
        await reached(REMOVALS["gone"], before + 1)
        cluster.create("next", "app:1")
        await cluster.is_released("next")
    assert len(cluster.patches()) == 2


@pytest.mark.parametrize("status", [403, 429, 500, 503])
async def test_failed_patch_is_sent_again(cluster: Cluster, tmp_path: Path, status: int) -> None:
    """Later and later, but a pod is not forgotten."""
    cluster.api.refusals += [("patch", Refusal(status))] * 3
    cluster.create("stubborn", "app:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_released("stubborn")
    assert len(cluster.patches()) == 4


async def test_watch_that_is_compacted_loses_no_pod(cluster: Cluster, tmp_path: Path) -> None:
    """410: the list shows what came meanwhile."""
    async with controlled(cluster, tmp_path):
        cluster.create("first", "app:1")
        await cluster.is_released("first")
        cluster.api.send(PODS, ConnectionError())
        cluster.create("second", "app:1")
        cluster.api.compact()
        await cluster.is_released("second")


async def test_gate_without_the_label_is_found(cluster: Cluster, tmp_path: Path) -> None:
    """Somebody has taken the label off, so the watch does not show the pod."""
    cluster.create("unlabelled", "arm:1", labels={"app": "a"})
    cluster.create("others", "arm:1", labels={}, gates=["example.com/quota"])
    async with controlled(cluster, tmp_path):
        await cluster.is_released("unlabelled")
    assert cluster.architectures("unlabelled") == ["arm64"]
    assert len(cluster.patches()) == 1


async def test_tag_that_a_slow_registry_has_just_told_is_not_asked_for_again(cluster: Cluster, tmp_path: Path) -> None:
    """Each of its two answers, the meaning of the tag and the content, takes 1.5 s."""
    cluster.registry.delay_seconds = 1.5
    async with controlled(cluster, tmp_path):
        cluster.create("held", "arm:1")
        await cluster.is_released("held")
    assert cluster.registry.requests.total() <= 2


@pytest.mark.slow
async def test_tag_that_moves_while_its_pod_is_held_is_asked_for_again(cluster: Cluster, tmp_path: Path) -> None:
    """The pod waits for another image; what its first tag meant when it was created does not count."""
    cluster.registry.add_index("moving", "1", ["linux/amd64"])
    async with controlled(cluster, tmp_path):
        cluster.create("before", "moving:1")
        await cluster.is_released("before")
        cluster.create("held", "moving:1", "late:1")
        await cluster.is_told("WaitingForImagePlatforms")
        cluster.registry.add_index("moving", "1", ["linux/arm64"])
        await asyncio.sleep(2.1)
        cluster.registry.add_index("late", "1", ["linux/amd64", "linux/arm64"])
        await cluster.is_released("held", seconds=10)
    assert cluster.architectures("before") == ["amd64"]
    assert cluster.architectures("held") == ["arm64"]


async def test_ignored_pod_is_let_go_without_a_lookup(cluster: Cluster, tmp_path: Path) -> None:
    """A policy may have gated it; `mode: ignore` means that nobody looks at its images."""
    cluster.create("ignored", "app:1", annotations={"multiarch-extender.io/mode": "ignore"})
    async with controlled(cluster, tmp_path):
        await cluster.is_released("ignored")
    assert cluster.planner.plans == []
    assert cluster.registry.requests == {}


@pytest.mark.parametrize(
    ("key", "value", "outcome"),
    [("unknown", "pass", "passed"), ("mode", "ignore", "exempt"), ("mode", "observe", "observed")],
)
async def test_annotation_of_a_namespace_lets_its_held_pods_go(
    cluster: Cluster, tmp_path: Path, key: str, value: str, outcome: str
) -> None:
    """It is what an operator sets while a registry is down: the pods do not wait for their limit."""
    before = REMOVALS[outcome].value
    cluster.create("waiting", "late:1")
    async with controlled(cluster, tmp_path):
        await cluster.is_told("WaitingForImagePlatforms")
        cluster.annotations[f"multiarch-extender.io/{key}"] = value
        await cluster.is_released("waiting")
        await reached(REMOVALS[outcome], before + 1)


@pytest.mark.slow
async def test_namespace_that_waits_for_too_many_images_is_judged_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods beyond its share look nothing up meanwhile, and go when others of it have gone."""
    names = [f"pod-{number}" for number in range(4)]
    monkeypatch.setattr("extender.gates.image_waits._WAITS_EACH", 1)
    async with controlled(cluster, tmp_path):
        for number, name in enumerate(names):
            cluster.create(name, f"late-{number}:1")
        await cluster.is_told("WaitingForImagePlatforms")
        for number in range(len(names)):
            cluster.registry.add_index(f"late-{number}", "1", ["linux/arm64"])
        await cluster.is_released(*names, seconds=20)
    assert {name: cluster.architectures(name) for name in names} == {name: ["arm64"] for name in names}


async def test_documents_beyond_the_budget_are_read_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace of huge pods takes no memory beyond its share; its pods are let go all the same."""
    names = [f"huge-{number}" for number in range(5)]
    monkeypatch.setattr("extender.gates.held_pods._DOCUMENT_BYTES_EACH", 40_000)
    async with controlled(cluster, tmp_path):
        for name in names:
            cluster.create(name, "app:1", annotations={"example.com/long": "x" * 30_000})
        await cluster.is_released(*names)
    assert 1 <= len(cluster.api.received("get")) <= 2 * len(names)  # for the first look, and when its image is known


async def test_leader_sends_no_more_patches_than_leave_room_for_its_lease(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow API server: renewals would wait behind all patches, and the leader would step down again and again."""
    for name, seconds in {"RENEW_SECONDS": 0.4, "STEP_DOWN_SECONDS": 2.0, "_REQUEST_SECONDS": 1.0}.items():
        monkeypatch.setattr(leader_election, name, seconds)
    names = [f"pod-{number}" for number in range(30)]
    terms = 0

    async def run_elected(client: ClusterClient, controller: GateController) -> None:
        async def lead() -> None:
            nonlocal terms
            terms += 1
            await controller.run()

        clock = asyncio.get_running_loop().time
        election = LeaderElection(
            client, namespace="ns", name="gates", identity="us", clock=clock, wall_clock=lambda: 1.7e9
        )
        await election.run(lead)

    for name in names:
        cluster.create(name, "app:1")
    cluster.api.change_seconds = 0.07
    async with controlled(cluster, tmp_path, run=run_elected):
        await cluster.is_released(*names, seconds=20)
        cluster.api.change_seconds = 0.0
    assert terms == 1
