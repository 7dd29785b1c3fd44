"""Where an object of any kind has its pods: itself, or the templates by which controllers make pods.

A mapping whose `containers` is a list of mappings with images is a PodSpec, wherever it stands outside `metadata` and
`status`. So the kinds of Kubernetes and custom ones are read alike. Policies and patches are not: their mappings are
laid over the pods of others. Objects are plain JSON here, so that fields unknown to this package survive.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from extender.kubernetes.documents import list_at, map_at, value_at

KubernetesObject = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

Path: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead from a document to a value in it."""

_WITHOUT_PODS = ("metadata", "status")
# API groups, or the ends of their names, whose objects say what others shall look like, or quote them.
_OF_POLICIES = (
    "kyverno.io", "gatekeeper.sh", "kubewarden.io", "jspolicy.com", "policy.open-cluster-management.io",
    "policy.karmada.io", "admission.k8s.io", "kustomize.config.k8s.io", "kuttl.dev", "image.toolkit.fluxcd.io",
)  # fmt: skip
_DIRECTIVES = ("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")
_PATCH = re.compile(r"^patch|Patch|^(any|all)?[pP]atterns?$|^overlays?$|[oO]verrides?$")  # a key of what is laid over
# The groups of Kubernetes and its own programs that have a dot: nothing in their objects runs but what templates say.
# Others end in k8s.io too. https://github.com/kubernetes/kubernetes/tree/master/staging/src/k8s.io
_OF_KUBERNETES = frozenset(
    f"{name}.k8s.io"
    for name in (
        "admission", "admissionregistration", "apiextensions", "apiregistration", "apiserver", "apiserver.config",
        "audit", "authentication", "authorization", "certificates", "client.authentication",
        "cloudcontrollermanager.config", "controllermanager.config", "coordination", "credentialprovider.kubelet",
        "custom.metrics", "discovery", "events", "external.metrics", "flowcontrol.apiserver", "imagepolicy",
        "internal.apiserver", "kubeadm", "kubecontrollermanager.config", "kubelet.config", "kubeproxy.config",
        "kubescheduler.config", "metrics", "networking", "node", "pod-security.admission.config",
        "rbac.authorization", "resource", "resourcequota.admission", "scheduling", "storage", "storagemigration",
    )
)  # fmt: skip
# Their operators put a main container before those that the object has.
_WITH_A_MAIN_CONTAINER = ("monitoring.coreos.com", "operator.victoriametrics.com")
_PLACEHOLDER_CHARACTERS = 1024  # twice what a reference may have
# What a reference never has, or words that are no name of a repository.
_PLACEHOLDER = re.compile(
    r"auto|.*(?:[${}<>()\[\]%#*!?|]|://|^@|@$|^_|_$).*"
    r"|(?:.*/)?[A-Z][A-Z0-9]*(?:[_.-][A-Z0-9]+)*(?:[:@/].*)?",
    re.DOTALL,
)
# Objects have some hundred maps and lists, and PodSpecs at a depth of ten or less.
_MOST_VISITED, _DEEPEST = 10_000, 32
_KNATIVE = "serving.knative.dev"
# What owns the pods of an object that a person writes, by the object's kind; other kinds own their pods themselves.
_OWNERS = {"Deployment": "ReplicaSet", "DeploymentConfig": "ReplicationController", "CronJob": "Job"}


class PodTemplate(msgspec.Struct, frozen=True):
    """A pod template in a document: the object it belongs to, and the path to it from the document's root.

    `item` leads to the object, which is the document itself or an item of a list. `template` has the PodSpec at `spec`.
    A Pod is its own template. `is_template`: it is a Pod or a PodTemplateSpec; else it has only containers, as the spec
    of a SidecarSet has, or is a PodSpec without metadata, to which `path` leads. An image that stands beside the list
    of containers is one more container of `template`. `missing` names containers without an image, or with a
    placeholder: such a template is partly given, and somebody gives the rest later.
    """

    api_version: str
    kind: str
    name: str
    namespace: str
    item: Path
    path: Path
    template: Mapping[str, Any]
    is_template: bool = True
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The object as people name it, such as `Deployment shop/web`."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"

    @property
    def field_path(self) -> str:
        """Where the template stands in its object, as people write it: `spec.jobs[0].template`; `spec` for a Pod's."""
        return _shown(self.path[len(self.item) :]) or "spec"

    @property
    def is_daemon_set(self) -> bool:
        """Whether its controller makes a pod for each node that the template allows, and names the node in it."""
        return self.kind == "DaemonSet"

    @property
    def takes_constraints(self) -> bool:
        """Whether nodeSelector, affinity and tolerations may be written, and recorded in the template's annotations.

        Nobody knows whether a type that has containers has such fields. Knative refuses them unless its operator allows
        them.
        """
        return self.is_template and self.api_version.rpartition("/")[0] != _KNATIVE

    @property
    def gap(self) -> str:
        """What a template that is partly given lacks, as a sentence; empty for others."""
        return f"partly given: at {self.field_path}, {given_later(self.missing)}" if self.missing else ""


