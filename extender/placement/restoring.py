"""What an update of a pod is to get back: what was added to the pod at its creation, and the update lacks.

Whoever applies a manifest again replaces whole lists, and nobody may change those of a pod that exists: without what
was added, the API server would refuse the update. So the update gets the values of the stored pod. What the author has
changed stays as it is, for the API server to judge. No image is looked up, and no setting counts.
"""

import msgspec

from extender.kubernetes.core_v1 import CreatedPod
from extender.kubernetes.documents import Json, JsonObject, list_at, map_at, pruned, put, value_at, without
from extender.placement.additions import ADDED_PATH, ANNOTATIONS_PATH, read_record, take_back
from extender.placement.annotations import SERVICE_KEYS
from extender.placement.gate import is_gated
from extender.placement.mutation import read_parts
from extender.placement.patch import Operation, diff

_TOLERATIONS = "tolerations"


def restore(pod: CreatedPod, stored: CreatedPod) -> list[Operation]:
    """The operations that give `pod`, which is to replace the `stored` one, what was added to that one.

    None where nothing lacks, where nothing is recorded, and where the update writes a record of its own, as the gate
    controller's does. An update that removes our gate and changes nothing else of the spec is the controller's too, and
    may take the record away.
    """
    (before, why_left), (held, held_why_left) = read_parts(pod, ()), read_parts(stored, ())
    text, record = value_at(held, *ADDED_PATH), read_record(value_at(held, *ADDED_PATH))
    if why_left or held_why_left or record is None or value_at(before, *ADDED_PATH) not in (None, text):
        return []
    scheduler_name = str(value_at(held, "spec", "schedulerName") or "")
    own, there = take_back(before, record, record.tolerations, scheduler_name)
    own_held, added = take_back(held, record, record.tolerations, scheduler_name)
    spec = map_at(before, "spec")
    for part in (_TOLERATIONS, "affinity", "schedulerName"):
        if _own(own, part) == _own(own_held, part):
            value = value_at(held, "spec", part)
            spec = without(spec, part) if value is None else {**spec, part: value}
        elif part == _TOLERATIONS:  # an author may add some
            lacking = [each for each in added.tolerations if each not in there.tolerations]
            spec = {**spec, part: [*list_at(spec, part), *msgspec.to_builtins(lacking)]}
    if spec == before["spec"] and is_gated(held) and not is_gated(before):
        return []
    annotations = map_at(held, *ANNOTATIONS_PATH)
    lost = {key: annotations[key] for key in SERVICE_KEYS if key in annotations}
    after = put(before, ANNOTATIONS_PATH, lost | map_at(before, *ANNOTATIONS_PATH))
    return diff(before, {**after, "spec": spec})


def _own(document: JsonObject, part: str) -> Json:
    """What the author has written there; None for nothing, however that is written."""
    return pruned(value_at(document, "spec", part)) or None
