"""What the API server refuses of a pod, at its creation and afterwards.

Source: pkg/apis/core/validation/validation.go, ValidatePodCreate and ValidatePodUpdate with what they call. Limit: of
creation there is what is about scheduling, names and images, since nothing else here would be wrong.
"""

from collections.abc import Iterator

from tests.worlds.api_kinds import Document
from tests.worlds.api_storage import encode
from tests.worlds.defaulting import normalize

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
_UPDATABLE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_WITH_VALUES, _WITHOUT_VALUES, _WITH_ONE = ("In", "NotIn"), ("Exists", "DoesNotExist"), ("Gt", "Lt")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def problems_of_new(pod: Document) -> list[str]:
    """What is wrong with a pod that is being created."""
    found = list(problems_of_spec(pod["spec"], "spec"))
    if pod["spec"].get("schedulingGates") and pod["spec"].get("nodeName"):
        found.append("spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared")
    return found


def problems_of_spec(spec: Document, path: str) -> Iterator[str]:
    """What is wrong with the spec of a pod or of a template."""
    if not spec.get("containers"):
        yield f"{path}.containers: Required value"
    yield from _problems_of_containers(spec, path)
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    for index, gate in enumerate(gates):
        if gate in gates[:index]:
            yield f'{path}.schedulingGates[{index}]: Duplicate value: "{gate}"'
    yield from _problems_of_tolerations(spec.get("tolerations") or [], path)
    required = _node_affinity(spec).get(_REQUIRED)
    if required is not None:
        yield from _problems_of_terms(required.get("nodeSelectorTerms") or [], f"{path}{_TERMS.removeprefix('spec')}")
    for index, preferred in enumerate(
        _node_affinity(spec).get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    ):
        if not 1 <= preferred.get("weight", 0) <= 100:
            yield f"{path}.affinity.nodeAffinity.preferred[{index}].weight: Invalid value: must be in the range 1-100"
        yield from _problems_of_term(preferred.get("preference") or {}, f"{path}.affinity.preferred[{index}]")


def _problems_of_containers(spec: Document, path: str) -> Iterator[str]:
    names: list[str] = []
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field) or ()):
            at = f"{path}.{field}[{index}]"
            if not container.get("image"):
                yield f"{at}.image: Required value"
            if container.get("name", "") in names:
                yield f'{at}.name: Duplicate value: "{container["name"]}"'
            names.append(container.get("name", ""))


def _problems_of_tolerations(tolerations: list[Document], path: str) -> Iterator[str]:
    for index, toleration in enumerate(tolerations):
        at = f"{path}.tolerations[{index}]"
        operator = toleration.get("operator", "Equal") or "Equal"
        if not toleration.get("key") and operator != "Exists":
            yield f"{at}.operator: Invalid value: operator must be Exists when `key` is empty"
        if operator == "Exists" and toleration.get("value"):
            yield f"{at}.operator: Invalid value: value must be empty when `operator` is 'Exists'"
        if toleration.get("effect", "") not in _EFFECTS:
            yield f"{at}.effect: Unsupported value"
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            yield f"{at}.effect: Invalid value: effect must be 'NoExecute' when `tolerationSeconds` is set"


def _problems_of_terms(terms: list[Document], path: str) -> Iterator[str]:
    if not terms:
        yield f"{path}: Required value: must have at least one node selector term"
    for index, term in enumerate(terms):
        yield from _problems_of_term(term, f"{path}[{index}]")


def _problems_of_term(term: Document, path: str) -> Iterator[str]:
    for index, requirement in enumerate(term.get("matchExpressions") or ()):
        operator, values = requirement.get("operator"), requirement.get("values") or []
        at = f"{path}.matchExpressions[{index}]"
        if operator in _WITH_VALUES and not values:
            yield f"{at}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
        elif operator in _WITHOUT_VALUES and values:
            yield f"{at}.values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        elif operator in _WITH_ONE and len(values) != 1:
            yield f"{at}.values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
        elif operator not in (*_WITH_VALUES, *_WITHOUT_VALUES, *_WITH_ONE):
            yield f"{at}.operator: Invalid value: not a valid selector operator"


