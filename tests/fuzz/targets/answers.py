"""What kube-scheduler, kube-apiserver and policy engines send, through the outlets, with images in memory."""

import base64
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from extender.admission.pod_admission import PodAdmission
from extender.admission.workload_admission import WorkloadAdmission
from extender.credentials.keyring import ANONYMOUS, Credential
from extender.errors import InvalidRequest, ManifestNotFound
from extender.images.content import Content
from extender.images.manifest import Image, Kind
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, digest_of
from extender.kubernetes.core_v1 import CreatedPod, NodeName
from extender.kubernetes.pod_templates import Path, pod_templates
from extender.placement.node_kinds import NodeKinds
from extender.placement.nodes import LABELS, PREFIX, ClusterNodes, NodeLookup, NodePlatforms
from extender.placement.templates import Templates
from extender.resolver.image_cache import Target as ImageTarget
from extender.resolver.pod_resolver import PodResolver
from extender.resolver.resolver import Resolver
from extender.scheduler.verbs import SchedulerVerbs
from testbed.clock import Clock
from tests.fuzz.target import Target, at_end, check_sentence, run, settle
from tests.unit.placement import json_patch
from tests.unit.placement.mutating import POLICY, settings
from tests.unit.resolver.fake_registry import LocalLooks, index_of, keyring_of

_KNOWN = {
    "app-amd64:1": index_of("linux/amd64"),
    "app-arm64:1": index_of("linux/arm64"),
    "app:1": index_of("linux/amd64", "linux/arm64"),
    "chart:1": Content(Kind.ARTIFACT, frozenset(), states_platforms=False),
}
_NODES = {"node-amd64": "linux/amd64", "node-arm64": "linux/arm64", "node-2": "linux/amd64"}
_WARNING_CHARACTERS = 256


class _EmptyRegistry(LocalLooks):
    """Has no image, and answers at once."""

    async def state_digest(self, reference: ImageReference, credential: Credential) -> str | None:
        raise ManifestNotFound("no such image")

    async def describe(self, reference: ImageReference, credential: Credential, tenant: str) -> Image:
        raise ManifestNotFound("no such image")


class _View:
    """The nodes of a small cluster; a node that is not in view does not exist."""

    def __init__(self) -> None:
        self.synced = self.is_current = True
        self.kinds = NodeKinds()
        self.platforms = NodePlatforms({NodeName(name): parse_platform(platform) for name, platform in _NODES.items()})

    async def find(self, names: Sequence[NodeName], wait_seconds: float) -> NodeLookup:
        return NodeLookup(absent=tuple(names))


def _cluster_nodes() -> ClusterNodes:
    return ClusterNodes(frozenset(map(parse_platform, _NODES.values())))


class _Service:
    """The outlets, with four images in memory. Time goes on by a minute with each input."""

    def __init__(self) -> None:
        self.clock = Clock()
        resolver = Resolver(
            _EmptyRegistry(), size=1000, tag_seconds=1e9, stale_seconds=2e9, clock=self.clock, random=lambda: 0.5
        )
        for name, content in _KNOWN.items():
            target = resolver.cache.references.target_of(name)
            assert isinstance(target, ImageTarget)
            resolver.cache.learn(target, ANONYMOUS.id, digest_of(name.encode()), content, self.clock())
        policy = POLICY
        pod_resolver = PodResolver(
            resolver, keyring_of(), policy, {"shop": {f"{PREFIX}prefer": "arm64"}}.get, lambda: None
        )
        views: list[Any] = [_View(), None]
        self.verbs = [
            SchedulerVerbs(pod_resolver, nodes=nodes, wait_seconds=0.0, pending_limit_seconds=30.0, clock=self.clock)
            for nodes in views
        ]
        admissions = settings("both", "multiarch"), settings("none")
        self.admissions = [
            PodAdmission(pod_resolver, each, cluster_nodes=_cluster_nodes, wait_seconds=0.0) for each in admissions
        ]
        self.workloads = [
            WorkloadAdmission(
                pods,
                Templates(pod_resolver.policy, each, guards=True),
                cluster_nodes=_cluster_nodes,
                kinds=lambda: None,
            )
            for pods, each in zip(self.admissions, admissions, strict=True)
        ]


@functools.cache
def _service() -> _Service:
    at_end(_service.cache_clear)
    return _Service()


