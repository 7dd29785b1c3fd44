"""The service makes its certificate itself: what it writes where, whom that is told, and what it outlives."""

import asyncio
import base64
import json
import resource
import ssl
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from extender.background import background_problem, in_background
from extender.certificates.own_certificate import (
    OwnCertificates,
    expires_at,
    make_certificate,
    split_bundle,
    to_secret_data,
)
from extender.certificates.server_names import names_of_server
from extender.cluster.client import JSON, ClusterClient, ClusterRefused, open_cluster
from extender.config.reading import read_config
from extender.config.tree import TlsConfig
from extender.errors import ConfigError
from extender.server.operations import CheckResult
from extender.server.tls import TlsFiles
from extender.service.self_managed import LIFETIME, RECONCILE_SECONDS, SelfManaged, open_own_certificate
from testbed.eventually import eventually
from testbed.machines import running_machine
from tests.integration.cluster.api_server import ApiServer, Request, serve_api, write_kubeconfig

pytestmark = pytest.mark.usefixtures("simulated_time")

SECRETS = "/api/v1/namespaces/default/secrets"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
BY_SERVICE = {"service": {"name": "webhook", "namespace": "default", "path": "/admission/pods", "port": 443}}
BY_URL = {"url": "https://webhook.example.com:8443/admission/jobs"}
CONFIG = read_config(None, ["admission.tls={self_managed: [webhook]}"])
TLS = TlsConfig(self_managed=("webhook",))
NAMES = names_of_server(["webhook"], "default")
DAY = 86_400.0
LIFE = LIFETIME


def put_configuration(api: ApiServer) -> None:
    configs = {"pods": BY_SERVICE, "workloads": BY_URL}
    webhooks = [{"name": f"{name}.example.com", "clientConfig": each} for name, each in configs.items()]
    api.put(CONFIGURATIONS, {"metadata": {"name": "webhook"}, "webhooks": webhooks})


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serve_api() as server:
        put_configuration(server)
        yield server


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterClient]:
    opened = await open_cluster(
        "kubeconfig", str(write_kubeconfig(api, tmp_path)), clock=asyncio.get_running_loop().time
    )
    yield opened
    await opened.close()


def managing(client: ClusterClient, file: Path) -> SelfManaged:
    machine = running_machine()
    return SelfManaged(client, TLS, file, clock=machine.clock, wall_clock=machine.wall_clock)


@pytest.fixture
async def managed(client: ClusterClient, tmp_path: Path) -> SelfManaged:
    return managing(client, tmp_path / "tls.pem")


def secret_data(api: ApiServer) -> dict[str, bytes]:
    found = api.find(SECRETS, "webhook-identity")["data"]
    return {key: base64.b64decode(value) for key, value in found.items()}


def put_secret(api: ApiServer, data: Mapping[str, bytes | None]) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items() if value is not None}
    api.put(SECRETS, {"metadata": {"name": "webhook-identity"}, "data": encoded})


def trusted(api: ApiServer) -> bytes:
    """What all webhooks of the configuration trust."""
    webhooks = api.find(CONFIGURATIONS, "webhook")["webhooks"]
    (bundle,) = {each["clientConfig"].get("caBundle", "") for each in webhooks}
    return base64.b64decode(bundle)


async def test_a_replica_shows_until_when_its_certificate_is_good(api: ApiServer, managed: SelfManaged) -> None:
    """And why it could not look after it; it serves what it has."""
    assert managed.check() == CheckResult(ok=False, detail="the API server has not answered yet; there is none yet")
    await managed.reconcile()
    ends = f"it ends {datetime.fromtimestamp(running_machine().wall_clock(), UTC) + LIFE:%Y-%m-%d}"
    assert managed.check() == CheckResult(detail=ends)
    api.denied = {f"{CONFIGURATIONS}/webhook"}
    await managed.reconcile()
    shown = managed.check()
    assert not shown.ok
    assert shown.detail.endswith(ends)


async def test_webhooks_get_the_certificate_and_nothing_else(api: ApiServer, managed: SelfManaged) -> None:
    """Path, URL and port stay as they were written; what is as it should be is not written again."""
    assert await managed.reconcile() == await managed.reconcile() == RECONCILE_SECONDS
    sent = [request for request in api.received("send") if request.path.startswith(CONFIGURATIONS)]
    certificate = base64.b64encode(secret_data(api)["tls.crt"]).decode()
    (request,) = sent
    assert request.path == f"{CONFIGURATIONS}/webhook"
    assert json.loads(request.body)["webhooks"] == [
        {"name": f"{name}.example.com", "clientConfig": {"caBundle": certificate}} for name in ("pods", "workloads")
    ]
    assert request.headers["Content-Type"] == "application/strategic-merge-patch+json"


