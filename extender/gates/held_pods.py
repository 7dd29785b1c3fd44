"""The pods that our gate holds now, as a watch shows them: who they are, since when, and their documents.

It knows nothing of images. `gate_controller` decides about the pods, `image_waits` has them wait.
"""

import math
from collections.abc import Callable, Iterator, Set
from datetime import datetime

import msgspec

from extender.cluster.gated_pods import decode_stored_pod, is_held, is_held_by_others, is_labelled
from extender.kubernetes.core_v1 import PodReference, StoredPod
from extender.turns import Slots

# A pod that is older than its limit when first seen, or when other gates leave it, is still looked up for so long.
NEW_SECONDS = 10.0

# Of the documents that are kept, and of those of one namespace: 20,000 usual pods of 3 KB. A pod beyond that is read
# again when its turn comes.
_DOCUMENT_BYTES, _DOCUMENT_BYTES_EACH = 64 << 20, 32 << 20
_LATE_SECONDS = 30.0  # of age: a pod that a list shows then, and no watch before, more than clocks differ by


class HeldPod(msgspec.Struct, eq=False):
    """A gated pod: since when it is held, and until when at most. `key` is that by which the watch names it.

    One that lacks the label is shown by no watch. `document` is empty if it must be read again. `last_event` is the
    text of the last event about the pod. `removing_since` is when the first request was sent that is to remove its
    gate; None if none is due. `is_refused`: the API server understood the last request that failed, and is against
    it.
    """

    key: str
    reference: PodReference
    since: float
    expires_at: float
    version: str = ""
    is_labelled: bool = True
    document: bytes = b""
    is_refused: bool = False
    removing_since: float | None = None
    failures: int = 0
    last_event: str = ""
    events: int = 0

    @property
    def namespace(self) -> str:
        """The namespace, which is the tenant of what the pod costs."""
        return self.reference.namespace


class HeldPods:
    """The held pods by their keys. A `Handler` for the watch of `HELD_PODS`.

    `on_change` is called with each pod that is new or has changed, `on_gone` with each that is held no more or not by
    us. A pod's gate goes `limit_seconds` after its creation at the latest, unless other gates hold it too. `is_live`:
    the watch shows pods as they are made. `clock` gives monotonic seconds, `wall_clock` those since 1970.
    """

    def __init__(
        self,
        on_change: Callable[[HeldPod], None],
        on_gone: Callable[[HeldPod], None],
        *,
        is_live: Callable[[], bool],
        limit_seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._is_live = is_live
        self._on_change = on_change
        self._on_gone = on_gone
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._documents = Slots(_DOCUMENT_BYTES, _DOCUMENT_BYTES_EACH)
        self._pods: dict[str, HeldPod] = {}
        self._is_synced = False
        self.were_late = False
        """Whether a list has shown a pod that the watch before should have shown long ago."""

    def __len__(self) -> int:
        """How many pods are held."""
        return len(self._pods)

    def __iter__(self) -> Iterator[HeldPod]:
        return iter(self._pods.values())

    def __contains__(self, pod: HeldPod) -> bool:
        """Whether this very pod is held, and not only one of its name."""
        return self._pods.get(pod.key) is pod

    def upsert(self, document: msgspec.Raw) -> None:
        """Adds or updates a pod. Raises ClusterError if it is none."""
        stored = decode_stored_pod(document)
        self.were_late |= self._is_synced and stored.key not in self._pods and self._age_seconds(stored) > _LATE_SECONDS
        self.update(stored, document)

    def delete(self, key: str) -> None:
        """Forgets the pod: it is gone, or nothing of ours holds it any more."""
        pod = self._pods.get(key)
        if pod:
            self.forget(pod)

    def keep_only(self, keys: Set[str]) -> None:
        """Forgets all pods that the watch has shown but these."""
        self._keep(keys, is_labelled=True)
        self._is_synced = True

    def add_unlabelled(self, stored: StoredPod, document: bytes | msgspec.Raw) -> None:
        """Adds or updates a pod that a search has found. One that has its label again is left to the watch."""
        pod = self._pods.get(stored.key)
        if not (pod and pod.is_labelled):
            self.update(stored, document)

    def keep_unlabelled(self, keys: Set[str]) -> None:
        """Forgets all pods that only a search has found but these: no watch shows that they are held no more."""
        self._keep(keys, is_labelled=False)

    def _keep(self, keys: Set[str], *, is_labelled: bool) -> None:
        for pod in [each for each in self if each.is_labelled == is_labelled and each.key not in keys]:
            self.forget(pod)

    def forget(self, pod: HeldPod) -> None:
        """Forgets this very pod, if it is held."""
        if pod in self:
            del self._pods[pod.key]
            self.drop_document(pod)
            self._on_gone(pod)

    def update(self, stored: StoredPod, document: bytes | msgspec.Raw) -> None:
        """Adds or updates a pod, of which `document` has everything; forgets it if our gate holds it no more."""
        pod = self._pods.get(stored.key)
        if pod and (pod.reference.uid != stored.metadata.uid or not is_held(stored)):
            self.forget(pod)
            pod = None
        if not is_held(stored) or (pod and pod.version == stored.metadata.resource_version):
            return
        if pod is None:
            pod = self._pods[stored.key] = self._new_pod(stored)
        self.store(pod, stored, document)
        self._on_change(pod)

    def store(self, pod: HeldPod, stored: StoredPod, document: bytes | msgspec.Raw) -> None:
        """Keeps the pod's version, and its document unless the namespace has spent its share."""
        self.drop_document(pod)
        pod.version, pod.is_labelled = stored.metadata.resource_version, is_labelled(stored)
        if is_held_by_others(stored):
            pod.expires_at = math.inf
        elif pod.expires_at == math.inf:
            pod.expires_at = self._expiry(pod.since)
        kept = bytes(document)
        if self._documents.take(pod.namespace, len(kept)):
            pod.document = kept

    def drop_document(self, pod: HeldPod) -> None:
        """Drops the pod's document: the next worker that has the pod reads it again."""
        if pod.document:
            self._documents.give_back(pod.namespace, len(pod.document))
        pod.document = b""

    def oldest_seconds(self) -> float:
        """How long the oldest held pod has been held; 0 if there is none."""
        now = self._clock()
        return now - min((pod.since for pod in self), default=now)

    def _new_pod(self, stored: StoredPod) -> HeldPod:
        since = self._clock() - self._age_seconds(stored)
        reference = PodReference(stored.metadata.namespace, stored.metadata.name, stored.metadata.uid)
        return HeldPod(stored.key, reference, since, self._expiry(since))

    def _age_seconds(self, stored: StoredPod) -> float:
        """The age of a pod that is seen for the first time.

        It counts from the creation where the pod may be older than our watch. Else the pod is new, as clocks differ.
        """
        created_at = math.inf if self._is_live() else _seconds_of(stored.metadata.creation_timestamp)
        return max(0.0, self._wall_clock() - created_at)

    def _expiry(self, since: float) -> float:
        """When the limit of a pod is over that is held since then, and by our gate alone since now."""
        return max(since + self._limit_seconds, self._clock() + min(NEW_SECONDS, self._limit_seconds))


def _seconds_of(time: str) -> float:
    """The time in seconds since 1970; one that is far ahead if it is no time."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError):
        return math.inf
