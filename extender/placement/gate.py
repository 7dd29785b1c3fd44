"""The scheduling gate that holds a pod until its images are known: its names, and the operator's choices.

A held pod has the gate, which keeps schedulers from it, and a label by which the gate controller finds it. `mutation`
adds both to pods that are being created or removes them; `ungating` removes them from those that are stored.
"""

import enum

import msgspec

from extender.images.content import RETRYABLE, Cause
from extender.kubernetes.documents import Json, JsonObject, list_at, map_at, put, value_at, without
from extender.placement.annotations import REASON, UNKNOWN, Choice, Overrides
from extender.placement.facts import Pending, PodImage, Unknown
from extender.placement.nodes import PREFIX

GATE = f"{PREFIX}platforms"
"""The name of the scheduling gate."""
GATED_LABEL = f"{PREFIX}gated"
"""The label of pods that have the gate; its value is `GATED`."""
GATED = "true"
PROBE_LABEL = f"{PREFIX}probe"
"""The label of dry runs that show whether the API server's policy holds pods. A review leaves the gate on them."""

GATES_PATH = ("spec", "schedulingGates")
LABELS_PATH = ("metadata", "labels")

# Only these end by waiting, by a correction of a secret, or by a push. An image of any other cause stays unknown.
_MAY_END = RETRYABLE | {Cause.DENIED, Cause.REFUSED}


_NO_REASON: JsonObject = {REASON: None}


def encode_ungating(
    uid: str | None,
    *,
    version: str | None = None,
    annotations: JsonObject = _NO_REASON,
    spec: "JsonObject | None" = None,
) -> bytes:
    """The strategic merge patch that takes our gate and label off the pod, and the reason if nothing else is given.

    Without a version it holds for the pod as it is by then. It changes these annotations and these parts of the spec,
    and leaves everything else. Of a key that is not there a null changes nothing.
    """
    metadata: JsonObject = {"uid": uid, "labels": {GATED_LABEL: None}}
    if version is not None:
        metadata["resourceVersion"] = version
    if annotations:
        metadata["annotations"] = annotations
    gates: list[Json] = [{"$patch": "delete", "name": GATE}]
    return msgspec.json.encode({"metadata": metadata, "spec": {**(spec or {}), "schedulingGates": gates}})


def encode_passing(uid: str | None) -> bytes:
    """The merge patch by which a pod is held no longer for images that are not known, as its author could have it."""
    return msgspec.json.encode({"metadata": {"uid": uid, "annotations": {UNKNOWN: Choice.PASS}}})


class UnknownImages(enum.StrEnum):
    """What to do with a pod that is being created while an image of it is not known."""

    PASS = "pass"  # noqa: S105  # a verb
    GATE = "gate"
    ASSUME = "assume"


class ImpossiblePods(enum.StrEnum):
    """What to do with a pod for which no node can be right."""

    PEND = "pend"
    DENY = "deny"


class AfterGate(enum.StrEnum):
    """What to do about an image for which a pod is held no longer, though the image is not known."""

    PASS = "pass"  # noqa: S105  # a verb
    ASSUME = "assume"


CRITICAL_CLASSES = frozenset({"system-node-critical", "system-cluster-critical"})
"""The priority classes of what a cluster needs to run, this service and what it needs itself among them."""

Unresolved = tuple[PodImage, Pending | Unknown]
"""An image whose platforms are not known, with the fact that says why."""


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's choices for images that are not known when a pod is created.

    Pods of `exempt_classes` are not held.
    """

    unknown: UnknownImages = UnknownImages.PASS
    after: AfterGate = AfterGate.PASS
    exempt_classes: frozenset[str] = CRITICAL_CLASSES

    def choose(
        self, fact: Pending | Unknown, overrides: Overrides, *, expired: bool, can_assume: bool
    ) -> UnknownImages:
        """What to do about one image. Unless one `can_assume` something, `assume` passes.

        A pod or namespace overrides the operator's choice; its `retry` means `gate` if the operator's choice is `gate`,
        and nothing otherwise. No pod is held for an image that waiting cannot make known, or once its time has
        `expired`: `after` applies.
        """
        choice = self.unknown
        if overrides.unknown is not None and overrides.unknown is not Choice.RETRY:
            choice = UnknownImages(overrides.unknown)
        if choice is UnknownImages.GATE and (expired or fact.cause not in _MAY_END):
            choice = UnknownImages(self.after)
        return UnknownImages.PASS if choice is UnknownImages.ASSUME and not can_assume else choice


def add_gate(document: JsonObject) -> JsonObject:
    """The touched parts of a pod with gate and label."""
    if not is_gated(document):
        document = put(document, GATES_PATH, [*list_at(document, *GATES_PATH), {"name": GATE}])
    return put(document, LABELS_PATH, {**map_at(document, *LABELS_PATH), GATED_LABEL: GATED})


def remove_gate(document: JsonObject) -> JsonObject:
    """The touched parts of a pod without gate and label, if it has the gate; the gates of others stay."""
    if not is_gated(document):
        return document
    left = [gate for gate in list_at(document, *GATES_PATH) if not _is_ours(gate)]
    return without(put(document, GATES_PATH, left), *LABELS_PATH, GATED_LABEL)


def is_gated(document: JsonObject) -> bool:
    """Whether our gate is among those in `document`."""
    gates = value_at(document, *GATES_PATH)
    return isinstance(gates, list) and any(map(_is_ours, gates))


def _is_ours(gate: Json) -> bool:
    return isinstance(gate, dict) and gate.get("name") == GATE
