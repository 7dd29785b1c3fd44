"""What the API server refuses of workloads: templates that are no pods, and changes of what may not change.

Sources: pkg/apis/apps/validation and pkg/apis/batch/validation, validation.go each, and the strategies of the kinds.
Limits: no selector and labels are made for a Job, and no annotation for a DaemonSet's generation.
"""

from collections.abc import Iterator

from tests.worlds.api_kinds import Document
from tests.worlds.api_storage import encode
from tests.worlds.pod_validation import problems_of_change, problems_of_new, problems_of_spec

_WITH_TEMPLATE = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
_STATEFUL = ("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
             "persistentVolumeClaimRetentionPolicy", "minReadySeconds")  # fmt: skip
_DIRECTIVES = ("affinity", "nodeSelector", "tolerations", "schedulingGates")


def problems_of(kind: str, new: Document, old: Document | None) -> list[str]:
    """What is wrong with an object that is created or, with `old`, changed."""
    if kind == "Pod":
        return problems_of_change(new, old) if old else problems_of_new(new)
    found: list[str] = []
    if kind in _WITH_TEMPLATE:
        found += problems_of_spec(new["spec"]["template"]["spec"], "spec.template.spec")
        found += _problems_of_selector(kind, new, old)
    if kind == "Job" and old:
        found += _problems_of_job(new, old)
    if kind == "StatefulSet" and old:
        before, after = (
            {key: value for key, value in each["spec"].items() if key not in _STATEFUL} for each in (old, new)
        )
        if before != after:
            found.append("spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'template' …")
    return found


def _problems_of_selector(kind: str, new: Document, old: Document | None) -> Iterator[str]:
    if kind == "Job" or new["spec"].get("selector") is None:
        return
    if old and new["spec"]["selector"] != old["spec"].get("selector"):
        yield f"spec.selector: Invalid value: {new['spec']['selector']}: field is immutable"
    wanted = new["spec"]["selector"].get("matchLabels") or {}
    labels = new["spec"]["template"]["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        yield f"spec.template.metadata.labels: Invalid value: {labels}: `selector` does not match template `labels`"


def _problems_of_job(new: Document, old: Document) -> Iterator[str]:
    """A template may change in what is about scheduling while the Job is suspended and has not started."""
    before, after = old["spec"]["template"], new["spec"]["template"]
    field = "spec.template"
    if old["spec"].get("suspend") and not (old.get("status") or {}).get("startTime"):
        before, after, field = _without_directives(before), _without_directives(after), "spec.template.spec"
    if before != after:
        yield f"{field}: Invalid value: {encode(after).decode()}: field is immutable"
    for field in ("completions", "selector", "completionMode"):
        if new["spec"].get(field) != old["spec"].get(field):
            yield f"spec.{field}: Invalid value: field is immutable"


def _without_directives(template: Document) -> Document:
    spec = {key: value for key, value in template["spec"].items() if key not in _DIRECTIVES}
    metadata = {key: value for key, value in template["metadata"].items() if key not in ("labels", "annotations")}
    return {**template, "metadata": metadata, "spec": spec}
