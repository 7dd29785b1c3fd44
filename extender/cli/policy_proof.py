"""Asks a cluster whether the printed policies are applied, as printed, and at work: by pods that are created dry.

A dry run goes through all admission, and stores nothing.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from extender.cli.installation_objects import is_held_by_leader
from extender.cli.shipped_policies import SCHEDULER_LABEL, Name, PolicyChoice, PolicyFile, SelectedNamespaces
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.dry_run import create_dry, restricted_pod
from extender.config.tree import GateConfig
from extender.kubernetes.meta_v1 import ApiResourceList
from extender.placement.gate import GATE, GATED, GATED_LABEL
from extender.placement.patch import Json, JsonObject, look
from extender.placement.policy import MODE, Mode

API_VERSION = "admissionregistration.k8s.io/v1"
_PATIENCE_SECONDS = 15.0  # a policy is at work about a second after it is written, per API server
_PAUSE_SECONDS = 0.25
_PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_OTHER_GATE = "multiarch-extender.invalid/of-another-owner"

_RESOURCES = msgspec.json.Decoder(ApiResourceList)


class Confirmation(msgspec.Struct):
    """What was found to be right, and what was not; a line each."""

    confirmed: list[str] = []
    problems: list[str] = []


async def serves_mutating_policies(cluster: ClusterClient) -> bool:
    """Whether the API server serves MutatingAdmissionPolicy as v1. Raises ClusterError."""
    found = _RESOURCES.decode(await cluster.get(f"/apis/{API_VERSION}"))
    return any(resource.kind == "MutatingAdmissionPolicy" for resource in found.resources)


async def confirm_policies(cluster: ClusterClient, choice: PolicyChoice, files: Sequence[PolicyFile]) -> Confirmation:
    """Compares each object with the applied one, and creates dry-run pods that show the policies at work.

    Waits some seconds for policies that were applied a moment ago. Raises ClusterError.
    """
    result = Confirmation()
    for file in files:
        for wanted in file.objects:
            await _compare(cluster, wanted, result)
    if result.problems:
        return result
    names = {file.name for file in files}
    spaces = await _namespaces(cluster)
    if Name.GATE in names:
        await _confirm_gate(cluster, choice.namespaces, spaces, result)
        await _confirm_leader(cluster, sorted({namespace for namespace, _ in choice.accounts}), result)
    if Name.SCHEDULER_NAME in names:
        await _confirm_scheduler(cluster, choice, spaces, result)
    return result


async def _compare(cluster: ClusterClient, wanted: JsonObject, result: Confirmation) -> None:
    kind, name = str(wanted["kind"]), str(look(wanted, ["metadata", "name"]))
    try:
        raw = await cluster.get(f"/apis/{API_VERSION}/{_PLURALS[kind]}/{name}")
    except ClusterRefused as exc:
        if exc.status != 404:
            raise
        result.problems.append(f"{kind} {name} is not applied")
        return
    applied: JsonObject = msgspec.json.decode(raw)
    differing = [*_differences(wanted["spec"], applied["spec"], "spec")]
    warnings = look(applied, ["status", "typeChecking", "expressionWarnings"])
    if differing:
        result.problems.append(f"{kind} {name} is applied, and differs from what is printed here: {differing[0]}")
    elif warnings:
        result.problems.append(f"{kind} {name}: the cluster warns of its expressions: {str(warnings)[:500]}")
    else:
        result.confirmed.append(f"{kind} {name} is applied as printed here")


def _differences(wanted: Json, applied: Json, path: str) -> Iterator[str]:
    """The paths at which `applied` lacks what is wanted; it may have more fields, which the API server fills in."""
    if isinstance(wanted, dict) and isinstance(applied, dict):
        for key, value in wanted.items():
            yield from _differences(value, applied.get(key), f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(applied, list) and len(wanted) == len(applied):
        for index, (mine, theirs) in enumerate(zip(wanted, applied, strict=True)):
            yield from _differences(mine, theirs, f"{path}[{index}]")
    elif wanted != applied:
        yield path


async def _namespaces(cluster: ClusterClient) -> list[tuple[str, dict[str, str]]]:
    """The names and labels of namespaces whose pods are decided about, `default` first."""
    listed = msgspec.json.decode(await cluster.get("/api/v1/namespaces"))
    found = []
    for each in listed["items"]:
        metadata = each["metadata"]
        mode = (metadata.get("annotations") or {}).get(MODE)
        if mode not in (Mode.IGNORE, Mode.OBSERVE) and "deletionTimestamp" not in metadata:
            found.append((metadata["name"], metadata.get("labels") or {}))
    return sorted(found, key=lambda each: each[0] != "default")


async def _confirm_gate(
    cluster: ClusterClient,
    namespaces: SelectedNamespaces,
    spaces: Sequence[tuple[str, dict[str, str]]],
    result: Confirmation,
) -> None:
    space = next((name for name, labels in spaces if namespaces.selects(name, labels)), None)
    if space is None:
        result.problems.append("no namespace has the labels that select the pods to hold, so no pod shows the gate")
        return
    await _confirm_pod(
        cluster,
        space,
        restricted_pod(),
        lambda made: _gates(made) == [GATE] and look(made, ["metadata", "labels", GATED_LABEL]) == GATED,
        "a new pod is held by the gate",
        result,
    )
    if result.problems:
        return
    await _confirm_pod(
        cluster,
        space,
        restricted_pod(spec={"schedulingGates": [{"name": _OTHER_GATE}]}),
        lambda made: _gates(made) == [_OTHER_GATE, GATE],
        "a gate of another owner stays",
        result,
    )
    await _confirm_pod(
        cluster,
        space,
        restricted_pod(annotations={MODE: Mode.IGNORE.value}),
        lambda made: not _gates(made),
        f"a pod with {MODE}: {Mode.IGNORE} is not held",
        result,
    )


async def _confirm_leader(cluster: ClusterClient, namespaces: Sequence[str], result: Confirmation) -> None:
    """Whether a replica lets held pods go: without one they stay held for good."""
    lease = GateConfig().lease
    for namespace in namespaces:
        if await is_held_by_leader(cluster, namespace, lease):
            result.confirmed.append(f"namespace {namespace}: a replica lets held pods go (Lease {lease})")
            return
    result.problems.append(
        f"namespace {', '.join(namespaces)}: no replica renews the Lease {lease}, so nobody lets held pods go; "
        "see docs/runbooks.md#gates-without-leader, or delete the policy"
    )


async def _confirm_scheduler(
    cluster: ClusterClient,
    choice: PolicyChoice,
    spaces: Sequence[tuple[str, dict[str, str]]],
    result: Confirmation,
) -> None:
    wanted = choice.labelled_namespaces
    space = next((name for name, labels in spaces if wanted.selects(name, labels)), None)
    if space is None:
        result.problems.append(
            f"no namespace has the label {SCHEDULER_LABEL}: {choice.scheduler}, so no pod shows the name"
        )
        return
    await _confirm_pod(
        cluster,
        space,
        restricted_pod(),
        lambda made: look(made, ["spec", "schedulerName"]) == choice.scheduler,
        f"a new pod is given to {choice.scheduler}",
        result,
    )


async def _confirm_pod(
    cluster: ClusterClient,
    space: str,
    pod: JsonObject,
    is_right: Callable[[JsonObject], bool],
    what: str,
    result: Confirmation,
) -> None:
    """Creates the pod dry until it comes back right, for some seconds."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        made = await create_dry(cluster, space, pod)
        if is_right(made):
            result.confirmed.append(f"namespace {space}: {what}")
            return
        if time.monotonic() > until:
            result.problems.append(f"namespace {space}: it is not so that {what}; schedulingGates: {_gates(made)}")
            return
        await asyncio.sleep(_PAUSE_SECONDS)


def _gates(pod: JsonObject) -> list[Json]:
    gates = look(pod, ["spec", "schedulingGates"])
    return [look(gate, ["name"]) for gate in gates] if isinstance(gates, list) else []
