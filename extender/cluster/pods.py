"""The pods that no scheduler has placed yet: each is announced as it appears or changes, and none is kept.

Knows which pods those are; what is done about them is the caller's business.
"""

from collections.abc import Callable, Set

import msgspec

from extender.cluster.listwatch import Resource
from extender.kubernetes.core_v1 import Pod

# Both fields are among those the API server can select pods by (pkg/apis/core/v1/conversion.go), and it indexes the
# first. A pod that is bound leaves the selection, which the watch reports as its deletion.
PENDING_PODS = Resource(name="pods", path="/api/v1/pods", field_selector="spec.nodeName=,status.phase=Pending")

_POD = msgspec.json.Decoder(Pod)


class PendingPods:
    """A `Handler` for the watch of `PENDING_PODS`: calls `on_pending_pod` for each pod, and again when it changes.

    `on_pending_pod` must be quick and must not block: the watch waits for it.
    """

    def __init__(self, on_pending_pod: Callable[[Pod], None]) -> None:
        self._on_pending_pod = on_pending_pod
        self.synced = False

    def upsert(self, document: msgspec.Raw) -> None:
        """Announces the pod.

        Raises:
            msgspec.ValidationError: a field that is read has another type than core/v1 gives it.
        """
        self._on_pending_pod(_POD.decode(document))

    def delete(self, name: str) -> None:
        """Bound, ended or deleted: nothing is held that could be dropped."""

    def keep_only(self, names: Set[str]) -> None:  # noqa: ARG002  # the protocol's, and nothing is held
        """All pending pods have been announced once."""
        self.synced = True
