"""What invariants ask about a world: which part looks after a pod, what is known by now, since when it is calm."""

import asyncio
import contextlib
import fnmatch
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from extender.config.reading import load_config
from extender.config.tree import Config
from testbed.memory_network import Network
from tests.unit.placement.kube_scheduler import allows
from tests.worlds.api_errors import ApiError
from tests.worlds.api_requests import ApiRequests
from tests.worlds.api_server import ApiServer
from tests.worlds.choices import EXEMPT_CLASS, OPERATOR_LOGIN, PRIVATE_HOST, listens
from tests.worlds.findings import Filtered, Violation
from tests.worlds.installation import NAMESPACE
from tests.worlds.kubelets import Kubelets
from tests.worlds.lives import Life, Lives, copied
from tests.worlds.node_rules import NodeInfo, filter_node
from tests.worlds.plan import Applied, Image, Manifest, Mode, Plan
from tests.worlds.registries import Registries
from tests.worlds.replicas import Replica
from tests.worlds.scheduler_election import SchedulerElection
from tests.worlds.scheduling_queue import priority_of
from tests.worlds.trace import Trace
from tests.worlds.truth import CRITICAL, MODE, PREFIX, Contents, annotation, platform_of, references, runs_on
from tests.worlds.wrongs import Wrongs

_LOOKUP_SECONDS = 0.4  # that a look-up takes at most while nothing is wrong
_LONG_SECONDS = 20.0  # who has waited for so long has asked again and again
_SECRET_SECONDS = 31.0  # after which a pull secret has been read again
_MISSING_SECONDS = 75.0  # after which what was missing or denied has been asked for again
_UNDER_WAY = (
    "BodiesUnderWay._bytes",
    "FairQueue._items",
    "Listener._awaited",
    "Listener.tasks",
    "OperatorKeyring._asking",
    "PodEvents._waiting",
    "Resolver._under_way",
    "Turns._hosts",
    "Turns._waiting",
    "WorkQueue._dirty",
    "WorkQueue._processing",
    "_Arriving.pieces",
    "_Connector._acquired",
)
_MOST_TASKS, _MOST_CONNECTIONS = 60, 40
PLATFORMS = ("linux/amd64", "linux/arm64", "linux/arm", "linux/386", "linux/ppc64le", "linux/s390x", "windows/amd64")
_MODES = ("enforce", "observe", "ignore")
_USUAL = ("amd64", "arm64")


async def health(answer: Awaitable[tuple[int, str]]) -> tuple[int, str]:
    """The status and text of a health check; 0 where nobody answers."""
    try:
        return await answer
    except (ConnectionError, TimeoutError) as exc:
        return 0, repr(exc)


@functools.lru_cache(maxsize=4096)
def config_of(settings: tuple[str, ...], mode: Mode) -> Config:
    """The settings of a replica, with the listeners of its mode."""
    return load_config(None, ("admission.listen=127.0.0.1:8443", "admission.tls=null", *listens(mode), *settings))


def _node_of(platform: str, zone: str) -> Manifest:
    os, architecture = platform.split("/")
    labels = {"kubernetes.io/arch": architecture, "kubernetes.io/os": os, "zone": zone}
    info = {"operatingSystem": os, "architecture": architecture}
    return {"metadata": {"name": "any", "labels": labels}, "spec": {}, "status": {"nodeInfo": info}}


_EVERY_NODE = [_node_of(platform, zone) for platform in PLATFORMS for zone in ("one", "two")]
USUAL_PLATFORMS = ("linux/amd64", "linux/arm64")
"""Of nodes that any cluster may get."""


def _is_before(pod: Manifest, other: Manifest, node: str) -> bool:
    """Whether the pod is nominated to the node, and of no lower priority than the other."""
    is_nominated = not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("nominatedNodeName") == node
    return is_nominated and pod is not other and priority_of(pod) >= priority_of(other)


