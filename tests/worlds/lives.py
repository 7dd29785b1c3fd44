"""The life of each pod of a world, as the API server shows it, and what its author had sent."""

import contextvars
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from tests.worlds.api_server import ApiServer
from tests.worlds.plan import Manifest
from tests.worlds.truth import ADDED, annotation, is_gated, other_gates, references


class Sent(NamedTuple):
    """An object as somebody sent it, and when."""

    manifest: Manifest
    at: float
    user: str


SENDING: contextvars.ContextVar[Sent | None] = contextvars.ContextVar("sending", default=None)
"""What the running task sends to the API server. Subscribers are called in it."""


def copied(manifest: Manifest) -> Manifest:
    """A copy that shares nothing."""
    found: Manifest = msgspec.json.decode(msgspec.json.encode(manifest))
    return found


class Life:
    """A pod from its creation on: what was sent, what was stored at first, and what is stored now."""

    def __init__(self, pod: Manifest, sent: Sent | None, at: float) -> None:
        self.uid = str(pod["metadata"]["uid"])
        self.sent = sent.manifest if sent else pod
        self.sent_at = sent.at if sent else at
        self.user = sent.user if sent else ""
        self.created_at = at
        self.first = pod
        self.pod = pod
        self.was_gated = is_gated(pod)
        self.ungated_at: float | None = None
        self.bound_at: float | None = None
        self.deleted_at: float | None = None
        self.alone_since = at if self.was_gated and not other_gates(pod) else math.inf
        """Since when our gate is the only one."""
        self.was_asked = False
        """Whether the service was asked about it: by a review or the gate's removal, else by a scheduler's filter."""
        self.was_known = False
        """Whether all its images were to be known at that time."""
        self.was_used = False
        """The same, and other pods had used them before."""
        self.is_restored = True
        """Whether it has been changed by nobody but controllers and us since it was made."""
        self.is_for_other_images = False
        """Whether an image was changed when no gate of ours let its node affinity follow."""

    @property
    def key(self) -> str:
        metadata = self.pod["metadata"]
        return f"{metadata['namespace']}/{metadata['name']}"

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"]["namespace"])

    @property
    def is_sent_with_ours(self) -> bool:
        """Whether it was sent with what we had added to its template or to its manifest, and with our record of it."""
        return bool(annotation(self.sent, ADDED))

    @property
    def is_there(self) -> bool:
        return self.deleted_at is None

    @property
    def is_held(self) -> bool:
        return self.is_there and is_gated(self.pod)


class Lives:
    """Every pod's life. Listeners are called with a life when it begins, loses our gate, or gets a node."""

    def __init__(self, api: ApiServer, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all: dict[str, Life] = {}
        self._by_name: dict[tuple[str, str], Life] = {}
        self.on_created: list[Callable[[Life], None]] = []
        self.on_ungated: list[Callable[[Life, Manifest], None]] = []
        self.on_bound: list[Callable[[Life], None]] = []
        api.subscribe("Pod", self._take)

    def __iter__(self) -> Iterator[Life]:
        return iter(self._all.values())

    def of(self, uid: str) -> Life | None:
        return self._all.get(uid)

    def named(self, namespace: str, name: str) -> Life | None:
        """The life of the pod that has, or had last, this name."""
        return self._by_name.get((namespace, name))

    def _take(self, kind: str, old: Manifest | None, new: Manifest | None) -> None:
        now = self._clock()
        if new is None:
            assert old is not None
            self._all[old["metadata"]["uid"]].deleted_at = now
            return
        if old is None:
            life = self._all[new["metadata"]["uid"]] = Life(new, SENDING.get(), now)
            self._by_name[new["metadata"]["namespace"], new["metadata"]["name"]] = life
            for created in self.on_created:
                created(life)
            return
        life = self._all[new["metadata"]["uid"]]
        life.pod = new
        life.is_for_other_images |= not is_gated(old) and references(old) != references(new)
        if is_gated(new) and not other_gates(new):
            life.alone_since = min(life.alone_since, now)
        if is_gated(old) and not is_gated(new):
            life.ungated_at = now
            for ungated in self.on_ungated:
                ungated(life, old)
        if not old["spec"].get("nodeName") and new["spec"].get("nodeName"):
            life.bound_at = now
            for bound in self.on_bound:
                bound(life)
        del kind
