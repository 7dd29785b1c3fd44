"""What commands read of a cluster beside its pods is that of the same cluster: mirrors, logins and authorities."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from extender.cluster.views import NODES, PODS
from testbed.forked_commands import run
from tests.integration.cluster.api_server import ApiServer, node, pod, serve_api, write_contexts

MIRRORS = "/apis/config.openshift.io/v1/imagedigestmirrorsets"
LOGIN = "/api/v1/namespaces/openshift-config/secrets/pull-secret"
AUTHORITIES = "/api/v1/namespaces/openshift-config-managed/configmaps/merged-trusted-image-registry-ca"
OPENSHIFT = ("--set", "registry.mirrors=openshift", "--set", "registry.allow=[]")


class Contexts(NamedTuple):
    """The clusters of two contexts in one kubeconfig."""

    current: ApiServer
    prod: ApiServer
    environment: dict[str, str]


@asynccontextmanager
async def two_contexts(folder: Path) -> AsyncIterator[Contexts]:
    async with serve_api() as current, serve_api() as prod:
        path = write_contexts(folder, {"current": (current, ""), "prod": (prod, "")})
        prod.put(NODES.path, node("n", "amd64"))
        prod.put(PODS, pod("web", "registry.example.com/web:1", "n", "Running"))
        yield Contexts(current, prod, {"KUBECONFIG": str(path)})


FILE = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: c, image: "registry.example.com/web:1"}]}
"""


@pytest.mark.parametrize(
    "command",
    [
        ("audit",),
        ("audit", "-f", "-"),
        ("explain", "web"),
        ("explain", "-f", "-"),
        ("inspect", "registry.example.com/web:1"),
        ("fix", "-f", "-"),
    ],
    ids=" ".join,
)
async def test_mirrors_authorities_and_logins_are_those_of_the_context(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """They decide which registry is asked and with what: the wrong cluster's would be shown to the wrong registry."""
    async with two_contexts(tmp_path) as clusters:
        await run(*command, "--context", "prod", *OPENSHIFT, stdin=FILE, environment=clusters.environment)
        assert {MIRRORS, LOGIN, AUTHORITIES} <= {each.path for each in clusters.prod.requests}
        assert clusters.current.requests == []


async def test_doctor_examines_the_installation_of_the_context(tmp_path: Path) -> None:
    """And no other one."""
    async with two_contexts(tmp_path) as clusters:
        await run("doctor", "--context", "prod", *OPENSHIFT, environment=clusters.environment)
        assert clusters.prod.requests
        assert clusters.current.requests == []