class MadePod(NamedTuple):
    """A pod that an object is or makes; `field_path` tells several templates of one object apart, and is else empty."""

    field_path: str
    pod: KubernetesObject


def pod_templates(document: object) -> Iterator[PodTemplate]:
    """The pod templates of a decoded document, in order: its own, or those of the objects in a list."""
    for path, found in objects_in(document):
        yield from _templates_of(found, path)


def objects_in(document: object) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The object that a decoded document is, or those of a list, with the paths to them."""
    if not isinstance(document, Mapping):
        return
    kind, items = document.get("kind"), document.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        yield from ((("items", index), inner) for index, inner in enumerate(items) if isinstance(inner, Mapping))
    else:
        yield (), document


def pods_of(manifest: Mapping[str, Any]) -> list[MadePod]:
    """The pods that the object is or makes, one for each template, without status and node.

    A pod made by a controller has no name, and is owned as its controller would own it.
    """
    templates = list(_templates_of({"apiVersion": "", **manifest}, ()))
    return [MadePod(each.field_path if len(templates) > 1 else "", _pod_of(each)) for each in templates]


def given_later(containers: Sequence[str]) -> str:
    """Says of these containers that somebody gives them an image later."""
    several = len(containers) > 1
    return f"container{'s' if several else ''} {', '.join(containers)} get{'' if several else 's'} an image later"


def is_given(image: str | None) -> bool:
    """Whether a container's image names one: some are filled in later, and have nothing or a placeholder until then."""
    text = image or ""
    is_placeholder = len(text) <= _PLACEHOLDER_CHARACTERS and text.isprintable() and _PLACEHOLDER.fullmatch(text)
    return bool(text.strip()) and not is_placeholder


def is_policy(manifest: Mapping[str, Any]) -> bool:
    """Whether the object only looks like a workload: a policy, a review or a test of such."""
    return _is_within(_group_of(manifest), _OF_POLICIES)


def is_patch(manifest: Mapping[str, Any]) -> bool:
    """Whether it is a strategic merge patch: a directive such as `$patch: delete` stands outside its own patches.

    https://github.com/kubernetes/community/blob/main/contributors/devel/sig-api-machinery/strategic-merge-patch.md
    """
    waiting: list[object] = [manifest]
    for _ in range(_MOST_VISITED):
        if not waiting:
            break
        value = waiting.pop()
        if isinstance(value, Mapping):
            if any(isinstance(key, str) and key.startswith(_DIRECTIVES) for key in value):
                return True
            waiting += [each for key, each in islice(value.items(), _MOST_VISITED) if not _is_laid_over(key)]
        elif isinstance(value, list):
            waiting += value[:_MOST_VISITED]
    return False


def named(manifest: Mapping[str, Any]) -> str:
    """The object as people name it where its namespace does not matter, such as `Deployment web`."""
    return f"{manifest.get('kind')} {value_at(manifest, 'metadata', 'name') or 'without a name'}"


def unread_images(manifest: Mapping[str, Any]) -> str:
    """Where an object of a custom resource names an image outside pod templates; empty if it names none there.

    Such are Workflows and what operators read. An image is a text under a key such as `image` or `imageName`, or a
    mapping with a `repository`.
    """
    group = _group_of(manifest)
    if "." not in group or group in _OF_KUBERNETES or is_policy(manifest):
        return ""
    for path, value in _mappings(manifest.get("spec"), ("spec",)):
        if not _is_pod_spec(path, value) and any(_names_image(key, each) for key, each in value.items()):
            return _shown(path)
    return ""


def _names_image(key: object, value: object) -> bool:
    name = str(key)
    if name in ("image", "imageName", "baseImage"):
        return _image_of(value) is not None and "://" not in str(value)
    return name.endswith("Image") and isinstance(value, str) and ("/" in value or ":" in value) and "://" not in value


