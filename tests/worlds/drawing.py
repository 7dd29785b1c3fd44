"""What plans are drawn from: a cluster, images, pods and workloads.

Each part of a plan has a generator of its own, so that what is drawn of one changes no other.
"""

import base64
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tests.worlds.choices import (
    EXEMPT_CLASS,
    HIGH_CLASS,
    OPERATOR_LOGIN,
    POD_ANNOTATIONS,
    PRIVATE_HOST,
    PUBLIC_HOST,
    SECOND_SCHEDULER,
)
from tests.worlds.plan import (
    AnyEvent,
    Applied,
    ExtenderConfig,
    Image,
    KubernetesConfig,
    Manifest,
    Mode,
    Namespace,
    NamespaceAnnotated,
    Node,
    Secret,
)

T = TypeVar("T")
MULTI = ("linux/amd64", "linux/arm64")
USUAL: tuple[tuple[str, ...], ...] = (MULTI, ("linux/amd64",), ("linux/arm64",))
ODD: tuple[tuple[str, ...], ...] = (
    ("linux/arm/v7", "linux/arm64"),
    ("linux/arm/v6",),
    ("linux/386",),
    ("linux/amd64/v2", "linux/arm64"),
    ("linux/amd64", "windows/amd64"),
    ("windows/amd64",),
    ("linux/ppc64le", "linux/s390x"),
    ("linux/amd64", "linux/arm64/v8"),
    ("linux/amd64/v3",),
    ("wasip1/wasm",),
)
TEAMS = ("team-a", "team-b")
LOGINS = {"team-a": "a:one", "team-b": "b:two"}
ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}
OTHER_TAINT = {"key": "dedicated", "value": "batch", "effect": "NoSchedule"}
QUOTA_GATE = "example.com/quota"
PULL_SECRET = "registry"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class Draw:
    """What a theme draws from: a number's generators, and the cluster that it has so far."""

    def __init__(self, number: int, theme: str, mode: Mode) -> None:
        self.number = number
        self.theme = theme
        self.mode = mode
        self.chance = self.part("theme")
        self.seconds = 120.0
        self.images: list[Image] = []
        self.nodes: list[Node] = []
        self.namespaces: list[Namespace] = []
        self.secrets: list[Secret] = []
        self._names = 0

    def part(self, name: str) -> random.Random:
        """A generator of its own for a part of the plan."""
        return random.Random(f"world {self.number} {name}")

    def one(self, values: Sequence[T]) -> T:
        return self.chance.choice(values)

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def when(self, first: float = 2.0, last: float | None = None) -> float:
        """A time of the plan, before `last`."""
        return round(self.chance.uniform(first, self.seconds * 0.75 if last is None else last), 1)

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}-{self._names}"

    def team(self) -> str:
        return self.one(TEAMS)

    def image(self, platforms: Sequence[str] | None = None, *, host: str = PUBLIC_HOST, login: str = "") -> Image:
        """An image that no other part of the plan has; it still has to be pushed, or put among `images`."""
        if platforms is None:
            platforms = self.one(USUAL)
        form = "manifest" if len(platforms) == 1 and self.maybe(0.4) else "index"
        return Image(
            host=host, repository=f"app/{self.name('image')}", platforms=tuple(platforms), form=form, login=login
        )

    def known(self, platforms: Sequence[str] | None = None) -> str:
        """The reference of an image that is there from the start."""
        fitting = [each for each in self.images if platforms is None or each.platforms == tuple(platforms)]
        if fitting and self.maybe(0.6):
            return self.one(fitting).reference
        image = self.image(platforms)
        self.images.append(image)
        return image.reference

    def annotations(self, share: float = 0.25) -> dict[str, str]:
        found = {}
        for key, values in POD_ANNOTATIONS.items():
            if self.maybe(share):
                found[key] = self.one(values)
        return found

    def pod_spec(self, images: Sequence[str], **more: Any) -> dict[str, Any]:
        """A spec whose containers have these images; the last is at times that of an init container."""
        containers = [
            {"name": f"c{n}", "image": image, "resources": {"requests": {"cpu": "1"}}} for n, image in enumerate(images)
        ]
        spec: dict[str, Any] = {"containers": containers}
        if len(containers) > 1 and self.maybe(0.3):
            spec["initContainers"] = [containers.pop()]
        return spec | more

    def metadata(self, kind: str, namespace: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name(kind), "namespace": namespace}
        if annotations:
            found["annotations"] = annotations
        return found

    def pod(self, images: Sequence[str], namespace: str = "", share: float = 0.1, **more: Any) -> Manifest:
        """A bare pod; `more` is of its spec."""
        meta = self.metadata("pod", namespace or self.team(), self.annotations(share))
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": self.pod_spec(images, **more)}

    def workload(
        self, kind: str, images: Sequence[str], namespace: str = "", share: float = 0.1, **more: Any
    ) -> Manifest:
        """A Deployment, StatefulSet, DaemonSet or Job of pods with these images; `more` is of their spec."""
        meta = self.metadata(kind.lower(), namespace or self.team())
        labels = {"app": meta["name"]}
        pod_meta: dict[str, Any] = {"labels": labels}
        if annotations := self.annotations(share):
            pod_meta["annotations"] = annotations
        template = {"metadata": pod_meta, "spec": self.pod_spec(images, **more)}
        spec: dict[str, Any] = {"selector": {"matchLabels": labels}, "template": template}
        group = "apps/v1"
        if kind == "Job":
            group = "batch/v1"
            template["spec"]["restartPolicy"] = "Never"
            spec = {"template": template, "parallelism": 2, "completions": 2}
            if self.maybe(0.4):
                meta["labels"] = {QUEUE_LABEL: "queue"}
                spec["suspend"] = True
        elif kind != "DaemonSet":
            spec["replicas"] = self.one((1, 2, 3))
        return {"apiVersion": group, "kind": kind, "metadata": meta, "spec": spec}

    def placement(self) -> dict[str, Any]:
        """Fields of a pod's spec that have to do with its place, each of which it has at times."""
        found: dict[str, Any] = {}
        if self.maybe(0.2):
            found["nodeSelector"] = self.one(
                ({"kubernetes.io/arch": "arm64"}, {"kubernetes.io/os": "linux"}, {"zone": "one"})
            )
        if self.maybe(0.25):
            found["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": self.terms()}}}
        if self.maybe(0.2):
            found["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        if self.maybe(0.1):
            found["priorityClassName"] = self.one((EXEMPT_CLASS, "system-cluster-critical", HIGH_CLASS))
        return found

    def terms(self) -> list[dict[str, Any]]:
        zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["one", "two"]}]}
        amd = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}
        node = {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "NotIn", "values": ["s390x"]}]}
        return self.one(([zone], [amd, zone], [node], [zone, {}]))

    def apply(self, manifest: Manifest, at: float | None = None, *, by: str = "create", times: int = 1) -> Applied:
        """Somebody applies it. What a queue admits is made once: to apply it again would suspend it again."""
        if manifest["spec"].get("suspend"):
            by, times = "create", 1
        return Applied(
            at=self.when() if at is None else at, kind=manifest["kind"], manifest=manifest, by=by, times=times
        )

    def annotate(self, namespace: str = "", at: float | None = None) -> NamespaceAnnotated:
        key = self.one(tuple(POD_ANNOTATIONS))
        value = self.one((*POD_ANNOTATIONS[key], None))
        where = namespace or self.team()
        return NamespaceAnnotated(at=self.when() if at is None else at, name=where, annotations={key: value})


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def draw_cluster(draw: Draw, *, odd: bool, tainted: float, slots: int) -> None:
    """Gives the plan nodes, namespaces and secrets: both usual architectures, at times one alone or an odd one."""
    chance = draw.part("cluster")
    architectures = ["amd64", "arm64"] if chance.random() < 0.85 else [chance.choice(("amd64", "arm64"))]
    if odd:
        architectures.append(chance.choice(("arm", "ppc64le", "windows")))
    for architecture in architectures:
        taints = (ARM_TAINT,) if architecture == "arm64" and chance.random() < tainted else ()
        for number in range(chance.choice((1, 2))):
            draw.nodes.append(
                Node(
                    name=f"{architecture}-{number}",
                    architecture="amd64" if architecture == "windows" else architecture,
                    os="windows" if architecture == "windows" else "linux",
                    states=chance.choice(("both", "both", "nodeInfo")),
                    containerd=chance.choice(("2.3", "1.6")) if odd else "2.3",
                    slots=slots,
                    labels={"zone": chance.choice(("one", "two"))},
                    taints=(*taints, *((OTHER_TAINT,) if chance.random() < 0.1 else ())),
                )
            )
    for team in TEAMS:
        annotations = {}
        if chance.random() < 0.15:
            key = chance.choice(tuple(POD_ANNOTATIONS))
            annotations[key] = chance.choice(POD_ANNOTATIONS[key])
        labels = {}
        if draw.mode is Mode.SECOND and chance.random() < 0.8:
            labels = {"multiarch-extender.io/scheduler": SECOND_SCHEDULER}
        draw.namespaces.append(Namespace(name=team, annotations=annotations, labels=labels))


