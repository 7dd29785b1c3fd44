"""The scheduling gate that holds a pod until its images are known: its names, the operator's choices, who is held.

A held pod has the gate, which keeps schedulers from it, and a label by which the gate controller finds it. `mutation`
holds and lets go pods that are being created; `release` lets go of those that are stored.
"""

import enum
from collections.abc import Sequence
from typing import cast

import msgspec

from extender.images.content import LOCAL, RETRYABLE, Cause
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.bounds import TOUCHED_BYTES
from extender.placement.facts import ImageFact, Pending, PodImage, Unknown, is_unresolved
from extender.placement.patch import Json, JsonObject, look
from extender.placement.policy import PREFIX, REASON, UNKNOWN, Choice, Overrides

GATE = f"{PREFIX}platforms"
"""The name of the scheduling gate."""
GATED_LABEL = f"{PREFIX}gated"
"""The label of pods that have the gate; its value is `GATED`."""
GATED = "true"

GATES_PATH = ("spec", "schedulingGates")
LABELS_PATH = ("metadata", "labels")

# Only these end by waiting, by a correction of a secret, or by a push. An image of any other cause stays unknown.
_MAY_END = RETRYABLE | {Cause.DENIED, Cause.REFUSED}


def encode_ungating(uid: str | None) -> bytes:
    """The strategic merge patch that takes our gate, label and reason off the pod, and leaves everything else.

    It names no version, so it holds for the pod as it is by then. Of a key that is not there a null changes nothing.
    """
    metadata = {"uid": uid, "annotations": {REASON: None}, "labels": {GATED_LABEL: None}}
    return msgspec.json.encode(
        {"metadata": metadata, "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}}
    )


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
    PASS = "pass"  # noqa: S105  # a verb
    DENY = "deny"


class AfterGate(enum.StrEnum):
    """What to do about an image for which a pod is held no longer, though the image is not known."""

    PASS = "pass"  # noqa: S105  # a verb
    ASSUME = "assume"


CRITICAL_CLASSES = frozenset({"system-node-critical", "system-cluster-critical"})
"""The priority classes of what a cluster needs to run, this service and what it needs itself among them."""

Unresolved = tuple[PodImage, Pending | Unknown]
"""An image whose platforms are not known, with the fact that tells why."""


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's choices for images that are not known when a pod is created.

    `may_assume`: whether an assumption may be written, where the operator names platforms to assume. Pods of
    `exempt_classes` are not held.
    """

    unknown: UnknownImages = UnknownImages.PASS
    after: AfterGate = AfterGate.PASS
    may_assume: bool = True
    exempt_classes: frozenset[str] = CRITICAL_CLASSES

    def overrides_for(self, pod: CreatedPod, overrides: Overrides) -> Overrides:
        """The overrides of the pod, by which one of an exempt class is not held; `after` applies to it at once."""
        is_exempt = pod.spec is not None and pod.spec.priority_class_name in self.exempt_classes
        if not is_exempt or self.unknown is not UnknownImages.GATE or overrides.unknown in (Choice.PASS, Choice.ASSUME):
            return overrides
        return msgspec.structs.replace(overrides, unknown=Choice(self.after))

    def choose(self, fact: Pending | Unknown, overrides: Overrides, *, expired: bool = False) -> UnknownImages:
        """What to do about one image. Without anything to assume, `assume` passes.

        A pod or namespace overrides the operator's choice; its `retry` means `gate` if the operator's choice is `gate`,
        and nothing otherwise. No pod is held for an image that waiting cannot make known, or once its time has
        `expired`: `after` applies.
        """
        choice = self.unknown
        if overrides.unknown is not None and overrides.unknown is not Choice.RETRY:
            choice = UnknownImages(overrides.unknown)
        if choice is UnknownImages.GATE and (expired or fact.cause not in _MAY_END):
            choice = UnknownImages(self.after)
        return UnknownImages.PASS if choice is UnknownImages.ASSUME and not self.may_assume else choice


class Treatment(msgspec.Struct, frozen=True):
    """The images of one pod that are not known, by what is done about them."""

    held: tuple[Unresolved, ...] = ()
    assumed: tuple[Unresolved, ...] = ()
    passed: tuple[Unresolved, ...] = ()


_NOTHING_UNRESOLVED = Treatment()


def treat(
    images: Sequence[PodImage], facts: Sequence[ImageFact], overrides: Overrides, gate: GateSettings, *, expired: bool
) -> Treatment:
    """What is done about the unknown images of a pod; `facts` are those of `images`, in order.

    An image that is never pulled is not among them: only the node's own copy could tell its platforms.
    """
    if not any(map(is_unresolved, facts)):
        return _NOTHING_UNRESOLVED
    unresolved = [
        (image, fact)
        for image, fact in zip(images, facts, strict=True)
        if isinstance(fact, Pending | Unknown) and fact.cause not in LOCAL
    ]
    found: dict[UnknownImages, list[Unresolved]] = {choice: [] for choice in UnknownImages}
    for image, fact in unresolved:
        found[gate.choose(fact, overrides, expired=expired)].append((image, fact))
    return Treatment(
        tuple(found[UnknownImages.GATE]), tuple(found[UnknownImages.ASSUME]), tuple(found[UnknownImages.PASS])
    )


_GATES = msgspec.json.Decoder(list[dict[str, object]] | None)


def has_gate(pod: CreatedPod) -> bool:
    """Whether our gate holds the pod. The gates of others do not count, and nobody reads kilobytes of them."""
    raw = pod.spec.scheduling_gates if pod.spec else msgspec.UNSET
    if isinstance(raw, msgspec.UnsetType) or len(raw) > TOUCHED_BYTES:
        return False
    return any(gate.get("name") == GATE for gate in _GATES.decode(raw) or ())


def hold(document: JsonObject) -> None:
    """Gives the pod gate and label, in place; changes nothing if it has both. `document` holds the touched parts."""
    spec, metadata = cast("JsonObject", document["spec"]), document.get("metadata")
    gates = cast("list[Json] | None", spec.get("schedulingGates"))
    if not is_gated(document):
        spec["schedulingGates"] = [*(gates or ()), {"name": GATE}]
    if metadata is None:
        metadata = document["metadata"] = {}
    metadata = cast("JsonObject", metadata)
    labels = cast("JsonObject | None", metadata.get("labels"))
    metadata["labels"] = {**(labels or {}), GATED_LABEL: GATED}


def let_go(document: JsonObject) -> None:
    """Takes gate and label off a pod that has the gate, in place; the gates of others stay."""
    if not is_gated(document):
        return
    spec = cast("JsonObject", document["spec"])
    left = [gate for gate in cast("list[Json]", spec["schedulingGates"]) if not _is_ours(gate)]
    if left:
        spec["schedulingGates"] = left
    else:
        del spec["schedulingGates"]
    labels = look(document, LABELS_PATH)
    if isinstance(labels, dict):
        labels.pop(GATED_LABEL, None)


def is_gated(document: JsonObject) -> bool:
    """Whether our gate is among those in `document`."""
    gates = look(document, GATES_PATH)
    return isinstance(gates, list) and any(map(_is_ours, gates))


def _is_ours(gate: Json) -> bool:
    return isinstance(gate, dict) and gate.get("name") == GATE
