"""Who manages which fields of an object, and what server-side apply makes of them.

Sources: sigs.k8s.io/structured-merge-diff, merge/update.go, and k8s.io/apimachinery/pkg/util/managedfields; types of
lists and maps are the markers of k8s.io/api. As there, what admission adds has no manager, a change takes a field from
everybody else, and an apply removes what its manager applied before and nobody else manages.
Limits: what is managed is kept beside the objects, so that `metadata.managedFields` is never there; list types go by
the field's name; the status is nobody's.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import Document

Path = tuple[str, ...]
"""Of a field: names of fields, and for items of lists `[key=value]`."""

_ITEM_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "protocol"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "schedulingGates": ("name",),
    "resourceClaims": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
    "webhooks": ("name",),
    "matchConditions": ("name",),
    "secrets": ("name",),
}
_ATOMIC_MAPS = frozenset(
    (
        "nodeSelector",
        "selector",
        "labelSelector",
        "namespaceSelector",
        "objectSelector",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "fieldRef",
        "resourceFieldRef",
        "configMapKeyRef",
        "secretKeyRef",
    )
)
_SYSTEMS = frozenset(
    (
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "generateName",
    )
)
_NOBODYS = frozenset(("apiVersion", "kind", "status"))

APPLY, UPDATE = "Apply", "Update"
_ANNOTATION = ("metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
_CLIENT_SIDE = ("kubectl-client-side-apply", UPDATE)
Manager = tuple[str, str]
"""Name and operation."""


def fields_of(document: Document) -> dict[Path, Any]:
    """The fields that somebody may manage, with their values."""
    return dict(_walk((), {key: value for key, value in document.items() if key not in _NOBODYS}))


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    name = path[-1] if path else ""
    if isinstance(value, dict) and value and name not in _ATOMIC_MAPS:
        for key, each in value.items():
            if path != ("metadata",) or key not in _SYSTEMS:
                yield from _walk((*path, key), each)
    elif isinstance(value, list) and name in _ITEM_KEYS:
        for item in value:
            at = (*path, _step(name, item))
            yield at, None
            for key, each in item.items():
                yield from _walk((*at, key), each)
    else:
        yield path, value


def _step(name: str, item: Document) -> str:
    found = ",".join(f"{key}={item.get(key, 'TCP' if key == 'protocol' else '')}" for key in _ITEM_KEYS[name])
    return f"[{found}]"


class FieldManagers:
    """Of each object, by its uid, the fields of each manager."""

    def __init__(self) -> None:
        self._managed: dict[str, dict[Manager, frozenset[Path]]] = {}

    def of(self, uid: str) -> dict[Manager, frozenset[Path]]:
        """The managers of an object and their fields."""
        return self._managed.get(uid, {})

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._managed.pop(uid, None)

    def created(self, uid: str, manager: str, sent: Document) -> None:
        """Somebody has made the object; without a name nobody manages anything."""
        if manager:
            self._managed[uid] = {(manager, UPDATE): frozenset(fields_of(sent))}

    def updated(self, uid: str, manager: str, before: Document, sent: Document) -> None:
        """Somebody has sent a change of the object: what differs is the sender's, and nobody else's."""
        managed = self._managed.get(uid)
        if managed is None:
            return
        old, new = fields_of(before), fields_of(sent)
        changed = frozenset(path for path, value in new.items() if path not in old or old[path] != value)
        gone = frozenset(path for path in old if path not in new)
        me = (manager or "unknown", UPDATE)
        others = {each: paths - changed - gone for each, paths in managed.items()}
        others[me] = others.get(me, frozenset()) | changed
        self._managed[uid] = {each: paths for each, paths in others.items() if paths}

    def check_conflicts(self, uid: str, manager: str, live: Document, applied: Document) -> None:
        """Raises ApiError (409) where an apply would change what somebody else manages."""
        wanted, found = fields_of(applied), fields_of(live)
        changed = [path for path, value in wanted.items() if path in found and found[path] != value]
        others = self._others(uid, manager)
        if conflicts := {each: of_both for each, paths in others if (of_both := paths.intersection(changed))}:
            raise ApiError(409, "Conflict", _conflict_message(conflicts, live.get("apiVersion", "v1")))

    def take_over(self, uid: str) -> None:
        """Gives the fields of client-side apply to server-side apply, as kubectl does before its first one.

        The annotation of client-side apply stays, under a manager of its own.
        """
        managed = dict(self.of(uid))
        if paths := managed.pop(_CLIENT_SIDE, None):
            mine = ("kubectl", APPLY)
            managed[mine] = managed.get(mine, frozenset()) | (paths - {_ANNOTATION})
            self._managed[uid] = managed

    def merged(self, uid: str, manager: str, live: Document, applied: Document) -> Document:
        """What the object becomes: as applied, without what its manager applied before and nobody else manages."""
        before = self.of(uid).get((manager, APPLY), frozenset())
        others = frozenset(path for _, paths in self._others(uid, manager) for path in paths)
        lost = before - fields_of(applied).keys() - others
        kept = _without((), live, lost, others)
        document: Document = _merged("", kept if isinstance(kept, dict) else {}, applied)
        return document

    def applied(self, uid: str, manager: str, live: Document | None, applied: Document) -> None:
        """The manager has applied that: its fields are these, and those that it changed are nobody else's."""
        wanted = fields_of(applied)
        found = fields_of(live) if live else {}
        changed = frozenset(path for path, value in wanted.items() if path in found and found[path] != value)
        managed = {each: paths - changed for each, paths in self._others(uid, manager)}
        managed[manager, APPLY] = frozenset(wanted)
        self._managed[uid] = {each: paths for each, paths in managed.items() if paths}

    def _others(self, uid: str, manager: str) -> Iterable[tuple[Manager, frozenset[Path]]]:
        return ((each, paths) for each, paths in self.of(uid).items() if each != (manager, APPLY))


