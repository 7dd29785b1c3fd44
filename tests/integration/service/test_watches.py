"""What the service asks of the cluster: for pending pods only when an image is not known."""

import asyncio
from pathlib import Path

import pytest

from extender.cluster.views import NAMESPACES, NODES, PENDING, PODS, PendingPods
from extender.config.reading import load_config
from extender.fetcher.sources import open_local_sources
from extender.placement.annotations import Overrides
from extender.placement.facts import PodImage
from extender.resolver.pod_resolver import PodQuestion
from extender.service.cluster_view import STALE_SECONDS, ClusterView
from extender.service.resolving import open_pod_resolver
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.faulty_registry import GuardedRegistry
from testbed.machines import running_machine
from tests.integration.cluster.api_server import (
    ApiServer,
    Request,
    pod,
)
from tests.integration.service.caller import AMD64, ARM64, Caller, changes_of, with_names, write_pull_secret
from tests.integration.service.caller import pod as asked_pod
from tests.integration.service.conftest import HOLDING, Cluster
from tests.worlds.selectors import parse_selectors

pytestmark = pytest.mark.usefixtures("simulated_time")

LISTEN = "127.0.0.1:0"
VIEWS = {NODES.path, NAMESPACES.path}
ALWAYS = VIEWS | {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}  # whether held pods may be let go
MODES = pytest.mark.parametrize(
    ("listen", "setting", "wants_pods"),
    [
        (LISTEN, "registry.pull_secrets=true", True),
        ("", "registry.pull_secrets=true", False),
        ("", "registry.pull_secrets=false", False),
    ],
    ids=["scheduler", "webhook only", "webhook without secrets"],
)


def asked_for(api: ApiServer) -> set[str]:
    """What has been asked for, but for held pods and the Lease of who lets them go."""
    others = (each for each in api.requests if "/leases" not in each.path)
    return {each.path for each in others if "labelSelector" not in each.query}


async def ask(caller: Caller, listen: str, image: str) -> None:
    """Asks about a pod of that image, at the filter verb where there is one, else at the webhook."""
    pending = pod("asked", image=image)
    if listen:
        await caller.filter({"Pod": pending, "NodeNames": ["a"]})
    else:
        await caller.review(pending, namespace="default")


@MODES
async def test_pending_pods_are_looked_at_only_where_they_tell_something(
    cluster: Cluster, listen: str, setting: str, *, wants_pods: bool
) -> None:
    """No request for pods before an image is not known or denied, and none without a scheduler that asks next."""
    api, registry = cluster.api, cluster.registry
    async with GuardedRegistry("ann:secret") as private:
        registry.add_manifest("app", "1", AMD64)
        async with cluster.service(setting, listen=listen, registries=[registry.host, private.host]) as caller:
            await caller.until_ready()
            await ask(caller, listen, f"{registry.host}/app:1")
            await eventually(lambda: registry.requests["GET manifests"])
            await ask(caller, listen, f"{registry.host}/app:1")
            watched = asked_for(api)
            await ask(caller, listen, f"{private.host}/app:1")
            if wants_pods:
                await eventually(lambda: PODS in asked_for(api))
    assert PODS not in watched or listen
    assert asked_for(api) == ALWAYS | ({PODS} if wants_pods else set())


async def test_ready_and_live_checks_are_those_of_the_watches_that_run(cluster: Cluster) -> None:
    """Readiness waits for the views alone."""
    views = {path.rpartition("/")[2] for path in VIEWS}
    others = dict.fromkeys(["shutdown", "registries"], "[+]")
    cluster.api.is_open.clear()
    async with cluster.service(listen=LISTEN) as caller:
        assert await caller.checks("/readyz") == (503, others | dict.fromkeys(views, "[-]"))
        assert await caller.checks("/livez") == (200, dict.fromkeys(["ping", "background"], "[+]"))
        cluster.api.is_open.set()
        assert await caller.until_ready() == others | dict.fromkeys(views, "[+]")


async def test_what_waits_behind_a_cold_image_is_looked_up_before_a_scheduler_asks(cluster: Cluster) -> None:
    """One filter call meets an image nobody knows: those of all pods that wait are looked up, and of the next ones."""
    api, registry = cluster.api, cluster.registry
    for name in ("first", "second", "third"):
        registry.add_manifest(name, "1", AMD64)
    api.put(PODS, pod("second", image=f"{registry.host}/second:1"))
    async with cluster.service(listen=LISTEN) as caller:
        await caller.until_ready()
        await ask(caller, LISTEN, f"{registry.host}/first:1")
        await eventually(lambda: registry.requests["GET manifests"] == 2)
        api.put(PODS, pod("third", image=f"{registry.host}/third:1"))
        await eventually(lambda: registry.requests["GET manifests"] == 3)


