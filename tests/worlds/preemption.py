"""Which pods kube-scheduler evicts for one that fits nowhere.

It is written from kubernetes 1.36, pkg/scheduler/framework/preemption/preemption.go and
plugins/defaultpreemption/default_preemption.go. Limits: no PodDisruptionBudgets, all nodes are candidates (the real
one looks at 100 at least), and victims are deleted before the next pod is tried.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tests.worlds.extender_calls import Extender, ExtenderError, Victims
from tests.worlds.node_rules import NodeInfo, Status, filter_node
from tests.worlds.scheduling_queue import priority_of

Json = dict[str, Any]

NOT_HELPFUL = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"


class Preemption(NamedTuple):
    """The outcome: a node to nominate, with the pods to evict there, or why there is none.

    An empty node clears the nomination that the pod has; None leaves it.
    """

    node: str | None
    victims: tuple[Json, ...] = ()
    message: str = ""


async def preempt(
    pod: Json,
    nodes: Mapping[str, NodeInfo],
    statuses: Mapping[str, Status],
    extender: Extender | None,
    with_nominated: Callable[[NodeInfo], NodeInfo],
) -> Preemption:
    """Finds the node on which the pod costs the least, among those whose `statuses` evictions may change.

    `with_nominated` adds to a node the pods that count as there, since they are nominated to it.
    """
    if message := _ineligible(pod, nodes, statuses):
        return Preemption(None, message=message)
    candidates: Victims = {}
    refusals: dict[str, tuple[str, ...]] = {}
    for name, status in statuses.items():
        if status.unresolvable or name not in nodes:
            continue
        victims = _victims_on(pod, nodes[name], with_nominated)
        if isinstance(victims, Status):
            refusals[name] = victims.reasons
        else:
            candidates[name] = victims
    if not candidates:
        reasons = [*refusals.values(), *[(NOT_HELPFUL,)] * (len(nodes) - len(refusals))]
        return Preemption("", message=fit_message(len(nodes), reasons))
    if extender and extender.has("preempt"):
        try:
            candidates = await _ask(extender, pod, candidates, nodes)
        except ExtenderError as exc:
            return Preemption(None, message=str(exc))
    if not candidates:
        return Preemption(None, message="no candidate node for preemption")
    best = _cheapest(candidates)
    return Preemption(best, tuple(candidates[best]))


def fit_message(nodes: int, reasons: Iterable[tuple[str, ...]], after: str = "") -> str:
    """The text of FitError: how many nodes have each reason."""
    counts: dict[str, int] = {}
    for each in reasons:
        for reason in each:
            counts[reason] = counts.get(reason, 0) + 1
    text = f"0/{nodes} nodes are available:"
    if counts:
        text += f" {', '.join(sorted(f'{count} {reason}' for reason, count in counts.items()))}."
    return f"{text} {after}" if after else text


def _ineligible(pod: Json, nodes: Mapping[str, NodeInfo], statuses: Mapping[str, Status]) -> str:
    """Why the pod may not evict others (PodEligibleToPreemptOthers), empty if it may."""
    if pod["spec"].get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    nominated = (pod.get("status") or {}).get("nominatedNodeName") or ""
    status = statuses.get(nominated)
    if nominated not in nodes or status is None or status.unresolvable:
        return ""
    if any(_is_below(each, pod) and _ends_by_preemption(each) for each in nodes[nominated].pods.values()):
        return "not eligible due to a terminating pod on the nominated node."
    return ""


def _is_below(pod: Json, preemptor: Json) -> bool:
    return priority_of(pod) < priority_of(preemptor)


def _ends_by_preemption(pod: Json) -> bool:
    if not pod["metadata"].get("deletionTimestamp"):
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        each["type"] == "DisruptionTarget" and each.get("reason") == "PreemptionByScheduler" for each in conditions
    )


def _victims_on(pod: Json, info: NodeInfo, with_nominated: Callable[[NodeInfo], NodeInfo]) -> list[Json] | Status:
    """The pods to evict, the most important first (SelectVictimsOnNode), or why that would not help."""
    potential = [each for each in info.pods.values() if _is_below(each, pod)]
    if not potential:
        return Status("DefaultPreemption", (_NO_VICTIMS,))
    emptied = NodeInfo(info.node, {uid: each for uid, each in info.pods.items() if not _is_below(each, pod)})
    if status := filter_node(pod, with_nominated(emptied)):
        return status
    victims = []
    for each in sorted(potential, key=lambda each: (-priority_of(each), _started(each))):
        uid = each["metadata"]["uid"]
        emptied.pods[uid] = each
        if filter_node(pod, with_nominated(emptied)):
            del emptied.pods[uid]
            victims.append(each)
    return victims or Status("DefaultPreemption", (f'expected at least one victim pod on node "{info.name}"',))


async def _ask(extender: Extender, pod: Json, candidates: Victims, nodes: Mapping[str, NodeInfo]) -> Victims:
    """The candidates that the extender leaves (callExtenders). Raises ExtenderError."""
    try:
        kept = await extender.preempt(pod, candidates, {name: info.pods for name, info in nodes.items()})
    except ExtenderError:
        if extender.is_ignorable:
            return candidates
        raise
    for name in [name for name, victims in kept.items() if not victims]:
        if not extender.is_ignorable:
            raise ExtenderError(f'expected at least one victim pod on node "{name}"')
        del kept[name]
    return kept


def _cheapest(candidates: Victims) -> str:
    """The node whose victims matter least (pickOneNodeForPreemption), the first by name among equals."""

    def cost(name: str) -> tuple[float, ...]:
        priorities = [priority_of(each) for each in candidates[name]]
        most = [each for each in candidates[name] if priority_of(each) == max(priorities)]
        earliest = min(_started(each) for each in most)
        return (max(priorities), sum(priorities) + len(priorities) * (1 << 31), len(priorities), -_seconds(earliest))

    return min(sorted(candidates), key=cost)


def _started(pod: Json) -> str:
    return str((pod.get("status") or {}).get("startTime") or pod["metadata"].get("creationTimestamp") or "")


def _seconds(time: str) -> float:
    """Of an RFC 3339 time; its digits order as it does."""
    return float("".join(character for character in time if character.isdigit()) or 0)
