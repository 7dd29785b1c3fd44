"""The service makes its certificate itself: what it writes where, and what it outlives."""

import asyncio
import base64
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from extender.background import background_problem, in_background
from extender.certificates.managed_identity import IdentityLifetimes
from extender.cluster.client import ClusterClient, open_cluster
from extender.cluster.own_secret import OwnSecret
from extender.cluster.webhook_configuration import WebhookConfiguration
from extender.service import self_managed
from extender.service.self_managed import SelfManaged
from tests.integration.cluster.api_server import ApiServer, serve_api, write_kubeconfig

SECRETS = "/api/v1/namespaces/ours/secrets"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
BY_SERVICE = {"service": {"name": "webhook", "namespace": "ours", "path": "/admission/pods", "port": 443}}
BY_URL = {"url": "https://webhook.example.com:8443/admission/jobs"}


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[ApiServer, ClusterClient]]:
    """An API server with two configurations, and a client."""
    async with serve_api() as api:
        for name, client_config in (("pods", BY_SERVICE), ("jobs", BY_URL)):
            webhooks = [{"name": f"{name}.example.com", "clientConfig": client_config}]
            api.put(CONFIGURATIONS, {"metadata": {"name": name}, "webhooks": webhooks})
        client = await open_cluster("kubeconfig", str(write_kubeconfig(api, folder)))
        yield api, client
        await client.close()


def managed_in(folder: Path, client: ClusterClient) -> SelfManaged:
    """What looks after the certificate; its files are in `folder`."""
    return SelfManaged(
        OwnSecret(client, "ours", "identity"),
        [WebhookConfiguration(client, name) for name in ("pods", "jobs", "missing")],
        names=["webhook.ours.svc"],
        lifetimes=IdentityLifetimes(authority=timedelta(days=2), certificate=timedelta(days=1)),
        folder=folder,
        wall_clock=lambda: 1.8e9,
    )


async def test_configurations_get_the_authority_and_nothing_else(tmp_path: Path) -> None:
    """Path, URL and port stay as they were written; what is as it should be is not written again."""
    async with cluster(tmp_path) as (api, client):
        managed = managed_in(tmp_path, client)
        for _ in range(2):
            await managed._look_after()  # noqa: SLF001  # one look of a leader
        sent = [request for request in api.received("send") if request.path.startswith(CONFIGURATIONS)]
        authority = api._objects[SECRETS, "identity"]["data"]["ca.crt"]  # noqa: SLF001
    assert {request.path.rpartition("/")[2]: msgspec.json.decode(request.body)["webhooks"] for request in sent} == {
        name: [{"name": f"{name}.example.com", "clientConfig": {"caBundle": authority}}] for name in ("pods", "jobs")
    }
    assert len(sent) == 2
    assert all(request.headers["Content-Type"] == "application/strategic-merge-patch+json" for request in sent)
    assert base64.b64decode(authority).startswith(b"-----BEGIN CERTIFICATE-----")


@pytest.mark.parametrize("role", ["follow", "lead"])
async def test_files_that_cannot_be_written_for_now_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """The task goes on, says why there is nothing yet, and leaves no half of it behind."""
    monkeypatch.setattr(self_managed, "LOOK_SECONDS", 0.01)
    folder = tmp_path / "files"
    async with cluster(tmp_path) as (_, client):
        if role == "follow":
            (tmp_path / "others").mkdir()
            await managed_in(tmp_path / "others", client)._look_after()  # noqa: SLF001
        managed = managed_in(folder, client)
        async with in_background(getattr(managed, role)(), role), asyncio.timeout(10):
            while "No such file or directory" not in managed.failure:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # it tries again and again
            assert "No such file or directory" in managed.failure
            assert not background_problem()
            folder.mkdir()
            await managed.is_there.wait()
            while managed.failure:
                await asyncio.sleep(0.01)
    assert Path(managed.files.certificate).read_bytes().startswith(b"-----BEGIN CERTIFICATE-----")


async def test_a_write_that_ends_halfway_leaves_the_last_files(tmp_path: Path) -> None:
    """As on a full disk; retries fill it no further."""
    async with cluster(tmp_path) as (_, client):
        managed = managed_in(tmp_path / "files", client)
        (tmp_path / "files").mkdir()
        await managed._look_after()  # noqa: SLF001
        before = Path(managed.files.key).read_bytes()
        managed._version = ""  # noqa: SLF001  # as after a change
        content = await managed._secret.read()  # noqa: SLF001
        _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        for _ in range(3):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))  # files of 100 bytes at most
            try:
                with pytest.raises(OSError, match="File too large"):
                    managed._copy(content)  # noqa: SLF001
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert Path(managed.files.key).read_bytes() == before
        assert len(list((tmp_path / "files").iterdir())) == 2  # a folder, and the link to it
