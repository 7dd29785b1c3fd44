"""Workloads: objects as a person wrote them, or the top owners of pods, with their images and what they take.

`WorkloadCollector` makes them of objects and pods in any order, from a cluster or from manifests.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

import msgspec

from extender.errors import ExtenderError
from extender.images.platform import Platform
from extender.kubernetes.core_v1 import Container, CreatedSpec
from extender.kubernetes.documents import list_at, map_at, value_at
from extender.kubernetes.meta_v1 import ObjectMeta
from extender.kubernetes.pod_templates import KubernetesObject, is_given, pods_of
from extender.kubernetes.reported_v1 import ReportedContainer, ReportedPod, ReportedSpec
from extender.kubernetes.type_problems import decode_written
from extender.placement.additions import read_record, take_back
from extender.placement.annotations import ADDED
from extender.placement.facts import PodImage, Role, program_mount, role_of
from extender.reports.quantities import requested
from extender.reports.running_containers import RunningContainer, containers_of

FINISHED = ("Succeeded", "Failed")
"""The phases in which a pod starts nothing again."""
_STATIC = "Node"  # the owner of a static pod's mirror


class UnreadableWorkload(ExtenderError):
    """An object whose pod has a field of another type than Kubernetes gives it."""


class WorkloadKey(NamedTuple):
    """What distinguishes workloads."""

    namespace: str
    kind: str
    name: str


class ImageUse(msgspec.Struct, frozen=True, kw_only=True):
    """One use of an image by a workload.

    `used_as` is container, init container, sidecar, ephemeral container or image volume, and `name` that of the
    container or volume. `is_injected`: pods of the workload have it, and its template does not.
    """

    image: PodImage
    used_as: str
    name: str
    is_injected: bool = False


class RunningPods(msgspec.Struct):
    """How many pods have a container alike, and one of them."""

    number: int
    example: str


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A workload: its uses of images, how many pods it wants, and what one of its pods requests.

    `namesake` distinguishes it from the first workload of its name, where manifests have several: it is empty for the
    first, else the file, and the number among those of the name there. `spec` says where its pods may run. `managed_by`
    names the controller that owns the object itself, such as a custom resource, and `source` the file and document it
    is from, empty for a cluster. `pods` is None for a DaemonSet that no cluster runs: then one for each node that it
    targets. `missing` names containers that get an image later, so that nobody knows what its pods will be. `running`
    has the containers of its pods on nodes.
    """

    key: WorkloadKey
    spec: ReportedSpec
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    uses: tuple[ImageUse, ...] = ()
    pods: int | None = 1
    cpu_cores: float = 0.0
    memory_bytes: float = 0.0
    managed_by: str = ""
    source: str = ""
    namesake: str = ""
    missing: tuple[str, ...] = ()
    running: Mapping[RunningContainer, RunningPods] = {}

    @property
    def is_daemon_set(self) -> bool:
        """Whether it wants a pod on every node that it targets."""
        return self.key.kind == "DaemonSet"

    @property
    def images(self) -> tuple[PodImage, ...]:
        """Its images without repeats."""
        return tuple(dict.fromkeys(use.image for use in self.uses))

    def __str__(self) -> str:
        """`namespace/Kind/name`, without the namespace where none is given."""
        namespace, kind, name = self.key
        return f"{namespace}/{kind}/{name}" if namespace else f"{kind}/{name}"


class _Pods(msgspec.Struct):
    """The live pods of one owner: how many, one of them, and every use of an image."""

    number: int
    spec: ReportedSpec
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    uses: dict[ImageUse, None]
    running: dict[RunningContainer, RunningPods] = {}

    def add_running(self, found: Mapping[RunningContainer, RunningPods]) -> None:
        for container, pods in found.items():
            known = self.running.setdefault(container, RunningPods(0, pods.example))
            known.number += pods.number


