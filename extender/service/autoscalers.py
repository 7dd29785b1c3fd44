"""Warns of an autoscaler that cannot see what images allow, since `admission.node_affinity` does not tell it."""

import asyncio

import structlog

from extender.cluster.autoscalers import Autoscaler
from extender.config.tree import Config
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


async def warn_of_autoscalers(config: Config, cluster_view: ClusterView) -> None:
    """Reports each autoscaler once when it is seen, until cancelled; returns if required affinity is written.

    A service without a webhook writes none. It cannot tell whether another one's webhook does, so that is no warning.
    """
    admission = config.admission
    for autoscaler in Autoscaler:
        MISLED[autoscaler].set(0)
    if admission.listen and admission.node_affinity.required:
        return
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