def reviews(data: bytes) -> None:
    """A review is always allowed, and a patch applies to its object and leaves a pod; else it is no review at all."""
    service = _service()
    service.clock.advance(60.0)
    for admission in service.admissions:
        try:
            body = run(_review(admission, data))
        except InvalidRequest as exc:
            check_sentence(exc)
            continue
        _check_review(data, body)
        _check_review(data, admission.fallback(data, "event"))


def template_reviews(data: bytes) -> None:
    """As `reviews`, of objects with pod templates: a patch changes these and nothing else."""
    service = _service()
    service.clock.advance(60.0)
    for admission in service.workloads:
        try:
            body = run(_review(admission, data))
        except InvalidRequest as exc:
            check_sentence(exc)
            continue
        _check_review(data, body, _check_template_patch)
        _check_review(data, admission.fallback(data, "event"), _check_template_patch)


async def _review(admission: PodAdmission | WorkloadAdmission, data: bytes) -> bytes:
    """What the webhook answers after a lookup; the lookups that it started end here."""
    reply = await admission.review(data)
    await settle()
    return reply.body


def _check_review(data: bytes, body: bytes, check_patch: Callable[[bytes, bytes], None] | None = None) -> None:
    answer = msgspec.json.decode(body)
    response = answer["response"]
    assert response["allowed"] is True
    assert response["uid"]
    for warning in response.get("warnings", ()):
        assert len(warning) <= _WARNING_CHARACTERS
        assert warning.isprintable()
    assert sum(len(key) + len(value) for key, value in response.get("auditAnnotations", {}).items()) <= 4096 + len(data)
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        (check_patch or _check_patch)(data, base64.b64decode(response["patch"], validate=True))


def _check_patch(data: bytes, patch: bytes) -> None:
    """Fails unless the patch applies to the review's object and changes nothing but what we may change."""
    before = _object_of(data)
    if before is None:
        return
    after = json_patch.apply(before, patch)
    msgspec.json.decode(msgspec.json.encode(after), type=CreatedPod)
    assert after != before
    assert _without_ours(after) == _without_ours(before)


def _check_template_patch(data: bytes, patch: bytes) -> None:
    """As `_check_patch`, of each template of an object."""
    before = _object_of(data)
    if before is None:
        return
    after = json_patch.apply(before, patch)
    assert after != before
    places = [template.path for template in pod_templates(before)]
    assert places == [template.path for template in pod_templates(after)]
    for old, new in zip(pod_templates(before), pod_templates(after), strict=True):
        msgspec.json.decode(msgspec.json.encode(new.template), type=CreatedPod)
        assert _without_ours(dict(old.template)) == _without_ours(dict(new.template))
    assert _without(before, places) == _without(after, places)


def _without(document: dict[str, Any], places: list[Path]) -> object:
    """A copy of the object without what is in these places."""
    copied: Any = msgspec.json.decode(msgspec.json.encode(document))
    for place in places:
        parent = copied
        for step in place[:-1]:
            parent = parent[step]
        if place:
            parent[place[-1]] = None
        else:
            copied = None
    return copied


