"""The outlets of one service: where each listens, what its callers may have there, and its routes."""

import time
from collections.abc import Callable, Mapping

import msgspec

from extender.admission.job_admission import JobAdmission, for_templates
from extender.admission.pod_admission import PodAdmission
from extender.admission.pod_reviews import PodReviews
from extender.admission.scheduler_names import SchedulerNaming
from extender.config.checks import is_loopback
from extender.config.tree import Config, TlsConfig
from extender.placement.planning import AdmissionPolicy
from extender.resolver.pod_resolver import PodResolver
from extender.scheduler.verbs import SchedulerVerbs
from extender.server.connection import ADMISSION, SCHEDULER, Limits
from extender.server.routes import Route
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_policy_of

REVIEWS = "/admission/pods"
JOBS = "/admission/jobs"
SCHEDULER_NAMES = "/admission/scheduler-names"

Routes = Callable[[Config, PodResolver, ClusterView], Mapping[str, Route]]


class Outlet(msgspec.Struct, frozen=True):
    """One listener's outlet; `listen` gives its address from the configuration, empty where it is switched off."""

    name: str
    listen: Callable[[Config], str]
    tls: Callable[[Config], TlsConfig | None]
    limits: Limits
    routes: Routes


def scheduler_routes(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> Mapping[str, Route]:
    """The routes of the three scheduler verbs by path."""
    verbs = SchedulerVerbs(
        pod_resolver,
        wait_seconds=config.scheduler.wait_seconds,
        pending_limit_seconds=config.scheduler.pending_limit_seconds,
        level_label=config.placement.level_label,
        nodes=cluster_view.nodes,
        may_read_secrets=is_loopback(config.scheduler.listen)
        or bool(config.scheduler.tls and config.scheduler.tls.client_ca),
        clock=time.monotonic,
    )
    return {
        "/scheduler/filter": Route("filter", verbs.filter, verbs.fallback_filter, verbs.filter_nowait),
        "/scheduler/prioritize": Route(
            "prioritize", verbs.prioritize, verbs.fallback_prioritize, verbs.prioritize_nowait
        ),
        "/scheduler/preempt": Route("preempt", verbs.preempt, verbs.fallback_preempt),
    }


def admission_routes(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> Mapping[str, Route]:
    """The routes of the webhooks by path."""
    settings = admission_policy_of(config)
    pods = PodAdmission(
        _reviews(config, pod_resolver, settings, cluster_view),
        installation=config.admission.canary_namespace,
    )
    jobs = JobAdmission(_reviews(config, pod_resolver, for_templates(settings), cluster_view))
    naming = SchedulerNaming(pod_resolver, config.admission.scheduler_name)
    return {
        REVIEWS: Route("admission", pods.review, pods.fallback, pods.review_nowait),
        JOBS: Route("admission", jobs.review, jobs.fallback),
        SCHEDULER_NAMES: Route("admission", naming.review, naming.fallback, naming.review_nowait),
    }


def _reviews(
    config: Config,
    pod_resolver: PodResolver,
    settings: AdmissionPolicy,
    cluster_view: ClusterView,
) -> PodReviews:
    return PodReviews(
        pod_resolver,
        settings,
        cluster_nodes=cluster_view.known_nodes,
        wait_seconds=config.admission.wait_seconds,
        can_gate=cluster_view.can_gate,
    )


def needs_pending_pods(config: Config) -> bool:
    """Whether to watch pending pods. A scheduler asks about them next; to reviews, a pod that exists is past."""
    return bool(config.scheduler.listen)


OUTLETS = (
    Outlet(
        "scheduler", lambda config: config.scheduler.listen, lambda config: config.scheduler.tls,
        SCHEDULER, scheduler_routes,
    ),
    Outlet(
        "admission", lambda config: config.admission.listen, lambda config: config.admission.tls,
        ADMISSION, admission_routes,
    ),
)  # fmt: skip
"""Every outlet that answers requests; each has a listener of its own."""