def draw_bystanders(draw: Draw) -> Iterator[Applied]:
    """Pods that come before anything goes wrong, so that each world's settings are met by some in peace."""
    for at in (0.2, 0.4):
        yield draw.apply(draw.pod([draw.known(draw.one(USUAL[1:]))], share=0.0), at)


def draw_kubernetes(draw: Draw, *, guards: bool, injects: str) -> KubernetesConfig:
    """The cluster's own configuration for the mode: mostly as it is shipped, at times as some have it."""
    chance = draw.part("kubernetes")
    extender = None
    if draw.mode is Mode.SECOND:
        extender = ExtenderConfig(node_cache_capable=chance.random() < 0.85)
    elif draw.mode.has_verbs:
        extender = ExtenderConfig(ignorable=True, timeout_seconds=0.5, node_cache_capable=chance.random() < 0.85)
    workloads = "guard" if guards else chance.choice(("off", "warn", "warn"))
    return KubernetesConfig(
        extender=extender,
        webhook_failure_policy="Fail" if chance.random() < 0.15 else "Ignore",
        webhook_timeout_seconds=chance.choice((3, 3, 2)),
        workloads=workloads if draw.mode.has_webhook else "off",
        injects=injects,
        pop_from_backoff_queue=chance.random() < 0.3,
    )


def operator_files() -> dict[str, str]:
    """The file of logins that the setting `registry.docker_config` names."""
    return {"config.json": json.dumps({"auths": {PRIVATE_HOST: {"auth": _basic(OPERATOR_LOGIN)}}})}


def _basic(login: str) -> str:
    return base64.b64encode(login.encode()).decode()


def in_order(events: Sequence[AnyEvent]) -> tuple[AnyEvent, ...]:
    """The events by their time."""
    return tuple(sorted(events, key=lambda event: event.at))