def _object_of(data: bytes) -> dict[str, Any] | None:
    """The review's object; None if an unread part of it is no JSON, so that an API server could not have sent it."""
    try:
        found: dict[str, Any] = msgspec.json.decode(data)["request"]["object"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def _without_ours(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod without all that the webhook may change."""
    ours = ("tolerations", "affinity", "schedulerName", "topologySpreadConstraints", "nodeSelector")
    spec = {key: value for key, value in pod["spec"].items() if key not in ours}
    selector = pod["spec"].get("nodeSelector") or {}
    spec["nodeSelector"] = {label: value for label, value in selector.items() if label not in LABELS}
    metadata = {key: value for key, value in (pod.get("metadata") or {}).items() if key != "annotations"}
    return {key: value for key, value in pod.items() if key != "metadata"} | {"spec": spec, "metadata": metadata}


def scheduler_bodies(data: bytes) -> None:
    """The first byte says which verb and whether a cluster is watched; the remainder is the body."""
    service = _service()
    service.clock.advance(60.0)
    flags, body = data[:1], data[1:]
    number = flags[0] if flags else 0
    verbs = service.verbs[number // 3 % 2]
    check = (_check_filter, _check_prioritize, _check_preempt)[number % 3]
    try:
        run(check(verbs, body))
    except InvalidRequest as exc:
        check_sentence(exc)


def _requested(body: bytes) -> list[str] | None:
    """The names of the nodes in a request; None if its unread parts are no JSON."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    nodes = document.get("Nodes")
    if nodes is None:
        return document.get("NodeNames") or []
    return [((node or {}).get("metadata") or {}).get("name") or "" for node in nodes.get("items") or ()]


async def _check_filter(verbs: SchedulerVerbs, body: bytes) -> None:
    """Each node is kept or refused with a reason, in the form and the order of the request."""
    reply = await verbs.filter(body)
    await settle()
    names = _requested(body)
    if names is None:
        return
    answer = msgspec.json.decode(reply.body)
    if answer["Error"]:
        check_sentence(answer["Error"])
        return
    if answer["Nodes"] is None:
        kept = answer["NodeNames"]
    else:
        assert answer["NodeNames"] is None
        kept = [((node or {}).get("metadata") or {}).get("name") or "" for node in answer["Nodes"].get("items") or ()]
    failed = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    assert Counter(kept) <= Counter(names)
    assert set(kept) | set(failed) == set(names)
    remaining = iter(names)
    assert all(name in remaining for name in kept)
    for reason in failed.values():
        assert 0 < len(reason) < 512


async def _check_prioritize(verbs: SchedulerVerbs, body: bytes) -> None:
    """Scores are whole numbers from 0 to 10, of nodes of the request."""
    reply = await verbs.prioritize(body)
    await settle()
    names = _requested(body)
    if names is None:
        return
    for entry in msgspec.json.decode(reply.body):
        assert entry["Host"] in names
        assert isinstance(entry["Score"], int)
        assert 0 <= entry["Score"] <= 10


async def _check_preempt(verbs: SchedulerVerbs, body: bytes) -> None:
    """Candidates are some of the request's."""
    reply = await verbs.preempt(body)
    await settle()
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    candidates = {**(document.get("NodeNameToVictims") or {}), **(document.get("NodeNameToMetaVictims") or {})}
    answer = msgspec.json.decode(reply.body)
    assert set(answer["NodeNameToMetaVictims"]) <= set(candidates)


_POD_WORDS = (
    b'"metadata":{', b'"annotations":{', b'"spec":{', b'"containers":[{"image":"', b'"initContainers":',
    b'"volumes":[{"image":',
    b'"reference":"', b'"app:1"', b'"app-arm64:1"', b'"app-amd64:1"', b'"chart:1"', b'"tolerations":[', b'"affinity":{',
    b'"nodeAffinity":{', b'"requiredDuringSchedulingIgnoredDuringExecution":{', b'"nodeSelectorTerms":[',
    b'"preferredDuringSchedulingIgnoredDuringExecution":[', b'"matchExpressions":[', b'"matchFields":[',
    b'"nodeSelector":{',
    b'"key":"kubernetes.io/arch"', b'"operator":"In"', b'"values":["arm64"]', b'"schedulerName":', b'"nodeName":',
    b'"multiarch-extender.io/added":"', b'"multiarch-extender.io/mode":"observe"', b'"multiarch-extender.io/reason":"',
    b'"imagePullPolicy":"Never"', b'"namespace":"shop"', b'"ownerReferences":[', b"null", b'"\\ud800"', b"1e400",
    b'"weight":', b'"tolerationSeconds":', b"99999999999999999999",
)  # fmt: skip

TARGETS = (
    Target(
        "reviews", reviews,
        (
            *_POD_WORDS, b'"request":{', b'"uid":"', b'"operation":"CREATE"', b'"kind":{"group":"","kind":"Pod"}',
            b'"object":{', b'"apiVersion":', b'"subResource":', b'{\\"tolerations\\":[',
        ),
    ),
    Target(
        "template_reviews", template_reviews,
        (
            *_POD_WORDS, b'"request":{', b'"uid":"', b'"operation":"CREATE"', b'"kind":{"group":"batch","kind":"Job"}',
            b'"object":{', b'"labels":{"kueue.x-k8s.io/queue-name":"all"}', b'"template":{',
            b'"operation":"UPDATE"', b'"oldObject":{',
        ),
    ),
    Target(
        "scheduler_bodies", scheduler_bodies,
        (
            *_POD_WORDS, b'{"Pod":{', b',"Nodes":null,"NodeNames":[', b',"Nodes":{"items":[', b'],"NodeNames":null}',
            b'"node-amd64"', b'"node-arm64"', b'"status":{"nodeInfo":{', b'"architecture":"',
            b'"operatingSystem":"linux"',
            b'"NodeNameToVictims":{', b'"NodeNameToMetaVictims":{', b'"Pods":[', b'"UID":"', b'"NumPDBViolations":',
            b"\\u0061",
        ),
    ),
)  # fmt: skip
