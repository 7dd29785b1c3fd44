"""Measures kube-scheduler in a cluster with nodes and images of known platforms, one variant after another.

A run is valid if every pod is bound, none on a node where its image does not run, and the extender was called. Other
files choose the variants and print the figures.
"""

import asyncio
import itertools
import random
import re
import time
from pathlib import Path

from benchmarks.cluster.extender_runner import ARCHITECTURES, PREFERRED, WHERE, ExtenderRunner
from benchmarks.cluster.extenders import Extender
from benchmarks.cluster.measurements import Measurement, Sample, pace_of
from benchmarks.cluster.variants import FILTER, ExtenderChoice, Pods, Variant
from benchmarks.process_costs import cpu_seconds
from benchmarks.reference.programs import Programs
from testbed.api_client import ApiClient
from testbed.cluster_provider import ClusterProvider, running_scheduler
from testbed.embedded_registry import EmbeddedRegistry
from testbed.objects import KubernetesObject, kept_to, pod, used_node
from testbed.shipped_files import (
    Mode,
    scheduler_configuration,
    scheduler_flags,
)

FAST = {"qps": 5000, "burst": 5000}
"""Raises kube-scheduler's limit of 50 requests a second, which would else be what is measured."""
UNTHROTTLED: KubernetesObject = {
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "kind": "FlowSchema",
    "metadata": {"name": "benchmarked-scheduler"},
    "spec": {
        "matchingPrecedence": 10,
        "priorityLevelConfiguration": {"name": "exempt"},
        "rules": [
            {
                "subjects": [{"kind": "User", "user": {"name": "system:kube-scheduler"}}],
                "resourceRules": [
                    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
                ],
            }
        ],
    },
}
"""Exempts kube-scheduler from the API server's priority and fairness.

Without it the API server refuses some of its many concurrent bindings (429, queue full), which are then delayed for
seconds while all cores idle.
"""
SAMPLE_SECONDS = 0.25
BOUND_SECONDS = 900.0
NODES_AT_ONCE = 1000
DELETERS = 4
"""How many parts of a collection are deleted concurrently.

The API server deletes the objects of one part in sequence.
"""
QUIET_SHARE, QUIET_SECONDS, QUIETED_SECONDS = 0.15, 0.5, 30.0
SCHEDULER = "kube-scheduler"
_SCHEDULED = re.compile(r'^scheduler_schedule_attempts_total\{[^}]*result="scheduled"[^}]*\} (\S+)$', re.MULTILINE)


class Misplaced(RuntimeError):
    """Pods are on nodes where their image does not run, or lack what the webhook adds: the run is void."""


