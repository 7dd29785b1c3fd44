"""How long is a pod held, how many are let go in a second, and does the gate controller's memory stay level?

It runs on a real etcd and kube-apiserver, with the shipped rights. First pods come one after the other, each with an
image of its own in a registry that is some way away: from the watch's word of the pod to its word that the gate is off.
Then a few thousand pods wait for one image, which is then pushed: the rate is that from the first release to the last.
Then rounds of pods with known images come, as a policy gates them, and go. `python -m benchmarks gates` prints the
report.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import quantiles

import msgspec

from benchmarks.process_costs import cpu_seconds, memory
from benchmarks.report import Claim, Line, Plot, Report, Table, this_machine
from extender.demo.registry import EmbeddedRegistry
from testbed.api_client import ApiClient, connect
from testbed.binaries import chosen_kubernetes, find_binaries
from testbed.control_plane import LocalCluster
from testbed.extender_process import ExtenderProcess, make_extender_process, write_account
from testbed.objects import KubernetesObject, namespace, pod
from testbed.shipped_files import Mode

NAME = "gates"
QUESTION = "How long is a pod held, how many are let go in a second, and does memory stay level over 100,000?"
COLD, HELD, PODS, ROUND = 200, 3_000, 100_000, 2_000
REGISTRY_SECONDS, BETWEEN_SECONDS = 0.25, 0.1
"""Of the pods with images of their own: how far their registry is, and the time from one pod to the next."""
BEYOND_LOOKUP, PER_SECOND, GROWTH_MEGABYTES = 50.0, 400.0, 15.0
"""The bounds of the claims. The growth is that from a tenth of the pods on, when every table has its usual size."""
WHERE = "gates"
GATE = "multiarch-extender.io/platforms"
_PAUSE_SECONDS = 0.1  # each look at the metrics takes 4 ms of the controller's processor time
_CREATED_TOGETHER = 200  # a request of the client ends after 30 s, queueing included
_GIVEN_UP_SECONDS = 300.0
_RELEASES = "multiarch_gates_releases_total"


class Cold(msgspec.Struct, frozen=True, kw_only=True):
    """Pods whose images were not known: the milliseconds that each was held, and those of a lookup (the mean)."""

    held: Sequence[float]
    lookup: float


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that waited for one image: how many, from the first release to the last, and the processor's time for it."""

    pods: int
    seconds: float
    cpu_seconds: float


class Sample(msgspec.Struct, frozen=True):
    """Resident megabytes after so many pods."""

    pods: int
    megabytes: float