def shown(path: Path) -> str:
    """The path as messages have it."""
    return "".join(step if step.startswith("[") else f".{step}" for step in path)


def _conflict_message(conflicts: Mapping[Manager, frozenset[Path]], version: str) -> str:
    """As internal/conflict.go words it: several conflicts in lines, by their managers."""
    if sum(map(len, conflicts.values())) == 1:
        [((manager, _), (path,))] = conflicts.items()
        return f'Apply failed with 1 conflict: conflict with "{manager}" using {version}: {shown(path)}'
    told = [
        "\n- ".join((f'conflicts with "{manager}" using {version}:', *map(shown, sorted(paths, key=_as_in_a_set))))
        for (manager, _), paths in sorted(conflicts.items())
    ]
    return f"Apply failed with {sum(map(len, conflicts.values()))} conflicts: " + "\n".join(told)


def _as_in_a_set(path: Path) -> list[tuple[bool, str]]:
    """The order of a fieldpath.Set: what ends at a level stands before what goes on."""
    return [(depth < len(path), step) for depth, step in enumerate(path, 1)]


def _without(path: Path, value: Any, lost: frozenset[Path], kept: frozenset[Path]) -> Any:
    """The value without the lost fields; None where nothing is left of it that was lost in part."""
    name = path[-1] if path else ""
    if isinstance(value, dict) and value and name not in _ATOMIC_MAPS:
        left = {key: _without((*path, key), each, lost, kept) for key, each in value.items()}
        left = {key: each for key, each in left.items() if each is not None}
        return left if left or not path else None
    if isinstance(value, list) and name in _ITEM_KEYS:
        items = [_item_without((*path, _step(name, item)), item, lost, kept) for item in value]
        return [item for item in items if item is not None] or None
    return None if path in lost else value


def _item_without(at: Path, item: Document, lost: frozenset[Path], kept: frozenset[Path]) -> Document | None:
    if at in lost and not any(path[: len(at)] == at for path in kept):
        return None
    left = {key: _without((*at, key), each, lost, kept) for key, each in item.items()}
    return {key: each for key, each in left.items() if each is not None}


def _merged(name: str, live: Any, applied: Any) -> Any:
    if isinstance(applied, dict) and isinstance(live, dict) and name not in _ATOMIC_MAPS:
        merged = dict(live)
        for key, value in applied.items():
            merged[key] = _merged(key, live[key], value) if key in live else value
        return merged
    if isinstance(applied, list) and isinstance(live, list) and name in _ITEM_KEYS:
        wanted = {_step(name, item): item for item in applied}
        found = {_step(name, item): item for item in live}
        # What is applied stands in its own order, and what only the stored object has behind it.
        both = [_merged("", found[step], item) if step in found else item for step, item in wanted.items()]
        return both + [item for step, item in found.items() if step not in wanted]
    return applied
