"""The webhook: from an AdmissionReview to the response, which allows unless the operator has impossible pods refused.

A review of a new pod gathers what is known of it, decides, and encodes. This file says when to wait and for how long,
for templates too (`workload_admission`); `placement.mutation` decides how the pod is changed. A review of an update
gives back what was added to the pod (`placement.restoring`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import structlog

from extender.admission.daemon_pods import DaemonPods
from extender.errors import UNDECODABLE
from extender.images.content import Answer
from extender.kubernetes.admission_v1 import (
    AdmissionRequest,
    AdmissionReview,
    decode_review,
    encode_response,
    is_pod_creation,
    is_pod_update,
)
from extender.kubernetes.core_v1 import CreatedPod, NodeName
from extender.metrics import counter
from extender.placement.annotations import Mode
from extender.placement.bounds import POD_BYTES
from extender.placement.facts import facts_of, is_unresolved
from extender.placement.gate import UnknownImages
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.mutation_key import MutationKey, mutation_key
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.reasons import NAME_CHARACTERS, left_text, shorten, shown_reference
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.restoring import restore
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.server.routes import Reply, after_answer
from extender.tables import remembered
from extender.turns import Slots

# Reviews of one webhook that wait for lookups, and those of one tenant. Each holds a connection of the API server,
# which has some 600 requests that change something under way. One beyond that is answered from memory, while its
# lookups go on.
_WAITING, _WAITING_EACH = 1_000, 250
# Pods of one template get the same, and a cluster creates those of few templates at a time. A row takes 3 KB, and 7 KB
# at most in key and value together, so the table takes 7 MB if an author fills it.
_MOST_MUTATIONS = 1_024
_LISTED_SECONDS = 0.9  # for images that nodes have: then their lookups are overdue


log = structlog.get_logger()

_RESTORED, _SKIPPED, _UNREADABLE = "restored", "skipped", "unreadable"
ADMISSIONS = counter(
    "multiarch_admissions_total",
    "Reviews, by outcome; unresolved: an image was not known; restored: an update got back what was added; skipped: no "
    "creation of a pod.",
    "outcome",
    (*AdmissionOutcome, _RESTORED, _SKIPPED, _UNREADABLE),
)

_WOULD_BE = tuple(each for each in AdmissionOutcome if each not in ("observed", "ignored", "left_alone"))
OBSERVED_ADMISSIONS = counter(
    "multiarch_observed_admissions_total",
    "Pods under observe, by what would have happened to them.",
    "outcome",
    _WOULD_BE,
)

_POD = msgspec.json.Decoder(CreatedPod)
_TOO_LARGE = f"it takes more than {POD_BYTES // 1024} KiB"


class Gathered(NamedTuple):
    """What a review of a pod begins with: what to ask about its images, and its answer where these do not count.

    The images of a DaemonSet's pod count for the `node` alone for which its controller has made it.
    """

    question: PodQuestion
    skipped: Mutation | None = None
    node: NodeName | None = None


class PodAdmission:
    """Answers reviews of pods that are being created.

    Reviews are the API server's, so the pull secrets that a review's pod names may be read. One waits `wait_seconds` at
    most. `cluster_nodes` gives the cluster's nodes, none if no cluster is watched. `can_gate` says whether a gate
    controller provably removes gates at present; without one no pod is held. Without `daemon_pods` pods of DaemonSets
    are left alone.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        admission: AdmissionSettings,
        *,
        cluster_nodes: Callable[[], ClusterNodes],
        wait_seconds: float,
        can_gate: Callable[[], bool] = lambda: False,
        daemon_pods: DaemonPods | None = None,
    ) -> None:
        self._pod_resolver = pod_resolver
        self._mutator = mutator = Mutator(pod_resolver.policy, admission)
        self._mutate: Callable[[MutationKey], Mutation] = remembered(
            lambda key: key.mutation(mutator), rows=_MOST_MUTATIONS, is_kept=MutationKey.is_small_with
        )
        self._holds = admission.gate.unknown is UnknownImages.GATE
        self._waiting = Slots(_WAITING, _WAITING_EACH)
        self._cluster_nodes = cluster_nodes
        self._wait_seconds = wait_seconds
        self._can_gate = can_gate
        self._daemon_pods = daemon_pods

    async def review(self, body: bytes) -> Reply:
        """The AdmissionReview with the response to the one in `body`. Raises InvalidRequest."""
        review = decode_review(body)
        request = review.request
        if is_pod_update(request):
            return _restored(review)
        if not is_pod_creation(request):
            ADMISSIONS[_SKIPPED].inc()
            return Reply(encode_response(review))
        if len(request.object) > POD_BYTES:
            ADMISSIONS[AdmissionOutcome.EXEMPT].inc()
            verdict = {"verdict": f"left alone: {_TOO_LARGE}"}
            return Reply(encode_response(review, warnings=[left_text(_TOO_LARGE)], audit_annotations=verdict))
        try:
            pod = _POD.decode(request.object)
            mutation = await self._decide(pod, request)
        except UNDECODABLE as exc:
            ADMISSIONS[_UNREADABLE].inc()
            return unreadable(review, exc)
        if mutation.unresolved:
            after_answer(_log_unresolved, request.namespace, pod, mutation)
        if mutation.would_be and not request.dry_run:
            OBSERVED_ADMISSIONS[mutation.would_be].inc()
        ADMISSIONS[mutation.outcome].inc()
        return Reply(
            encode_response(
                review,
                patch=mutation.patch,
                warnings=mutation.warnings,
                audit_annotations=mutation.audit_annotations,
                refusal=mutation.refusal,
            )
        )

    @staticmethod
    def fallback(body: bytes, event_id: str) -> bytes:
        """A response that allows without a patch; the audit annotations have the event's id."""
        return encode_response(decode_review(body), audit_annotations={"internal-error": event_id})

    def gather(self, pod: CreatedPod, namespace: str, *, key: str = "") -> Gathered:
        """What to ask about the pod. Arguments are as in `annotations.overrides_of`.

        Without a namespace, as a template may be, its pull secrets are not read: its pods will be elsewhere.
        """
        overrides = self._pod_resolver.overrides_of(pod, namespace, key)
        question = self._pod_resolver.question(pod, namespace, overrides, may_read=bool(namespace))
        skipped = self._mutator.skip(pod, overrides)
        if skipped and skipped.outcome is AdmissionOutcome.EXEMPT and self._daemon_pods:
            return Gathered(question, skipped, self._daemon_pods.node_of(pod))
        return Gathered(question, skipped)

    async def resolve(self, question: PodQuestion, most_seconds: float = math.inf) -> list[Answer]:
        """One answer per image: at once if all are fresh, or if too many reviews of the tenant wait already.

        Nobody waits for what is only observed.
        """
        tenant = question.keyring.tenant
        may_wait = question.overrides.mode is Mode.ENFORCE and self._waiting.take(tenant)
        try:
            wait_seconds = min(self._wait_seconds, most_seconds) if may_wait else 0.0
            # What is written stays in the object even if the image's tag moves, so a stale answer is confirmed first.
            return await self._pod_resolver.resolve(question, wait_seconds, revalidate=True)
        finally:
            if may_wait:
                self._waiting.give_back(tenant)

    async def _decide(self, pod: CreatedPod, request: AdmissionRequest) -> Mutation:
        """What happens to the pod. Raises msgspec.ValidationError and others for a pod that cannot be read."""
        question, skipped, node = self.gather(pod, request.namespace or "", key=request.uid)
        if skipped and self._daemon_pods and node:
            facts = facts_of(question.images, await self.resolve(question), may_be_pending=True)
            return await self._daemon_pods.decide(pod, request, node, question, facts) or skipped
        if skipped:
            return skipped
        nodes = self._cluster_nodes()
        is_listed = all(map(nodes.images.lists, question.images))
        answers = await self.resolve(question, _LISTED_SECONDS if is_listed else math.inf)
        facts = facts_of(question.images, answers, may_be_pending=True, lists=nodes.images.lists)
        may_hold = self._holds and any(map(is_unresolved, facts)) and self._can_gate()
        resolved = ResolvedPod(pod, question.images, facts, question.overrides, nodes)
        return self._mutate(mutation_key(resolved, may_hold=may_hold))


