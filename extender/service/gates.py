"""The gate controller in the service: which replica runs it, and whether pods may be held at all.

It runs where nothing is held either, to remove gates that were added before: under other settings, or by a policy.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from extender.background import in_background, outlive_defects
from extender.cluster.client import ClusterClient
from extender.cluster.leader_election import FRESH_SECONDS, LeaderElection
from extender.cluster.listwatch import AGE, ListWatch
from extender.cluster.own_rights import CHECK_SECONDS, OwnRights, is_allowed
from extender.cluster.pod_events import PodEvents
from extender.config.tree import Config
from extender.errors import ClusterError
from extender.gates.gate_controller import OLDEST, PODS, GateController
from extender.gates.policy_binding import PolicyBinding
from extender.kubernetes.api_groups import ResourceAttributes
from extender.machine import Machine
from extender.metrics import gauge
from extender.placement.gate import UnknownImages
from extender.placement.ungating import UngatingPlanner
from extender.resolver.pod_resolver import PodResolver
from extender.server.operations import CheckResult
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import admission_settings_of
from extender.service.rights import GATE_RIGHTS

START_SECONDS = 15.0
"""How long a replica that starts is not ready because nobody is known to remove gates. Then one that serves a webhook
or the scheduler verbs is, unless pods are held: a missing right alone must not take these away."""
_SYNC_SECONDS = 0.2  # between two checks whether this replica is able, while it starts
_DEFECT_SECONDS = 30.0  # after a mistake of ours, before this replica leads again
RELEASE_SECONDS = 5.0
"""How long pods wait for their images that were held before, where none is held any more."""
REMOVAL = gauge(
    "multiarch_gates_removal",
    "wanted: this replica is to hold pods; able: some replica leads, and this one would remove a gate too.",
    "state",
    ("wanted", "able"),
)
_LIST, _WATCH = ResourceAttributes("list", "pods"), ResourceAttributes("watch", "pods")


class Gates:
    """Whether pods may be held: some replica leads, which is able to remove gates, and this one would be too.

    `serves`: this replica answers a webhook or the scheduler verbs too.
    """

    def __init__(
        self,
        election: LeaderElection,
        rights: OwnRights,
        views: Sequence[ListWatch],
        clock: Callable[[], float],
        *,
        serves: bool,
    ) -> None:
        self._election = election
        self._rights = rights
        self._views = views
        self._clock = clock
        self._serves = serves
        self._started_at = clock()
        self._was_able = False
        self.controller: GateController

    def is_starting(self) -> bool:
        """Whether this replica may not have had the time yet to see the cluster."""
        return self._clock() < self._started_at + START_SECONDS

    def is_responsible(self) -> bool:
        """Whether this replica has to remove gates: it leads, or no other does. While it starts, another may lead."""
        is_new = self._clock() < self._started_at + FRESH_SECONDS
        return self._election.is_leader or not (is_new or self._election.is_led())

    def is_ready(self) -> bool:
        """Whether this replica can decide about held pods: it has the rights, and sees nodes and namespaces."""
        return self._rights.are_proven() and all(view.is_seen for view in self._views)

    def is_able(self) -> bool:
        """Whether this replica would remove a gate now, by what is known of the pod's images."""
        return self.is_ready() and self.controller.is_able()

    def can_gate(self) -> bool:
        """Whether somebody provably removes gates, and this replica would too. No request."""
        return self._election.is_led() and self.is_able()

    def check(self) -> CheckResult:
        """Whether the gates of held pods are removed.

        Nothing else depends on a replica that serves nothing, so it is not ready while nobody removes gates. One that
        serves something is, once it was able to, or while it sees no held pod.
        """
        if self.can_gate():
            self._was_able = True
            return CheckResult(detail="leading" if self._election.is_leader else "standing by")
        held = self.controller.held
        has_started = not (self.is_starting() or held)
        detail = f"nobody is known to remove gates (Lease {self._election.name}); {held} pods are held"
        return CheckResult(ok=self._serves and (self._was_able or has_started), detail=detail)


@contextlib.asynccontextmanager
async def open_gates(
    config: Config, cluster_view: ClusterView, pod_resolver: PodResolver, machine: Machine
) -> AsyncIterator[Gates | None]:
    """Runs the gate controller beside the context, if there is a cluster. Gives the gates if pods are to be held.

    Unless unknown images are to be waited for it only removes gates, soon, and needs no rights to be ready: where it
    has none it stays away.
    """
    client, events = cluster_view.client, cluster_view.events
    if client is None or events is None:
        yield None
        return
    identity = f"{machine.host_name}_{machine.token_bytes(4).hex()}"
    election = LeaderElection(
        client,
        namespace=client.namespace,
        name=config.admission.gate.lease,
        identity=identity,
        clock=machine.clock,
        wall_clock=machine.wall_clock,
    )
    holds = config.admission.unknown is UnknownImages.GATE
    rights = OwnRights(client, GATE_RIGHTS, needed=holds, clock=machine.clock)
    serves = bool(config.admission.listen or config.scheduler.listen)
    gates = Gates(election, rights, cluster_view.watches, machine.clock, serves=serves)
    controller = gates.controller = _controller(config, client, events, cluster_view, pod_resolver, gates, machine)
    REMOVAL["wanted"].set(holds)
    REMOVAL["able"].set_function(lambda: float(gates.can_gate()))
    gate = config.admission.gate
    binding = (
        PolicyBinding(client, gate.policy, gate.probe_namespace, can_ungate=gates.can_gate) if gate.policy else None
    )

    async def control() -> None:
        if not holds:
            await rights.were_proven.wait()
        await controller.run()

    async def lead() -> None:
        await (binding.run() if binding else asyncio.Event().wait())

    async def stand_for_election() -> None:
        while not gates.is_able() and gates.is_starting():  # noqa: ASYNC110  # views have no event
            await asyncio.sleep(_SYNC_SECONDS)
        while True:
            with outlive_defects("gate.failed"):
                await election.run(lead, gates.is_able)
            await asyncio.sleep(_DEFECT_SECONDS)

    try:
        async with (
            in_background(rights.run(), "gate-rights"),
            in_background(_watch_held(client, controller), "gates-watch"),
            in_background(control(), "gates"),
            in_background(stand_for_election(), "gates-election"),
        ):
            yield gates if holds else None
    finally:
        REMOVAL["wanted"].set(0)
        for metric in (REMOVAL["able"], OLDEST["held"], *PODS.values(), AGE[controller.watch.name]):
            metric.set_function(float)


async def _watch_held(client: ClusterClient, controller: GateController) -> None:
    """Watches held pods, whoever leads. Where the account may not list pods, no metric says how many there are."""
    while not await _may_watch(client):  # noqa: ASYNC110  # rights have no event
        await asyncio.sleep(CHECK_SECONDS)
    PODS["seen"].set_function(lambda: controller.held)
    await controller.watch.run()


async def _may_watch(client: ClusterClient) -> bool:
    try:
        return await is_allowed(client, _LIST) and await is_allowed(client, _WATCH)
    except ClusterError:
        return False


def _controller(
    config: Config,
    client: ClusterClient,
    events: PodEvents,
    cluster_view: ClusterView,
    pod_resolver: PodResolver,
    gates: Gates,
    machine: Machine,
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
        is_responsible=gates.is_responsible,
        is_ready=gates.is_ready,
        limit_seconds=limit_seconds if holds else min(limit_seconds, RELEASE_SECONDS),
        clock=machine.clock,
        wall_clock=machine.wall_clock,
        random=machine.random,
    )
