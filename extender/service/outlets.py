"""The outlets of one service: where each listens, what its callers may have there, and its routes."""

import time
from collections.abc import Callable, Mapping

import msgspec

from extender.budgets import BudgetSpec
from extender.config.checks import is_loopback
from extender.config.tree import Config, TlsConfig
from extender.outlets.admission import WAITING as PODS_WAITING
from extender.outlets.admission import PodAdmission
from extender.outlets.jobs import WAITING as JOBS_WAITING
from extender.outlets.jobs import JobAdmission, for_templates
from extender.outlets.observations import ObservedPods
from extender.outlets.pod_resolver import PodResolver
from extender.outlets.pod_reviews import PodReviews
from extender.outlets.scheduler import SchedulerVerbs
from extender.outlets.scheduler_names import SchedulerNaming
from extender.outlets.strangers import Strangers
from extender.placement.planning import AdmissionPolicy
from extender.server.callers import Limits
from extender.server.routes import Route
from extender.service.cluster_view import ClusterView
from extender.service.limits import admission_limits, is_mutual, scheduler_limits
from extender.service.policies import admission_policy_of

REVIEWS = "/admission/pods"
JOBS = "/admission/jobs"
SCHEDULER_NAMES = "/admission/scheduler-names"

Routes = Callable[[Config, PodResolver, ClusterView, ObservedPods], Mapping[str, Route]]


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
    token_routes: Routes = lambda _config, _pod_resolver, _cluster_view, _observed_pods: {}


def scheduler_routes(
    config: Config, pod_resolver: PodResolver, cluster_view: ClusterView, observed_pods: ObservedPods
) -> Mapping[str, Route]:
    """The routes of the three scheduler verbs by path."""
    verbs = SchedulerVerbs(
        pod_resolver,
        wait_seconds=config.scheduler.wait_seconds,
        pending_limit_seconds=config.scheduler.pending_limit_seconds,
        level_label=config.placement.level_label,
        nodes=cluster_view.nodes,
        may_read_secrets=is_loopback(config.scheduler.listen) or is_mutual(config.scheduler.tls),
        clock=time.monotonic,
        observed_pods=observed_pods,
    )
    return {
        "/scheduler/filter": Route("filter", verbs.filter, verbs.fallback_filter, verbs.filter_nowait),
        "/scheduler/prioritize": Route(
            "prioritize", verbs.prioritize, verbs.fallback_prioritize, verbs.prioritize_nowait
        ),
        "/scheduler/preempt": Route("preempt", verbs.preempt, verbs.fallback_preempt),
    }


def admission_routes(
    config: Config, pod_resolver: PodResolver, cluster_view: ClusterView, observed_pods: ObservedPods
) -> Mapping[str, Route]:
    """The routes of the webhooks by path.

    If the API server is known by a token alone, these have none: everybody is answered about pods from the cache, and
    about Jobs not at all, when it is the turn of a stranger. Naming a scheduler never takes a token, as the error of a
    webhook with `failurePolicy: Fail` shows the path to the pod's creator.
    """
    naming = SchedulerNaming(pod_resolver, config.admission.scheduler_name)
    is_api_server = may_read_for_reviews(config)
    if config.admission.path_token_file and not is_api_server:
        strangers = Strangers(time.monotonic)
        pods = _pod_admission(config, pod_resolver, cluster_view, None, may_read_secrets=False)
        from_cache = strangers.take_turns(REVIEWS, pods.review_from_cache_nowait)
        named = strangers.take_turns(SCHEDULER_NAMES, naming.review_nowait)
        return {
            REVIEWS: Route("admission", from_cache, pods.fallback),
            SCHEDULER_NAMES: Route("admission", named, naming.fallback),
        }
    names = {SCHEDULER_NAMES: Route("admission", naming.review, naming.fallback, naming.review_nowait)}
    return {
        **_review_routes(config, pod_resolver, cluster_view, observed_pods, may_read_secrets=is_api_server),
        **names,
    }


def admission_token_routes(
    config: Config, pod_resolver: PodResolver, cluster_view: ClusterView, observed_pods: ObservedPods
) -> Mapping[str, Route]:
    """The routes of reviews whose path ends in a valid token, which only the API server was told."""
    return _review_routes(config, pod_resolver, cluster_view, observed_pods, may_read_secrets=True)


def _review_routes(
    config: Config,
    pod_resolver: PodResolver,
    cluster_view: ClusterView,
    observed_pods: ObservedPods,
    *,
    may_read_secrets: bool,
) -> Mapping[str, Route]:
    pods = _pod_admission(config, pod_resolver, cluster_view, observed_pods, may_read_secrets=may_read_secrets)
    settings = for_templates(admission_policy_of(config))
    jobs = JobAdmission(
        _reviews(config, pod_resolver, settings, JOBS_WAITING, cluster_view, may_read_secrets=may_read_secrets)
    )
    return {
        REVIEWS: Route("admission", pods.review, pods.fallback, pods.review_nowait),
        JOBS: Route("admission", jobs.review, jobs.fallback),
    }


def _pod_admission(
    config: Config,
    pod_resolver: PodResolver,
    cluster_view: ClusterView,
    observed_pods: ObservedPods | None,
    *,
    may_read_secrets: bool,
) -> PodAdmission:
    """Without `observed_pods`, what is decided about observed pods is not collected: callers could make pods up."""
    settings = admission_policy_of(config)
    return PodAdmission(
        _reviews(config, pod_resolver, settings, PODS_WAITING, cluster_view, may_read_secrets=may_read_secrets),
        observed_pods,
        installation=config.admission.canary_namespace,
    )


def _reviews(
    config: Config,
    pod_resolver: PodResolver,
    settings: AdmissionPolicy,
    waiting: BudgetSpec,
    cluster_view: ClusterView,
    *,
    may_read_secrets: bool,
) -> PodReviews:
    return PodReviews(
        pod_resolver,
        settings,
        waiting,
        cluster_platforms=cluster_view.platforms,
        wait_seconds=config.admission.wait_seconds,
        may_read_secrets=may_read_secrets,
        can_gate=cluster_view.can_gate,
    )


def open_observed_pods(config: Config) -> ObservedPods:
    """An empty collection of what is decided about observed pods, for all outlets of a process."""
    restricts = config.admission.node_affinity.required or bool(config.scheduler.listen)
    return ObservedPods(restricts=restricts, wall_clock=time.time)


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
