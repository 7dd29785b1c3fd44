"""What the end-to-end tests share: images whose platforms the test knows, the service, its webhook and its schedulers.

Placements are judged by the platforms of the images made here. No code of the service decides whether a placement is
right.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from testbed.api_client import ADMISSIONREGISTRATION, ApiClient, ApiError
from testbed.cluster_provider import ClusterProvider, running_scheduler
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import USUAL_SECONDS, eventually
from testbed.extender_process import ExtenderProcess, make_extender_process, write_account
from testbed.forked_commands import run
from testbed.objects import KubernetesObject, fake_node, namespace, pod
from testbed.shipped_files import (
    SECOND_SCHEDULER,
    Mode,
    scheduler_configuration,
    scheduler_flags,
    selected_labels,
    webhook_configuration,
)

# kube-scheduler's default limit of 50 requests a second would make the tests longer.
FAST = {"qps": 1000.0, "burst": 1000}
SCHEDULER_NAMES = {Mode.SECOND: SECOND_SCHEDULER, Mode.DEFAULT: "", Mode.WEBHOOK: ""}
"""The schedulerName of pods in that mode; empty for the default scheduler."""


class Tally:
    """Numbers of pods placed in each mode, and measured figures, for the summary of the run."""

    def __init__(self) -> None:
        self.scheduled: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.figures: list[str] = []

    def numbers(self) -> tuple[dict[str, int], dict[str, int], list[str]]:
        return dict(self.scheduled), dict(self.wrong), self.figures

    def add(self, numbers: tuple[dict[str, int], dict[str, int], list[str]]) -> None:
        scheduled, wrong, figures = numbers
        self.scheduled.update(scheduled)
        self.wrong.update(wrong)
        self.figures += figures

    def lines(self) -> list[str]:
        modes = [f"{mode}: {count} pods scheduled, {self.wrong[mode]} wrongly placed" for mode, count in self._modes()]
        total = f"{self.scheduled.total()} pods × modes scheduled, {self.wrong.total()} wrongly placed"
        return [*modes, *([total] if modes else []), *self.figures]

    def _modes(self) -> list[tuple[str, int]]:
        return sorted(self.scheduled.items())


class Images:
    """Images in the embedded registry, with the architectures that each of them has."""

    def __init__(self, registry: EmbeddedRegistry) -> None:
        self._registry = registry
        self._numbers = itertools.count()
        self.architectures: dict[str, frozenset[str]] = {}
        self.multi = self.fresh("amd64", "arm64")
        self.amd = self.fresh("amd64")
        self.arm = self.fresh("arm64")

    def fresh(self, *architectures: str, attested: bool = False) -> str:
        """Pushes a new image for these architectures and returns its reference; see `push`."""
        image = f"{self._registry.host}/{'-'.join(architectures)}/app-{next(self._numbers)}:1.0"
        self.push(image, *architectures, attested=attested)
        return image

    def unpushed(self) -> str:
        return f"{self._registry.host}/late/app-{next(self._numbers)}:1.0"

    def push(self, image: str, *architectures: str, attested: bool = False) -> None:
        """Pushes the image: a single manifest for one architecture, an index for several.

        `attested`: an index even for one, with attestations in it, as BuildKit pushes what it builds.
        """
        repository, tag = image.removeprefix(f"{self._registry.host}/").split(":")
        platforms = [f"linux/{architecture}" for architecture in architectures]
        if len(platforms) == 1 and not attested:
            self._registry.add_manifest(repository, tag, platforms[0])
        else:
            self._registry.add_index(repository, tag, platforms, attested=attested)
        self.architectures[image] = frozenset(architectures)


class World:
    """A control plane, a registry and services for one test. The fixture `world` makes it."""

    def __init__(
        self,
        cluster: ClusterProvider,
        api: ApiClient,
        registry: EmbeddedRegistry,
        folder: Path,
        tally: Tally,
        ending: AsyncExitStack,
    ) -> None:
        self.cluster, self.api, self.registry = cluster, api, registry
        self.images = Images(registry)
        self.services: list[ExtenderProcess] = []
        self._folder, self._tally, self._ending = folder, tally, ending
        self._accounts: dict[Mode, Path] = {}

    # --- the service, its webhook, the schedulers ---

    async def start_service(
        self,
        *settings: str,
        mode: Mode = Mode.SECOND,
        admission: bool | Literal["self-managed"] = True,
        start: bool = True,
    ) -> ExtenderProcess:
        """Starts the service with the mode's shipped configuration and rights; returns it, ready.

        `settings` (`path=value`) override the configuration. The shipped settings of the default scheduler have no
        webhook; here it has one unless `admission` is false (`self-managed`: with a certificate of its own). With the
        webhook alone there are no scheduler verbs, as shipped. With `start=False` the service is not started yet; it is
        ended with the world in any case.
        """
        service = make_extender_process(
            f"service-{len(self.services)}",
            self._folder,
            await self.account(mode),
            f"registry.plain_http=['{self.registry.host}']",
            f"registry.allow=['*', '{self.registry.host}']",
            "cache.url='memory:'",
            "shutdown.grace_seconds=2",
            *settings,
            mode=mode,
            admission=admission,
            scheduler=mode is not Mode.WEBHOOK,
            host=self.cluster.host_address,
        )
        self.services.append(service)
        self._ending.callback(service.terminate)
        if start:
            await service.start()
        return service

    async def account(self, mode: Mode) -> Path:
        """Returns the kubeconfig of that mode's ServiceAccount, which has exactly the rights in the mode's manifest."""
        if mode not in self._accounts:
            path = self._folder / f"{mode}.kubeconfig"
            self._accounts[mode] = await write_account(self.api, self.cluster.kubeconfig, path, mode)
        return self._accounts[mode]

    async def register_webhook(
        self, service: ExtenderProcess, namespace_selector: Mapping[str, Any] | None = None, mode: Mode = Mode.WEBHOOK
    ) -> None:
        """Returns when the API server calls the service for pods of namespaces that the selector selects.

        The default is the mode's own selector: `webhook` takes every namespace except the cluster's, `second-scheduler`
        those with its label (`namespace(second=True)`).
        """
        configuration = webhook_configuration(mode, service.admission_url, service.authority, namespace_selector)
        name = configuration["metadata"]["name"]
        for each in configuration["webhooks"]:
            each["timeoutSeconds"] = 30  # a busy machine is no outage
        await self.api.apply(configuration)
        self.unregister_at_end(name)
        webhook, *_ = configuration["webhooks"]
        probe = await self.namespace(labels=selected_labels(webhook["namespaceSelector"]))
        before = await service.calls("admission")

        async def is_called() -> bool:
            await self.review(pod("probe", self.images.multi, namespace=probe))
            return await service.calls("admission") > before

        await eventually(is_called)

    def unregister_at_end(self, name: str) -> None:
        self._ending.push_async_callback(self.unregister_webhook, name)

    async def unregister_webhook(self, name: str = "multiarch-webhook") -> None:
        """Deletes the webhook. The API server may still call it once in the next moment."""
        try:
            await self.api.delete("MutatingWebhookConfiguration", name, api_version=ADMISSIONREGISTRATION)
        except ApiError as exc:
            if exc.status != 404:
                raise

    async def review(self, manifest: KubernetesObject) -> KubernetesObject:
        where = manifest["metadata"]["namespace"]
        return await self.api.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", manifest)

    def second_scheduler(
        self, extender: ExtenderProcess | str | None, *, flags: Sequence[str] | None = None, **entry: Any
    ) -> AbstractContextManager[None]:
        """Runs kube-scheduler for pods of `multiarch-scheduler`, with the shipped file and flags; see `scheduler`."""
        return self.scheduler(Mode.SECOND, extender, flags=flags, **entry)

    def default_scheduler(
        self, extender: ExtenderProcess | str | None, *, flags: Sequence[str] | None = None, **entry: Any
    ) -> AbstractContextManager[None]:
        """Runs kube-scheduler for pods without a schedulerName; None means no extender. See `scheduler`."""
        return self.scheduler(Mode.DEFAULT, extender, flags=flags, **entry)

    @contextmanager
    def scheduler(
        self, mode: Mode, extender: ExtenderProcess | str | None, *, flags: Sequence[str] | None = None, **entry: Any
    ) -> Iterator[None]:
        """Runs that mode's kube-scheduler inside the block; its extender is that service or the server at that URL.

        `entry` overrides fields of the extender's entry, such as `httpTimeout="500ms"`; None removes one. `flags`
        replace the shipped ones.
        """
        url = extender.scheduler_url if isinstance(extender, ExtenderProcess) else extender or ""
        shipped = Mode.SECOND if mode is Mode.SECOND else Mode.DEFAULT
        configuration = scheduler_configuration(shipped, url, entry, clientConnection=dict(FAST))
        arguments = scheduler_flags(shipped) if flags is None else flags
        with running_scheduler(self.cluster, configuration, f"kube-{shipped}", arguments):
            yield

    # --- nodes, namespaces, pods ---

    async def create_nodes(
        self,
        architecture: str,
        count: int,
        *,
        cpu: str = "8",
        taints: Sequence[Mapping[str, str]] = (),
        prefix: str = "",
    ) -> list[str]:
        """Creates so many nodes and returns their names: `arm64-0` and so on, or with `prefix`."""
        names = [f"{prefix or architecture}-{index}" for index in range(count)]
        await self.api.create_all(fake_node(name, architecture, cpu=cpu, taints=taints) for name in names)
        return names

    async def create_both(self, count: int, *, cpu: str = "8") -> None:
        """Creates so many nodes of amd64, and as many of arm64."""
        for architecture in ("amd64", "arm64"):
            await self.create_nodes(architecture, count, cpu=cpu)

    async def create_priority_class(self, name: str, value: int) -> None:
        manifest = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await self.api.apply({**manifest, "value": value})

    async def namespace(
        self,
        *,
        second: bool = False,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a namespace and returns its name; `second` selects it for the second scheduler's webhook."""
        manifest = namespace(f"e2e-{uuid.uuid4().hex[:8]}", annotations)
        chosen = {"multiarch-extender.io/scheduler": SECOND_SCHEDULER} if second else {}
        manifest["metadata"]["labels"].update({**chosen, **(labels or {})})
        await self.api.create(manifest)
        return str(manifest["metadata"]["name"])

    async def create_pods(
        self,
        where: str,
        count: int,
        *images: str,
        prefix: str = "pod",
        scheduler: str = "",
        cpu: str = "100m",
        annotations: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Creates so many pods with one container per image and returns their names.

        An empty `scheduler` is the default one.
        """
        named = {"schedulerName": scheduler} if scheduler else {}
        names = [f"{prefix}-{index}" for index in range(count)]
        await self.api.create_all(
            pod(name, *images, namespace=where, cpu=cpu, annotations=annotations, spec={**named, **(spec or {})})
            for name in names
        )
        return names

    async def warm(self, service: ExtenderProcess, where: str, *images: str) -> None:
        """Calls the filter verb with a pod of these images until the service has cached them."""
        known = await service.metric("multiarch_images", state="known")
        args = {"Pod": pod("warm", *images, namespace=where), "NodeNames": ["nowhere"]}

        async def count() -> float:
            await service.ask("filter", args)
            return await service.metric("multiarch_images", state="known")

        await eventually(count, lambda found: found >= known + len(images))

    async def wait_all_bound(self, where: str, count: int, timeout_seconds: float = USUAL_SECONDS) -> dict[str, str]:
        """Returns the node of each pod, by its name, once so many pods of the namespace have one.

        Raises TimeoutError.
        """
        bound: dict[str, str] = {}
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:  # a busy server may end the watch
                    async with aclosing(self.api.watch("Pod", where)) as changes:
                        async for _, found in changes:
                            if node := found["spec"].get("nodeName"):
                                bound[found["metadata"]["name"]] = node
                            if len(bound) >= count:
                                return bound
        except TimeoutError:
            raise TimeoutError(f"{len(bound)} of {count} pods bound in {timeout_seconds:g} s") from None

    async def wait_refused(
        self, where: str, name: str, saying: str = "", timeout_seconds: float = USUAL_SECONDS
    ) -> KubernetesObject:
        """Waits until the pod's condition PodScheduled is False with that text in its `message`; returns it."""
        found = await self.api.wait_for(
            "Pod",
            lambda each: bool(refusal_of(each)) and saying in refusal_of(each)["message"],
            where,
            timeout_seconds=timeout_seconds,
            fieldSelector=f"metadata.name={name}",
        )
        return refusal_of(found)

    async def placed(self, where: str) -> dict[str, str]:
        pods = await self.api.list("Pod", where)
        return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in pods if each["spec"].get("nodeName")}

    async def nodes_by_architecture(self) -> dict[str, str]:
        nodes = await self.api.list("Node")
        return {each["metadata"]["name"]: each["status"]["nodeInfo"]["architecture"] for each in nodes}

    async def count_placed(self, where: str) -> Counter[str]:
        architectures = await self.nodes_by_architecture()
        return Counter(architectures[node] for node in (await self.placed(where)).values())

    # --- judging ---

    async def misplaced(self, where: str) -> list[str]:
        """Returns each bound pod, with its node, whose node has an architecture that one of the pod's images lacks."""
        architectures = await self.nodes_by_architecture()
        pods = [each for each in await self.api.list("Pod", where) if each["spec"].get("nodeName")]
        return [
            f"{each['metadata']['name']} on {each['spec']['nodeName']}"
            for each in pods
            if architectures[each["spec"]["nodeName"]] not in self.architectures_of(each)
        ]

    def architectures_of(self, found: KubernetesObject) -> frozenset[str]:
        containers: Iterable[KubernetesObject] = [
            *found["spec"]["containers"],
            *found["spec"].get("initContainers", []),
        ]
        return frozenset.intersection(*(self.images.architectures[each["image"]] for each in containers))

    async def assert_placed_rightly(self, mode: str, where: str, count: int) -> None:
        """Asserts that so many pods of the namespace are bound, each to a node that runs its images; counts them."""
        placed, misplaced = await self.placed(where), await self.misplaced(where)
        self.tally(mode, len(placed), len(misplaced))
        assert misplaced == []
        assert len(placed) == count

    def tally(self, mode: str, scheduled: int, wrong: int) -> None:
        self._tally.scheduled[mode] += scheduled
        self._tally.wrong[mode] += wrong

    def figure(self, line: str) -> None:
        self._tally.figures.append(line)

    def logs(self) -> str:
        return "\n".join(service.tail() for service in self.services)


