"""Makes a plan small: leaves parts of it out as long as it breaks the same invariant."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from tests.worlds.plan import Applied, Fault, Manifest, Plan

T = TypeVar("T")
_LISTS = ("events", "secrets", "settings", "images", "nodes", "namespaces")


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, most: int = 400) -> Plan:
    """The smallest plan found that still `fails`, within so many tries. Parts go by halves, then one by one."""
    tries = 0

    def is_kept(smaller: Plan) -> bool:
        nonlocal tries
        tries += 1
        return tries <= most and fails(smaller)

    before = None
    while before != plan and tries < most:
        before = plan
        for name in _LISTS:
            plan = _shorter(plan, name, is_kept)
        for smaller in _simpler(plan):
            if is_kept(smaller):
                plan = smaller
        plan = _plainer_manifests(plan, is_kept)
    return plan


def _shorter(plan: Plan, name: str, is_kept: Callable[[Plan], bool]) -> Plan:
    items: Sequence[Any] = getattr(plan, name)
    size = max(1, len(items) // 2)
    while items:
        start = 0
        while start < len(items):
            fewer = (*items[:start], *items[start + size :])
            smaller = msgspec.structs.replace(plan, **{name: fewer})
            if is_kept(smaller):
                plan, items = smaller, fewer
            else:
                start += size
        if size == 1:
            break
        size //= 2
    return plan


def _simpler(plan: Plan) -> Iterator[Plan]:
    """The plan with one thing as usual."""
    replace = msgspec.structs.replace
    if plan.replicas > 1:
        yield replace(plan, replicas=1)
    if plan.files and "FOLDER" not in str(plan.settings):
        yield replace(plan, files={})
    kubernetes = plan.kubernetes
    for field, default in zip(kubernetes.__struct_fields__, kubernetes.__struct_defaults__, strict=True):
        if getattr(kubernetes, field) != default and field != "extender":
            yield replace(plan, kubernetes=replace(kubernetes, **{field: default}))
    for number, event in enumerate(plan.events):
        others = plan.events
        if isinstance(event, Fault) and event.seconds > 2.0:
            shorter = replace(event, seconds=round(event.seconds / 2, 1))
            yield replace(plan, events=(*others[:number], shorter, *others[number + 1 :]))


def _plainer_manifests(plan: Plan, is_kept: Callable[[Plan], bool]) -> Plan:
    for number, event in enumerate(plan.events):
        if not isinstance(event, Applied):
            continue
        for manifest in list(_plainer(event.manifest)):
            smaller = msgspec.structs.replace(event, manifest=manifest)
            tried = msgspec.structs.replace(plan, events=(*plan.events[:number], smaller, *plan.events[number + 1 :]))
            if is_kept(tried):
                return _plainer_manifests(tried, is_kept)
    return plan


def _plainer(manifest: Manifest) -> Iterator[Manifest]:
    """The manifest with one field less of its pods, or one container less."""
    paths = (("spec",), ("spec", "template", "spec")) if manifest["kind"] != "Pod" else (("spec",),)
    for path in (*paths, ("metadata", "annotations"), ("spec", "template", "metadata", "annotations")):
        part = _at(manifest, path)
        for key in list(part or ()):
            if key in ("containers", "selector", "template", "restartPolicy"):
                continue
            copy = msgspec.json.decode(msgspec.json.encode(manifest))
            del _at(copy, path)[key]
            yield copy
        if part and len(part.get("containers") or ()) > 1:
            for index in range(len(part["containers"])):
                copy = msgspec.json.decode(msgspec.json.encode(manifest))
                del _at(copy, path)["containers"][index]
                yield copy


def _at(manifest: Manifest, path: Sequence[str]) -> Any:  # JSON
    found: Any = manifest
    for key in path:
        found = (found or {}).get(key)
    return found