async def test_one_replica_of_three_makes_it(api: ApiServer, client: ClusterClient, tmp_path: Path) -> None:
    """The API server refuses what the others write, and they take what is there then."""
    replicas = [managing(client, tmp_path / f"{number}.pem") for number in range(3)]
    await asyncio.gather(*(each.reconcile() for each in replicas))
    await asyncio.gather(*(each.reconcile() for each in replicas))
    assert not any(each.failure for each in replicas)
    served = {(tmp_path / f"{number}.pem").read_bytes() for number in range(3)}
    data = secret_data(api)
    assert served == {data["tls.crt"] + data["tls.key"]}
    assert split_bundle(trusted(api)) == (data["tls.crt"],)
    half_over = make_certificate(NAMES, datetime.now(UTC) - LIFE / 2, LIFE)
    put_secret(api, to_secret_data(OwnCertificates(half_over)))
    api.requests.clear()
    api.is_open.clear()
    looks = [asyncio.create_task(each.reconcile()) for each in replicas]
    await eventually(lambda: len(api.requests) == len(replicas))
    api.is_open.set()
    await asyncio.gather(*looks)
    published = [each.path for each in api.received("send") if each.path.startswith(CONFIGURATIONS)]
    assert published == [f"{CONFIGURATIONS}/webhook"]


class LocalClient:
    """A client of a stand-in for the API server without a connection between them."""

    namespace = "default"
    find = ClusterClient.find

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self.writes = 0

    async def get(self, path: str, **_: object) -> bytes:
        return await self._answer(Request("get", path, {}, {}))

    async def send(self, method: str, path: str, body: bytes, content_type: str = JSON, **_: object) -> bytes:
        answer = await self._answer(Request("send", path, {}, {"Content-Type": content_type}, method, body))
        self.writes += 1
        return answer

    async def _answer(self, request: Request) -> bytes:
        answer = await self._api.answer(request)
        if answer.status >= 400:
            raise ClusterRefused(answer.body.decode(), answer.status)
        return answer.body


class Simulation:
    """Three replicas, one of which looks every ten seconds, and an API server that learns a configuration late."""

    def __init__(self, folder: Path) -> None:
        self.api = ApiServer()
        put_configuration(self.api)
        self.client = LocalClient(self.api)
        self.seconds = 0.0
        self._began = datetime(2026, 11, 22, tzinfo=UTC).timestamp()
        self._files = [folder / f"{number}.pem" for number in range(3)]
        self._replicas = [
            SelfManaged(
                cast("ClusterClient", self.client),
                TLS,
                file,
                clock=lambda: self.seconds,
                wall_clock=lambda: self._began + self.seconds,
            )
            for file in self._files
        ]

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._began + self.seconds, UTC)

    async def run(self, days: float) -> AsyncIterator[tuple[bytes, bytes]]:
        """What the API server trusts and each replica serves, after each look; quiet hours are left out."""
        for replica in self._replicas:
            await replica.reconcile()
        known, until, watched_until = trusted(self.api), self.seconds + days * DAY, self.seconds + 900
        while self.seconds < until:
            for replica in self._replicas:
                before = self.client.writes
                await replica.reconcile()
                if self.client.writes != before:
                    watched_until = self.seconds + 900
                for file in self._files:
                    yield known, file.read_bytes().partition(b"-----BEGIN PRIVATE")[0]
                known = trusted(self.api)  # ten seconds late
                self.seconds += RECONCILE_SECONDS / 3
            if self.seconds > watched_until:
                self.seconds += 21_600

    def is_trusted(self, bundle: bytes, certificate: bytes) -> bool:
        """Whether Go's client, by a bundle, takes a certificate now."""
        return certificate in split_bundle(bundle) and self.now < expires_at(certificate)


async def test_nothing_is_served_that_is_not_trusted(tmp_path: Path) -> None:
    """For 130 days, with three replicas none of which leads."""
    simulation, served = Simulation(tmp_path), set[bytes]()
    async for bundle, certificate in simulation.run(130):
        assert simulation.is_trusted(bundle, certificate)
        served.add(certificate)
    assert len(served) >= 3
    assert simulation.client.writes <= 5 * 2


async def test_what_is_not_published_is_not_served(tmp_path: Path) -> None:
    """A replica without the right to write the configuration keeps to what is trusted; it says what is missing."""
    simulation = Simulation(tmp_path)
    for days, denied in ((44, set[str]()), (40, {f"{CONFIGURATIONS}/webhook"}), (10, set[str]())):
        simulation.api.denied = denied
        async for bundle, certificate in simulation.run(days):
            assert simulation.is_trusted(bundle, certificate)


