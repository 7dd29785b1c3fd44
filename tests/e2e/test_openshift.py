"""A cluster without internet, whose images come by OpenShift's mirror objects on a real API server."""

import base64
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest
import trustme
from aiohttp import web

from extender.cluster.node_trust import (
    CLUSTER,
    HOSTS,
    PROXY,
    PULL_SECRET,
    TRUST_OBJECTS,
    NamedObject,
)
from testbed.api_client import ApiClient
from testbed.chart import objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, namespace
from testbed.shipped_files import SECOND_SCHEDULER, Mode, identity_manifests
from tests.e2e.examined_installation import open_installation, run_doctor
from tests.e2e.installed_chart import WEBHOOK
from tests.e2e.load import leaning_to
from tests.e2e.pod_makers import definition, plural_of, serve
from tests.e2e.world import World, allow

pytestmark = pytest.mark.e2e

UPSTREAM = "disconnected.example"
CONFIG, OPERATOR = "config.openshift.io", "operator.openshift.io"
KINDS = {
    "ImageDigestMirrorSet": (CONFIG, "v1"),
    "ImageTagMirrorSet": (CONFIG, "v1"),
    "Image": (CONFIG, "v1"),
    "ImageContentSourcePolicy": (OPERATOR, "v1alpha1"),
}
RULES: list[KubernetesObject] = [
    {"apiGroups": [group], "resources": [plural_of(kind)], "verbs": ["list"]} for kind, (group, _) in KINDS.items()
]
DEFINITIONS = [definition(f"{group}/{version}", kind, "Cluster") for kind, (group, version) in KINDS.items()]
RBAC = "rbac.authorization.k8s.io/v1"


async def install(world: World, mode: Mode) -> None:
    await serve(world.api, *DEFINITIONS)
    own = next(each["metadata"] for each in identity_manifests(mode) if each["kind"] == "ServiceAccount")
    await world.account(mode)
    subject = {"kind": "ServiceAccount", "name": own["name"], "namespace": own["namespace"]}
    await allow(world, f"multiarch-openshift-{mode}", RULES, subject)


def mirror_set(kind: str, mirror: str, source: str = UPSTREAM) -> KubernetesObject:
    """A mirror set that lets nobody contact the source."""
    group, version = KINDS[kind]
    key = {"ImageDigestMirrorSet": "imageDigestMirrors", "ImageTagMirrorSet": "imageTagMirrors"}[kind]
    entry = {"source": source, "mirrors": [mirror], "mirrorSourcePolicy": "NeverContactSource"}
    return {
        "apiVersion": f"{group}/{version}",
        "kind": kind,
        "metadata": {"name": "disconnected"},
        "spec": {key: [entry]},
    }


def by_upstream(world: World, *architectures: str) -> str:
    """A new image, by the name of the registry that nobody reaches."""
    image = world.images.fresh(*architectures)
    named = image.replace(world.registry.host, UPSTREAM)
    world.images.architectures[named] = world.images.architectures[image]
    return named


SETTINGS = ("registry.mirrors=openshift",)