class SchedulerRun:
    """A cluster with its nodes; `set_up` creates them."""

    def __init__(
        self,
        cluster: ClusterProvider,
        api: ApiClient,
        registry: EmbeddedRegistry,
        programs: Programs,
        folder: Path,
    ) -> None:
        self._cluster, self._api = cluster, api
        self._extenders = ExtenderRunner(cluster, api, registry, programs, folder)
        self._architectures: dict[str, str] = {}

    async def set_up(self, nodes: int) -> None:
        """Creates so many nodes, half of each architecture in a fixed random order. All others become unschedulable."""
        for found in await self._api.list("Node"):
            await self._api.patch("Node", found["metadata"]["name"], {"spec": {"unschedulable": True}})
        architectures = [ARCHITECTURES[index % 2] for index in range(nodes)]
        random.Random(nodes).shuffle(architectures)
        self._architectures = {f"production-pool-4f3a2b1c-{index:05}": each for index, each in enumerate(architectures)}
        made = (used_node(name, architecture) for name, architecture in self._architectures.items())
        while some := list(itertools.islice(made, NODES_AT_ONCE)):
            await self._api.create_all(some)
        await self._extenders.set_up(self._architectures)
        await self._api.apply(UNTHROTTLED)

    async def measure(self, variant: Variant, pods: int) -> tuple[Measurement, str]:
        """Measures the variant with so many pods; returns the figures and kube-scheduler's last metrics.

        Deletes the pods.

        Raises NotAsked, Misplaced, TimeoutError, ProcessFailed.
        """
        count, spec = variant.count(pods), await self._extenders.spec(variant)
        try:
            async with self._extenders.extender_of(variant) as extender:
                created_per_second = await self._create(variant, extender, count, spec)
                await self._quiet()
                samples, text = await self._schedule(variant, extender, count)
            await self._judge(variant, count)
        finally:
            await self._clear(count)
        measured = Measurement(
            variant=variant.name,
            nodes=len(self._architectures),
            pods=count,
            pace=pace_of(samples),
            created_per_second=created_per_second,
        )
        return measured, text

    async def _create(self, variant: Variant, extender: Extender | None, count: int, spec: KubernetesObject) -> float:
        """Creates the pods while no scheduler runs; returns how many were created per second."""
        if extender:
            await extender.begin()
        image = self._extenders.images[variant.pods]
        pods = [
            pod(f"pod-{index}", image, namespace=WHERE, labels={"part": str(index % DELETERS)}, spec=spec)
            for index in range(count)
        ]
        began = time.perf_counter()
        await self._api.create_all(pods)
        seconds = time.perf_counter() - began
        if extender and variant.affinity:
            await extender.check(count, ["admission"])
        return count / seconds

    async def _schedule(self, variant: Variant, extender: Extender | None, count: int) -> tuple[list[Sample], str]:
        """Runs kube-scheduler until all pods are bound; returns the samples and its last metrics.

        The first sample is from before its start.
        """
        url = extender.url if extender else ""
        configuration = scheduler_configuration(Mode.SECOND, url, variant.entry(), clientConnection=dict(FAST))
        samples = [Sample(time.perf_counter(), 0)]
        with running_scheduler(self._cluster, configuration, SCHEDULER, scheduler_flags(Mode.SECOND)):
            text = await self._read_until_bound(samples, count)
            if extender:
                await extender.check(count, variant.verbs)
        return samples, text

    async def _read_until_bound(self, samples: list[Sample], count: int) -> str:
        """Adds a sample for each reading until so many pods are bound; returns the last metrics.

        Raises TimeoutError.
        """
        try:
            async with asyncio.timeout(BOUND_SECONDS):
                while True:
                    text = await asyncio.to_thread(self._cluster.scheduler_metrics, SCHEDULER)
                    samples.append(Sample(time.perf_counter(), scheduled(text)))
                    if samples[-1].bound >= count:
                        return text
                    await asyncio.sleep(SAMPLE_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{samples[-1].bound} of {count} pods bound in {BOUND_SECONDS:g} s") from None

    async def _judge(self, variant: Variant, count: int) -> None:
        """Raises Misplaced unless every pod is on an allowed node and has what the webhook adds."""
        pods = await self._api.list("Pod", WHERE)
        is_kept_off = variant.extender in (ExtenderChoice.OURS, ExtenderChoice.TYPED) and FILTER in variant.verbs
        is_single = variant.pods is Pods.SINGLE and (is_kept_off or variant.affinity == "required")
        allowed = ("amd64",) if is_single else (PREFERRED,) if variant.strict else ARCHITECTURES
        placed = [self._architectures.get(each["spec"].get("nodeName", ""), "nowhere") for each in pods]
        if len(placed) != count or not set(placed) <= set(allowed):
            there = {each: placed.count(each) for each in set(placed)}
            raise Misplaced(f"{variant.name}: {count:,} pods may stand on {' and '.join(allowed)}, but: {there}")
        if variant.affinity and (missed := sum(not _is_patched(each, variant) for each in pods)):
            raise Misplaced(f"{variant.name}: {missed} of {count} pods lack what the webhook adds")

    async def _clear(self, count: int) -> None:
        """Deletes the pods; returns when the control plane is idle."""
        parts = range(min(DELETERS, count))
        await asyncio.gather(*(self._api.delete_all("Pod", WHERE, labelSelector=f"part={part}") for part in parts))
        await self._api.delete_all("Pod", WHERE)
        await self._quiet()

    async def _quiet(self) -> None:
        """Returns when etcd and kube-apiserver use little of a core, at the latest after QUIETED_SECONDS."""
        for _ in range(int(QUIETED_SECONDS / QUIET_SECONDS)):
            before = self._control_plane_seconds()
            await asyncio.sleep(QUIET_SECONDS)
            if self._control_plane_seconds() - before < QUIET_SHARE * QUIET_SECONDS:
                return

    def _control_plane_seconds(self) -> float:
        return sum(cpu_seconds(process.pid) for process in self._cluster.processes if process.is_running)


def scheduled(metrics: str) -> int:
    """Returns how many pods have been bound; 0 if the counter is missing, as it is at the start."""
    return sum(int(float(value)) for value in _SCHEDULED.findall(metrics))


def _is_patched(found: KubernetesObject, variant: Variant) -> bool:
    """Whether the pod has what keeps it on amd64, if it must be, or what else the webhook adds to it.

    That is a preference if this is the `node_affinity`; it adds tolerations for arm64 to every multi-arch pod.
    """
    spec = found["spec"]
    if variant.pods is Pods.SINGLE:
        return kept_to(spec, "kubernetes.io/arch") == ["amd64"]
    tolerates = any(not each["key"].startswith("node.kubernetes.io/") for each in spec.get("tolerations", []))
    terms = spec.get("affinity", {}).get("nodeAffinity", {})
    return tolerates and (variant.affinity != "preferred" or any(key.startswith("preferred") for key in terms))
