"""The status of a pod as its kubelet writes it, from the states of its containers.

It is written from kubernetes 1.36, pkg/kubelet/kubelet_pods.go (getPhase, generateAPIPodStatus) and
status/generate.go. Limits: no pod or host IPs, resources or readiness gates.
"""

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class ContainerState:
    """What a container does: its state as in the API, and its last end."""

    name: str
    image: str
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json | None = None
    restarts: int = 0
    digest: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return "running" in self.state

    @property
    def ended(self) -> Json | None:
        """How it ended last, if it has."""
        found: Json | None = self.state.get("terminated") or self.last
        return None if self.is_running else found

    def as_status(self) -> Json:
        """core/v1 ContainerStatus."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": self.digest,
            "ready": self.is_running,
            "started": self.is_running,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": {"terminated": self.last} if self.last else {},
        }


def pod_status(spec: Json, status: Json, containers: dict[str, ContainerState], now: str) -> Json:
    """Returns the status that follows from the containers, with what others have written of the last."""
    initial = [containers[each["name"]] for each in spec.get("initContainers") or ()]
    main = [containers[each["name"]] for each in spec["containers"]]
    phase = _phase(spec, containers)
    made = {**status, "phase": phase}
    made["conditions"] = list(status.get("conditions") or ())
    made.setdefault("startTime", now)
    made["containerStatuses"] = [each.as_status() for each in main]
    if initial:
        made["initContainerStatuses"] = [each.as_status() for each in initial]
    is_ready = phase == "Running" and all(each.is_running for each in main)
    states = {
        "Initialized": _is_initialized(spec, containers),
        "ContainersReady": is_ready,
        "Ready": is_ready,
        "PodScheduled": True,
    }
    for kind, holds in states.items():
        reason = {} if holds else {"reason": "ContainersNotReady" if "Ready" in kind else "ContainersNotInitialized"}
        set_condition(made, {"type": kind, "status": "True" if holds else "False", **reason}, now)
    return made


def set_condition(status: Json, condition: Json, now: str) -> bool:
    """Puts a condition into a pod's status. Returns whether anything changed but times (UpdatePodCondition)."""
    conditions: list[Json] = status.setdefault("conditions", [])
    for index, old in enumerate(conditions):
        if old["type"] == condition["type"]:
            if all(old.get(key) == condition.get(key) for key in ("status", "reason", "message")):
                return False
            since = old.get("lastTransitionTime") if old["status"] == condition["status"] else now
            conditions[index] = {**condition, "lastTransitionTime": since}
            return True
    conditions.append({**condition, "lastTransitionTime": now})
    return True


def is_sidecar(container: Json) -> bool:
    """Whether an init container runs beside the others."""
    return container.get("restartPolicy") == "Always"


def _is_initialized(spec: Json, containers: dict[str, ContainerState]) -> bool:
    return all(_has_initialized(each, containers[each["name"]]) for each in spec.get("initContainers") or ())


def _has_initialized(container: Json, state: ContainerState) -> bool:
    if is_sidecar(container):
        return state.is_running or state.last is not None
    return "terminated" in state.state and state.state["terminated"]["exitCode"] == 0


def _phase(spec: Json, containers: dict[str, ContainerState]) -> str:
    policy = spec.get("restartPolicy") or "Always"
    initial = [each for each in spec.get("initContainers") or () if not is_sidecar(each)]
    for container in initial:
        ended = containers[container["name"]].ended
        if policy == "Never" and ended and ended["exitCode"]:
            return "Failed"
    main = [containers[each["name"]] for each in spec["containers"]]
    if not _is_initialized(spec, containers) or any(not each.is_running and each.ended is None for each in main):
        return "Pending"
    ends = [each.ended for each in main if each.ended is not None]
    if len(ends) < len(main) or policy == "Always":
        return "Running"
    if all(each["exitCode"] == 0 for each in ends):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"
