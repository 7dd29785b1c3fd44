"""The gate controller as a part of the service: which replica runs it, and whether pods may be held at all.

It runs where nothing is held either, to remove gates that were added before: under other settings, or by a policy.
"""

import asyncio
import contextlib
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import structlog

from extender.background import in_background
from extender.cluster.client import ClusterClient
from extender.cluster.gated_pods import HELD_PODS, CountedPods
from extender.cluster.leader_election import LeaderElection
from extender.cluster.listwatch import AGE, ListWatch
from extender.cluster.own_rights import CHECK_SECONDS, OwnRights, is_allowed
from extender.cluster.pod_events import PodEvents
from extender.config.tree import Config
from extender.errors import ClusterError
from extender.gates.gate_controller import PODS, GateController
from extender.gates.policy_arming import PolicyArming
from extender.kubernetes.api_groups import ResourceAttributes
from extender.metrics import gauge
from extender.placement.gate import UnknownImages
from extender.placement.ungating import UngatingPlanner
from extender.resolver.pod_resolver import PodResolver
from extender.server.operations import CheckResult
from extender.service.cluster_view import ClusterView, check_watch
from extender.service.operator_policies import admission_settings_of
from extender.service.rights import GATE_RIGHTS

log = structlog.get_logger()

START_SECONDS = 15.0
"""How long a replica that starts is not ready because nobody is known to remove gates. Then one that serves a webhook
or the scheduler verbs is, unless pods are held: a missing right alone must not take these away."""
RELEASE_SECONDS = 5.0
"""How long pods wait for their images that were held before, where none is held any more."""
REMOVAL = gauge(
    "multiarch_gates_removal",
    "wanted: this replica is to hold pods; able: some replica can remove gates.",
    "state",
    ("wanted", "able"),
)
_LIST, _WATCH = ResourceAttributes("list", "pods"), ResourceAttributes("watch", "pods")


class Gates:
    """Whether pods may be held: some replica leads, and our account may do what removing a gate takes.

    All replicas have one account, so each proves the rights for all. `serves`: this replica answers a webhook or the
    scheduler verbs too. `held_pods` counts the held pods, as far as they are known.
    """

    def __init__(
        self, election: LeaderElection, rights: OwnRights, clock: Callable[[], float], *, serves: bool
    ) -> None:
        self._election = election
        self._rights = rights
        self._clock = clock
        self._serves = serves
        self._starts_until = clock() + START_SECONDS
        self._was_able = False
        self.held_pods = CountedPods()

    def can_gate(self) -> bool:
        """Whether somebody provably removes gates. No request."""
        return self._election.is_led() and self._rights.are_proven()

    def check(self) -> CheckResult:
        """Whether the gates of held pods are removed.

        Nothing else depends on a replica that serves nothing, so it is not ready while nobody removes gates. One that
        serves something is, once it was able to, or while it sees no held pod.
        """
        if self.can_gate():
            self._was_able = True
            return CheckResult(detail="leading" if self._election.is_leader else "standing by")
        has_started = self._clock() >= self._starts_until and not len(self.held_pods)
        detail = f"nobody is known to remove gates (Lease {self._election.name}); {len(self.held_pods)} pods are held"
        return CheckResult(ok=self._serves and (self._was_able or has_started), detail=detail)


@contextlib.asynccontextmanager
async def open_gates(
    config: Config, cluster_view: ClusterView, pod_resolver: PodResolver
) -> AsyncIterator[Gates | None]:
    """Runs the gate controller beside the context, if there is a cluster. Gives the gates if pods are to be held.

    Unless unknown images are to be waited for it only removes gates, soon, and needs no rights to be ready: where it
    has none it stays away.
    """
    client, events = cluster_view.client, cluster_view.events
    if client is None or events is None:
        yield None
        return
    identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
    election = LeaderElection(
        client,
        namespace=client.namespace,
        name=config.admission.gate.lease,
        identity=identity,
        clock=time.monotonic,
        wall_clock=time.time,
    )
    holds = config.admission.unknown is UnknownImages.GATE
    rights = OwnRights(client, GATE_RIGHTS, needed=holds, clock=time.monotonic)
    serves = bool(config.admission.listen or config.scheduler.listen)
    gates = Gates(election, rights, time.monotonic, serves=serves)
    controller = _controller(config, client, events, cluster_view, pod_resolver)
    REMOVAL["wanted"].set(holds)
    REMOVAL["able"].set_function(lambda: float(gates.can_gate()))
    gate = config.admission.gate
    arming = PolicyArming(client, gate.policy, gate.probe_namespace, can_ungate=gates.can_gate) if gate.policy else None

    async def lead() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(controller.run())
            if arming:
                tasks.create_task(arming.run())

    async def take_part() -> None:
        if not holds:
            await rights.were_proven.wait()
        await election.run(lead)

    try:
        async with (
            in_background(rights.run(), "gate-rights"),
            in_background(take_part(), "gates"),
            in_background(_count_held(client, gates.held_pods), "gates-count"),
        ):
            yield gates if holds else None
    finally:
        REMOVAL["wanted"].set(0)
        REMOVAL["able"].set_function(float)


async def _count_held(client: ClusterClient, held_pods: CountedPods) -> None:
    """Has the metric say what is held, whoever leads; where the account may not list pods it says nothing."""
    while not await _may_count(client):  # noqa: ASYNC110  # rights have no event
        await asyncio.sleep(CHECK_SECONDS)
    PODS["seen"].set_function(lambda: len(held_pods))
    try:
        await ListWatch(client, HELD_PODS, held_pods, clock=time.monotonic, random=random.random).run()
    finally:
        PODS["seen"].set_function(float)
        AGE[HELD_PODS.name].set_function(float)


async def _may_count(client: ClusterClient) -> bool:
    try:
        return await is_allowed(client, _LIST) and await is_allowed(client, _WATCH)
    except ClusterError:
        return False


def _controller(
    config: Config, client: ClusterClient, events: PodEvents, cluster_view: ClusterView, pod_resolver: PodResolver
) -> GateController:
    settings = admission_settings_of(config)
    holds = settings.gate.unknown is UnknownImages.GATE
    limit_seconds = config.admission.gate.limit_seconds
    holding = msgspec.structs.replace(settings, gate=msgspec.structs.replace(settings.gate, unknown=UnknownImages.GATE))
    return GateController(
        client,
        pod_resolver,
        UngatingPlanner(pod_resolver.policy, holding),
        events,
        cluster_nodes=cluster_view.known_nodes,
        is_ready=lambda: all(check_watch(each).ok for each in cluster_view.watches),
        limit_seconds=limit_seconds if holds else min(limit_seconds, RELEASE_SECONDS),
        clock=time.monotonic,
        wall_clock=time.time,
        random=random.random,
    )
