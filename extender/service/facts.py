"""Puts the outlet of facts together: who asks is settled by the cluster, what is told by memory."""

import time

from aiohttp import web

from extender.cluster.caller_access import CallerAccess
from extender.config.tree import Config
from extender.errors import ConfigError
from extender.kubernetes.externaldata_v1beta1 import encode_system_error
from extender.outlets.explaining import PodExplainer
from extender.outlets.facts import GATEKEEPER, FactsOutlet
from extender.outlets.pod_resolver import PodResolver
from extender.server.authenticated import Post, authenticated_app
from extender.service.cluster_view import ClusterView
from extender.service.policies import admission_policy_of

LOOKUP_SECONDS = 1.5  # of an image that memory does not have; the API server's callers have some seconds


def facts_app(config: Config, pod_resolver: PodResolver, cluster_view: ClusterView) -> web.Application:
    """An application with `/explain`, `/facts` and `/facts/gatekeeper`.

    Raises:
        ConfigError: no cluster is watched that could tell who asks.
    """
    if cluster_view.client is None:
        raise ConfigError("facts.listen: callers are known by the cluster, and none is watched; set it to ''")
    access = CallerAccess(cluster_view.client, clock=time.monotonic)
    outlet = FactsOutlet(
        PodExplainer(pod_resolver, admission_policy_of(config)),
        pod_resolver,
        access,
        platforms=cluster_view.platforms,
        wait_seconds=LOOKUP_SECONDS,
        clock=time.monotonic,
    )
    is_certified = bool(config.facts.tls and config.facts.tls.gatekeeper_ca)
    posts = {
        "/facts": Post("facts", outlet.facts_of_many),
        "/facts/gatekeeper": Post(
            "facts", outlet.provide, certified=GATEKEEPER if is_certified else None, problem=encode_system_error
        ),
    }
    answers = {"/explain": outlet.explain, "/facts": outlet.facts}
    return authenticated_app(answers, outlet.identify, posts)
