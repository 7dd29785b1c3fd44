"""Says when the tag of an image in use has moved to content that runs elsewhere.

The cache reports each tag whose platforms have changed, when a registry has said so. Which pods use the image is
looked up then, by one list of the pods that have not finished: nothing is kept about pods, and nothing is added to a
request. A tenant that moves tags all the time fills its own part of a table, and lists follow each other with pauses
that are many times as long as a list takes. A pod counts only if its own credentials show it the new content.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence, Set
from typing import Literal, TypeVar

import msgspec
import structlog

from extender.cluster.client import ClusterClient
from extender.cluster.pod_events import PodEvents
from extender.cluster.views import PODS, WatchedNodes
from extender.cluster.workload_lists import WORKLOAD_KINDS, list_documents
from extender.credentials.keyring import CredentialId
from extender.drift.moved_tags import DriftChange, drift_text, gained_platforms, lost_platform
from extender.errors import UNDECODABLE, ClusterError
from extender.images.content import Evidence
from extender.images.platform import Platform
from extender.images.reference import PackedDigest
from extender.kubernetes.core_v1 import NodeName, PodReference
from extender.kubernetes.meta_v1 import OwnerReference, PartialObjectMetadata
from extender.kubernetes.reported_v1 import ReportedPod
from extender.metrics import counter
from extender.placement.facts import ImageFact, PodImage, fact_of, facts_of, images_of
from extender.placement.policy import is_ignored
from extender.placement.reasons import platforms_text
from extender.resolver.image_cache import CachedImage, MovedTag, Target
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.tables import ShareTable, declare_cache, text_cost

T = TypeVar("T")

log = structlog.get_logger()

_UNUSED, _UNCHECKED, _DROPPED = "unused", "unchecked", "dropped"
DRIFT = counter(
    "multiarch_image_drift_total",
    "Tags that moved to content with other platforms: lost, gained; unused: by no pod; "
    "unchecked: pods could not be listed; dropped: there were too many.",
    "change",
    (*DriftChange, _UNUSED, _UNCHECKED, _DROPPED),
)
_MOVED = declare_cache("drift.drift_watch.moved", key="repository, tag, credential id", rows=1000, most_mb=5)

UNFINISHED = "status.phase!=Succeeded,status.phase!=Failed"
SETTLE_SECONDS = 2.0  # for the tags that are refreshed at the same time, such as those of one release
PAUSE_SECONDS = 60.0
_PAUSES_PER_LIST = 20.0  # a list takes at most a twentieth of the time
_MOST_TEMPLATES, _MOST_TEMPLATES_EACH = 20_000, 1_000  # in all and of a namespace, 500 bytes each
_MOST_WORKLOADS = 1_000  # of one change
_MOST_EVENTS = 20  # workloads of one change that get an event, and whose owners are read
_MOST_LOGGED = 5
_AT_ONCE = 4  # templates whose images are looked up
_LOOKUP_SECONDS = 10.0  # for the images of one template

_POD = msgspec.json.Decoder(ReportedPod)
_OBJECT = msgspec.json.Decoder(PartialObjectMetadata)
_PATHS = {each.kind: each for each in WORKLOAD_KINDS}
_MAKERS = ("ReplicaSet", "Job")  # whose own owner people know
_EVENT_REASONS: Mapping[DriftChange, tuple[str, Literal["Normal", "Warning"]]] = {
    DriftChange.LOST: ("ImageLostPlatform", "Warning"),
    DriftChange.GAINED: ("ImageGainedPlatform", "Normal"),
}

_MovedKey = tuple[str, PackedDigest, CredentialId]
_DriftKey = tuple[str, PackedDigest, PackedDigest, PackedDigest]


class _Template(msgspec.Struct):
    """Pods with the same images and credentials: how many by owner and by the platform of their node."""

    question: PodQuestion
    namespace: str
    pods: Counter[tuple[PodReference, Platform | None]]


class _Concern(msgspec.Struct):
    """The pods of one owner that a change concerns, and the platforms that they lose or gain."""

    pods: int = 0
    platforms: frozenset[Platform] = frozenset()


class _Drift(msgspec.Struct):
    """A move of a tag, the credentials that saw it, and whom it concerns."""

    target: Target
    before: CachedImage
    after: CachedImage
    credential_ids: set[CredentialId]
    uses: dict[DriftChange, dict[PodReference, _Concern]]

    @property
    def image(self) -> str:
        """The image's canonical reference."""
        return str(self.target.reference)