def run(*, fewer: int = 1, cold: int = COLD, held: int = HELD, pods: int = PODS) -> Report:
    """Returns the report. It takes ten minutes and more, most of which the API server creates and deletes pods.

    Raises BinariesMissing, ProcessFailed, TimeoutError.
    """
    with LocalCluster(find_binaries()) as cluster:
        measured = asyncio.run(_measure(cluster, *(max(count // fewer, 10) for count in (cold, held, pods))))
    return report_of(*measured)


def report_of(cold: Cold, burst: Burst, samples: Sequence[Sample]) -> Report:
    """Returns the report of pods one after the other, of a burst, and of memory over many pods."""
    cuts = quantiles(cold.held, n=100)
    rate = burst.pods / burst.seconds
    settled = [sample for sample in samples if sample.pods * 10 >= samples[-1].pods] or samples[-1:]
    growth = samples[-1].megabytes - settled[0].megabytes
    return Report(
        name=NAME,
        question=QUESTION,
        tables=[
            Table(
                f"pods with images of their own, registry {REGISTRY_SECONDS * 1000:g} ms away",
                ("pods", "lookup ms (mean)", "held ms p50", "held ms p99"),
                [[f"{len(cold.held):,}", cold.lookup, cuts[49], cuts[98]]],
            ),
            Table(
                "pods that waited for one image",
                ("pods", "seconds", "pods a second", "processor ms a pod"),
                [[f"{burst.pods:,}", burst.seconds, rate, burst.cpu_seconds / burst.pods * 1000]],
            ),
            Table(
                "memory after so many pods that a policy gated", ("pods", "resident MB"),
                [[f"{sample.pods:,}", sample.megabytes] for sample in samples],
            ),
        ],
        claims=[
            Claim(what="held beyond the lookup, p50", value=cuts[49] - cold.lookup, unit="ms", at_most=BEYOND_LOOKUP),
            Claim(what=f"let go of {burst.pods:,} held pods", value=rate, unit="pods/s", at_least=PER_SECOND),
            Claim(
                what=f"memory from {settled[0].pods:,} to {samples[-1].pods:,} pods", value=growth, unit="MB",
                at_most=GROWTH_MEGABYTES,
            ),
        ],
        plots=[
            Plot(
                name=NAME, title="Memory of the gate controller", x_label="pods let go", y_label="resident MB",
                lines=[Line("resident", [(float(sample.pods), sample.megabytes) for sample in samples])],
            )
        ],
        notes=["etcd, kube-apiserver and the client that creates the pods share the cores with the controller"],
        machine=this_machine(**{"kube-apiserver": chosen_kubernetes().version}),
    )  # fmt: skip


async def _measure(cluster: LocalCluster, cold: int, held: int, pods: int) -> tuple[Cold, Burst, list[Sample]]:
    with tempfile.TemporaryDirectory(prefix="multiarch-gates-") as folder:
        async with connect(cluster.kubeconfig) as api, EmbeddedRegistry() as registry:
            await api.create(namespace(WHERE))
            service = await _controller(api, cluster, Path(folder), registry.host)
            try:
                one_by_one = await _cold(api, service, registry, cold)
                burst = await _burst(api, service, registry, held)
                return one_by_one, burst, await _rounds(api, service, registry, pods)
            finally:
                service.terminate()


async def _controller(api: ApiClient, cluster: LocalCluster, folder: Path, registry: str) -> ExtenderProcess:
    kubeconfig = folder / "service.kubeconfig"
    await write_account(api, cluster.kubeconfig, kubeconfig, Mode.WEBHOOK)
    service = make_extender_process(
        "service",
        folder,
        kubeconfig,
        f"registry.plain_http=['{registry}']",
        f"registry.allow=['{registry}']",
        "cache.url='memory:'",
        "admission.unknown=gate",
        mode=Mode.WEBHOOK,
        admission=False,
        scheduler=False,
    )
    await service.start()
    return service


async def _cold(api: ApiClient, service: ExtenderProcess, registry: EmbeddedRegistry, pods: int) -> Cold:
    for number in range(pods):
        registry.add_index(f"cold-{number}", "1", ["linux/amd64"])
    registry.delay_seconds = REGISTRY_SECONDS
    following = asyncio.create_task(_held_times(api, pods))
    async with asyncio.timeout(_GIVEN_UP_SECONDS):
        for number in range(pods):
            await api.create(_gated(f"cold-{number}", f"{registry.host}/cold-{number}:1"))
            await asyncio.sleep(BETWEEN_SECONDS)
        held = await following
    registry.delay_seconds = 0.0
    took, lookups = [await service.metric(f"multiarch_lookup_duration_seconds_{part}") for part in ("sum", "count")]
    await api.delete_all("Pod", WHERE)
    return Cold(held=held, lookup=took / lookups * 1000)


async def _held_times(api: ApiClient, pods: int) -> list[float]:
    """The milliseconds from when the watch tells of a pod until it tells that the gate is off, of so many pods."""
    seen, held = dict[str, float](), dict[str, float]()
    while len(held) < pods:
        async with aclosing(api.watch("Pod", WHERE)) as changes:
            async for _, found in changes:
                name, now = found["metadata"]["name"], time.perf_counter()
                began = seen.setdefault(name, now)
                if not found["spec"].get("schedulingGates"):
                    held.setdefault(name, (now - began) * 1000)
                    if len(held) == pods:
                        break
    return list(held.values())


async def _burst(api: ApiClient, service: ExtenderProcess, registry: EmbeddedRegistry, held: int) -> Burst:
    before = int(await service.metric(_RELEASES))
    await _create(api, [_gated(f"held-{number}", f"{registry.host}/late:1") for number in range(held)])
    await _until(service, "multiarch_gates_pods", held, state="held")
    registry.add_index("late", "1", ["linux/amd64", "linux/arm64"])
    await _until(service, _RELEASES, before + 1)
    began, used = time.perf_counter(), cpu_seconds(service.pid)
    first = int(await service.metric(_RELEASES)) - before
    await _until(service, _RELEASES, before + held)
    found = Burst(pods=held - first, seconds=time.perf_counter() - began, cpu_seconds=cpu_seconds(service.pid) - used)
    await api.delete_all("Pod", WHERE)
    return found


async def _rounds(api: ApiClient, service: ExtenderProcess, registry: EmbeddedRegistry, pods: int) -> list[Sample]:
    registry.add_index("app", "1", ["linux/amd64", "linux/arm64"])
    before, samples = int(await service.metric(_RELEASES)), list[Sample]()
    for first in range(0, pods, ROUND):
        last = min(first + ROUND, pods)
        await _create(api, [_gated(f"pod-{number}", f"{registry.host}/app:1") for number in range(first, last)])
        await _until(service, _RELEASES, before + last)
        await api.delete_all("Pod", WHERE)
        samples.append(Sample(last, memory(service.pid).now_megabytes))
    return samples


async def _create(api: ApiClient, pods: Sequence[KubernetesObject]) -> None:
    for first in range(0, len(pods), _CREATED_TOGETHER):
        await api.create_all(pods[first : first + _CREATED_TOGETHER])


async def _until(service: ExtenderProcess, metric: str, value: int, **labels: str) -> None:
    """Returns when the metric has reached the value. Raises TimeoutError."""
    async with asyncio.timeout(_GIVEN_UP_SECONDS):
        while await service.metric(metric, **labels) < value:
            await asyncio.sleep(_PAUSE_SECONDS)


def _gated(name: str, image: str) -> KubernetesObject:
    made = pod(name, image, namespace=WHERE)
    made["metadata"].setdefault("labels", {})["multiarch-extender.io/gated"] = "true"
    made["spec"]["schedulingGates"] = [{"name": GATE}]
    return made
