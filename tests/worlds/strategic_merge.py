"""Strategic merge patches: how one applies, and the one that `kubectl apply` sends.

Sources: k8s.io/apimachinery/pkg/util/strategicpatch/patch.go (StrategicMergePatch, CreateThreeWayMergePatch), and the
tags patchStrategy and patchMergeKey of k8s.io/api. Lists that are not named here are atomic, tolerations and
nodeSelectorTerms among them. Limits: a list's merge key goes by the field's name alone; of directives there are
`$patch: delete` and `$patch: replace`, and `$setElementOrder` is ignored: what is new stands at the end.
"""

from typing import Any

from tests.worlds.api_kinds import Document
from tests.worlds.api_storage import decode, encode

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
    "conditions": "type",
    "webhooks": "name",
    "secrets": "name",
}
_DIRECTIVE = "$patch"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def apply_strategic_merge(document: Document, patch: Document) -> Document:
    """The patched document; the given one stays as it is."""
    if patch.get(_DIRECTIVE) == "replace":
        replaced: Document = _without_nulls({key: value for key, value in patch.items() if key != _DIRECTIVE})
        return replaced
    if patch.get(_DIRECTIVE) == "delete":
        return {}
    merged = dict(document)
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        before = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = apply_strategic_merge(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list) and key in _MERGE_KEYS:
            merged[key] = _merged_list(before or [], value, _MERGE_KEYS[key])
            if not merged[key]:
                del merged[key]
        else:
            merged[key] = value
    return merged


def _merged_list(before: list[Any], patches: list[Any], merge_key: str) -> list[Any]:
    if any(patch.get(_DIRECTIVE) == "replace" for patch in patches):
        return [patch for patch in patches if _DIRECTIVE not in patch]
    merged = list(before)
    for patch in patches:
        at = next((index for index, item in enumerate(merged) if item.get(merge_key) == patch.get(merge_key)), None)
        if patch.get(_DIRECTIVE) == "delete":
            merged = [item for item in merged if item.get(merge_key) != patch.get(merge_key)]
        elif at is None:
            merged.append(_without_nulls(patch))
        else:
            merged[at] = apply_strategic_merge(merged[at], patch)
    return merged


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def with_last_applied(manifest: Document) -> Document:
    """The manifest with the annotation by which the next `kubectl apply` knows what was applied."""
    metadata = manifest["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != _LAST_APPLIED}
    text = encode({**manifest, "metadata": {**metadata, "annotations": annotations}}).decode() + "\n"
    return {**manifest, "metadata": {**metadata, "annotations": {**annotations, _LAST_APPLIED: text}}}


def last_applied(current: Document) -> Document:
    """What was applied last to a stored object; nothing if it was not applied by a client."""
    text = (current["metadata"].get("annotations") or {}).get(_LAST_APPLIED)
    found: Document = decode(text.encode()) if text else {}
    return found


def three_way_patch(original: Document, modified: Document, current: Document) -> Document:
    """What `kubectl apply` sends: what was applied last and is not in the manifest goes, what differs is set.

    `original` is what was applied last, `modified` the manifest, `current` the stored object. Empty: nothing is sent.
    """
    return _joined(_deletions(original, modified), _settings(current, modified))


def _deletions(original: Document, modified: Document) -> Document:
    patch: Document = {}
    for key, before in original.items():
        after = modified.get(key)
        if after is None:
            patch[key] = None
        elif isinstance(before, dict) and isinstance(after, dict):
            if deeper := _deletions(before, after):
                patch[key] = deeper
        elif key in _MERGE_KEYS and isinstance(before, list) and isinstance(after, list):
            patch[key] = _item_deletions(before, after, _MERGE_KEYS[key])
    return {key: value for key, value in patch.items() if value != []}


def _item_deletions(original: list[Any], modified: list[Any], merge_key: str) -> list[Document]:
    found = {item.get(merge_key): item for item in modified}
    patches: list[Document] = []
    for item in original:
        name = item.get(merge_key)
        if name not in found:
            patches.append({_DIRECTIVE: "delete", merge_key: name})
        elif deeper := _deletions(item, found[name]):
            patches.append(deeper | {merge_key: name})
    return patches


def _settings(current: Document, modified: Document) -> Document:
    patch: Document = {}
    for key, wanted in modified.items():
        found = current.get(key)
        if wanted is None or wanted == found:
            continue
        if isinstance(wanted, dict) and isinstance(found, dict):
            if deeper := _settings(found, wanted):
                patch[key] = deeper
        elif key in _MERGE_KEYS and isinstance(wanted, list) and isinstance(found, list):
            if items := _item_settings(found, wanted, _MERGE_KEYS[key]):
                patch[key] = items
        else:
            patch[key] = wanted
    return patch


def _item_settings(current: list[Any], modified: list[Any], merge_key: str) -> list[Document]:
    found = {item.get(merge_key): item for item in current}
    patches: list[Document] = []
    for item in modified:
        name = item.get(merge_key)
        if name not in found:
            patches.append(item)
        elif deeper := _settings(found[name], item):
            patches.append(deeper | {merge_key: name})
    return patches


def _joined(deletions: Document, settings: Document) -> Document:
    joined = dict(deletions)
    for key, value in settings.items():
        before = joined.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            joined[key] = _joined(before, value)
        elif isinstance(before, list) and isinstance(value, list) and key in _MERGE_KEYS:
            joined[key] = _joined_items(before, value, _MERGE_KEYS[key])
        else:
            joined[key] = value
    return joined


def _joined_items(deletions: list[Document], settings: list[Document], merge_key: str) -> list[Document]:
    joined = list(deletions)
    for item in settings:
        at = next((index for index, each in enumerate(joined) if each.get(merge_key) == item.get(merge_key)), None)
        if at is None:
            joined.append(item)
        else:
            joined[at] = _joined(joined[at], item)
    return joined
