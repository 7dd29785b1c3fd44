"""What kube-scheduler, kube-apiserver and policy engines send, through the outlets, with images in memory."""

import base64
import functools
from collections import Counter
from collections.abc import Callable
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
from extender.placement.nodes import LABELS, PREFIX, ClusterNodes, NodePlatforms
from extender.placement.templates import Templates
from extender.resolver.image_cache import Target as ImageTarget
from extender.resolver.pod_resolver import PodResolver
from extender.resolver.resolver import Resolver
from extender.scheduler.verbs import SchedulerVerbs
from testbed.clock import Clock
from tests.builders import Json, decoded
from tests.fuzz.target import at_end, check_sentence, run, settle
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
_Check = Callable[[Json, Json], None]


class _EmptyRegistry(LocalLooks):
    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        raise ManifestNotFound("no such image")

    async def describe(self, reference: ImageReference, credential: Credential) -> Image:
        raise ManifestNotFound("no such image")


class _View:
    """The nodes of a small cluster."""

    def __init__(self) -> None:
        self.synced = True
        self.kinds = NodeKinds()
        self.platforms = NodePlatforms({NodeName(name): parse_platform(platform) for name, platform in _NODES.items()})


_CLUSTER = ClusterNodes(frozenset(map(parse_platform, _NODES.values())))


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
        namespaces = {"shop": {f"{PREFIX}prefer": "arm64"}}
        pod_resolver = PodResolver(resolver, keyring_of(), POLICY, namespaces.get, lambda: None)
        views: list[Any] = [_View(), None]
        self.verbs = [
            SchedulerVerbs(pod_resolver, nodes=nodes, wait_seconds=0.0, pending_limit_seconds=30.0, clock=self.clock)
            for nodes in views
        ]
        admissions = settings("both", "multiarch"), settings("none")
        self.admissions = [
            PodAdmission(pod_resolver, each, cluster_nodes=lambda: _CLUSTER, wait_seconds=0.0) for each in admissions
        ]
        templates = [Templates(pod_resolver.policy, each, guards=True) for each in admissions]
        self.workloads = [
            WorkloadAdmission(*both, cluster_nodes=lambda: _CLUSTER, kinds=lambda: None)
            for both in zip(self.admissions, templates, strict=True)
        ]


@functools.cache
def _service() -> _Service:
    at_end(_service.cache_clear)
    return _Service()


def reviews(data: bytes) -> None:
    """A review is always allowed, and a patch applies to its object and leaves a pod; else it is no review at all."""
    _service().clock.advance(60.0)
    for admission in _service().admissions:
        _check_reviews(admission, data, _check_patch)


def template_reviews(data: bytes) -> None:
    """As `reviews`, of objects with pod templates: a patch changes these and nothing else."""
    _service().clock.advance(60.0)
    for admission in _service().workloads:
        _check_reviews(admission, data, _check_template_patch)


def _check_reviews(admission: PodAdmission | WorkloadAdmission, data: bytes, check_patch: _Check) -> None:
    try:
        body = run(_review(admission, data))
    except InvalidRequest as exc:
        check_sentence(exc)
        return
    _check_review(data, body, check_patch)
    _check_review(data, admission.fallback(data, "event"), check_patch)


async def _review(admission: PodAdmission | WorkloadAdmission, data: bytes) -> bytes:
    """What the webhook answers after a lookup; the lookups that it started end here."""
    reply = await admission.review(data)
    await settle()
    return reply.body


def _check_review(data: bytes, body: bytes, check_patch: _Check) -> None:
    response = msgspec.json.decode(body)["response"]
    assert response["allowed"] is True
    assert response["uid"]
    for warning in response.get("warnings", ()):
        assert len(warning) <= _WARNING_CHARACTERS
        assert warning.isprintable()
    assert sum(len(key) + len(value) for key, value in response.get("auditAnnotations", {}).items()) <= 4096 + len(data)
    if "patch" in response and (sent := _sent(data)):
        assert response["patchType"] == "JSONPatch"
        before = sent["request"]["object"]
        after = json_patch.apply(before, base64.b64decode(response["patch"], validate=True))
        assert after != before
        check_patch(before, after)


def _check_patch(before: Json, after: Json) -> None:
    """Fails unless the patch leaves a pod and changes nothing but what we may change."""
    decoded(after, CreatedPod)
    assert _without_ours(after) == _without_ours(before)


def _check_template_patch(before: Json, after: Json) -> None:
    """As `_check_patch`, of each template of an object."""
    places = [template.path for template in pod_templates(before)]
    assert places == [template.path for template in pod_templates(after)]
    for old, new in zip(pod_templates(before), pod_templates(after), strict=True):
        _check_patch(dict(old.template), dict(new.template))
    assert _without(before, places) == _without(after, places)


def _without(document: Json, places: list[Path]) -> object:
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


def _sent(body: bytes) -> Json | None:
    """The document; None if a part of it that is not read is no JSON, so that an API server could not have sent it."""
    try:
        found: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def _without_ours(pod: Json) -> Json:
    """The pod without all that the webhook may change."""
    ours = ("tolerations", "affinity", "schedulerName", "nodeSelector")
    spec = {key: value for key, value in pod["spec"].items() if key not in ours}
    selector = pod["spec"].get("nodeSelector") or {}
    spec["nodeSelector"] = {label: value for label, value in selector.items() if label not in LABELS}
    metadata = {key: value for key, value in (pod.get("metadata") or {}).items() if key != "annotations"}
    return {key: value for key, value in pod.items() if key != "metadata"} | {"spec": spec, "metadata": metadata}


def scheduler_bodies(data: bytes) -> None:
    """The first byte says which verb and whether a cluster is watched; the remainder is the body."""
    service, number = _service(), data[0] if data else 0
    service.clock.advance(60.0)
    check = (_check_filter, _check_prioritize, _check_preempt)[number % 3]
    try:
        run(check(service.verbs[number // 3 % 2], data[1:]))
    except InvalidRequest as exc:
        check_sentence(exc)


def _names_of(nodes: Json) -> list[str]:
    return [((node or {}).get("metadata") or {}).get("name") or "" for node in nodes.get("items") or ()]


def _requested(body: bytes) -> list[str] | None:
    """The names of the nodes in a request; None if its unread parts are no JSON."""
    if (document := _sent(body)) is None:
        return None
    nodes = document.get("Nodes")
    return document.get("NodeNames") or [] if nodes is None else _names_of(nodes)


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
        kept = _names_of(answer["Nodes"])
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
    reply = await verbs.preempt(body)
    await settle()
    if (document := _sent(body)) is None:
        return
    candidates = {**(document.get("NodeNameToVictims") or {}), **(document.get("NodeNameToMetaVictims") or {})}
    answer = msgspec.json.decode(reply.body)
    assert set(answer["NodeNameToMetaVictims"]) <= set(candidates)


TARGETS = (reviews, template_reviews, scheduler_bodies)