async def test_pods_of_mirrored_images_stand_rightly(world: World) -> None:
    """By tag; each image is known, though its own registry has no address. An edit of the objects is followed.

    The new place has no TLS, which the image configuration says.
    """
    await install(world, Mode.SECOND)
    for kind in ("ImageDigestMirrorSet", "ImageTagMirrorSet"):
        await world.api.apply(mirror_set(kind, world.registry.host))
    await world.create_both(2, cpu="64")
    service = await world.start_service(*SETTINGS, "registry.allow=['*','127.0.0.1']", mode=Mode.SECOND)
    where = await world.namespace(second=True)
    with world.scheduler(Mode.SECOND, service):
        for number, (leaning, architectures) in enumerate(
            [("arm64", ["amd64"]), ("amd64", ["arm64"]), ("amd64", ["amd64", "arm64"])]
        ):
            image, spec = by_upstream(world, *architectures), leaning_to(leaning)
            await world.create_pods(where, 10, image, prefix=f"kind-{number}", scheduler=SECOND_SCHEDULER, spec=spec)
        await world.wait_all_bound(where, 30)
    await world.assert_placed_rightly("OpenShift's mirrors, second scheduler", where, 30)
    assert await service.metric("multiarch_images", state="unknown") == 0
    # The fetcher tells what it has counted once a second.
    await eventually(lambda: service.metric("multiarch_mirror_requests_total", outcome="answered"))
    async with EmbeddedRegistry() as moved:
        insecure = {"registrySources": {"insecureRegistries": [moved.host]}}
        cluster = {"apiVersion": f"{CONFIG}/v1", "kind": "Image", "metadata": {"name": "cluster"}, "spec": insecure}
        await world.api.apply(cluster)
        await world.api.apply(mirror_set("ImageTagMirrorSet", f"{moved.host}"))
        began = time.monotonic()
        await eventually(lambda: ask_for_new(service), lambda _: moved.requests)
        world.figure(f"OpenShift's mirror moved: followed {time.monotonic() - began:.2f} s after the edit")


async def ask_for_new(service: ExtenderProcess) -> None:
    await service.ask("filter", filter_of(f"{UPSTREAM}/team/new:{time.monotonic_ns()}"))


def filter_of(image: str) -> KubernetesObject:
    spec = {"containers": [{"name": "c", "image": image}]}
    return {"Pod": {"metadata": {"name": "p", "namespace": "default"}, "spec": spec}, "NodeNames": ["nowhere"]}


class SecuredMirror(EmbeddedRegistry):
    """A mirror with a certificate of an authority of its own, which answers to one login. Counts what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.authority = trustme.CA()
        self.login = "node:first"
        self.accepted = self.denied = 0

    async def __aenter__(self) -> Self:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert("127.0.0.1").configure_cert(context)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        shown = request.headers.get("Authorization", "").removeprefix("Basic ")
        if shown == base64.b64encode(self.login.encode()).decode():
            self.accepted += 1
            return await super().answer(request)
        self.denied += bool(shown)
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="mirror"'})


async def put_trust(api: ApiClient, mirror: SecuredMirror) -> None:
    """The objects that OpenShift's own operators keep, and the cluster's pull secret."""
    for name in {each.namespace for each in TRUST_OBJECTS}:
        await api.apply(namespace(name))
    pem = mirror.authority.cert_pem.bytes().decode()
    texts = {HOSTS: {mirror.host.replace(":", ".."): pem}, PROXY: {"ca-bundle.crt": ""}, CLUSTER: {"ca-bundle.crt": ""}}
    for each, data in texts.items():
        await put(api, "ConfigMap", each, data)
    await put_pull_secret(api, mirror)


async def put(api: ApiClient, kind: str, what: NamedObject, data: Mapping[str, str], **fields: str) -> None:
    metadata = {"name": what.name, "namespace": what.namespace}
    await api.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data, **fields})


async def put_pull_secret(api: ApiClient, mirror: SecuredMirror) -> None:
    """The cluster's pull secret has the login that the mirror wants now."""
    auths = {mirror.host: {"auth": base64.b64encode(mirror.login.encode()).decode()}}
    packed = base64.b64encode(json.dumps({"auths": auths}).encode()).decode()
    await put(api, "Secret", PULL_SECRET, {".dockerconfigjson": packed}, type="kubernetes.io/dockerconfigjson")


