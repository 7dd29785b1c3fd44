"""The webhook that names the scheduler of pods and does nothing else, so that an outage of ours may refuse pods.

Its answers need no lookup and no secret. It is for clusters without MutatingAdmissionPolicy, with `failurePolicy: Fail`
in the namespaces that ask for the scheduler: without us a pod is refused there, and its controller tries again, instead
of leaving it to the default scheduler.
"""

import msgspec

from extender.admission.pod_admission import unreadable
from extender.errors import UNDECODABLE
from extender.kubernetes.admission_v1 import (
    decode_review,
    encode_response,
    is_pod_creation,
)
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.additions import DEFAULT_SCHEDULER
from extender.placement.mutation import untouched
from extender.placement.policy import Mode
from extender.resolver.pod_resolver import PodResolver
from extender.server.routes import Reply

_UNNAMED = frozenset(map(msgspec.json.encode, (None, "", DEFAULT_SCHEDULER)))
_POD = msgspec.json.Decoder(CreatedPod)


class SchedulerNaming:
    """Answers reviews of pods that are being created; with an empty `scheduler_name` it changes none."""

    def __init__(self, pod_resolver: PodResolver, scheduler_name: str) -> None:
        self._pod_resolver = pod_resolver
        self._patch = b""
        if scheduler_name:
            change = {"op": "add", "path": "/spec/schedulerName", "value": scheduler_name}
            self._patch = msgspec.json.encode([change])

    async def review(self, body: bytes) -> Reply:
        """The AdmissionReview with the response to the one in `body`. Raises InvalidRequest."""
        review = decode_review(body)
        if not self._patch or not is_pod_creation(review.request):
            return Reply(encode_response(review))
        namespace = review.request.namespace or ""
        try:
            pod = _POD.decode(review.request.object)
        except UNDECODABLE as exc:
            return unreadable(review, exc)
        overrides = self._pod_resolver.overrides_of(pod, namespace)  # of which only the mode counts here
        is_left = overrides.mode is not Mode.ENFORCE or untouched(pod, overrides, self._pod_resolver.policy) is not None
        if is_left or pod.spec is None or not _is_unnamed(pod.spec.scheduler_name):
            return Reply(encode_response(review))
        return Reply(encode_response(review, patch=self._patch))

    @staticmethod
    def fallback(body: bytes, event_id: str) -> bytes:
        """A response that refuses the pod, which would go to the default scheduler otherwise."""
        refusal = f"multiarch-extender cannot name the pod's scheduler, by a mistake of its own (log event {event_id})"
        return encode_response(decode_review(body), refusal=refusal)


def _is_unnamed(name: msgspec.Raw | msgspec.UnsetType) -> bool:
    """Whether a pod's schedulerName, as JSON, leaves it to the default scheduler."""
    return isinstance(name, msgspec.UnsetType) or bytes(name) in _UNNAMED
