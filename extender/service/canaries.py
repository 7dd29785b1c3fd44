"""Canaries: whether the API server reaches this installation's webhook, seen again and again by pods of dry runs.

Each replica sends its own, which is one request a minute. An election would cost more, and its leader could be cut off
from the API server while the others see the webhook fail.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable

import structlog

from extender.cluster.client import ClusterClient
from extender.cluster.own_rights import is_allowed
from extender.cluster.webhook_probe import ProbeOutcome, ProbeResult, probe_webhook
from extender.config.tree import Config
from extender.errors import ClusterError
from extender.metrics import counter, gauge
from extender.server.operations import CheckResult
from extender.service.cluster_view import ClusterView
from extender.service.rights import canary_right

log = structlog.get_logger()

LONGEST_START_SECONDS = 60.0
"""The longest wait for the first canary, which waits since a replica that starts is no endpoint of its Service yet."""

CANARIES = counter(
    "multiarch_canaries_total",
    "Dry runs of pods that show whether the API server reaches the webhook. patched: it does; unpatched: it did not; "
    "webhook_failed: a webhook of failurePolicy Fail did not answer; refused: the pod was; unreachable: no answer.",
    "result",
    tuple(ProbeOutcome),
)
LAST_CANARY = gauge(
    "multiarch_canary_timestamp_seconds",
    "When the last canary with this result came back, in seconds since 1970; 0: none did.",
    "result",
    tuple(ProbeOutcome),
)


def canary_of(config: Config, cluster_view: ClusterView) -> "Canary | None":
    """What sends canaries; None without a cluster or a webhook, or if the settings say so."""
    admission, client = config.admission, cluster_view.client
    for outcome in ProbeOutcome:
        LAST_CANARY[outcome].set(0)
    if client is None or not admission.listen or not admission.canary_seconds:
        return None
    if not admission.canary_namespace:
        log.info("canary.disabled", why="admission.canary_namespace names no namespace")
        return None
    return Canary(
        client,
        admission.canary_namespace,
        admission.canary_seconds,
        clock=time.monotonic,
        wall_clock=time.time,
        random=random.random,
    )


class Canary:
    """Sends a canary to `namespace` every `every_seconds`, and reports what became of it.

    While the right to create pods there is missing, none is sent; that is said once.
    """

    def __init__(
        self,
        client: ClusterClient,
        namespace: str,
        every_seconds: float,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._every_seconds = every_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self._sleep = sleep
        self._may_send = False
        self._is_reported = False  # that the right is missing
        self._last: ProbeResult | None = None
        self._came_back_at = 0.0

    async def run(self) -> None:
        """Sends canaries until cancelled. Replicas that started together send theirs at different times."""
        await self._sleep(min(self._every_seconds, LONGEST_START_SECONDS) * (1 + self._random()) / 2)
        while True:
            if self._may_send or await self._look_for_right():
                await self._send()
            await self._sleep(self._every_seconds)

    def check(self) -> CheckResult:
        """What became of the last canary; nothing is wrong before the first one."""
        if self._is_reported and not self._may_send:
            return CheckResult(ok=False, detail=f"may not create pods in namespace {self._namespace}")
        if self._last is None:
            return CheckResult(detail="none has come back yet")
        age = f"{self._clock() - self._came_back_at:.0f} s ago"
        detail = ": ".join(filter(None, (f"{self._last.outcome} {age}", self._last.detail)))
        return CheckResult(ok=self._last.outcome is ProbeOutcome.PATCHED, detail=detail)

    async def _look_for_right(self) -> bool:
        """Whether canaries may be sent. Once they may, a refusal is a result like others, and no reason to stop."""
        try:
            self._may_send = await is_allowed(self._client, canary_right(self._namespace))
        except ClusterError:
            return True  # the canary tells what is wrong
        if not (self._may_send or self._is_reported):
            self._is_reported = True
            log.warning("canary.disabled", why=f"may not create pods in namespace {self._namespace}")
        return self._may_send

    async def _send(self) -> None:
        nonce = secrets.token_hex(16)
        result = await probe_webhook(self._client, self._namespace, self._namespace, nonce=nonce, clock=self._clock)
        CANARIES[result.outcome].inc()
        LAST_CANARY[result.outcome].set(self._wall_clock())
        before, self._last, self._came_back_at = self._last, result, self._clock()
        if before is None or result.outcome is not before.outcome:
            _report(self._namespace, result)


def _report(namespace: str, result: ProbeResult) -> None:
    if result.outcome is ProbeOutcome.PATCHED:
        log.info("canary.answered", namespace=namespace, latency_seconds=round(result.latency_seconds, 3))
    else:
        log.warning("canary.unanswered", namespace=namespace, result=result.outcome, why=result.detail)
