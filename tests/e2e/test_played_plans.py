"""Whole plans of the worlds, played in memory and on a real control plane: what becomes of the same manifests.

The real one has the chart as it is rendered for the plan's settings, and a replica of the service as a process. Each
event is played once the one before has come to rest, and every manifest is applied once more in the end. In neither
does a scheduler run, so that pods stay as the API server and our service leave them.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed import api_client
from testbed.api_client import ADMISSIONREGISTRATION, ApiClient
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.memory_network import Network
from testbed.objects import MADE_HERE, KubernetesObject, pod
from tests.e2e.installed_chart import WEBHOOK, InstalledChart, Values, installed
from tests.e2e.policies import GATE, dry_run, gates_of, has_mutating_policies
from tests.e2e.world import Tally
from tests.worlds.api_kinds import KINDS
from tests.worlds.choices import EXEMPT_CLASS, HIGH_CLASS, PRIVATE_HOST, PUBLIC_HOST, RUNTIME_CLASSES
from tests.worlds.image_contents import content_of
from tests.worlds.kubelets import node_object
from tests.worlds.node_lifecycle import NodeLifecycle
from tests.worlds.numbered import plan_of
from tests.worlds.objects import namespace_object, secret_object
from tests.worlds.plan import Applied, ImagePushed, Manifest, Mode, Plan, read_found
from tests.worlds.world import World, play

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

FOUND = Path(__file__).parents[1] / "worlds" / "found"
KEPT = ("impossible-let-go", "pod-applied-twice", "record-put-back", "template-that-says-ignore")
MODES = (Mode.WEBHOOK, Mode.POLICY, Mode.BOTH)


def is_comparable(plan: Plan) -> bool:
    """Whether the chart alone makes the plan's mode, no login is needed, and no moment of a lookup decides."""
    is_public = PRIVATE_HOST not in str(plan.events) and "docker_config" not in str(plan.settings)
    return is_public and plan.mode in MODES and "admission.wait_seconds=0" not in plan.settings


NUMBERS = tuple(itertools.islice((number for number in itertools.count(50) if is_comparable(plan_of(number))), 8))

PREFIX = "multiarch-extender.io/"
ADDED = f"{PREFIX}added"
PAUSE_SECONDS = 8.0  # of simulated time, in which what an event begins comes to an end
SETTLED_SECONDS = 10.0
MOST_DIFFERENCES = 3
ENDS_SOON = "shutdown.grace_seconds=1"
_SEEN = ("tolerations", "affinity", "schedulerName", "schedulingGates", "nodeSelector")
_OF_THE_CHART = ("admission.gate.lease", "admission.gate.policy")
_BESIDE_THE_CHART = ("admission.guard_daemon_sets",)
_LASTING = ("admission.gate.limit_seconds", "shutdown.grace_seconds")
_APPLY = "application/apply-patch+yaml"


class Step(msgspec.Struct, frozen=True):
    """What came of an event: why the API server refused it, and the gist of the object once it was at rest."""

    error: str
    settled: dict[str, Any]
    generation: int


def plan_named(name: str) -> Plan:
    return plan_of(int(name)) if name.isdigit() else read_found(FOUND / f"{name}.json").plan


def applied_in(plan: Plan) -> list[Applied]:
    return [each for each in plan.events if isinstance(each, Applied)]


def reduced(plan: Plan) -> Plan:
    """The plan's manifests alone, one after the other and each once more, of images that are there from the start.

    Left out are faults, limits of what waits (they take as long in the real one) and what comes later. A client-side
    apply is one by the server here: that kubectl's own is played rightly is compared in test_played_api_server.py.
    """
    late = [each.image for each in plan.events if isinstance(each, ImagePushed)]
    images = {each.reference: each for each in (*reversed(late), *plan.images)}
    applied = applied_in(plan)
    first = [each for each in applied for _ in range(each.times)]
    last = {(each.kind, *map(each.manifest["metadata"].get, ("namespace", "name"))): each for each in applied}
    again = [msgspec.structs.replace(each, by="server-apply") for each in last.values()]
    events = [
        msgspec.structs.replace(each, at=number * PAUSE_SECONDS, times=1, by=each.by.replace("client", "server"))
        for number, each in enumerate((*first, *again), 1)
    ]
    return msgspec.structs.replace(
        plan,
        seconds=(len(events) + 1) * PAUSE_SECONDS,
        settings=tuple(each for each in plan.settings if not each.startswith(_LASTING)),
        replicas=1,
        images=tuple(images.values()),
        events=tuple(events),
    )