async def test_a_configuration_that_lost_its_bundle_gets_it_back(api: ApiServer, managed: SelfManaged) -> None:
    """As after a `kubectl replace`. One that comes later than the service gets it within seconds."""
    api.remove(CONFIGURATIONS, "webhook")
    assert await managed.reconcile() <= 1
    put_configuration(api)
    assert await managed.reconcile() == RECONCILE_SECONDS
    assert trusted(api) == secret_data(api)["tls.crt"]


async def test_a_certificate_that_is_not_valid_yet_is_replaced_and_the_new_one_trusted(
    api: ApiServer, managed: SelfManaged
) -> None:
    """It was made by a replica whose clock was 200 days ahead."""
    ahead = make_certificate(NAMES, datetime.now(UTC) + timedelta(days=200), LIFE)
    put_secret(api, to_secret_data(OwnCertificates(ahead)))
    assert await managed.reconcile() == RECONCILE_SECONDS
    data = secret_data(api)
    assert data["tls.crt"] != ahead.certificate
    assert trusted(api) == data["tls.crt"]
    assert managed.file.read_bytes() == data["tls.crt"] + data["tls.key"]


@pytest.mark.parametrize("is_ours", [True, False], ids=["damaged", "of others"])
async def test_a_secret_that_has_no_certificate_is_made_anew_if_it_is_ours(
    api: ApiServer, managed: SelfManaged, is_ours: bool
) -> None:
    """Else it is left as it is, and the reason is said."""
    own = to_secret_data(OwnCertificates(make_certificate(NAMES, datetime.now(UTC), LIFE)))
    put_secret(api, own | {"tls.crt": b"no PEM"} if is_ours else {"tls.crt": b"no PEM"})
    await managed.reconcile()
    assert (secret_data(api)["tls.crt"] == b"no PEM") is not is_ours
    assert ("is not one of ours" in managed.failure) is not is_ours


async def test_without_a_certificate_within_a_minute_there_is_no_start(api: ApiServer, client: ClusterClient) -> None:
    """With the reason."""
    api.denied = {f"{SECRETS}/webhook-identity", SECRETS}
    with pytest.raises(ConfigError, match=r"no certificate in a minute: .*Forbidden"):
        async with open_own_certificate(CONFIG, client, running_machine()):
            pass


async def test_a_tls_client_takes_the_present_and_the_next_certificate(tmp_path: Path) -> None:
    """By one bundle, before and after the file was swapped; and none for another name."""
    now = datetime.now(UTC)
    own = OwnCertificates(make_certificate(NAMES, now, LIFE), make_certificate(NAMES, now, LIFE))
    assert own.next is not None
    file = tmp_path / "tls.pem"
    file.write_bytes(own.present.certificate + own.present.key)
    files = TlsFiles("admission", str(file), str(file), "")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=files.context)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=own.bundle.decode())

    async def shown(name: str) -> bytes:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return ssl.DER_cert_to_PEM_cert(der).encode()

    async with server:
        assert await shown(NAMES[1]) == own.present.certificate
        made = tmp_path / "tls.new"
        made.write_bytes(own.next.certificate + own.next.key)
        made.replace(file)
        await files.files.refresh()
        assert await shown(NAMES[1]) == own.next.certificate
        with pytest.raises(ssl.SSLCertVerificationError):
            await shown("other.default.svc")


async def test_a_file_that_cannot_be_written_for_now_is_written_later(client: ClusterClient, tmp_path: Path) -> None:
    """The task goes on, and says why there is nothing yet."""
    folder = tmp_path / "files"
    managed = managing(client, folder / "tls.pem")
    async with in_background(managed.run(), "certificates"), asyncio.timeout(60):
        await eventually(lambda: "No such file or directory" in managed.failure)
        assert not background_problem()
        folder.mkdir()
        await managed.is_made.wait()
    assert (folder / "tls.pem").read_bytes().startswith(b"-----BEGIN CERTIFICATE-----")


async def test_a_write_that_ends_halfway_leaves_the_last_file(
    api: ApiServer, client: ClusterClient, tmp_path: Path
) -> None:
    """As on a full disk; retries fill it no further."""
    file = tmp_path / "files" / "tls.pem"
    file.parent.mkdir()
    managed = managing(client, file)
    await managed.reconcile()
    before = file.read_bytes()
    put_secret(api, to_secret_data(OwnCertificates(make_certificate(NAMES, datetime.now(UTC), LIFE))))
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(3):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))  # files of 100 bytes at most
        try:
            with capture_logs():  # pytest's own file would be too large as well
                await managed.reconcile()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "File too large" in managed.failure
    assert file.read_bytes() == before
    assert len(list(file.parent.iterdir())) == 2
    await managed.reconcile()
    assert file.read_bytes() != before