def _restored(review: AdmissionReview) -> Reply:
    """The response to an update, which gets back what was added to the pod and it lacks. Needs no lookup."""
    request = review.request
    if len(request.object) > POD_BYTES or len(request.old_object) > POD_BYTES:
        return Reply(encode_response(review))
    try:
        operations = restore(_POD.decode(request.object), _POD.decode(request.old_object))
    except UNDECODABLE as exc:
        ADMISSIONS[_UNREADABLE].inc()
        return unreadable(review, exc)
    ADMISSIONS[_RESTORED if operations else _SKIPPED].inc()
    if not operations:
        return Reply(encode_response(review))
    patch = msgspec.json.encode(operations)
    return Reply(encode_response(review, patch=patch, audit_annotations={"verdict": "given back what was added"}))


def unreadable(review: AdmissionReview, exc: Exception) -> Reply:
    """Allows a pod that cannot be decoded, with a warning: the API server validates pods, we do not."""
    log.warning("pod.unreadable", namespace=review.request.namespace, why=str(exc))
    return Reply(encode_response(review, warnings=[f"multiarch-extender cannot read this pod: {exc}"]))


def _log_unresolved(namespace: str | None, pod: CreatedPod, mutation: Mutation) -> None:
    metadata = pod.metadata
    image, fact = mutation.unresolved[0]
    log.warning(
        "pod.admitted_unresolved",
        namespace=namespace,
        pod=shorten((metadata and (metadata.name or metadata.generate_name)) or "", NAME_CHARACTERS),
        image=shown_reference(image.reference),
        cause=fact.cause,
        why=mutation.reason,
    )