async def grant_as_the_chart(world: World, mode: Mode) -> None:
    """Takes the right to read all secrets from the service's account, and gives it the chart's for OpenShift."""
    await world.account(mode)
    own = next(each["metadata"] for each in identity_manifests(mode) if each["kind"] == "ServiceAccount")
    role = await world.api.get("ClusterRole", own["name"], "", RBAC)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["secrets"]]
    await world.api.patch("ClusterRole", own["name"], {"rules": rules}, "", RBAC)
    subject = {"kind": "ServiceAccount", "name": own["name"], "namespace": own["namespace"]}
    spaces = {each.namespace for each in TRUST_OBJECTS}
    for each in objects_of(render({"config": {"registry": {"mirrors": "openshift"}}})):
        if each["metadata"].get("namespace") in spaces:
            await world.api.apply({**each, "subjects": [subject]} if each["kind"] == "RoleBinding" else each)


@pytest.mark.usefixtures("helm_program")
async def test_mirror_of_the_clusters_own_authority_and_login_is_asked(world: World, tmp_path: Path) -> None:
    """With no other rights to ConfigMaps and secrets than the chart gives; a new login is followed.

    Commands ask there too, and the mirror itself with the login that kubelets have for it.
    """
    await install(world, Mode.SECOND)
    async with SecuredMirror() as mirror:
        await put_trust(world.api, mirror)
        await grant_as_the_chart(world, Mode.SECOND)
        await world.api.apply(mirror_set("ImageTagMirrorSet", mirror.host))
        settings = (*SETTINGS, "registry.allow=['*','127.0.0.1']")
        service = await world.start_service(*settings, "registry.pull_secrets=false", mode=Mode.SECOND)
        mirror.add_manifest("team/app", "1", "linux/arm64")
        await until_known(service, f"{UPSTREAM}/team/app:1")
        assert mirror.denied == 0
        mirror.login = "node:second"
        mirror.add_manifest("team/app", "2", "linux/amd64")
        await eventually(lambda: ask_for_new(service), lambda _: mirror.denied)
        await put_pull_secret(world.api, mirror)
        accepted = mirror.accepted
        await eventually(lambda: ask_for_new(service), lambda _: mirror.accepted > accepted)
        await until_known(service, f"{UPSTREAM}/team/app:2")
        image = f"{UPSTREAM}/team/app:1"
        (tmp_path / "images").write_text(image)
        given = [f"--set={each}" for each in (f"cluster={world.cluster.kubeconfig}", *settings)]
        for command in (
            ["inspect", image, f"{mirror.host}/team/app:1"],
            ["audit", f"--images={tmp_path / 'images'}", "--no-newer"],
        ):
            said = await run_doctor(*command, "--require=linux/arm64", *given)
            assert said.code == 0, said.output


async def until_known(service: ExtenderProcess, image: str) -> None:
    known = await service.metric("multiarch_images", state="known")

    async def count() -> float:
        await service.ask("filter", filter_of(image))
        return await service.metric("multiarch_images", state="known")

    await eventually(count, lambda found: found > known)


@pytest.mark.usefixtures("helm_program")
async def test_doctor_names_what_is_missing_of_the_nodes_trust(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """The rights of the service's account, and objects that should be there."""
    await serve(api, *DEFINITIONS)
    values = {"config": {"registry": {"mirrors": "openshift"}}}
    async with SecuredMirror() as mirror:
        await put_trust(api, mirror)
        async with open_installation(api, control_plane, tmp_path, values) as installation:
            assert (await installation.doctor("-o", "json")).wrong() == {}
            await api.delete("RoleBinding", WEBHOOK, CLUSTER.namespace, RBAC)
            await api.delete("ConfigMap", HOSTS.name, HOSTS.namespace)
            found = (await installation.doctor("-o", "json")).wrong()
            await put(api, "ConfigMap", HOSTS, {"m.io..5000": "x"})
            broken = (await installation.doctor("-o", "json")).wrong()
    assert sorted(found) == ["mirrors", "rights"]
    assert f"get configmaps {CLUSTER.name}" in found["rights"]
    assert found["mirrors"] == f"{HOSTS}: there is none\n"
    assert broken["mirrors"] == f"{HOSTS}: the authorities for m.io:5000 hold no certificate\n"