async def test_an_image_that_stays_unknown_has_nobody_looked_at_for_long(tmp_path: Path) -> None:
    """While a lookup is under way, yes; not for a failure that stands, unless a secret of another pod might help."""
    looks: list[str] = []

    class Looking(PendingPods):
        def __init__(self) -> None:
            """Watches nothing."""

        def watch_briefly(self) -> None:
            looks.append("look")

    view = ClusterView(pending=Looking())
    async with EmbeddedRegistry() as registry, GuardedRegistry("ann:secret") as private:
        hosts = [registry.host, private.host]
        settings = ["admission.listen=", f"registry.plain_http={hosts}", f"registry.allow={hosts}"]
        config = load_config(None, [*settings, f"cache.url=sqlite:///{tmp_path}/images.sqlite"])
        registry.add_manifest("app", "1", AMD64)
        machine = running_machine()
        async with (
            open_local_sources(config.registry, machine=machine) as sources,
            open_pod_resolver(sources, config, view, machine) as pod_resolver,
        ):
            for image, wait_seconds, looked in [
                (f"{registry.host}/app:1", 5, 0),
                (f"{registry.host}/app:1", 0, 0),
                (f"{registry.host}/app:2", 0, 1),
                (f"{registry.host}/app:2", 5, 0),
                (f"{registry.host}/app:2", 0, 0),
                (f"{private.host}/app:1", 5, 1),
                (f"{private.host}/app:1", 0, 1),
            ]:
                looks.clear()
                question = PodQuestion(Overrides(), (PodImage(image),), pod_resolver.keyring)
                await pod_resolver.resolve(question, wait_seconds)
                assert len(looks) == looked, (image, wait_seconds)


@pytest.mark.parametrize("may_read", [True, False])
async def test_a_review_has_the_pull_secret_of_its_pod_read(cluster: Cluster, may_read: bool) -> None:
    """So private images are known at creation, where no scheduler asks about them too; unless the setting says no."""
    setting = f"registry.pull_secrets={str(may_read).lower()}"
    async with GuardedRegistry("ann:secret") as registry:
        registry.add_index("app", "1", [AMD64, ARM64])
        write_pull_secret(cluster.api, registry.host)
        created = pod("web", image=f"{registry.host}/app:1")
        created["spec"]["imagePullSecrets"] = [{"name": "pull"}]
        async with cluster.service(setting, registries=[registry.host]) as caller:
            await caller.until_ready()
            assert bool(changes_of(await caller.review(created, namespace="default"))) == may_read
    assert any("/secrets/" in each.path for each in cluster.api.requests) == may_read


async def test_view_that_nothing_confirms_fails_readiness_until_it_is_confirmed(cluster: Cluster) -> None:
    """After minutes without a line of the watch answers may be wrong, and others should be asked."""
    async with cluster.service(listen=LISTEN) as caller:
        await caller.until_ready()
        cluster.api.denied = VIEWS
        cluster.api.cut_off(*VIEWS)
        await asyncio.sleep(STALE_SECONDS + 1)
        status, marks = await caller.checks("/readyz")
        assert (status, marks["nodes"], marks["namespaces"]) == (503, "[-]", "[-]")
        cluster.api.denied = set()
        await caller.until_ready()


async def test_a_start_reads_no_pod_that_is_bound(cluster: Cluster) -> None:
    """Of which a cluster may have 150,000: whatever asks for pods selects those that wait for a node, or are held."""
    api, registry = cluster.api, cluster.registry
    bound = pod("bound", "app:1", "a", "Running")
    api.put(PODS, bound)
    registry.add_manifest("app", "1", AMD64)
    async with cluster.service(*HOLDING, listen=LISTEN) as caller:
        await caller.until_ready()
        await caller.filter(with_names(asked_pod(f"{registry.host}/app:1"), ["a"]))
        await eventually(lambda: any(each.query.get("fieldSelector") == PENDING for each in of_pods(api)))
        await eventually(lambda: {each.query.get("labelSelector", "") for each in of_pods(api)} > {""})
    asked = [
        parse_selectors(each.query.get("labelSelector", ""), each.query.get("fieldSelector", ""))
        for each in of_pods(api)
    ]
    assert not any(is_selected(bound) for is_selected in asked)


def of_pods(api: ApiServer) -> list[Request]:
    return [each for each in api.requests if each.path == PODS]
