"""Starts the extender of a variant, ready and warm: a Go reference, our service, or our service as a webhook.

It also serves the images whose platforms the extenders know.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from benchmarks.cluster.extenders import Extender, ReferenceExtender, ServiceExtender
from benchmarks.cluster.variants import BOTH, ExtenderChoice, Pods, Variant
from benchmarks.contenders import serve_go
from benchmarks.reference.programs import Programs
from extender.cluster.views import LINGER_SECONDS
from testbed.api_client import ApiClient
from testbed.cluster_provider import ClusterProvider
from testbed.embedded_registry import EmbeddedRegistry
from testbed.extender_process import ExtenderProcess, make_extender_process, write_account
from testbed.objects import KubernetesObject, pod
from testbed.shipped_files import SECOND_SCHEDULER, Mode, webhook_configuration

ARCHITECTURES = ("amd64", "arm64")
PREFERRED = "arm64"
WHERE = "default"  # the namespace; where controllers run, it has a service account from the beginning
WEBHOOKS = "admissionregistration.k8s.io/v1"


class ExtenderRunner:
    """Starts extenders for one cluster; `images` has one image for each kind of pod."""

    def __init__(
        self, cluster: ClusterProvider, api: ApiClient, registry: EmbeddedRegistry, programs: Programs, folder: Path
    ) -> None:
        self._cluster, self._api, self._registry = cluster, api, registry
        self._programs, self._folder = programs, folder
        self._runs = itertools.count()
        self._accounts: dict[Mode, Path] = {}
        self._nodes: Mapping[str, str] = {}
        registry.add_index("bench/multi", "1.0", [f"linux/{each}" for each in ARCHITECTURES])
        registry.add_manifest("bench/single", "1.0", "linux/amd64")
        self.images = {Pods.MULTI: f"{registry.host}/bench/multi:1.0", Pods.SINGLE: f"{registry.host}/bench/single:1.0"}

    async def set_up(self, nodes: Mapping[str, str]) -> None:
        """Creates the service's accounts; `typed` decides by the architectures in `nodes`."""
        self._nodes = nodes
        for mode in (Mode.SECOND, Mode.WEBHOOK):
            path = self._folder / f"{mode}.kubeconfig"
            self._accounts[mode] = await write_account(self._api, self._cluster.kubeconfig, path, mode)

    @asynccontextmanager
    async def extender_of(self, variant: Variant) -> AsyncIterator[Extender | None]:
        """Runs the extender or webhook of this variant, ready and warm; yields None if it has none."""
        match variant.extender:
            case ExtenderChoice.NULL | ExtenderChoice.SCORING | ExtenderChoice.TYPED:
                with self._reference(variant.extender) as reference:
                    yield reference
            case ExtenderChoice.OURS:
                by = "filter" if variant.strict else "score"
                settings = [f"placement.preference_by={by}", f"placement.preference={{{PREFERRED}: 10}}"]
                async with self._service(Mode.SECOND, *settings, admission=False) as service:
                    await self._warm(service)
                    yield ServiceExtender(service, BOTH)
            case _ if variant.affinity and not variant.by_hand:
                async with self._webhook(variant) as service:
                    yield ServiceExtender(service, ["admission"])
            case _:
                yield None

    async def spec(self, variant: Variant) -> KubernetesObject:
        """Returns the fields of the pods' spec beside the containers."""
        spec: KubernetesObject = {"schedulerName": SECOND_SCHEDULER}
        if not variant.by_hand:
            return spec
        async with self._webhook(variant):
            reviewed = (await self._review(variant.pods))["spec"]
        return spec | {key: reviewed[key] for key in ("nodeSelector", "affinity", "tolerations") if key in reviewed}

    @contextmanager
    def _reference(self, which: ExtenderChoice) -> Iterator[ReferenceExtender]:
        images = {self.images[Pods.MULTI]: list(ARCHITECTURES), self.images[Pods.SINGLE]: ["amd64"]}
        host = self._cluster.host_address
        match which:
            case ExtenderChoice.TYPED:
                running = serve_go(self._programs.typed, host=host, nodes=self._nodes, images=images)
            case ExtenderChoice.SCORING:
                running = serve_go(self._programs.null, "-score", host=host)
            case _:
                running = serve_go(self._programs.null, host=host)
        with running as server:
            yield ReferenceExtender(server)

    @asynccontextmanager
    async def _service(
        self, mode: Mode, *settings: str, admission: bool = True, scheduler: bool = True
    ) -> AsyncIterator[ExtenderProcess]:
        service = make_extender_process(
            f"service-{next(self._runs)}",
            self._folder,
            self._accounts[mode],
            f"registry.plain_http=['{self._registry.host}']",
            f"registry.allow=['*', '{self._registry.host}']",
            "cache.url='memory:'",
            "shutdown.grace_seconds=1",
            *settings,
            mode=mode,
            admission=admission,
            scheduler=scheduler,
            host=self._cluster.host_address,
        )
        try:
            await service.start()
            yield service
        finally:
            service.terminate()

    async def _warm(self, service: ExtenderProcess) -> None:
        """Returns when the service has cached the images and has stopped watching pending pods.

        It is called with a pod of the images until they are cached. The service watches pending pods for some seconds
        after it has seen new images.
        """
        args = {"Pod": pod("warm", *self.images.values(), namespace=WHERE), "NodeNames": list(self._nodes)[:1]}
        async with asyncio.timeout(30):
            while not await self._is_warm(service):
                await service.ask("filter", args)
        await asyncio.sleep(LINGER_SECONDS + 1)

    async def _is_warm(self, service: ExtenderProcess) -> bool:
        return await service.metric("multiarch_images", state="known") >= len(self.images)

    @asynccontextmanager
    async def _webhook(self, variant: Variant) -> AsyncIterator[ExtenderProcess]:
        """Runs the service as a webhook, which the API server calls for pods inside the block."""
        settings = [f"admission.node_affinity={variant.affinity}"]
        async with self._service(Mode.WEBHOOK, *settings, scheduler=False) as service:
            configuration = webhook_configuration(Mode.WEBHOOK, service.admission_url, service.authority)
            await self._api.apply(configuration)
            try:
                async with asyncio.timeout(30):
                    while not await self._is_warm(service):
                        for pods in Pods:
                            await self._review(pods)
                yield service
            finally:
                name = configuration["metadata"]["name"]
                await self._api.delete("MutatingWebhookConfiguration", name, api_version=WEBHOOKS)

    async def _review(self, pods: Pods) -> KubernetesObject:
        """Creates a pod of this kind as a dry run, webhooks included, and returns it."""
        manifest = pod("probe", self.images[pods], namespace=WHERE)
        return await self._api.request("POST", f"/api/v1/namespaces/{WHERE}/pods?dryRun=All", manifest)
