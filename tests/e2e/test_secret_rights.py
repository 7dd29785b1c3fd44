"""Pull secrets of a list of namespaces, under the real roles: theirs are read, and nobody else's are asked for."""

import base64
import json
from pathlib import Path

import pytest
from aiohttp import encode_basic_auth, web

from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, fake_node, kept_to, namespace, pod
from tests.e2e.installed_chart import installed
from tests.e2e.policies import dry_run
from tests.e2e.rights import Right, recording, rights_of

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

READ, UNREAD = ("team-a", "team-b"), "team-c"
LOGIN = encode_basic_auth("ann", "secret")


class PrivateRegistry(EmbeddedRegistry):
    """A registry that opens to one login only."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Authorization") != LOGIN:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="test"'})
        return await super().answer(request)


def pull_secret(where: str, host: str) -> KubernetesObject:
    """A Secret with the login, of the namespace's own name, so that a request for it tells whose it is."""
    auths = {"auths": {host: {"auth": base64.b64encode(b"ann:secret").decode()}}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{where}-pull", "namespace": where},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64.b64encode(json.dumps(auths).encode()).decode()},
    }


def private_pod(where: str, host: str) -> KubernetesObject:
    spec = {"imagePullSecrets": [{"name": f"{where}-pull"}]}
    return pod("private", f"{host}/team/old:1", namespace=where, spec=spec)


async def test_only_the_secrets_of_listed_namespaces_are_read(
    api: ApiClient, control_plane: LocalCluster, tmp_path: Path
) -> None:
    """Private images are known there and nowhere else; nothing is refused or logged."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    async with PrivateRegistry() as registry:
        registry.add_manifest("team/old", "1", "linux/amd64")
        for where in (*READ, UNREAD):
            await api.apply(namespace(where))
            await api.apply(pull_secret(where, registry.host))
        values = {"config": {"registry": {"pull_secrets": list(READ)}}}
        async with (
            recording(control_plane, tmp_path) as recorder,
            installed(api, recorder.kubeconfig, registry, tmp_path, values) as chart,
            chart.replicas(1),
        ):
            await chart.lead_to()
            for where in READ:
                private = private_pod(where, registry.host)
                await eventually(lambda private=private: architectures_of(api, private))  # type: ignore[misc]
            for where in (*READ, UNREAD):
                found = await architectures_of(api, private_pod(where, registry.host))
                assert found == (["amd64"] if where in READ else []), where
            given = rights_of([each for each in chart.objects if each["kind"] == "Role"])
            own = {right for right in recorder.used if right.resource == "secrets" and right.name.endswith("-pull")}
            assert recorder.refused == set()
        log = next((tmp_path / "replica-0").glob("*-0.log")).read_text()
        assert own == {Right("secrets", "get", f"{where}-pull") for where in READ}
        assert Right("secrets", "get", "") in given
        assert "secret." not in log


async def architectures_of(api: ApiClient, made: KubernetesObject) -> list[str]:
    return kept_to((await dry_run(api, made))["spec"], "kubernetes.io/arch")
