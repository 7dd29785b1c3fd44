"""What answers the scheduler and the API server: the routes of each listener."""

from collections.abc import Callable, Mapping

from extender.admission.daemon_pods import DaemonPods
from extender.admission.pod_admission import PodAdmission
from extender.admission.workload_admission import WorkloadAdmission
from extender.cluster.views import WatchedNodes
from extender.config.tree import Config
from extender.placement.node_kinds import NodeKind
from extender.placement.templates import Templates
from extender.resolver.pod_resolver import PodResolver
from extender.scheduler.verbs import SchedulerVerbs
from extender.server.routes import Route
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_settings_of

REVIEWS = "/admission/pods"
WORKLOADS = "/admission/workloads"

PENDING_LIMIT_SECONDS = 30.0
"""Counted from when a pod was first seen; after it a pending image is unknown."""


def scheduler_routes(
    config: Config, pod_resolver: PodResolver, nodes: WatchedNodes | None, clock: Callable[[], float]
) -> Mapping[str, Route]:
    """The routes of the three scheduler verbs by path."""
    verbs = SchedulerVerbs(
        pod_resolver,
        wait_seconds=config.scheduler.wait_seconds,
        pending_limit_seconds=PENDING_LIMIT_SECONDS,
        nodes=nodes,
        clock=clock,
    )
    return {
        "/scheduler/filter": Route("filter", verbs.filter, verbs.fallback_filter),
        "/scheduler/prioritize": Route("prioritize", verbs.prioritize, verbs.fallback_prioritize),
        "/scheduler/preempt": Route("preempt", verbs.preempt, verbs.fallback_preempt),
    }


def admission_routes(
    config: Config, pod_resolver: PodResolver, cluster_view: ClusterView, can_gate: Callable[[], bool]
) -> Mapping[str, Route]:
    """The routes of the webhooks by path. `can_gate`: whether pods may be held, as somebody provably removes gates."""
    settings = admission_settings_of(config)
    pods = PodAdmission(
        pod_resolver,
        settings,
        cluster_nodes=cluster_view.known_nodes,
        wait_seconds=config.admission.wait_seconds,
        can_gate=can_gate,
        daemon_pods=_daemon_pods(config, pod_resolver, cluster_view),
    )
    workloads = WorkloadAdmission(
        pods,
        Templates(pod_resolver.policy, settings, guards=config.admission.guard_daemon_sets),
        cluster_nodes=cluster_view.known_nodes,
        kinds=lambda: _kinds(cluster_view.nodes),
    )
    return {
        REVIEWS: Route("admission", pods.review, pods.fallback),
        WORKLOADS: Route("admission", workloads.review, workloads.fallback),
    }


def _daemon_pods(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> DaemonPods | None:
    """None without a cluster: nobody knows its nodes."""
    if cluster_view.nodes is None:
        return None
    return DaemonPods(
        pod_resolver.policy,
        cluster_view.nodes,
        cluster_nodes=cluster_view.known_nodes,
        events=cluster_view.events,
        guards=config.admission.guard_daemon_sets,
    )


def _kinds(nodes: WatchedNodes | None) -> Mapping[NodeKind, int] | None:
    return nodes.kinds.numbers if nodes and nodes.synced else None
