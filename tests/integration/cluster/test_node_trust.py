"""What OpenShift's nodes trust and log in with, as it is read by name from an API server."""

import base64
import json
from collections.abc import Callable, Mapping

import pytest
from structlog.testing import capture_logs

from extender.cluster.client import ClusterClient
from extender.cluster.node_trust import CLUSTER, HOSTS, PROXY, PULL_SECRET, NamedObject, read_node_trust
from extender.cluster.openshift_objects import DIGEST_MIRRORS, KEEP_SECONDS, FollowedMirrors
from extender.cluster.secrets import ClusterSecrets
from extender.kubernetes.openshift_v1 import NodeTrust
from tests.integration.cluster.api_server import ApiServer, Document, Refusal

LOGINS = {"quay.io": ("ann", "hunter2"), "mirror.example:5000": ("bob", "pass")}
FOUND = NodeTrust("proxy's\ncluster's", {"m.io:5000": "m's", "n.io": "n's"}, LOGINS)


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    put(api, HOSTS, {"data": {"m.io..5000": "m's", "n.io": "n's"}})
    put(api, PROXY, {"data": {"ca-bundle.crt": "proxy's", "other": "x"}})
    put(api, CLUSTER, {"data": {"ca-bundle.crt": "cluster's"}})
    put(api, PULL_SECRET, pull_secret(LOGINS))
    return api


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


@pytest.mark.parametrize("what", [HOSTS, PROXY, CLUSTER], ids=lambda what: what.name)
async def test_what_is_no_config_map_is_named(api: ApiServer, client: ClusterClient, what: NamedObject) -> None:
    """And the rest counts."""
    put(api, what, {"data": 7})
    trust, problems = await read_node_trust(client, ClusterSecrets(client), NodeTrust())
    assert [str(each) for each in problems] == [f"{what}: it is no ConfigMap"]
    assert (trust.authorities == FOUND.authorities) == (what is not HOSTS)


async def followed(client: ClusterClient, *changes: Callable[[], object]) -> tuple[list[NodeTrust], list[float]]:
    """What is told and the pauses between readings, in which the changes are made."""
    told, pauses = list[NodeTrust](), list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > len(changes):
            raise ConnectionAbortedError
        changes[len(pauses) - 1]()

    mirrors = FollowedMirrors(client, sleep)
    with pytest.raises(ConnectionAbortedError):
        await mirrors.run(lambda objects: told.append(objects.trust))
    assert mirrors.are_known == bool(told)
    return told, pauses


async def test_changes_are_followed_and_problems_said_once(api: ApiServer, client: ClusterClient) -> None:
    """A pull secret that breaks leaves the logins as they were; an API server that fails leaves everything."""
    with capture_logs() as logs:
        told, pauses = await followed(
            client,
            lambda: put(api, PULL_SECRET, pull_secret_of("{")),
            lambda: None,
            lambda: put(api, PULL_SECRET, pull_secret({"n.io": ("ann", "new")})),
            lambda: api.refusals.append(("get", Refusal(500))),
        )
    assert [each.logins for each in told] == [LOGINS, {"n.io": ("ann", "new")}]
    assert pauses == [KEEP_SECONDS] * 5
    refused = [each["why"] for each in logs if each["event"] == "file.refused"]
    assert [words.partition(": ")[0] for words in refused] == [str(PULL_SECRET), DIGEST_MIRRORS.path("")]


async def test_first_reading_is_tried_again_soon(api: ApiServer, client: ClusterClient) -> None:
    """Since no registry is asked before there is one, which says nothing on a cluster without such objects."""
    for what in (HOSTS, PROXY, CLUSTER, PULL_SECRET):
        api.remove(path_of(what), what.name)
    api.refusals += [("get", Refusal(500))] * 2
    assert await followed(client, lambda: None) == ([], [1.0, 1.0])
    assert await followed(client) == ([NodeTrust()], [KEEP_SECONDS])