def _image_of(value: object) -> str | None:
    """The image that a text or a mapping names, such as `{repository: app, tag: "1"}`; None if it is neither."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping) or not isinstance(value.get("repository"), str):
        return None
    host = f"{value['registry']}/" if isinstance(value.get("registry"), str) and value["registry"] else ""
    digest = f"@{value['digest']}" if value.get("digest") else ""
    tag = f":{value['tag']}" if value.get("tag") else ""
    return f"{host}{value['repository']}{tag}{digest}" if value["repository"] else None


def node_of(manifest: Mapping[str, Any]) -> str:
    """The node to which the object is bound; empty for anything but a bound pod."""
    return str(value_at(manifest, "spec", "nodeName") or "") if manifest.get("kind") == "Pod" else ""


def namespace_annotations(documents: Iterable[object]) -> dict[str, dict[str, str]]:
    """The annotations of each Namespace among the documents, by its name."""
    return {
        str(value_at(each, "metadata", "name")): {
            key: str(value) for key, value in map_at(each, "metadata", "annotations").items()
        }
        for each in documents
        if value_at(each, "kind") == "Namespace"
    }


def _group_of(manifest: Mapping[str, Any]) -> str:
    return str(manifest.get("apiVersion") or "").rpartition("/")[0]


def _is_within(group: str, ends: Iterable[str]) -> bool:
    return any(group == end or group.endswith(f".{end}") for end in ends)


def _templates_of(document: Mapping[str, Any], item: Path) -> Iterator[PodTemplate]:
    kind, api_version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str) or is_policy(document):
        return
    metadata = map_at(document, "metadata")
    name = str(metadata.get("name") or metadata.get("generateName") or "without a name")
    namespace = str(metadata.get("namespace") or "")
    for path, spec in _mappings(document, ()):
        if _is_pod_spec(path, spec):
            is_bare = path[-1:] != ("spec",)
            whole = _with_image_beside(spec, _group_of(document))
            template = {} if is_bare else map_at(document, *path[:-1])
            is_template = not is_bare and template.get("kind", "Pod") == "Pod"
            if whole is not spec or is_bare:
                template = {**template, "spec": whole}
            whole_path = (*item, *(path if is_bare else path[:-1]))
            missing = tuple(_missing(whole))
            yield PodTemplate(api_version, kind, name, namespace, item, whole_path, template, is_template, missing)


def _with_image_beside(spec: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    """The PodSpec with a container for the image that stands beside its list, or that an operator puts there."""
    beside = spec.get("image") or spec.get("baseImage")
    if beside is None and not _is_within(group, _WITH_A_MAIN_CONTAINER):
        return spec
    return {**spec, "containers": [*spec["containers"], {"name": "image", "image": _image_of(beside) or ""}]}


def _missing(spec: Mapping[str, Any]) -> Iterator[str]:
    """The names of the containers whose images are not given."""
    for kind in ("containers", "initContainers"):
        for index, each in enumerate(list_at(spec, kind)[:_MOST_VISITED]):
            image = each.get("image") if isinstance(each, Mapping) else 0
            if image is None or (isinstance(image, str) and not is_given(image)):
                yield str(each.get("name") or f"{kind}[{index}]")


def _mappings(value: object, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The mappings of an object, in order and with their paths, but those in its metadata, status and PodSpecs.

    Of an object with too many, or where they are too deep, those found first.
    """
    waiting: list[tuple[Path, object]] = [(path, value)]
    for _ in range(_MOST_VISITED):
        if not waiting:
            return
        path, value = waiting.pop()
        if len(path) > _DEEPEST:
            continue
        if isinstance(value, Mapping):
            yield path, value
            if _is_pod_spec(path, value):
                continue
            inner: Iterable[tuple[str | int, object]] = value.items()
        elif isinstance(value, list):
            inner = enumerate(value)
        else:
            continue
        waiting += [
            ((*path, step), each)
            for step, each in islice(inner, _MOST_VISITED)
            if isinstance(each, Mapping | list) and step not in _WITHOUT_PODS and not _is_laid_over(step)
        ][::-1]


def _is_laid_over(step: str | int) -> bool:
    return isinstance(step, str) and _PATCH.search(step) is not None


def _is_pod_spec(path: Path, value: Mapping[str, Any]) -> bool:
    """Whether its containers have images, or stand under `spec` and have names: then their images come later."""
    keys = ("image", "name") if path[-1:] == ("spec",) else ("image",)
    return any(
        isinstance(value_at(each, key), str) for each in list_at(value, "containers")[:_MOST_VISITED] for key in keys
    )


def _pod_of(template: PodTemplate) -> KubernetesObject:
    metadata, spec = {**map_at(template.template, "metadata")}, {**template.template["spec"]}
    if template.kind == "Pod":
        spec.pop("nodeName", None)
    else:
        if template.namespace:
            metadata["namespace"] = template.namespace
        owner = {"kind": _OWNERS.get(template.kind, template.kind), "controller": True}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _shown(path: Path) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