def problems_of_change(new: Document, old: Document) -> list[str]:
    """What is wrong with a change of a stored pod."""
    before, after = old["spec"], new["spec"]
    found = list(problems_of_spec(after, "spec"))
    for field in ("containers", "initContainers"):
        if len(after.get(field) or ()) != len(before.get(field) or ()):
            return [*found, f"spec.{field}: Forbidden: pod updates may not add or remove containers"]
    found += _tolerations_lost(after, before)
    found += _gates_added(after, before)
    munged = {**after, "tolerations": before.get("tolerations"), "schedulingGates": before.get("schedulingGates")}
    for field in ("containers", "initContainers"):
        pairs = zip(after.get(field) or (), before.get(field) or (), strict=True)
        munged[field] = [{**mine, "image": theirs.get("image")} for mine, theirs in pairs]
    if _may_change_deadline(after.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")):
        munged["activeDeadlineSeconds"] = before.get("activeDeadlineSeconds")
    if before.get("schedulingGates"):
        found += _munge_selector(munged, before)
        found += _munge_affinity(munged, before)
    mine, theirs = normalize(munged), normalize(before)
    if mine != theirs:
        changed = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        found.append(f"spec: Forbidden: {_UPDATABLE}\n  changed: {', '.join(changed)}")
    return found


def _may_change_deadline(after: int | None, before: int | None) -> bool:
    return after is not None and (before is None or after <= before)


def _tolerations_lost(after: Document, before: Document) -> list[str]:
    kept = [_without_seconds(each) for each in after.get("tolerations") or ()]
    if all(_without_seconds(each) in kept for each in before.get("tolerations") or ()):
        return []
    return ["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"]


def _without_seconds(toleration: Document) -> Document:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _gates_added(after: Document, before: Document) -> list[str]:
    had = [gate["name"] for gate in before.get("schedulingGates") or ()]
    return [
        f"spec.schedulingGates[{index}].name: Forbidden: only deletion is allowed, but found new scheduling gate "
        f"'{gate['name']}'"
        for index, gate in enumerate(after.get("schedulingGates") or ())
        if gate["name"] not in had
    ]


def _munge_selector(munged: Document, before: Document) -> list[str]:
    old, new = before.get("nodeSelector") or {}, munged.get("nodeSelector") or {}
    munged["nodeSelector"] = old
    if all(new.get(key) == value for key, value in old.items()):
        return []
    why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
    return [f"spec.nodeSelector: Invalid value: {_shown(new)}: {why}"]


def _munge_affinity(munged: Document, before: Document) -> list[str]:
    old, new = ((each.get("affinity") or {}).get("nodeAffinity") for each in (before, munged))
    if normalize(old) == normalize(new):
        return []
    found = list(_problems_of_narrowing(new or {}, old or {}))
    rest = {key: value for key, value in (munged.get("affinity") or {}).items() if key != "nodeAffinity"}
    if before.get("affinity") is None and not rest:
        munged["affinity"] = None
    else:
        munged["affinity"] = rest if old is None else rest | {"nodeAffinity": old}
    return found


def _problems_of_narrowing(new: Document, old: Document) -> Iterator[str]:
    """Source: validateNodeAffinityMutation."""
    before = (old.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    after = (new.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    if not before:
        return
    if len(before) != len(after):
        why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        yield f"{_TERMS}: Invalid value: {_shown(after)}: {why}"
        return
    for index, (mine, theirs) in enumerate(zip(after, before, strict=True)):
        if not _has_only_additions(mine, theirs):
            why = "only additions are allowed (no mutations or deletions)"
            yield f"{_TERMS}[{index}]: Invalid value: {_shown(mine)}: {why}"


def _has_only_additions(new: Document, old: Document) -> bool:
    fields = ("matchExpressions", "matchFields")
    if not any(old.get(field) for field in fields):
        return not any(new.get(field) for field in fields)
    return all(
        normalize((new.get(field) or [])[: len(old.get(field) or [])]) == normalize(old.get(field) or [])
        for field in fields
    )


def _shown(value: object) -> str:
    return encode(value).decode()


def _node_affinity(spec: Document) -> Document:
    found: Document = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return found