class WorkloadCollector:
    """Takes objects and pods in any order; `workloads` gives the top owners.

    A pod's top owner is found through ReplicaSets and Jobs that were added. Its images that its owner's template lacks
    count as injected. Pods whose owner was not added stand for it, whatever its kind. Finished pods and Jobs count for
    nothing. Objects of one name from several documents, such as overlays for two clusters, are workloads each.
    Memory is O(workloads + bare pods): equal specs and names are kept once.
    """

    def __init__(self, nodes: Mapping[str, Platform] = {}) -> None:
        """`nodes` has the platform of each node that states one: containers are kept for pods on these."""
        self._nodes = nodes
        self._templates: dict[WorkloadKey, dict[tuple[str, int], Workload]] = {}  # each by its document and spec
        self._controllers: dict[WorkloadKey, WorkloadKey] = {}
        self._pods: dict[WorkloadKey, _Pods] = {}
        self._specs: dict[bytes, ReportedSpec] = {}
        self.finished = 0

    def add(self, manifest: KubernetesObject, source: str = "") -> bool:
        """Adds an object; returns whether it has pods. `source` names its file and document.

        One with several templates is a workload for each. A pod that a controller made or that has finished counts as a
        live one, wherever it is from.

        Raises:
            UnreadableWorkload: it has pods, and a field of another type than in core/v1.
        """
        pods = pods_of(manifest)
        kind, metadata = str(manifest.get("kind") or ""), map_at(manifest, "metadata")
        try:
            if pods and kind == "Pod" and (not source or _is_of_a_cluster(manifest)):
                self.add_pod(msgspec.json.encode(manifest))
                return True
            for path, pod in pods:
                self._add_template(manifest, path, decode_written(msgspec.json.encode(pod), ReportedPod), source)
        except msgspec.DecodeError as exc:
            raise UnreadableWorkload(f"{kind} {metadata.get('name', 'without a name')}: {exc}") from exc
        return bool(pods)

    def _add_template(self, manifest: KubernetesObject, path: str, decoded: ReportedPod, source: str) -> None:
        kind, metadata = str(manifest.get("kind") or ""), map_at(manifest, "metadata")
        owner = decode_written(msgspec.json.encode(metadata), ObjectMeta).controller
        name = str(metadata.get("name") or metadata.get("generateName") or "without-a-name")
        key = WorkloadKey(str(metadata.get("namespace") or ""), kind, f"{name} at {path}" if path else name)
        if owner:
            self._controllers[key] = WorkloadKey(key.namespace, owner.kind, owner.name)
        if _is_finished(manifest):
            self.finished += 1
            return
        spec = self._shared(_as_written(decoded.spec or ReportedSpec(), decoded.annotations))
        containers = (*(spec.containers or ()), *(spec.init_containers or ()))
        made = Workload(
            key=key,
            spec=spec,
            annotations=decoded.annotations,
            labels=(decoded.metadata and decoded.metadata.labels) or {},
            uses=tuple(use for use in uses_of(spec) if use.image.role is Role.VOLUME or is_given(use.image.reference)),
            pods=_wanted_pods(manifest),
            cpu_cores=requested(spec, "cpu"),
            memory_bytes=requested(spec, "memory"),
            managed_by=f"{owner.kind}/{owner.name}" if owner else "",
            source=source,
            missing=tuple(each.name for each in containers if not is_given(each.image)),
        )
        of_name = self._templates.setdefault(key, {})
        if not source:  # a cluster has one object of a name, and may list it twice
            of_name.clear()
        of_name[source, id(spec)] = made  # `_specs` keeps the spec, so the id is of no other

    def add_pod(self, document: bytes | msgspec.Raw) -> None:
        """Adds a live pod.

        Raises:
            UnreadableWorkload: a field has another type than in core/v1.
        """
        try:
            pod = decode_written(document, ReportedPod)
        except msgspec.DecodeError as exc:
            raise UnreadableWorkload(f"a pod: {exc}") from exc
        if pod.status and pod.status.phase in FINISHED:
            self.finished += 1
            return
        metadata, own_spec = pod.metadata or ObjectMeta(), pod.spec or ReportedSpec()
        owner = metadata.controller
        is_bare = owner is None or owner.kind == _STATIC
        name = (metadata.name or metadata.generate_name or "") if is_bare or owner is None else owner.name
        key = WorkloadKey(metadata.namespace or "", "Pod" if is_bare or owner is None else owner.kind, name)
        live = self._pods.get(key)
        spec = self._shared(own_spec)
        if live is None:
            live = _Pods(0, spec, pod.annotations, metadata.labels or {}, dict.fromkeys(uses_of(spec)))
            self._pods[key] = live
        live.number += 1
        if spec is not live.spec:
            live.uses.update(dict.fromkeys(uses_of(spec)))
        if pod.status and (platform := self._nodes.get(own_spec.node_name or "")):
            images = ((use.name, use.image) for use in uses_of(spec) if use.image.role is not Role.VOLUME)
            example = metadata.name or ""
            live.add_running({each: RunningPods(1, example) for each in containers_of(images, pod.status, platform)})

    def workloads(self) -> list[Workload]:
        """The workloads so far, sorted by namespace, kind and name."""
        firsts = {key: next(iter(of_name.values())) for key, of_name in self._templates.items()}
        found = {key: each for key, each in firsts.items() if self._top(key) == key}
        for top, live in self._pods_of_tops().items():
            if top in found:
                found[top] = _with_injected(found[top], live)
            else:
                found[top] = _of_pods(top, live)
        for key, each in firsts.items():  # of owners that nobody listed, such as an Argo Rollout's ReplicaSets
            top = self._top(key)
            if top not in found and each.pods != 0:
                found[top] = msgspec.structs.replace(each, key=top, managed_by="")
        return sorted((*found.values(), *self._namesakes()), key=lambda each: each.key)

    def _namesakes(self) -> Iterator[Workload]:
        """The workloads but for the first of each name, numbered by file."""
        for key, of_name in self._templates.items():
            numbers = Counter[str]()
            for each in islice(of_name.values(), 1, None) if self._top(key) == key else ():
                file = each.source.rpartition(", document ")[0] or each.source
                numbers[file] += 1
                yield msgspec.structs.replace(each, namesake=f"{file}#{numbers[file]}")

    def _pods_of_tops(self) -> dict[WorkloadKey, _Pods]:
        joined: dict[WorkloadKey, _Pods] = {}
        for key, live in self._pods.items():
            top = self._top(key)
            if top in joined:
                other = joined[top]
                joined[top] = msgspec.structs.replace(
                    live, number=other.number + live.number, uses=other.uses | live.uses, running={}
                )
                joined[top].add_running(other.running)
                joined[top].add_running(live.running)
            else:
                joined[top] = live
        return joined

    def _top(self, key: WorkloadKey) -> WorkloadKey:
        """The owner of the owner and so on, as long as it makes pods by itself or is not known."""
        for _ in range(8):
            above = self._controllers.get(key)
            if above is None or key.kind not in ("ReplicaSet", "ReplicationController", "Job", "Pod"):
                return key
            key = above
        return key

    def _shared(self, spec: ReportedSpec) -> ReportedSpec:
        """The one object for equal specs; the node's name and the volumes of a service account differ and are left."""
        kinds = ("containers", "init_containers", "ephemeral_containers")
        containers = {kind: tuple(map(_with_used_mounts, getattr(spec, kind) or ())) or None for kind in kinds}
        mounts = {mount.name for each in containers.values() for one in each or () for mount in one.volume_mounts or ()}
        volumes = tuple(each for each in spec.volumes or () if each.image or each.name in mounts) or None
        kept = msgspec.structs.replace(spec, node_name=None, volumes=volumes, **containers)
        return self._specs.setdefault(msgspec.json.encode(kept), kept)


