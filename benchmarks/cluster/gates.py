"""How long is a pod held, how many gates are removed in a second, and does the gate controller's memory stay level?

It runs on a real etcd and kube-apiserver, with the shipped rights. First pods come one after the other, each with an
image of its own in a registry whose answers take none to eight seconds: from the registry's last answer to the watch's
word that the gate is off. Then a few thousand pods wait for one image, which is then pushed: the rate is that from the
first release to the last. Then rounds of pods with known images come, as a policy gates them, and go.
`python -m benchmarks gates` prints the report.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import median, quantiles

import msgspec
from aiohttp import web

from benchmarks.process_costs import cpu_seconds, memory
from benchmarks.report import Claim, Line, Plot, Report, Table, this_machine
from testbed.api_client import ApiClient, connect
from testbed.binaries import chosen_kubernetes, find_binaries
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.extender_process import ExtenderProcess, make_extender_process, write_account
from testbed.objects import KubernetesObject, namespace, pod
from testbed.shipped_files import Mode

NAME = "gates"
QUESTION = "How long is a pod held, how many gates are removed in a second, and does memory stay level over 100,000?"
COLD, HELD, PODS, ROUND = 75, 3_000, 100_000, 2_000
REGISTRY_SECONDS, BETWEEN_SECONDS = (0.0, 1.0, 4.0, 8.0), 0.1
"""Of the pods with images of their own: what each answer of the registry takes, and the time between two pods."""
BEYOND_P50, BEYOND_P95, PER_SECOND, GROWTH_MEGABYTES = 50.0, 500.0, 400.0, 15.0
"""The bounds of the claims. The growth is that from a tenth of the pods on, when every table has its usual size."""
WHERE = "gates"
GATE = "multiarch-extender.io/platforms"
_PAUSE_SECONDS = 0.1  # each look at the metrics takes 4 ms of the controller's processor time
_CREATED_TOGETHER = 200  # a request of the client ends after 30 s, queueing included
_GIVEN_UP_SECONDS = 300.0
_RELEASES = "multiarch_gates_releases_total"


class Cold(msgspec.Struct, frozen=True):
    """Pods whose images were not known, in a registry as far away: milliseconds held beyond the last answer of each."""

    registry_seconds: float
    beyond: Sequence[float]


class TimedRegistry(EmbeddedRegistry):
    """Notes when it last gave the manifest of a repository."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: dict[str, float] = {}

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The response, whose time is noted."""
        if request.method == "GET":
            self.answered[request.path.split("/")[2]] = time.perf_counter()
        return await super().answer(request)


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


def report_of(cold: Sequence[Cold], burst: Burst, samples: Sequence[Sample]) -> Report:
    """Returns the report of pods one after the other, of a burst, and of memory over many pods."""
    cuts = quantiles([held for far in cold for held in far.beyond], n=100)
    rate = burst.pods / burst.seconds
    settled = [sample for sample in samples if sample.pods * 10 >= samples[-1].pods] or samples[-1:]
    growth = samples[-1].megabytes - settled[0].megabytes
    return Report(
        name=NAME,
        question=QUESTION,
        tables=[
            Table(
                "held beyond the registry's last answer, pods with images of their own",
                ("an answer takes", "pods", "ms p50", "ms p95"),
                [
                    [f"{far.registry_seconds:g} s", f"{len(far.beyond):,}", median(far.beyond), _p95(far.beyond)]
                    for far in cold
                ],
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
            Claim(what="held beyond the lookup, p50", value=cuts[49], unit="ms", at_most=BEYOND_P50),
            Claim(what="held beyond the lookup, p95", value=cuts[94], unit="ms", at_most=BEYOND_P95),
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


async def _measure(cluster: LocalCluster, cold: int, held: int, pods: int) -> tuple[list[Cold], Burst, list[Sample]]:
    with tempfile.TemporaryDirectory(prefix="multiarch-gates-") as folder:
        async with connect(cluster.kubeconfig) as api, TimedRegistry() as registry:
            await api.create(namespace(WHERE))
            service = await _controller(api, cluster, Path(folder), registry.host)
            try:
                one_by_one = [await _cold(api, registry, cold, seconds) for seconds in REGISTRY_SECONDS]
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


async def _cold(api: ApiClient, registry: TimedRegistry, pods: int, registry_seconds: float) -> Cold:
    names = [f"cold-{registry_seconds:g}-{number}" for number in range(pods)]
    for name in names:
        registry.add_index(name, "1", ["linux/amd64"])
    registry.delay_seconds = registry_seconds
    following = asyncio.create_task(_let_go(api, pods))
    async with asyncio.timeout(_GIVEN_UP_SECONDS):
        for name in names:
            await api.create(_gated(name, f"{registry.host}/{name}:1"))
            await asyncio.sleep(BETWEEN_SECONDS)
        let_go = await following
    registry.delay_seconds = 0.0
    await api.delete_all("Pod", WHERE)
    return Cold(registry_seconds, [(let_go[name] - registry.answered[name]) * 1000 for name in names])


async def _let_go(api: ApiClient, pods: int) -> dict[str, float]:
    """When the watch tells that the gate is off, of so many pods."""
    let_go = dict[str, float]()
    while len(let_go) < pods:
        async with aclosing(api.watch("Pod", WHERE)) as changes:
            async for _, found in changes:
                if not found["spec"].get("schedulingGates"):
                    let_go.setdefault(found["metadata"]["name"], time.perf_counter())
                    if len(let_go) == pods:
                        break
    return let_go


def _p95(numbers: Sequence[float]) -> float:
    return quantiles(numbers, n=20)[18]


async def _burst(api: ApiClient, service: ExtenderProcess, registry: EmbeddedRegistry, held: int) -> Burst:
    before = int(await service.metric(_RELEASES, outcome="known"))
    await _create(api, [_gated(f"held-{number}", f"{registry.host}/late:1") for number in range(held)])
    await _until(service, "multiarch_gates_pods", held, state="held")
    registry.add_index("late", "1", ["linux/amd64", "linux/arm64"])
    await _until(service, _RELEASES, before + 1, outcome="known")
    began, used = time.perf_counter(), cpu_seconds(service.pid)
    first = int(await service.metric(_RELEASES, outcome="known")) - before
    await _until(service, _RELEASES, before + held, outcome="known")
    found = Burst(pods=held - first, seconds=time.perf_counter() - began, cpu_seconds=cpu_seconds(service.pid) - used)
    await api.delete_all("Pod", WHERE)
    return found


async def _rounds(api: ApiClient, service: ExtenderProcess, registry: EmbeddedRegistry, pods: int) -> list[Sample]:
    registry.add_index("app", "1", ["linux/amd64", "linux/arm64"])
    before, samples = int(await service.metric(_RELEASES, outcome="known")), list[Sample]()
    for first in range(0, pods, ROUND):
        last = min(first + ROUND, pods)
        await _create(api, [_gated(f"pod-{number}", f"{registry.host}/app:1") for number in range(first, last)])
        await _until(service, _RELEASES, before + last, outcome="known")
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