class Unscheduled(World):
    """A world with nodes that get ready, and no other controller or scheduler. `steps` are those of its events."""

    def __init__(self, plan: Plan, network: Network, folder: Path) -> None:
        super().__init__(plan, network, folder)
        self.steps: list[Step] = []
        self.workloads.controllers = tuple(
            each for each in self.workloads.controllers if isinstance(each, NodeLifecycle)
        )
        self.on_applied.append(lambda event, _before, _after, error: self.spawn(self._note(event, error)))

    def start_schedulers(self) -> None:
        """Starts none."""

    async def _note(self, event: Applied, error: str) -> None:
        await asyncio.sleep(PAUSE_SECONDS - 1.0)
        metadata = event.manifest["metadata"]
        self.steps.append(
            step_of(error.partition(": ")[2], self.api.get(event.kind, metadata["namespace"], metadata["name"]))
        )


def played(plan: Plan) -> list[Step]:
    """What comes of the plan's events in memory."""
    worlds: list[Unscheduled] = []

    def made(*of: Any) -> Unscheduled:
        worlds.append(Unscheduled(*of))
        return worlds[0]

    play(plan, made)
    return worlds[0].steps


def step_of(error: str, found: Manifest | None) -> Step:
    """What both API servers have: without uids, times and versions, of which each gives its own.

    Of annotations and labels ours count; others are the manifest's.
    """
    if found is None:
        return Step(error, {}, 0)
    template = found["spec"].get("template", found)
    gist = {key: template["spec"].get(key) for key in _SEEN}
    for key in ("annotations", "labels"):
        gist |= {key: ours(found, key), f"{key} of the template": ours(template, key)}
    return Step(error, gist, found["metadata"].get("generation", 0))


def ours(found: Manifest, key: str) -> dict[str, str]:
    """The annotations or labels of ours."""
    written = (found.get("metadata") or {}).get(key) or {}
    return {name: value for name, value in written.items() if name.startswith(PREFIX)}


def differing(event: Applied, wanted: Step, found: Step) -> list[str]:
    """Each field of both that is not the same."""
    one, other = ({"error": each.error, "generation": each.generation, **each.settled} for each in (wanted, found))
    what = f"{event.kind} {event.manifest['metadata']['name']} by {event.by} at {event.at:g}"
    return [
        f"{what}: {key} is {one.get(key)} in memory, {other.get(key)} in the real one"
        for key in {**one, **other}
        if one.get(key) != other.get(key)
    ]


def unstable(events: Sequence[Applied], steps: Sequence[Step]) -> list[str]:
    """What a manifest that was applied changed or was refused for when it was applied again.

    One that was created first may be in conflict with whoever did that.
    """
    first: dict[bytes, tuple[str, Step]] = {}
    found = []
    for event, step in zip(events, steps, strict=True):
        by, before = first.setdefault(msgspec.json.encode(event.manifest), (event.by, step))
        if by == "server-apply":
            found += differing(event, before, step)
    return found


