"""Canaries: whether the API server reaches this installation's webhook, seen again and again by pods of dry runs.

Each replica sends its own, which is one request a minute. An election would cost more, and its leader could be cut off
from the API server while the others see the webhook fail.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Callable

import structlog

from extender.cluster.client import ClusterClient
from extender.cluster.own_rights import is_allowed
from extender.cluster.webhook_probe import ProbeOutcome, ProbeResult, probe_webhook
from extender.config.tree import Config
from extender.errors import ClusterError
from extender.metrics import counter, gauge
from extender.server.operations import CheckResult
from extender.service.rights import canary_right

log = structlog.get_logger()

CANARY_SECONDS = 20.0
"""Between two canaries of a replica, so that an alert comes within minutes. The first waits at most so long, since a
replica that starts is no endpoint of its Service yet."""
RIGHT_SECONDS = 120.0
"""Between two looks for the right to create pods, or for the namespace, while that is missing."""

CANARIES = counter(
    "multiarch_canaries_total",
    "Canaries, by what came back; patched: the API server reaches the webhook.",
    "result",
    tuple(ProbeOutcome),
)
LAST_CANARY = gauge(
    "multiarch_canary_timestamp_seconds",
    "When the last canary with this result came back; 0: none did.",
    "result",
    tuple(ProbeOutcome),
)


def canary_of(config: Config, client: ClusterClient | None) -> "Canary | None":
    """What sends canaries; None without a cluster or a webhook."""
    for outcome in ProbeOutcome:
        LAST_CANARY[outcome].set(0)
    if client is None or not config.admission.listen:
        return None
    return Canary(
        client,
        config.canary_namespace,
        clock=time.monotonic,
        wall_clock=time.time,
        random=random.random,
    )


class Canary:
    """Sends canaries to `namespace`, and reports what became of each.

    While the right to create pods there is missing, or the namespace, none is sent; that is said once.
    """

    def __init__(
        self,
        client: ClusterClient,
        namespace: str,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random
        self._may_send = False
        self._missing = ""  # why none is sent
        self._last: ProbeResult | None = None
        self._came_back_at = 0.0

    async def run(self) -> None:
        """Sends canaries until cancelled. Replicas that started together send theirs at different times."""
        await asyncio.sleep(CANARY_SECONDS * (1 + self._random()) / 2)
        while True:
            if self._may_send or await self._look_for_right():
                await self._send()
            await asyncio.sleep(RIGHT_SECONDS if self._missing else CANARY_SECONDS)

    def check(self) -> CheckResult:
        """What became of the last canary; nothing is wrong before the first one."""
        if self._missing:
            return CheckResult(detail=f"none is sent: {self._missing}")
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
            return True  # the canary says what is wrong
        self._note_missing("" if self._may_send else f"may not create pods in namespace {self._namespace}")
        return self._may_send

    def _note_missing(self, why: str) -> None:
        if why and why != self._missing:
            log.info("canary.disabled", why=why)
        self._missing = why

    async def _send(self) -> None:
        nonce = secrets.token_hex(16)
        result = await probe_webhook(self._client, self._namespace, self._namespace, nonce=nonce, clock=self._clock)
        if result.is_without_namespace:
            self._may_send = False
            self._note_missing(f"there is no namespace {self._namespace}")
            return
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
