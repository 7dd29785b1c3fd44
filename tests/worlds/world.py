"""Plays a plan: starts the parties, has the events happen at their times, and asks the invariants."""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from testbed.memory_http import serve_http
from testbed.memory_network import Network, run_in_memory
from tests.worlds.api_errors import ApiError
from tests.worlds.api_requests import ApiRequests
from tests.worlds.api_server import HOST, PORT, ApiServer
from tests.worlds.choices import (
    EXEMPT_CLASS,
    FOLDER,
    HIGH_CLASS,
    PRIVATE_HOST,
    PUBLIC_HOST,
    RUNTIME_CLASSES,
    SECOND_SCHEDULER,
    listens,
)
from tests.worlds.circumstances import Circumstances, config_of, health
from tests.worlds.containerd import Outcome as PulledOutcome
from tests.worlds.findings import Filtered, Violation
from tests.worlds.happenings import happen
from tests.worlds.installation import account, install, put_in_place
from tests.worlds.invariants import INVARIANTS
from tests.worlds.kubelets import Kubelets
from tests.worlds.lives import SENDING, Life, Lives, Sent, copied
from tests.worlds.objects import namespace_object, secret_object
from tests.worlds.observed import observing
from tests.worlds.plan import ExtenderConfig, Manifest, Mode, Plan, ReplicaTerminated
from tests.worlds.probes import Probes
from tests.worlds.registries import Registries
from tests.worlds.replicas import SCHEDULER_PORT, Replica
from tests.worlds.scheduler import KubeScheduler
from tests.worlds.scheduler_election import SchedulerElection
from tests.worlds.trace import Entry, Trace
from tests.worlds.truth import LABEL, Contents, references
from tests.worlds.workloads import Workloads
from tests.worlds.wrongs import Wrongs

_STARTED_SECONDS = 60.0  # at most, before the first event: replicas start as they do in a cluster that stands
_LATENCY_SECONDS = 0.01
_RESTART_SECONDS = 3.0  # until a replica that has ended is started again
_FLUSHED_SECONDS = 345.0  # in which kube-scheduler tries every pod again
_SEARCHED_SECONDS = 345.0  # in which a pod is found that has our gate and not its label
_QUIET_SECONDS = 75.0  # after the last fault is felt no more
_LEARNED_SECONDS = 3.0  # in which the images of a pod get known, unless one of these is wrong
_OF_LOOKUPS = ("api", "callers", "fetcher", "registry", "replica", "right", "rollout")

_WRONG = (PulledOutcome.EXEC_FORMAT, PulledOutcome.NO_MATCH)
_RIGHT = (PulledOutcome.RUNNING, PulledOutcome.MOUNTED)


class Outcome(msgspec.Struct):
    """What came of a world: promises broken, checks made by invariant, its trace's digest, and how long it took."""

    violations: list[Violation]
    checks: Counter[str]
    digest: str
    seconds: float
    trace: list[Entry]


class _Api(ApiServer):
    """Notes what is sent, so that it can be compared with what is stored."""

    world: "World"

    async def create(self, kind: str, obj: Manifest, *, user: str, **more: Any) -> Any:
        return await self._noted(kind, obj, user, super().create(kind, obj, user=user, **more), more)

    async def apply(self, kind: str, manifest: Manifest, *, user: str, **more: Any) -> Any:
        return await self._noted(kind, manifest, user, super().apply(kind, manifest, user=user, **more), more)

    async def _noted(self, kind: str, obj: Manifest, user: str, work: Coroutine[Any, Any, Any], more: Any) -> Any:
        sent = Sent(copied(obj), self.world.now, user)
        token = SENDING.set(sent)
        error = ""
        try:
            return await work
        except ApiError as exc:
            error = str(exc)
            raise
        finally:
            SENDING.reset(token)
            if not more.get("dry_run"):
                for note in self.world.on_sent:
                    note(kind, sent.manifest, user, error)