class DriftWatch:
    """Follows the cache while `run` runs.

    `nodes` gives the platforms of the cluster's nodes. `events` is None if workloads get none. A change is seen when a
    pod asks for the tag.
    """

    def __init__(
        self,
        client: ClusterClient,
        pod_resolver: PodResolver,
        nodes: WatchedNodes,
        *,
        events: PodEvents | None,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._pod_resolver = pod_resolver
        self._nodes = nodes
        self._events = events
        self._clock = clock
        self._sleep = sleep
        self._moved: ShareTable[_MovedKey, MovedTag] = ShareTable(
            _MOVED.bound(),
            owner_of=lambda _, moved: moved.after.owner,
            cost_of=lambda key, _: text_cost(key[0], key[1]),
        )
        self._has_moved = asyncio.Event()

    def __len__(self) -> int:
        """How many moves wait to be looked into."""
        return len(self._moved)

    def note(self, moved: MovedTag) -> None:
        """Takes in a move of a tag. One that is taken back before pods were listed is forgotten."""
        key = (moved.target.repository, moved.target.name, moved.credential_id)
        earlier = self._moved.get(key)
        if earlier is not None:
            self._moved.remove(key)
            moved = msgspec.structs.replace(moved, before=earlier.before)
        if moved.before.content.platforms == moved.after.content.platforms:
            return
        number = len(self._moved)
        self._moved.put(key, moved)
        DRIFT[_DROPPED].inc(number + 1 - len(self._moved))
        self._has_moved.set()

    async def run(self) -> None:
        """Reports changes until cancelled."""
        cache = self._pod_resolver.resolver.cache
        cache.report_moves(self.note)
        try:
            await self._follow()
        finally:
            cache.report_moves(None)

    async def _follow(self) -> None:
        while True:
            await self._has_moved.wait()
            await self._sleep(SETTLE_SECONDS)
            self._has_moved.clear()
            started, drifts = self._clock(), self._take()
            if drifts:
                await self._look(drifts)
                await self._sleep(max(PAUSE_SECONDS, (self._clock() - started) * _PAUSES_PER_LIST))

    def _take(self) -> list[_Drift]:
        """What has moved since the last call; moves that several credentials saw are one."""
        found: dict[_DriftKey, _Drift] = {}
        for key, moved in list(self._moved.items()):
            self._moved.remove(key)
            target = moved.target
            same = (target.repository, target.name, moved.before.packed, moved.after.packed)
            drift = found.setdefault(same, _Drift(target, moved.before, moved.after, set(), {}))
            drift.credential_ids.add(moved.credential_id)
        return list(found.values())

    async def _look(self, drifts: Sequence[_Drift]) -> None:
        """Finds whom the changes concern, and reports them."""
        try:
            templates = await self._templates({(each.target.repository, each.target.name) for each in drifts})
            await self._side_by_side(templates, lambda each: self._judge(each, drifts))
            for drift in drifts:
                await self._conclude(drift)
        except ClusterError as exc:
            DRIFT[_UNCHECKED].inc(len(drifts))
            log.warning("image.drift_unchecked", images=len(drifts), first=drifts[0].image, why=str(exc))
        except Exception:
            DRIFT[_UNCHECKED].inc(len(drifts))
            log.exception("image.drift_failed", images=len(drifts), first=drifts[0].image)

    async def _conclude(self, drift: _Drift) -> None:
        """Counts the change, and reports it if it concerns somebody."""
        if not drift.uses:
            DRIFT[_UNUSED].inc()
        for change, uses in drift.uses.items():
            _log(drift, change, uses)
            if self._events:
                await self._send_events(self._events, drift, change, uses)

    async def _templates(self, wanted: Set[tuple[str, PackedDigest]]) -> list[_Template]:
        """The pods that have not finished and use one of these names. Raises ClusterError."""
        found: dict[Hashable, _Template] = {}
        of_namespace = Counter[str]()
        async for document in list_documents(self._client, PODS, {"fieldSelector": UNFINISHED}):
            pod = _decode(_POD, document)
            namespace = pod.metadata.namespace or ""
            overrides = self._pod_resolver.overrides_of(pod, namespace)
            if is_ignored(pod.spec, overrides, self._pod_resolver.policy):
                continue
            if not self._is_wanted(pod, wanted):
                continue
            question = self._pod_resolver.question(pod, namespace, overrides, may_read=True)
            key = (question.images, question.keyring.identity, namespace)
            template = found.get(key)
            if template is None:
                if of_namespace[namespace] >= _MOST_TEMPLATES_EACH or len(found) >= _MOST_TEMPLATES:
                    continue
                of_namespace[namespace] += 1
                template = found[key] = _Template(question, namespace, Counter())
            template.pods[_owner_of(pod, namespace), self._platform_of(pod)] += 1
        return list(found.values())

    def _is_wanted(self, pod: ReportedPod, wanted: Set[tuple[str, PackedDigest]]) -> bool:
        targets = map(self._target_of, images_of(pod))
        return any(target and (target.repository, target.name) in wanted for target in targets)

    def _target_of(self, image: PodImage) -> Target | None:
        target = self._pod_resolver.resolver.cache.references.target_of(image.reference)
        return target if isinstance(target, Target) else None

    def _platform_of(self, pod: ReportedPod) -> Platform | None:
        name = pod.spec.node_name or ""
        return self._nodes.platforms.get(NodeName(name)) if name else None

    async def _side_by_side(self, templates: Sequence[_Template], work: Callable[[_Template], Awaitable[None]]) -> None:
        waiting = iter(templates)

        async def worker() -> None:
            for template in waiting:
                await work(template)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_AT_ONCE, len(templates))):
                tasks.create_task(worker())

    async def _judge(self, template: _Template, drifts: Sequence[_Drift]) -> None:
        """Adds the template's pods to the changes that concern them."""
        question = template.question
        await self._pod_resolver.resolve(question, _LOOKUP_SECONDS)
        evidence = self._pod_resolver.evidence(question)
        after = facts_of(question.images, [each.answer for each in evidence], may_be_pending=False)
        for drift in drifts:
            before = [
                fact_of(image, drift.before.content, may_be_pending=False) if self._shows(image, each, drift, question)
                else fact
                for image, each, fact in zip(question.images, evidence, after, strict=True)
            ]  # fmt: skip
            if before != after:
                self._count(template, drift, before, after)

    def _shows(self, image: PodImage, evidence: Evidence, drift: _Drift, question: PodQuestion) -> bool:
        """Whether the pod uses the image, and its own credentials show what the tag has become and was."""
        target = self._target_of(image)
        return (
            target is not None
            and (target.repository, target.name) == (drift.target.repository, drift.target.name)
            and evidence.digest == drift.after.digest
            and not drift.credential_ids.isdisjoint(question.keyring.credential_ids_for(target.reference))
        )

    def _count(
        self, template: _Template, drift: _Drift, before: Sequence[ImageFact], after: Sequence[ImageFact]
    ) -> None:
        compatibility = self._pod_resolver.policy.compatibility
        changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
        cluster = self._nodes.platforms.distinct if self._nodes.synced else frozenset[Platform]()
        gained = gained_platforms(before, after, cluster, compatibility)
        for (owner, node), pods in template.pods.items():
            lost = {lost_platform(old, new, node, compatibility) for old, new in changed} - {None}
            for change, platforms in ((DriftChange.LOST, lost), (DriftChange.GAINED, gained)):
                uses = drift.uses.setdefault(change, {}) if platforms else {}
                if platforms and (owner in uses or len(uses) < _MOST_WORKLOADS):
                    use = uses.setdefault(owner, _Concern())
                    use.pods += pods
                    use.platforms |= {platform for platform in platforms if platform}

    async def _send_events(
        self, events: PodEvents, drift: _Drift, change: DriftChange, uses: Mapping[PodReference, _Concern]
    ) -> None:
        """Sends an event to each workload, and none twice to one whose pods have several owners."""
        reason, kind = _EVENT_REASONS[change]
        by_workload: dict[PodReference, frozenset[Platform]] = {}
        for owner, use in list(uses.items())[:_MOST_EVENTS]:
            top = await self._top_of(owner)
            by_workload[top] = by_workload.get(top, frozenset()) | use.platforms
        for top, platforms in by_workload.items():
            text = drift_text(change, drift.image, platforms, f"{drift.target.repository}@{drift.before.digest}")
            events.record(top, reason, text, kind, once=f"{drift.image} {change} {drift.after.digest}")

    async def _top_of(self, owner: PodReference) -> PodReference:
        """The Deployment of a ReplicaSet or the CronJob of a Job, if there is one and we may know it."""
        if owner.kind not in _MAKERS:
            return owner
        try:
            raw = await self._client.get(f"{_PATHS[owner.kind].path(owner.namespace)}/{owner.name}")
            above = _controller(_decode(_OBJECT, raw).metadata.owner_references)
        except ClusterError:
            return owner
        return _reference(above, owner.namespace) if above else owner


