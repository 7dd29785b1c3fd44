"""What `explain` is to explain: pods and workloads that its arguments name, of a cluster or of manifests."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from extender.cli.console import print_problem
from extender.cli.manifest_files import Manifests
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.workload_lists import UnknownKind, fetch_object, fetch_pull_secrets, kind_named
from extender.errors import ClusterError, ConfigError
from extender.kubernetes.core_v1 import CreatedPod, LocalObjectReference
from extender.kubernetes.documents import list_at, map_at, value_at
from extender.kubernetes.pod_templates import KubernetesObject, namespace_annotations, node_of, pods_of
from extender.kubernetes.reported_v1 import PodStatus, ReportedPod
from extender.kubernetes.type_problems import decode_written
from extender.reports.explanation import Subject
from extender.service.endpoints import PENDING_LIMIT_SECONDS


class ExplainTarget(msgspec.Struct, frozen=True):
    """What the arguments name: an object of a kind, or every object of manifests, or one of these.

    An empty `namespace` is the context's.
    """

    kind: str
    name: str
    namespace: str
    manifests: Manifests | None

    @classmethod
    def parse(cls, text: str | None, namespace: str, manifests: Manifests | None) -> "ExplainTarget":
        """Reads `NAME`, which is a pod's, or `KIND/NAME`.

        Raises:
            ConfigError: the kind is not known.
        """
        kind, slash, name = (text or "").rpartition("/")
        try:
            kind = kind_named(kind) if slash else ""
        except UnknownKind as exc:
            raise ConfigError(str(exc)) from exc
        return cls(kind, name, namespace, manifests)

    async def find(self, client: ClusterClient | None) -> list[Subject]:
        """The pods that are meant, with the pull secrets that they have once they are created.

        Adds what cannot be read among manifests to `manifests.unread`.

        Raises:
            ClusterError: the object cannot be read from the cluster.
            ConfigError: it is not as Kubernetes takes it.
        """
        namespace = self.namespace or (client.namespace if client else "default")
        if self.manifests:
            defaults = namespace_annotations(each.manifest for each in self.manifests.objects)
            found = list(self._found_in(self.manifests, namespace))
            found = [msgspec.structs.replace(each, defaults=defaults.get(each.namespace)) for each in found]
        elif client:
            manifest = await fetch_object(client, self.kind or "pod", self.name, namespace)
            found = list(_subjects_of(manifest, namespace, is_created=manifest["kind"] == "Pod"))
            if not found:
                raise ClusterError(f"{self.kind} {namespace}/{self.name} has no pod template")
        else:
            raise ClusterError("there is no cluster to read the object from")
        return [await _with_pull_secrets(each, client) for each in found] if client else found

    def _found_in(self, manifests: Manifests, namespace: str) -> Iterator[Subject]:
        """The subjects among manifests; adds what is not as Kubernetes takes it to `manifests.unread`."""
        for each in manifests.objects:
            if self._matches(each.manifest):
                try:
                    yield from _subjects_of(each.manifest, namespace, is_created=False)
                except ConfigError as exc:
                    manifests.unread.append(f"{each.source}: {exc}")

    def _matches(self, manifest: KubernetesObject) -> bool:
        has_name = not self.name or value_at(manifest, "metadata", "name") == self.name
        return has_name and self.kind in ("", manifest.get("kind"))


def _subjects_of(manifest: KubernetesObject, namespace: str, *, is_created: bool) -> Iterator[Subject]:
    """A subject for each pod that the object is or makes; the name tells several apart."""
    metadata, kind = map_at(manifest, "metadata"), str(manifest.get("kind"))
    namespace = str(metadata.get("namespace") or namespace)
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    for place, made in pods_of(manifest):
        document = {**made, "metadata": {**made["metadata"], "namespace": namespace}}
        raw = msgspec.json.encode(document)
        try:
            decode_written(raw, ReportedPod)  # a mutation relies on the types that the API server demands
            status = msgspec.convert(manifest.get("status"), PodStatus | None) if is_created else None
        except msgspec.ValidationError as exc:
            raise ConfigError(f"{kind} {namespace}/{name} is not as Kubernetes takes it: {exc}") from exc
        yield Subject(
            kind=kind,
            name=f"{name} at {place}" if place else name,
            namespace=namespace,
            document=document,
            pod=msgspec.json.decode(raw, type=CreatedPod),
            is_created=is_created,
            has_waited=is_created and has_waited(manifest, datetime.now(UTC)),
            node_name=node_of(manifest),
            status=status,
        )


def has_waited(pod: KubernetesObject, now: datetime) -> bool:
    """Whether kube-scheduler has had the pod for longer than images may be pending; it has none that a gate holds."""
    try:
        created = datetime.fromisoformat(str(value_at(pod, "metadata", "creationTimestamp")))
        return not list_at(pod, "spec", "schedulingGates") and (now - created).total_seconds() > PENDING_LIMIT_SECONDS
    except (ValueError, TypeError):
        return False


async def _with_pull_secrets(subject: Subject, client: ClusterClient) -> Subject:
    """The subject with the pull secrets of its ServiceAccount, which a pod gets when it is created."""
    spec = subject.document["spec"]
    if subject.is_created or spec.get("imagePullSecrets"):
        return subject
    account = spec.get("serviceAccountName") or "default"
    try:
        found = await fetch_pull_secrets(client, subject.namespace, account)
    except ClusterRefused as exc:
        print_problem(f"not read: pull secrets of ServiceAccount {subject.namespace}/{account}: {exc}")
        return subject
    if not found or subject.pod.spec is None:
        return subject
    secrets = tuple(map(LocalObjectReference, found))
    given = msgspec.structs.replace(subject.pod.spec, image_pull_secrets=secrets)
    return msgspec.structs.replace(subject, pod=msgspec.structs.replace(subject.pod, spec=given))