class Circumstances:
    """What is the case in a world, and what invariants may do. The parties are set by `World`."""

    plan: Plan
    network: Network
    api: ApiServer
    wrongs: Wrongs
    contents: Contents
    lives: Lives
    replicas: list[Replica]
    config: Config
    settings: tuple[str, ...]
    settings_since: float
    started_at: float
    trace: Trace
    tasks: asyncio.TaskGroup
    registries: Registries
    requests: ApiRequests
    kubelets: Kubelets
    gone: list[Replica]
    election: SchedulerElection | None
    joined_at: dict[str, float]
    replaced_at: dict[int, float]
    namespace_history: dict[str, list[tuple[float, dict[str, str]]]]

    def __init__(self) -> None:
        self.election = None
        self.violations: list[Violation] = []
        self.ending: list[Replica] = []
        self.ended_after: dict[Replica, float] = {}
        self.on_annotated: list[Callable[[str, dict[str, str | None]], None]] = []
        self.on_applied: list[Callable[[Applied, Manifest | None, Manifest | None, str], None]] = []
        self.on_sent: list[Callable[[str, Manifest, str, str], None]] = []
        self.on_ran: list[Callable[[Life, bool, str], None]] = []
        self.on_terminated: list[Callable[[float, float], None]] = []
        self.on_filtered: list[Callable[[Life, Filtered], None]] = []

    async def start_replica(self, number: int) -> None:
        """Starts a replica at its place, in place of one that is gone."""
        raise NotImplementedError

    def violate(self, violation: Violation) -> None:
        """Notes a broken promise, once for each of its kind."""
        if all(each.invariant != violation.invariant for each in self.violations):
            self.trace("invariants", violation.invariant, what=violation.what)
        self.violations.append(violation)

    # What invariants may do

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self.network.loop.call_later(seconds, work)

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                work()

        self.spawn(repeat())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.create_task(work)

    async def create_dry(self, life: Life) -> Manifest | None:
        """What would become of the pod if it were created now; None if nothing."""
        again = copied(life.sent)
        again["metadata"].pop("generateName", None)
        again["metadata"]["name"] = life.pod["metadata"]["name"] + "-again"
        with contextlib.suppress(ApiError):
            found: Manifest = await self.api.create("Pod", again, user=life.user, dry_run=True)
            return found
        return None

    def all_replicas(self) -> list[Replica]:
        return [*self.gone, *self.replicas]

    @property
    def now(self) -> float:
        return self.network.loop.time()

    def replica_at(self, address: str, at: float) -> Replica | None:
        """The replica that had the address then; None if none had it."""
        there = [each for each in self.all_replicas() if each.address == address and each.started_at <= at]
        return max(there, key=lambda each: each.started_at, default=None)

    def running(self) -> list[Replica]:
        return [each for each in self.replicas if each.is_running]

    def is_right(self, number: int, seconds: float) -> bool:
        """Whether the replica at this place runs and nothing of its own has been wrong for so long."""
        replica = self.replicas[number]
        own = (f"api:{number}", f"fetcher:{number}", f"replica:{number}")
        # What has been listed before that was forbidden is watched on.
        since = (
            min(self.now - seconds, self.wrongs.begun("right:list nodes", "right:list namespaces", felt=True)) - 20.0
        )
        is_old = replica.started_at < since or self.replaced_at.get(number) is None
        return replica.is_running and is_old and self.wrongs.was_right_since(self.now - seconds, *own)

    def serving_since(self) -> float:
        """Since when a replica runs that reaches the API server; infinite while none does."""
        return min(
            (
                max(each.started_at, self.wrongs.since(f"api:{number}", felt=False))
                for number, each in enumerate(self.replicas)
                if each.is_running
            ),
            default=math.inf,
        )

    def leader(self) -> int:
        """The place of the replica that holds the Lease; of the first where nobody does."""
        holder = str((self.lease() or {}).get("holderIdentity"))
        return next((number for number, each in enumerate(self.replicas) if holder.startswith(f"{each.name}_")), 0)

    def lease(self) -> Manifest | None:
        """The spec of the Lease of who removes gates; None if there is none."""
        found = self.api.get("Lease", NAMESPACE, self.config.admission.gate.lease)
        return found.get("spec") if found else None

    def changed_pods_at(self) -> Iterator[float]:
        """When pods were held, and when they were not any more."""
        for life in self.lives:
            if life.was_gated:
                yield life.created_at
                yield life.ungated_at or life.deleted_at or life.created_at

    # Namespaces and modes

    def annotations_at(self, namespace: str, at: float) -> dict[str, str]:
        found: dict[str, str] = {}
        for since, annotations in self.namespace_history.get(namespace, ()):
            if since <= at:
                found = annotations
        return found

    def annotated_age(self, namespace: str) -> float:
        """Seconds since the namespace's annotations changed; infinite if they never did."""
        history = self.namespace_history.get(namespace, ())
        return self.now - history[-1][0] if len(history) > 1 else math.inf

    def is_settled(self, namespace: str, seconds: float = 2.0) -> bool:
        """Whether neither the namespace's annotations nor the settings have changed for so long."""
        return self.annotated_age(namespace) >= seconds and self.now - self.settings_since > 60.0

    def chosen(self, life: Life, key: str, words: tuple[str, ...]) -> str:
        """Which of these words the pod's annotation says, or else its namespace's; empty if neither does."""
        for found in (
            annotation(life.sent, key),
            self.annotations_at(life.namespace, self.now).get(key, ""),
        ):
            if found in words:
                return found
        return ""

    def mode_of(self, life: Life) -> str:
        """`enforce`, `observe` or `ignore`, by the pod, its namespace or the settings."""
        return self.chosen(life, MODE, _MODES) or self.config.placement.mode

    def always_observed(self, life: Life) -> bool:
        """Whether the pod itself, or the settings, say that it is only observed, whatever is known of namespaces."""
        own = annotation(life.sent, MODE)
        if own in _MODES:
            return own != "enforce"
        history = self.namespace_history.get(life.namespace, ())
        is_said = any(MODE in annotations for _, annotations in history)
        return self.config.placement.mode == "observe" and not is_said and self.now - self.settings_since > 60.0

    def unknown_choice(self, life: Life) -> str:
        """What pod or namespace choose for unknown images; empty if nothing."""
        return self.chosen(life, f"{PREFIX}unknown", ("retry", "assume", "pass"))

    def assumes(self, life: Life) -> bool:
        """Whether an unknown image may count as one of some platform for the pod."""
        choices = (self.config.admission.unknown, self.config.scheduler.unknown, self.config.scheduler.pending)
        return "assume" in choices or self.unknown_choice(life) == "assume"

    def is_drawn(self, namespace: str) -> bool:
        """Whether a share of the namespace's pods is drawn."""
        return any(f"{PREFIX}prefer-share" in each for _, each in self.namespace_history.get(namespace, ()))

    # Who looks after a pod

    @property
    def guards(self) -> bool:
        """Whether DaemonSets' templates are guarded. The second scheduler's manifest has no webhook for them."""
        is_reviewing = self.plan.mode.has_webhook and self.plan.mode is not Mode.SECOND
        return is_reviewing and self.config.admission.guard_daemon_sets and self.plan.kubernetes.workloads == "guard"

    def is_reviewed(self, life: Life) -> bool:
        """Whether the webhook or the policy decided about the pod when it was made."""
        if life.pod["spec"].get("priorityClassName") in (*CRITICAL, EXEMPT_CLASS):
            return False
        if self.plan.mode is Mode.POLICY:
            return life.was_gated
        return self.plan.mode.has_webhook and self.is_in_labelled(life)

    def is_sent_to_webhook(self, life: Life) -> bool:
        """Whether the API server calls the webhook for such a pod; by `failurePolicy: Fail` for no critical one."""
        exempt = (*CRITICAL, *self.config.admission.gate.exempt_priority_classes)
        is_critical = life.pod["spec"].get("priorityClassName") in exempt
        is_left_out = is_critical and self.plan.kubernetes.webhook_failure_policy == "Fail"
        return self.plan.mode.has_webhook and self.is_in_labelled(life) and not is_left_out

    def is_in_labelled(self, life: Life) -> bool:
        """Whether the pod's namespace is one of those of the second scheduler, where there is one."""
        if self.plan.mode is not Mode.SECOND:
            return True
        namespace = self.api.get("Namespace", "", life.namespace) or {"metadata": {}}
        return f"{PREFIX}scheduler" in (namespace["metadata"].get("labels") or {})

    def uses_verbs(self, life: Life) -> bool:
        """Whether the pod's scheduler asks the service."""
        if self.plan.mode is Mode.SECOND:
            return bool(life.pod["spec"].get("schedulerName") == "multiarch-scheduler")
        return self.plan.mode.has_verbs

    def prefers_by_filter(self) -> bool:
        return self.config.placement.preference_by == "filter"

    @staticmethod
    def is_plain(pod: Manifest) -> bool:
        """Whether nothing about the pod makes its images count otherwise."""
        spec = pod["spec"]
        containers = [*spec["containers"], *(spec.get("initContainers") or ())]
        return not spec.get("runtimeClassName") and all(each.get("imagePullPolicy") != "Never" for each in containers)

    def changed_by_others(self, life: Life) -> bool:
        """Whether anybody but controllers and us has changed the pod since it was made."""
        return not life.is_restored or references(life.pod)[: len(references(life.sent))] != references(life.sent)

    def is_calm(self, life: Life, seconds: float, *subjects: str) -> bool:
        """Whether nothing (of these subjects) was wrong since so long before the pod was made, nor is felt."""
        return (
            self.wrongs.was_right_since(life.sent_at - seconds, *subjects)
            and self.annotated_age(life.namespace) > self.now - life.sent_at + 2.0
            and life.sent_at - self.settings_since > 60.0
            and all(life.sent_at - at > max(seconds, 40.0) for at in self.replaced_at.values())
            and len(self.running()) > 0
        )

    # Images

    def is_asked(self, host: str) -> bool:
        """Whether the settings let the service ask the host."""
        registry = self.config.registry
        if any(fnmatch.fnmatchcase(host, glob) for glob in registry.deny):
            return False
        if not any(fnmatch.fnmatchcase(host, glob) for glob in registry.allow):
            return False
        return host != PRIVATE_HOST or registry.private_addresses or host in registry.allow

    def stated(self, reference: str) -> Sequence[str] | None:
        """The platforms that the operator's word gives the image; None if nothing is said of it."""
        rules = self.config.placement.images
        return next((each.platforms for each in rules if fnmatch.fnmatchcase(reference, each.match)), None)

    def image_of(self, reference: str) -> Image | None:
        """What the image counts as: what its registry serves, with the platforms of the operator's word."""
        image, platforms = self.contents.image(reference), self.stated(reference)
        if platforms is None:
            return image
        return Image(host="", repository="", form="index", platforms=tuple(platforms)) if platforms else None

    def has_word(self, pod: Manifest) -> bool:
        """Whether the operator says what an image of the pod runs on."""
        return any(self.stated(each) is not None for each in references(pod))

    def known_since(self, pod: Manifest, reference: str) -> float:
        """Since when the service could know the image with the pod's logins; infinite if it cannot."""
        platforms = self.stated(reference)
        if platforms is not None:
            return -math.inf if platforms else math.inf
        image = self.contents.image(reference)
        if image is None or image.form == "artifact" or not image.platforms or not self.is_asked(image.host):
            return math.inf
        if any("wasm" in each for each in image.platforms):
            return math.inf
        since = self.contents.since(reference)
        if not image.login or (image.login == OPERATOR_LOGIN and self.config.registry.docker_config):
            return since
        if not self.config.registry.reads_secrets_in(pod["metadata"]["namespace"]):
            return math.inf
        login = self.contents.login_since(pod, image)
        return math.inf if login is None else max(since, login)

    def is_known(self, pod: Manifest, least_seconds: float = 0.0) -> bool:
        """Whether each image of the pod could be known at once, or has been used for so long that it must be.

        What was not there, or not open, when it was first asked for is asked for again after a minute. A webhook that
        does not wait for look-ups goes by what replicas have learned and kept.
        """
        if self.config.admission.wait_seconds < _LOOKUP_SECONDS:
            if least_seconds < _LONG_SECONDS:
                return self.keeps_all_images() and self.is_learned(pod)
            least_seconds = max(least_seconds, 3.0)
        for reference in references(pod):
            since = max(self.contents.first_used.get(reference, math.inf), self.known_since(pod, reference))
            if self.now - since < max(least_seconds, self.missing_seconds(pod, reference)):
                return False
        return True

    def missing_seconds(self, pod: Manifest, reference: str) -> float:
        """For how long the image may not be asked for again since it is there and open, as it was asked for before."""
        used, image = self.contents.first_used.get(reference, math.inf), self.contents.image(reference)
        login = self.contents.login_since(pod, image) if image else None
        # A secret is kept for a while as it was read, one that was not there too.
        is_kept = bool(login and login + _SECRET_SECONDS > used)
        return 0.0 if self.known_since(pod, reference) <= used and not is_kept else _MISSING_SECONDS

    def is_learned(self, pod: Manifest) -> bool:
        """Whether each image of the pod was used in its namespace while nothing was wrong, so that it is known."""
        learned, namespace = self.contents.learned, pod["metadata"]["namespace"]
        return all(learned.get((namespace, each), -1.0) >= self.known_since(pod, each) for each in references(pod))

    def is_at_hand(self, life: Life) -> bool:
        """Whether the replica that a scheduler asks must know the pod's images without a look-up."""
        is_reviewed = len(self.replicas) == 1 and self.is_reviewed(life)  # else another replica may have looked them up
        return self.is_learned(life.pod) or (is_reviewed and life.was_known and self.is_known(life.pod, 3.0))

    def is_looked_at(self, life: Life) -> bool:
        """Whether the pod's images are looked up: not if its mode or its RuntimeClass leaves it alone."""
        name = life.pod["spec"].get("runtimeClassName", "")
        if self.mode_of(life) == "ignore" or self.config.placement.runtime_classes.get(name) == ():
            return False
        return self.is_reviewed(life) or self.uses_verbs(life)

    def is_retried(self, life: Life) -> bool:
        """Whether a scheduler is to retry the pod while an image is not known, one too that the cache has lost."""
        return self.config.scheduler.pending == "retry" and self.unknown_choice(life) in ("", "retry")

    def keeps_all_images(self) -> bool:
        """Whether the cache has room for every image that is used, so that none is looked up again."""
        return self.config.cache.size > len(self.contents.first_used)

    def can_be_known(self, pod: Manifest) -> bool:
        """Whether every image of the pod could be known by now."""
        return all(self.known_since(pod, each) <= self.now for each in references(pod))

    def could_come(self, reference: str, pod: Manifest) -> bool:
        """Whether an image that is not there would be known if it were pushed."""
        host = reference.partition("/")[0]
        del pod
        return self.is_asked(host) and host != PRIVATE_HOST

    # Nodes

    def nodes(self) -> list[Manifest]:
        return self.api.list("Node")

    @staticmethod
    def is_usual(node: Manifest) -> bool:
        """Whether the node has labels, and one of the platforms that affinity is written for in any cluster."""
        labels = node["metadata"].get("labels") or {}
        return labels.get("kubernetes.io/arch") in _USUAL and labels.get("kubernetes.io/os") == "linux"

    def joined_before(self, name: str, seconds: float) -> bool:
        return self.now - self.joined_at.get(name, 0.0) > seconds

    def runs_all(self, pod: Manifest, node: Manifest) -> bool:
        """Whether the node runs all images of the pod, by its container runtime's rule and the operator's word."""
        return self._runs_all(pod, node, self.config.placement.compatibility)

    def _runs_all(self, pod: Manifest, node: Manifest, compatibility: tuple[str, ...]) -> bool:
        images = map(self.image_of, self._constraining(pod))
        return all(image is not None and runs_on(image, node, compatibility) for image in images)

    def is_assumed(self, node: Manifest) -> bool:
        """Whether the node runs what an image is assumed to be under `scheduler.pending: assume`."""
        image = Image(host="", repository="", form="index", platforms=self.config.scheduler.assume)
        return runs_on(image, node, self.config.placement.compatibility)

    def is_by_compatibility(self, life: Life) -> bool:
        """Whether the pod's node runs its images by `placement.compatibility` alone, which may be wrong."""
        node = self.api.get("Node", "", life.pod["spec"].get("nodeName", ""))
        return node is not None and self.runs_all(life.pod, node) and not self._runs_all(life.pod, node, ())

    def is_near(self, life: Life) -> bool:
        """Whether an index names for the pod's arm node only lower variants of arm, which containerd 2.1 refuses."""
        node = self.api.get("Node", "", life.pod["spec"].get("nodeName", ""))
        if node is None or platform_of(node)[1] != "arm":
            return False
        images = [image for image in map(self.image_of, references(life.pod)) if image]
        return any(image.form == "index" and "linux/arm/v7" not in image.platforms for image in images)

    def _constraining(self, pod: Manifest) -> Iterator[str]:
        """Its images without those of volumes that are single manifests, which constrain nothing."""
        volumes = [each["image"]["reference"] for each in pod["spec"].get("volumes") or () if "image" in each]
        named = references(pod)
        yield from named[: len(named) - len(volumes)]
        for each in volumes:
            image = self.image_of(each)
            if image and image.form == "index":
                yield each

    def have_common(self, pod: Manifest) -> bool:
        """Whether a node of some platform, here or not, runs all images, and the pod's author allows it."""
        return any(self.runs_all(pod, node) and allows(pod["spec"], node) for node in _EVERY_NODE)

    def common_platforms(self, pod: Manifest) -> set[str]:
        """The platforms, without variants, that an image of the pod names and whose nodes run them all."""
        images = [image for image in map(self.image_of, self._constraining(pod)) if image]
        named = {"/".join(text.split("/")[:2]) for image in images for text in image.platforms}
        return {each for each in named.intersection(PLATFORMS) if self.runs_all(pod, _node_of(each, "one"))}

    def runs_on_all(self, pod: Manifest, platforms: Sequence[str]) -> bool:
        """Whether nodes of each of these platforms run all images of the pod."""
        return all(self.runs_all(pod, _node_of(each, "one")) for each in platforms)

    @staticmethod
    def may_be_on(spec: Manifest, platform: str) -> bool:
        """Whether the author of the pod allows a node of the platform, of whatever other labels."""
        return any(allows(spec, _node_of(platform, zone)) for zone in ("one", "two"))

    def is_settled_by_known(self, pod: Manifest) -> bool:
        """Whether no node is right for the pod whatever its images are that nobody serves."""
        images = [image for image in map(self.image_of, self._constraining(pod)) if image]
        compatibility = self.config.placement.compatibility
        return not any(
            all(runs_on(image, node, compatibility) for image in images) and allows(pod["spec"], node)
            for node in _EVERY_NODE
        )

    def has_room(self, pod: Manifest, node: Manifest) -> bool:
        """Whether kube-scheduler's own predicates let the pod onto the node as it is.

        Who is nominated to the node counts as there. It stays nominated where an extender leaves it no candidate
        (kube-scheduler's framework/preemption, Evaluator.Preempt).
        """
        name = node["metadata"]["name"]
        there = {
            life.uid: life.pod
            for life in self.lives
            if life.is_there and (life.pod["spec"].get("nodeName") == name or _is_before(life.pod, pod, name))
            and (life.pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        }  # fmt: skip
        status = filter_node({**pod, "spec": {**pod["spec"], "affinity": {}}}, NodeInfo(node, there))
        return status is None

    def floors(self) -> dict[str, int]:
        """The most that a replica keeps of each kind when nothing is under way."""
        held = sum(life.is_held for life in self.lives)
        nodes = len(self.nodes())
        return {
            **dict.fromkeys(_UNDER_WAY, 0),
            **dict.fromkeys(("HeldPods._pods", "ImageWaits._wait_of", "ImageWaits._waits"), held),
            **dict.fromkeys(("WatchedNodes.platforms", "NodeKinds._by_name"), nodes),
            "NamespaceView._annotations": len(self.api.list("Namespace")),
            "Slots._held_by": 2 * held,
            "WorkQueue._timers": 2 * held,
            "tasks": _MOST_TASKS + 2 * held,
            "connections": _MOST_CONNECTIONS,
        }