def _log(drift: _Drift, change: DriftChange, uses: Mapping[PodReference, _Concern]) -> None:
    DRIFT[change].inc()
    platforms = sorted(frozenset[Platform]().union(*(use.platforms for use in uses.values())))
    workloads = [f"{owner.namespace}/{owner.kind}/{owner.name}" for owner in list(uses)[:_MOST_LOGGED]]
    fields = {
        "image": drift.image,
        "change": change.value,
        "platforms": platforms_text(platforms),
        "digest_before": drift.before.digest,
        "digest": drift.after.digest,
        "pods": sum(use.pods for use in uses.values()),
        "workloads": workloads,
        "more": len(uses) - len(workloads),
    }
    if change is DriftChange.LOST:
        log.warning("image.drifted", **fields)
    else:
        log.info("image.drifted", **fields)


def _owner_of(pod: ReportedPod, namespace: str) -> PodReference:
    """The pod's controller; the pod itself, if it has none."""
    owner = _controller(pod.metadata.owner_references)
    if owner:
        return _reference(owner, namespace)
    return PodReference(namespace, pod.metadata.name or "", pod.metadata.uid or "")


def _controller(owners: Sequence[OwnerReference] | None) -> OwnerReference | None:
    return next((owner for owner in owners or () if owner.controller), None)


def _reference(owner: OwnerReference, namespace: str) -> PodReference:
    return PodReference(namespace, owner.name, owner.uid, owner.api_version, owner.kind)


def _decode(decoder: msgspec.json.Decoder[T], document: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(document)
    except UNDECODABLE as exc:
        raise ClusterError(f"the API server's answer is malformed: {exc}") from exc