def _with_used_mounts(container: ReportedContainer) -> ReportedContainer:
    """The container without the mounts in which its command finds no program."""
    mount = program_mount(container)
    return msgspec.structs.replace(container, volume_mounts=(mount,) if mount else None)


def uses_of(spec: ReportedSpec | CreatedSpec) -> Iterator[ImageUse]:
    """Each use of an image by a pod of this spec, in pod order, as if nothing were known of its RuntimeClass."""
    initial = [
        (each, "sidecar" if each.restart_policy == "Always" else "init container")
        for each in spec.init_containers or ()
    ]
    for container, used_as in (*((each, "container") for each in spec.containers or ()), *initial):
        yield _use(container, used_as, spec)
    for container in spec.ephemeral_containers or ():
        yield _use(container, "ephemeral container", spec)
    for volume in spec.volumes or ():
        if volume.image and volume.image.reference:
            image = _image(volume.image.reference, Role.VOLUME, volume.image.pull_policy, spec)
            yield ImageUse(image=image, used_as="image volume", name=volume.name)


def _use(container: Container, used_as: str, spec: ReportedSpec | CreatedSpec) -> ImageUse:
    image = _image(container.image, role_of(container, spec.volumes), container.image_pull_policy, spec)
    return ImageUse(image=image, used_as=used_as, name=container.name)


