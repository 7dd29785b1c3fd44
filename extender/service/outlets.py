"""The outlets of one service: where each listens, what its callers may have there, and its routes."""

import time
from collections.abc import Callable, Mapping

import msgspec

from extender.config.checks import is_loopback
from extender.config.tree import Config, TlsConfig
from extender.outlets.admission import PodAdmission
from extender.outlets.jobs import JobAdmission
from extender.outlets.pod_resolver import PodResolver
from extender.outlets.scheduler import SchedulerVerbs
from extender.outlets.scheduler_names import SchedulerNaming
from extender.server.callers import Limits
from extender.server.routes import Route
from extender.service.cluster_view import ClusterView
from extender.service.limits import admission_limits, is_mutual, scheduler_limits
from extender.service.policies import admission_policy_of

REVIEWS = "/admission/pods"
JOBS = "/admission/jobs"
SCHEDULER_NAMES = "/admission/scheduler-names"

Routes = Callable[[Config, PodResolver, ClusterView], Mapping[str, Route]]


class Outlet(msgspec.Struct, frozen=True):
    """One listener's outlet; `listen` gives its address from the configuration, empty where it is switched off.

    `token_file` gives the file of its path tokens, empty where none are used. `token_routes` are the routes behind a
    token, by the path before it.
    """

    name: str
    listen: Callable[[Config], str]
    tls: Callable[[Config], TlsConfig | None]
    limits: Callable[[Config], Limits]
    routes: Routes
    token_file: Callable[[Config], str] = lambda _config: ""
    token_routes: Routes = lambda _config, _pod_resolver, _cluster_view: {}


def scheduler_routes(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> Mapping[str, Route]:
    """The routes of the three scheduler verbs by path."""
    verbs = SchedulerVerbs(
        pod_resolver,
        wait_seconds=config.scheduler.wait_seconds,
        pending_limit_seconds=config.scheduler.pending_limit_seconds,
        level_label=config.placement.level_label,
        nodes=cluster_view.nodes,
        may_read_secrets=is_loopback(config.scheduler.listen) or is_mutual(config.scheduler.tls),
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
    """The routes of the webhooks by path.

    If the API server is known by a token alone, these have none: everybody is answered about pods from the cache, and
    about Jobs not at all. Naming a scheduler never takes a token, as the error of a webhook with `failurePolicy: Fail`
    shows the path to the pod's creator.
    """
    naming = SchedulerNaming(pod_resolver, config.admission.scheduler_name)
    names = {SCHEDULER_NAMES: Route("admission", naming.review, naming.fallback, naming.review_nowait)}
    is_api_server = may_read_for_reviews(config)
    admission = _admission(config, pod_resolver, cluster_view, may_read_secrets=is_api_server)
    if config.admission.path_token_file and not is_api_server:
        return {REVIEWS: Route("admission", admission.review_from_cache, admission.fallback), **names}
    jobs = _jobs(config, pod_resolver, cluster_view, may_read_secrets=is_api_server)
    pods = Route("admission", admission.review, admission.fallback, admission.review_nowait)
    return {REVIEWS: pods, JOBS: Route("admission", jobs.review, jobs.fallback), **names}


def admission_token_routes(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> Mapping[str, Route]:
    """The routes of reviews whose path ends in a valid token, which only the API server was told."""
    admission = _admission(config, pod_resolver, cluster_view, may_read_secrets=True)
    jobs = _jobs(config, pod_resolver, cluster_view, may_read_secrets=True)
    pods = Route("admission", admission.review, admission.fallback, admission.review_nowait)
    return {REVIEWS: pods, JOBS: Route("admission", jobs.review, jobs.fallback)}


def _admission(
    config: Config, pod_resolver: PodResolver, cluster_view: ClusterView, *, may_read_secrets: bool
) -> PodAdmission:
    return PodAdmission(
        pod_resolver,
        admission_policy_of(config),
        cluster_platforms=cluster_view.platforms,
        wait_seconds=config.admission.wait_seconds,
        clock=time.monotonic,
        may_read_secrets=may_read_secrets,
        can_gate=cluster_view.can_gate,
    )


def _jobs(
    config: Config, pod_resolver: PodResolver, cluster_view: ClusterView, *, may_read_secrets: bool
) -> JobAdmission:
    return JobAdmission(
        pod_resolver,
        admission_policy_of(config),
        cluster_platforms=cluster_view.platforms,
        wait_seconds=config.admission.wait_seconds,
        may_read_secrets=may_read_secrets,
    )


def needs_pending_pods(config: Config) -> bool:
    """Whether to watch pending pods. A scheduler asks about them next; to reviews, a pod that exists is past."""
    return bool(config.scheduler.listen)


def may_read_for_reviews(config: Config) -> bool:
    """Whether only the API server reaches the webhook, so that the secrets named in any review may be read."""
    return config.admission.network_policy or is_mutual(config.admission.tls)


OUTLETS = (
    Outlet(
        "scheduler", lambda config: config.scheduler.listen, lambda config: config.scheduler.tls,
        scheduler_limits, scheduler_routes,
    ),
    Outlet(
        "admission", lambda config: config.admission.listen, lambda config: config.admission.tls,
        admission_limits, admission_routes, lambda config: config.admission.path_token_file, admission_token_routes,
    ),
)  # fmt: skip
"""Every outlet that answers requests; each has a listener of its own."""