class Names:
    """Other names in the real cluster for what a plan names: registries, the webhook's configuration, and namespaces,
    which outlast a test.
    """

    def __init__(self, plan: Plan, registry: EmbeddedRegistry) -> None:
        port = registry.host.partition(":")[2]
        self._real = {PUBLIC_HOST: registry.host, PRIVATE_HOST: f"localhost:{port}"}
        self._real |= {each.name: f"{each.name}-{uuid.uuid4().hex[:8]}" for each in plan.namespaces}
        self._real["pods.multiarch-webhook."] = f"pods.{WEBHOOK}."

    @property
    def hosts(self) -> list[str]:
        """The registries of the real cluster."""
        return [self._real[PUBLIC_HOST], self._real[PRIVATE_HOST]]

    def there(self, plan: Plan) -> Plan:
        return msgspec.json.decode(self._replaced(plan, self._real), type=Plan)

    def back(self, step: Step) -> Step:
        return msgspec.json.decode(self._replaced(step, {real: name for name, real in self._real.items()}), type=Step)

    @staticmethod
    def _replaced(value: object, names: dict[str, str]) -> str:
        text = msgspec.json.encode(value).decode()
        for name, other in names.items():
            text = text.replace(name, other)
        return text


class RealWorld:
    """A control plane with the chart for a plan's settings, a replica of the service, and the plan's cluster."""

    def __init__(self, api: ApiClient, chart: InstalledChart, names: Names, plan: Plan) -> None:
        self._api, self._chart, self._names, self._plan = api, chart, names, plan

    async def put_in_force(self) -> None:
        """Returns when the API server asks what the mode has it ask: the policy first, and then the webhook."""
        mode = self._plan.mode
        probe = pod("probe", "multiarch-extender.invalid/a:1", annotations={f"{PREFIX}mode": "enforce"})
        if mode.has_webhook:
            await self._select({"matchLabels": {"probed": "true"}})
        if mode.has_policy:
            await eventually(lambda: dry_run(self._api, probe), lambda found: GATE in gates_of(found))
        if not mode.has_webhook:
            return
        await self._chart.lead_to()
        before = await self._reviews()

        async def is_called() -> bool:
            with suppress(api_client.ApiError):  # by failurePolicy
                await dry_run(self._api, probe)
            return await self._reviews() > before

        await eventually(is_called)

    async def follow(self, event: Applied, wanted: Step) -> Step:
        """Has the event happen; what has come of it once that is as wanted, or as nothing else comes of it in time."""
        manifest, error = event.manifest, ""
        kind, metadata = KINDS[event.kind], manifest["metadata"]
        root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        path = f"{root}/namespaces/{metadata['namespace']}/{kind.plural}"
        try:
            if event.by == "create":
                await self._api.request("POST", f"{path}?fieldManager=kubectl-create", manifest)
            else:
                url = f"{path}/{metadata['name']}?fieldManager=kubectl"
                await self._api.request("PATCH", url, manifest, content_type=_APPLY)
        except api_client.ApiError as exc:
            error = str(exc).partition(": ")[2]

        async def now() -> Step:
            found = None
            with suppress(api_client.ApiError):  # it was refused
                found = await self._api.request("GET", f"{path}/{metadata['name']}")
            return self._names.back(step_of(error, found))

        with suppress(TimeoutError):  # what is found then is compared
            await eventually(now, lambda found: found.settled == wanted.settled, seconds=SETTLED_SECONDS)
        return await now()

    async def _select(self, selector: KubernetesObject) -> None:
        """Has the API server call the webhooks for pods of such namespaces alone, until the Service leads somewhere."""
        found = await self._api.get("MutatingWebhookConfiguration", WEBHOOK, "", ADMISSIONREGISTRATION)
        for each in found["webhooks"]:
            each["namespaceSelector"] = selector
        changes = {"webhooks": found["webhooks"]}
        await self._api.patch("MutatingWebhookConfiguration", WEBHOOK, changes, "", ADMISSIONREGISTRATION)

    async def _reviews(self) -> float:
        [port] = self._chart.ports("operations")
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
        samples = (each for family in families for each in family.samples)
        return sum(
            each.value
            for each in samples
            if each.name == "multiarch_requests_total" and each.labels["endpoint"] == "admission"
        )