class World(Circumstances):
    """One world while it is played."""

    def __init__(self, plan: Plan, network: Network, folder: Path) -> None:
        super().__init__()
        self.plan = plan
        self.network = network
        network.latency_seconds = _LATENCY_SECONDS
        self.trace = Trace(network.loop.time)
        self.wrongs = Wrongs(network.loop.time)
        self.contents = Contents(network.loop.time)
        self.config = config_of(plan.settings, plan.mode)
        self.settings = plan.settings
        self.settings_since = -1000.0
        self.namespace_history = {each.name: [(-1000.0, each.annotations)] for each in plan.namespaces}
        self.joined_at: dict[str, float] = {each.name: -1000.0 for each in plan.nodes}
        self._folder = folder
        self.started_at = 0.0
        self.api = _Api(network, self.trace, self.chance("api"))
        self.api.world = self
        self.requests = ApiRequests(self.api, self.chance("requests"), lambda _: account(plan.mode))
        serve_http(network, HOST, PORT, self.requests.answer)
        self.lives = Lives(self.api, network.loop.time)
        self.lives.on_created.append(self._note_reviewed)
        self.lives.on_ungated.append(lambda life, _: self._note_reviewed(life))
        self.registries = Registries(network, plan.images, self.chance("registries"), inner=(PRIVATE_HOST,))
        for host in (PUBLIC_HOST, PRIVATE_HOST):
            self.registries.open(host)
        for image in plan.images:
            self.contents.push(image)
        for secret in plan.secrets:
            self.contents.set_secret(secret)
        self.kubelets = Kubelets(network, self.api, self.registries, self.trace, self.chance("kubelets"))
        self.workloads = Workloads(self.api, self.trace, self.chance("workloads"))
        self.replicas: list[Replica] = []
        self.gone: list[Replica] = []
        self.replaced_at: dict[int, float] = {}
        self.probes = Probes(network, self.trace, lambda: self.replicas, self.restart_replica)
        self.invariants = [kind(self) for kind in INVARIANTS]
        self._judged = 0
        self.trace.listen("filtered", self._filtered)
        self.trace.listen("filter failed", self._filtered)

    def chance(self, name: str) -> random.Random:
        """A generator of its own for a party."""
        return random.Random(f"{self.plan.chance} {name}")

    # Playing

    async def play(self) -> Outcome:
        """Plays the whole plan."""
        async with asyncio.TaskGroup() as self.tasks:
            await self._start()
            self.started_at = self.now
            for invariant in self.invariants:
                invariant.start()
            for event in self.plan.events:
                await self._until(self.started_at + event.at)
                self.spawn(happen(self, event))
            await self._until(self.started_at + self.plan.seconds)
            await self._until(max(self.now, self.wrongs.felt_until()) + _QUIET_SECONDS)
            if self.plan.mode.has_verbs and self._is_pod_left():
                await asyncio.sleep(_FLUSHED_SECONDS)
            if any(life.is_held and LABEL not in life.pod["metadata"].get("labels", {}) for life in self.lives):
                await asyncio.sleep(_SEARCHED_SECONDS)
            for invariant in self.invariants:
                await invariant.finish()
            await self._end()
            for invariant in self.invariants:
                invariant.end()
            outcome = Outcome(
                self.violations,
                Counter({each.name: each.checks for each in self.invariants}),
                self.trace.digest,
                self.now,
                list(self.trace),
            )
            for replica in self.replicas:
                replica.kill()
            raise _Over(outcome)
        raise AssertionError

    async def _end(self) -> None:
        """Ends all replicas, in order where nothing is wrong."""
        if not self.wrongs.is_quiet():
            return
        for number in range(len(self.replicas)):
            self.wrongs.note(ReplicaTerminated(at=self.now, replica=number))
        running = self.running()
        seconds = await asyncio.gather(*(each.terminate() for each in running))
        self.ended_after = dict(zip(running, seconds, strict=True))

    def _is_pod_left(self) -> bool:
        return any(life.is_there and not life.is_held and life.bound_at is None for life in self.lives)

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self.now))

    async def _start(self) -> None:
        plan = self.plan
        for name, text in plan.files.items():
            (self._folder / name).write_text(text)
        install(self.api, plan.mode, settings=plan.settings, kubernetes=plan.kubernetes)
        for namespace in plan.namespaces:
            await self.api.create("Namespace", namespace_object(namespace), user="admin")
        for name in (EXEMPT_CLASS, HIGH_CLASS):
            put_in_place(self.api, "PriorityClass", {"metadata": {"name": name}, "value": 1000})
        for name in RUNTIME_CLASSES:
            put_in_place(self.api, "RuntimeClass", {"metadata": {"name": name}, "handler": name})
        for secret in plan.secrets:
            await self.api.create("Secret", secret_object(secret), user="admin")
        self.spawn(self.kubelets.run())
        for node in plan.nodes:
            await self.kubelets.add_node(node)
        self.spawn(self.workloads.run())
        for number in range(plan.replicas):
            await self.start_replica(number)
            self.spawn(self.probes.run(number))
        self.api.admission.endpoints = self.probes.ready_hosts
        self.start_schedulers()
        self.every(1.0, self._look_at_ran)
        deadline = self.now + _STARTED_SECONDS
        while self.now < deadline and not await self._is_ready():
            await asyncio.sleep(0.5)
        await asyncio.sleep(3.0)

    async def _is_ready(self) -> bool:
        """Whether all replicas are ready, and get requests."""
        is_ready = all([(await health(each.readyz()))[0] == 200 for each in self.replicas])
        return is_ready and len(self.probes.ready_hosts()) == len(self.replicas)

    def start_schedulers(self) -> None:
        """The cluster's own, which has the extender on its node; or beside it one in the pod of each replica."""
        extender = self.plan.kubernetes.extender
        if self.plan.mode is not Mode.SECOND:
            self.spawn(self._scheduler("default-scheduler", 0, extender).run())
            return
        self.spawn(self._scheduler("default-scheduler", 0, None).run())
        seconds = [self._scheduler(SECOND_SCHEDULER, number, extender) for number in range(self.plan.replicas)]
        self.election = SchedulerElection(seconds, self.trace)
        self.spawn(self.election.run())

    def _scheduler(self, name: str, number: int, extender: ExtenderConfig | None) -> KubeScheduler:
        return KubeScheduler(
            self.network,
            self.api,
            self.trace,
            self.chance(f"{name} {number}"),
            name=name,
            extender=extender,
            extender_url=f"http://{address_of(number)}:{SCHEDULER_PORT}/scheduler" if extender else "",
            address=address_of(number),
            pops_from_backoff=self.plan.kubernetes.pop_from_backoff_queue,
        )

    async def start_replica(self, number: int) -> None:
        """Starts a replica at its place, in place of one that is gone and that nobody else replaces."""
        if number < len(self.replicas):
            if self.replicas[number] in self.gone:
                return
            self.gone.append(self.replicas[number])
            self.replaced_at[number] = self.now + _RESTART_SECONDS
            await asyncio.sleep(_RESTART_SECONDS)
        name = f"replica-{number}-{sum(each.address == address_of(number) for each in self.gone)}"
        settings = (*listens(self.plan.mode), *(each.replace(FOLDER, str(self._folder)) for each in self.settings))
        replica = Replica(
            self.network,
            name,
            address_of(number),
            settings,
            api_url=f"http://{HOST}:{PORT}",
            registries=self.registries.hosts,
        )
        self.replicas[number : number + 1] = [replica]
        self.contents.learned.clear()  # to the new one nothing is known
        self.trace(name, "starts")
        await replica.start()

    async def restart_replica(self, number: int) -> None:
        """Ends a replica that is not live, with a grace of 30 s, and starts another."""
        self.wrongs.add(f"replica:{number}", 20.0, 45.0)
        await self.replicas[number].terminate()
        await self.start_replica(number)

    def _note_reviewed(self, life: Life) -> None:
        if self.is_reviewed(life):
            self._note_known(life, self.now)
        elif self.is_sent_to_webhook(life) and self.is_looked_at(life):  # a critical pod, of which it decides nothing
            self.contents.use(life.pod, self.now)

    def _note_known(self, life: Life, at: float) -> None:
        """Notes that the pod's images were asked for at that time, and whether they were to be known then."""
        if self.is_looked_at(life):
            self.contents.use(life.pod, at)
            self.later(_LEARNED_SECONDS, lambda: self._note_learned(life.pod, at))
        life.was_asked = True
        life.was_known, life.was_used = self.is_known(life.pod), self.is_known(life.pod, 3.0)

    def _note_learned(self, pod: Manifest, at: float) -> None:
        if self.wrongs.was_right_since(at, *_OF_LOOKUPS) and all(
            at - each > 40.0 for each in self.replaced_at.values()
        ):
            for reference in references(pod):
                if self.known_since(pod, reference) + self.missing_seconds(pod, reference) <= at:
                    self.contents.learn(pod["metadata"]["namespace"], reference)

    def _filtered(self, entry: Entry) -> None:
        fields = entry.fields
        life = self.lives.named(*fields["pod"])
        if life:
            filtered = Filtered(tuple(fields.get("passed", ())), fields.get("refused", {}), fields.get("error", ""))
            if not life.was_asked and not filtered.is_lost:
                self._note_known(life, fields["asked_at"])
            for note in self.on_filtered:
                note(life, filtered)

    def _look_at_ran(self) -> None:
        ran = self.kubelets.ran
        for each in ran[self._judged :]:
            life = self.lives.of(each.uid)
            if life and each.outcome in (*_WRONG, *_RIGHT):
                for note in self.on_ran:
                    note(life, each.outcome in _WRONG, f"{each.image}: {each.outcome}")
        self._judged = len(ran)


def address_of(number: int) -> str:
    """The address of the replica at that place."""
    return f"10.0.1.{number + 1}"


class _Over(Exception):  # it is no error: it ends the tasks of a world
    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def play(plan: Plan, make: Callable[[Plan, Network, Path], World] = World) -> Outcome:
    """Plays the plan in a loop of its own, in the world that `make` makes of it."""

    async def main(network: Network) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="world-") as folder:
            try:
                return await make(plan, network, Path(folder)).play()
            except* _Over as over:
                found = over.exceptions[0]
                assert isinstance(found, _Over)
                outcome = found.outcome
            return outcome

    with observing():
        return run_in_memory(main, seed=plan.chance)
