"""Warns of an autoscaler that cannot see what images allow, since `admission.node_affinity` does not tell it."""

import asyncio
from collections.abc import Coroutine

import structlog

from extender.cluster.autoscalers import Autoscaler
from extender.config.tree import AdmissionConfig, Config
from extender.metrics import gauge
from extender.service.cluster_view import ClusterView

CHECK_SECONDS = 300.0
"""How often the service looks for autoscalers, since one may be installed after its start."""

WHY = "without required node affinity it buys nodes on which pods cannot run, and moves running pods to such nodes"

MISLED = gauge(
    "multiarch_misled_autoscalers",
    "1 if the autoscaler has been seen and admission.node_affinity does not tell it what images allow.",
    "autoscaler",
    tuple(Autoscaler),
)
log = structlog.get_logger()


def autoscaler_warnings(config: Config, cluster_view: ClusterView) -> Coroutine[None, None, None] | None:
    """The work that reports each autoscaler once when it is seen; None if required affinity is written.

    A service without a webhook writes none. It cannot tell whether another one's webhook does, so that is no warning.
    """
    for autoscaler in Autoscaler:
        MISLED[autoscaler].set(0)
    if config.admission.listen and config.admission.node_affinity.required:
        return None
    return _warn_of_autoscalers(config.admission, cluster_view)


async def _warn_of_autoscalers(admission: AdmissionConfig, cluster_view: ClusterView) -> None:
    reported: set[Autoscaler] = set()
    while True:
        for autoscaler, sign in (await cluster_view.find_autoscalers()).items():
            if autoscaler in reported:
                continue
            reported.add(autoscaler)
            about = {"autoscaler": autoscaler, "sign": sign, "why": WHY}
            if admission.listen:
                MISLED[autoscaler].set(1)
                remedy = "set admission.node_affinity to required or both"
                log.warning("autoscaler.misled", **about, node_affinity=admission.node_affinity, remedy=remedy)
            else:
                log.info("autoscaler.seen", **about, remedy="this service has no webhook: run one that writes it")
        await asyncio.sleep(CHECK_SECONDS)