async def fill(api: ApiClient, registry: EmbeddedRegistry, plan: Plan) -> None:
    """Pushes the images, and makes the nodes, namespaces, secrets and classes."""
    for image in plan.images:
        registry.add(image.repository, image.tag, content_of(image))
    for name in (EXEMPT_CLASS, HIGH_CLASS):
        await api.apply({**_of_kind("PriorityClass", name), "value": 1000})
    for name in RUNTIME_CLASSES:
        await api.apply({**_of_kind("RuntimeClass", name), "handler": name})
    for each in (*map(namespace_object, plan.namespaces), *map(node_object, plan.nodes)):
        each["metadata"]["labels"] = {**each["metadata"]["labels"], **MADE_HERE}
        await api.create(each)
    await api.create_all(map(secret_object, plan.secrets))


def _of_kind(kind: str, name: str) -> KubernetesObject:
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": {"name": name}}


def values_of(plan: Plan) -> Values:
    """The chart's values for the plan's mode and settings."""
    config: dict[str, Any] = {}
    for each in settings_of(plan):
        path, _, text = each.partition("=")
        if path in _BESIDE_THE_CHART:
            continue
        *sections, name = path.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = msgspec.yaml.decode(text)
    kubernetes = plan.kubernetes
    webhook = {
        "failurePolicy": kubernetes.webhook_failure_policy,
        "timeoutSeconds": kubernetes.webhook_timeout_seconds,
    }
    modes = {
        "webhook": {"enabled": plan.mode.has_webhook, "workloads": kubernetes.workloads},
        "policy": {"enabled": plan.mode.has_policy},
    }
    return {"config": config, "webhook": webhook, "modes": modes}


def settings_of(plan: Plan) -> list[str]:
    """Those of the plan that are not the chart's own names."""
    return [each for each in plan.settings if each.partition("=")[0] not in _OF_THE_CHART]


@pytest.fixture(scope="module")
def compared(tally: Tally) -> Iterator[Counter[str]]:
    """What was compared, for the summary of the run."""
    counts: Counter[str] = Counter()
    yield counts
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    tally.figures.append(f"played in memory and on a real control plane alike: {told}")


def count(events: Sequence[Applied], steps: Sequence[Step]) -> Counter[str]:
    def number(holds: Callable[[Step], object]) -> int:
        return sum(bool(holds(each)) for each in steps)

    return Counter(
        {
            "plans": 1,
            "manifests": len({msgspec.json.encode(each.manifest) for each in events}),
            "requests": len(events),
            "refused": number(lambda each: each.error),
            "held": number(lambda each: GATE in (each.settled.get("schedulingGates") or ())),
            "with additions": number(lambda each: ADDED in str(each.settled)),
        }
    )


@pytest.mark.parametrize("name", [*KEPT, *map(str, NUMBERS)])
async def test_a_plan_comes_to_the_same_in_memory_and_on_a_real_control_plane(
    control_plane: LocalCluster,
    api: ApiClient,
    registry: EmbeddedRegistry,
    tmp_path: Path,
    compared: Counter[str],
    name: str,
) -> None:
    plan = reduced(plan_named(name))
    if plan.mode.has_policy and not await has_mutating_policies(api):
        pytest.skip("Kubernetes has mutating admission policies from 1.36 on")
    wanted = await asyncio.to_thread(played, plan)
    if plan.mode.has_webhook:  # docs/limitations.md: the policy gives nothing back
        assert unstable(applied_in(plan), wanted) == []
    names = Names(plan, registry)
    there = names.there(plan)
    await fill(api, registry, there)
    settings = (f"registry.plain_http={names.hosts}", *settings_of(there), ENDS_SOON)
    differences: list[str] = []
    async with (
        installed(api, control_plane.kubeconfig, registry, tmp_path, values_of(there)) as chart,
        chart.replicas(1, *settings),
    ):
        real = RealWorld(api, chart, names, there)
        await real.put_in_force()
        for event, step in zip(applied_in(there), wanted, strict=True):
            differences += differing(event, step, await real.follow(event, step))
            if len(differences) > MOST_DIFFERENCES:  # each takes its time
                break
    assert differences == [], "\n".join(differences)
    compared.update(count(applied_in(plan), wanted))