def refusal_of(found: KubernetesObject) -> KubernetesObject:
    """Returns the pod's condition PodScheduled if it is False, else an empty one."""
    conditions: list[KubernetesObject] = found["status"].get("conditions") or []
    refused = (each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False")
    return next(refused, {})


@asynccontextmanager
async def open_world(cluster: ClusterProvider, api: ApiClient, folder: Path, tally: Tally) -> AsyncIterator[World]:
    """Opens a world whose services, registry and webhooks end with the context."""
    async with EmbeddedRegistry() as registry, AsyncExitStack() as ending:
        yield World(cluster, api, registry, folder, tally, ending)


class CommandResult(NamedTuple):
    """What the command printed, and its exit code."""

    code: int
    output: str
    errors: str

    @property
    def told(self) -> list[dict[str, Any]]:
        return msgspec.json.decode(self.output, type=list[dict[str, Any]])


async def run_command(
    world: World, *arguments: str, stdin: str = "", kubeconfig: Path | None = None, host: str = ""
) -> CommandResult:
    """Runs a command of the package against the world's cluster and registry, or that of `host`."""
    host = host or world.registry.host
    settings = (
        f"registry.plain_http=['{host}']",
        f"registry.allow=['*', '{host}']",
        f"cluster={kubeconfig or world.cluster.kubeconfig}",
    )
    command, *others = arguments
    given = (command, *(f"--set={each}" for each in settings), *others)  # a test's own settings come last, and count
    return CommandResult(*await run(*given, stdin=stdin, environment={"COLUMNS": "80"}))


async def allow(world: World, name: str, rules: list[KubernetesObject], subject: KubernetesObject) -> None:
    shared = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await world.api.apply({**shared, "kind": "ClusterRole", "rules": rules})
    await world.api.apply({**shared, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]})
