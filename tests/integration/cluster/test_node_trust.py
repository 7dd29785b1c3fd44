"""What OpenShift's nodes trust and log in with, as it is read by name from an API server."""

import base64
import json
from collections.abc import AsyncIterator, Mapping

import pytest
from structlog.testing import capture_logs

from extender.cluster.client import ClusterClient
from extender.cluster.node_trust import (
    CLUSTER,
    HOSTS,
    PROXY,
    PULL_SECRET,
    NamedObject,
    read_node_trust,
)
from extender.cluster.openshift_objects import DIGEST_MIRRORS, FollowedMirrors
from extender.cluster.secrets import ClusterSecrets
from extender.kubernetes.openshift_v1 import NodeTrust
from tests.integration.cluster.api_server import ApiServer, Document, Refusal, serve_api

LOGINS = {"quay.io": ("ann", "hunter2"), "mirror.example:5000": ("bob", "pass")}
FOUND = NodeTrust("proxy's\ncluster's", {"m.io:5000": "m's", "n.io": "n's"}, LOGINS)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serve_api() as server:
        put(server, HOSTS, {"data": {"m.io..5000": "m's", "n.io": "n's"}})
        put(server, PROXY, {"data": {"ca-bundle.crt": "proxy's", "other": "x"}})
        put(server, CLUSTER, {"data": {"ca-bundle.crt": "cluster's"}})
        put(server, PULL_SECRET, pull_secret(LOGINS))
        yield server


def path_of(what: NamedObject) -> str:
    return f"/api/v1/namespaces/{what.namespace}/{what.resource}"


def put(api: ApiServer, what: NamedObject, document: Document) -> None:
    api.put(path_of(what), {"metadata": {"name": what.name}, **document})


def pull_secret(logins: Mapping[str, tuple[str, str]]) -> Document:
    auths = {host: {"username": name, "password": word} for host, (name, word) in logins.items()}
    return pull_secret_of(json.dumps({"auths": auths}))


def pull_secret_of(text: str) -> Document:
    packed = base64.b64encode(text.encode()).decode()
    return {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": packed}}


async def test_all_is_read(client: ClusterClient) -> None:
    """`..` in a key stands for a colon; the bundles are one."""
    assert await read_node_trust(client, ClusterSecrets(client), NodeTrust()) == (FOUND, ())


@pytest.mark.parametrize("what", [HOSTS, PROXY, CLUSTER, PULL_SECRET], ids=lambda what: what.name)
@pytest.mark.parametrize("status", [403, 404])
async def test_what_is_missing_is_named(api: ApiServer, client: ClusterClient, what: NamedObject, status: int) -> None:
    """And the rest counts; only authorities of the cluster's own need not exist."""
    if status == 404:
        api.remove(path_of(what), what.name)
    else:
        api.denied.add(f"{path_of(what)}/{what.name}")
    trust, problems = await read_node_trust(client, ClusterSecrets(client), NodeTrust())
    assert len({trust.bundle, FOUND.bundle}) + (trust.authorities != FOUND.authorities) + (trust.logins != LOGINS) == 2
    assert [each.what for each in problems] == ([] if (what, status) == (CLUSTER, 404) else [what])


async def test_changes_are_followed_and_problems_said_once(api: ApiServer, client: ClusterClient) -> None:
    """A pull secret that breaks leaves the logins as they were; an API server that fails leaves everything."""
    told: list[NodeTrust] = []
    waits: list[float] = []

    steps = [
        lambda: put(api, PULL_SECRET, pull_secret_of("{")),
        lambda: None,
        lambda: put(api, PULL_SECRET, pull_secret({"n.io": ("ann", "new")})),
        lambda: api.refusals.append(("get", Refusal(500))),
    ]

    class Enough(Exception):
        """All steps are done."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if not steps:
            raise Enough
        steps.pop(0)()

    with capture_logs() as logs, pytest.raises(Enough):
        await FollowedMirrors(client, sleep).run(lambda objects: told.append(objects.trust))
    assert [each.logins for each in told] == [LOGINS, {"n.io": ("ann", "new")}]
    assert waits == [30.0] * 5
    refused = [each["why"] for each in logs if each["event"] == "file.refused"]
    assert [words.partition(": ")[0] for words in refused] == [str(PULL_SECRET), DIGEST_MIRRORS.path("")]


async def test_first_reading_is_tried_again_soon(api: ApiServer, client: ClusterClient) -> None:
    """Since no registry is asked before there is one."""
    waits: list[float] = []
    told: list[NodeTrust] = []
    api.refusals += [("get", Refusal(500)), ("get", Refusal(500))]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await FollowedMirrors(client, sleep).run(lambda objects: told.append(objects.trust))
    assert told == []
    assert waits == [1.0, 1.0]