def _image(reference: str | None, role: Role, pull_policy: str | None, spec: ReportedSpec | CreatedSpec) -> PodImage:
    return PodImage(reference or "", role, pull_policy or "", has_handler=bool(spec.runtime_class_name))


def _with_injected(workload: Workload, live: _Pods) -> Workload:
    own = {(use.image.reference, use.image.role) for use in workload.uses}
    names = {use.name for use in workload.uses}  # under one of which pods of an older template have another image
    added = [
        msgspec.structs.replace(use, is_injected=True)
        for use in live.uses
        if (use.image.reference, use.image.role) not in own and use.name not in names
    ]
    given = {use.name for use in live.uses}
    missing = tuple(name for name in workload.missing if name not in given)
    return msgspec.structs.replace(workload, uses=(*workload.uses, *added), missing=missing, running=live.running)


def _as_written(spec: ReportedSpec, annotations: Mapping[str, str]) -> ReportedSpec:
    """The spec as its author wrote it: without the node affinity and selector that the webhook has added since."""
    record = read_record(annotations.get(ADDED))
    if record is None:
        return spec
    document = {"spec": msgspec.json.decode(msgspec.json.encode(spec))}
    own, _ = take_back(document, record, (), "")  # a toleration keeps no pod from any node
    return msgspec.json.decode(msgspec.json.encode(own["spec"]), type=ReportedSpec)


def _of_pods(key: WorkloadKey, live: _Pods) -> Workload:
    return Workload(
        key=key,
        spec=_as_written(live.spec, live.annotations),
        annotations=live.annotations,
        labels=live.labels,
        uses=tuple(live.uses),
        pods=live.number,
        cpu_cores=requested(live.spec, "cpu"),
        memory_bytes=requested(live.spec, "memory"),
        running=live.running,
    )


def _wanted_pods(manifest: Mapping[str, Any]) -> int | None:
    """How many pods the object wants at a time; 0 for one that is suspended, None for a DaemonSet of no cluster."""
    kind, spec = manifest.get("kind"), map_at(manifest, "spec")
    if kind == "Pod":
        return 1
    if kind == "DaemonSet":
        wanted = value_at(manifest, "status", "desiredNumberScheduled")
        return wanted if _is_count(wanted) else None
    if spec.get("suspend") is True or kind == "PodTemplate":
        return 0
    if kind == "CronJob":
        spec = map_at(spec, "jobTemplate", "spec")
    wanted = spec.get("parallelism" if kind in ("Job", "CronJob") else "replicas")
    return wanted if _is_count(wanted) else 1


def _is_of_a_cluster(pod: Mapping[str, Any]) -> bool:
    """Whether a pod in a manifest was read from a cluster, as by `kubectl get`, and counts as a live one."""
    return bool(value_at(pod, "metadata", "ownerReferences")) or value_at(pod, "status", "phase") in FINISHED


def _is_count(value: object) -> TypeGuard[int]:
    """Whether an API server takes it for a number of pods (int32)."""
    return isinstance(value, int) and 0 <= value < 1 << 31


def _is_finished(manifest: Mapping[str, Any]) -> bool:
    if manifest.get("kind") != "Job":
        return False
    return any(
        value_at(each, "type") in ("Complete", "Failed") and value_at(each, "status") == "True"
        for each in list_at(manifest, "status", "conditions")
    )
