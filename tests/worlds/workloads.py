"""kube-controller-manager, as far as pods are concerned, and Kueue beside it."""

import asyncio
import random
from functools import partial

from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import KINDS, Document
from tests.worlds.api_server import ApiServer
from tests.worlds.api_storage import key_of
from tests.worlds.controllers import Controller
from tests.worlds.daemon_sets import DaemonSets
from tests.worlds.jobs import JobQueue, Jobs
from tests.worlds.node_lifecycle import NodeLifecycle
from tests.worlds.replica_sets import Deployments, ReplicaSets
from tests.worlds.stateful_sets import StatefulSets
from tests.worlds.trace import Trace

_OWNERS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
_COLLECTING_SECONDS = 0.5  # at most, until what lost its owner is deleted
_USER = "system:serviceaccount:kube-system:generic-garbage-collector"


class Workloads:
    """Runs all controllers while `run` runs.

    What loses its controller is deleted, and so are pods of a node that is gone: pkg/controller/garbagecollector and
    podgc. Limit: deletion of dependents is always in the background, and of a node at once.
    """

    def __init__(self, api: ApiServer, trace: Trace, chance: random.Random) -> None:
        self._api = api
        self._trace = trace
        self._chance = chance
        self.controllers: tuple[Controller, ...] = (
            ReplicaSets(api),
            Deployments(api),
            StatefulSets(api),
            DaemonSets(api),
            Jobs(api),
            JobQueue(api),
            NodeLifecycle(api, chance),
        )
        self._lost: list[tuple[str, Document]] = []
        self._has_lost = asyncio.Event()
        for kind in (*_OWNERS, "Node"):
            api.subscribe(kind, partial(self._on_change, kind))

    def _on_change(self, kind: str, change: str, before: Document | None, _after: Document | None) -> None:
        if change == "DELETED" and before:
            self._lost.append((kind, before))
            self._has_lost.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for controller in self.controllers:
                tasks.create_task(controller.run())
            tasks.create_task(self._collect())

    async def _collect(self) -> None:
        while True:
            await self._has_lost.wait()
            await asyncio.sleep(self._chance.uniform(0, _COLLECTING_SECONDS))
            self._has_lost.clear()
            lost, self._lost = self._lost, []
            for kind, owner in lost:
                for dependent_kind, dependent in self._dependents(kind, owner):
                    namespace, name = key_of(dependent)
                    try:
                        await self._api.delete(dependent_kind, namespace, name, user=_USER)
                    except ApiError as exc:
                        self._trace("garbage-collector", "failed", name=f"{namespace}/{name}", why=str(exc))

    def _dependents(self, kind: str, owner: Document) -> list[tuple[str, Document]]:
        name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
        if kind == "Node":
            pods = (stored.document for stored in self._api.storage.all("Pod"))
            return [("Pod", pod) for pod in pods if pod["spec"].get("nodeName") == name]
        return [
            (each, stored.document)
            for each in KINDS
            if each in ("Pod", *_OWNERS)
            for stored in self._api.storage.all(each, owner["metadata"].get("namespace", ""))
            if any(found["uid"] == uid for found in stored.document["metadata"].get("ownerReferences") or ())
        ]
