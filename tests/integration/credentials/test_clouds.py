"""Cloud identities against stand-ins of the clouds' token endpoints on loopback."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import aiohttp
import pytest
import trustme
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from rich.pretty import pretty_repr

from extender.credentials.aws import AwsKeys, EcrProvider, sign
from extender.credentials.azure import AzureProvider
from extender.credentials.cloud_api import CloudAccess
from extender.credentials.credential_provider_v1 import CacheKeyType
from extender.credentials.google import GoogleProvider
from extender.credentials.providers import CredentialsUnavailable, LoginProvider

KEY = b"k" * 32
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
ECR = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "aws-secret"}


class ReceivedRequest(NamedTuple):
    """A request as it was received."""

    method: str
    host: str
    path: str
    headers: dict[str, str]
    body: str

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body, strict_parsing=True).items()}


class Cloud:
    """A server that answers by path, and notes what it is asked."""

    session: aiohttp.ClientSession

    def __init__(self) -> None:
        self.port = 0
        self.tls_port = 0
        self.received: list[ReceivedRequest] = []
        self.answers: dict[str, tuple[int, str]] = {}
        self.open = asyncio.Event()  # while it is cleared, nothing is answered
        self.open.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = (await request.read()).decode()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(ReceivedRequest(request.method, request.host, request.path, headers, body))
        await self.open.wait()
        status, text = self.answers.get(request.path, (404, "hunter2"))
        return web.Response(status=status, text=text, headers={"Location": "/elsewhere"} if status == 307 else {})


class Redirected(AbstractResolver):
    """Every name is the cloud's TLS port on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        found = ResolveResult(hostname=host, host="127.0.0.1", port=self.port, family=2, proto=0, flags=0)
        return [found]

    async def close(self) -> None:
        pass


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def cloud(authority: trustme.CA) -> AsyncIterator[Cloud]:
    stand_in = Cloud()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("team.azurecr.io", "login.test").configure_cert(context)
    async with AsyncExitStack() as stack:
        runner = web.ServerRunner(web.Server(stand_in.answer), shutdown_timeout=0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        stand_in.session = await stack.enter_async_context(aiohttp.ClientSession())
        stand_in.port, stand_in.tls_port = runner.addresses[0][1], runner.addresses[1][1]
        yield stand_in
        stand_in.open.set()


@pytest.fixture
async def azure_session(cloud: Cloud, authority: trustme.CA) -> AsyncIterator[aiohttp.ClientSession]:
    """A session for which the cloud is every host."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    connector = aiohttp.TCPConnector(ssl=context, resolver=Redirected(cloud.tls_port))
    async with aiohttp.ClientSession(connector=connector) as opened:
        yield opened


def access(session: aiohttp.ClientSession, environment: Mapping[str, str] | None = None) -> CloudAccess:
    return CloudAccess(session, environment or {}, lambda: NOW)


async def test_google_s_metadata_server_gives_a_token_for_all_its_registries(cloud: Cloud) -> None:
    """Asked with the header that proves it was meant; kept a minute less than it is good for."""
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    cloud.answers[path] = (200, json.dumps({"access_token": "ya29", "expires_in": 3599, "token_type": "Bearer"}))
    provider = GoogleProvider(access(cloud.session, {"GCE_METADATA_HOST": f"127.0.0.1:{cloud.port}"}))
    given = await provider.provide("eu.gcr.io/project/app")
    assert cloud.received[0].headers["metadata-flavor"] == "Google"
    assert {(login.username, login.password) for login in given.logins} == {("oauth2accesstoken", "ya29")}
    assert {login.pattern for login in given.logins} == {"gcr.io", "*.gcr.io", "*-docker.pkg.dev"}
    assert (given.keep_seconds, given.cache_key_type) == (3539, CacheKeyType.GLOBAL)


@pytest.fixture
def azure(cloud: Cloud, azure_session: aiohttp.ClientSession, tmp_path: Path) -> AzureProvider:
    (tmp_path / "token").write_text("federated\n")
    cloud.answers["/tenant/oauth2/v2.0/token"] = (200, json.dumps({"access_token": "entra", "expires_in": 3599}))
    cloud.answers["/oauth2/exchange"] = (200, json.dumps({"refresh_token": "refresh"}))
    environment = {
        "AZURE_CLIENT_ID": "client",
        "AZURE_TENANT_ID": "tenant",
        "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token"),
        "AZURE_AUTHORITY_HOST": "https://login.test/",
    }
    return AzureProvider(access(azure_session, environment))


async def test_azure_exchanges_the_federated_token_twice(cloud: Cloud, azure: AzureProvider) -> None:
    """First for one of the tenant's, then for one of the registry's, which is the password of a login."""
    given = await azure.provide("team.azurecr.io/app")
    (login,) = given.logins
    assert (login.pattern, login.username, login.password) == (
        "team.azurecr.io", "00000000-0000-0000-0000-000000000000", "refresh",
    )  # fmt: skip
    assert [(each.host, each.form) for each in cloud.received] == [
        ("login.test", {
            "grant_type": "client_credentials", "client_id": "client", "client_assertion": "federated",
            "scope": "https://containerregistry.azure.net/.default",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        }),
        ("team.azurecr.io", {
            "grant_type": "access_token", "service": "team.azurecr.io", "tenant": "tenant", "access_token": "entra",
        }),
    ]  # fmt: skip


def ecr(cloud: Cloud, **environment: str) -> EcrProvider:
    token = base64.b64encode(b"AWS:hunter2").decode()
    data = [{"authorizationToken": token, "expiresAt": NOW + 43_200, "proxyEndpoint": f"https://{ECR}"}]
    cloud.answers.setdefault("/", (200, json.dumps({"authorizationData": data})))
    endpoints = {"AWS_ENDPOINT_URL_ECR": cloud.url, "AWS_ENDPOINT_URL_STS": f"{cloud.url}/sts"}
    return EcrProvider(access(cloud.session, endpoints | environment))


def signed_again(received: ReceivedRequest, keys: AwsKeys) -> str:
    names = received.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    ours = {"host", "x-amz-date", "x-amz-security-token"}
    return sign(
        keys, received.method, f"http://{received.host}{received.path}",
        {name: received.headers[name] for name in names if name not in ours}, received.body.encode(),
        region="eu-central-1", service="ecr", at=datetime.fromtimestamp(NOW, UTC),
    )["authorization"]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "signature"),
    [
        ("GET", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    ],
)
def test_signature_is_that_of_amazon_s_own_examples(method: str, signature: str) -> None:
    """`get-vanilla` and `post-vanilla` of the signature version 4 test suite."""
    signed = sign(
        AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        method, "https://example.amazonaws.com/", {}, b"",
        region="us-east-1", service="service", at=datetime(2015, 8, 30, 12, 36, tzinfo=UTC),
    )  # fmt: skip
    assert signed["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={signature}"
    )


async def test_amazon_s_keys_of_the_environment_sign_the_request(cloud: Cloud) -> None:
    """The login is for the registry, and kept for half of its life."""
    given = await ecr(cloud, **KEYS, AWS_SESSION_TOKEN="session").provide(f"{ECR}/team/app")
    (login,) = given.logins
    assert (login.pattern, login.username, login.password) == (ECR, "AWS", "hunter2")
    assert (given.keep_seconds, given.cache_key_type) == (21_600, CacheKeyType.REGISTRY)
    (received,) = cloud.received
    assert received.headers["x-amz-target"] == "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
    assert received.headers["x-amz-security-token"] == "session"
    assert received.headers["authorization"] == signed_again(received, AwsKeys("AKID", "aws-secret", "session"))
    assert "/20260301/eu-central-1/ecr/aws4_request" in received.headers["authorization"]
    keys = AwsKeys("AKID", "hunter2", "hunter2")
    assert "hunter2" not in repr(keys) + pretty_repr([keys])


@pytest.mark.parametrize("way", ["service account", "pod identity"])
async def test_amazon_s_roles_are_asked_for_by_the_mounted_token(cloud: Cloud, tmp_path: Path, way: str) -> None:
    """A service account's of STS, which answers in XML; a pod identity's of its agent."""
    (tmp_path / "token").write_text("jwt")
    keys = {"AccessKeyId": "ASIA", "SecretAccessKey": "role-secret", "SessionToken": "role-token"}
    fields = "\n".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
    cloud.answers["/sts/"] = (200, f"<AssumeRoleWithWebIdentityResponse>{fields}</AssumeRoleWithWebIdentityResponse>")
    cloud.answers["/v1/credentials"] = (200, json.dumps(keys | {"Token": "role-token", "Expiration": "2026-…"}))
    environment = {
        "service account": {"AWS_ROLE_ARN": "role", "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token")},
        "pod identity": {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{cloud.url}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
        },
    }[way]
    await ecr(cloud, **environment).provide(f"{ECR}/team/app")
    first, second = cloud.received
    if way == "service account":
        assert first.form == {
            "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": "role",
            "RoleSessionName": "multiarch-extender", "WebIdentityToken": "jwt",
        }  # fmt: skip
    else:
        assert first.headers["authorization"] == "jwt"
    assert second.headers["authorization"] == signed_again(second, AwsKeys("ASIA", "role-secret", "role-token"))


PARTITIONS = (
    "eusc-de-east-1.amazonaws.eu", "us-iso-east-1.c2s.ic.gov", "us-isob-east-1.sc2s.sgov.gov",
    "eu-isoe-west-1.cloud.adc-e.uk", "us-isof-south-1.csp.hci.ic.gov",
)  # fmt: skip


@pytest.mark.parametrize(
    ("host", "api"),
    [
        ("dkr.ecr.eu-central-1.amazonaws.com", "api.ecr.eu-central-1.amazonaws.com"),
        ("dkr.ecr-fips.us-gov-west-1.amazonaws.com", "ecr-fips.us-gov-west-1.amazonaws.com"),
        ("dkr.ecr.cn-north-1.amazonaws.com.cn", "api.ecr.cn-north-1.amazonaws.com.cn"),
        ("dkr-ecr.us-east-1.on.aws", "api.ecr.us-east-1.amazonaws.com"),
        ("dkr-ecr.cn-north-1.on.amazonwebservices.com.cn", "api.ecr.cn-north-1.amazonaws.com.cn"),
        *((f"dkr.ecr.{each}", f"api.ecr.{each}") for each in PARTITIONS),
    ],
)
async def test_each_partition_of_amazon_s_has_apis_of_its_own(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, api: str
) -> None:
    """Those of ECR and of STS, which gives the keys of a role."""
    asked: list[str] = []

    async def refuse(_access: CloudAccess, _method: str, url: str, **_more: object) -> bytes:
        asked.append(url)
        raise CredentialsUnavailable("not here")

    monkeypatch.setattr(CloudAccess, "ask", refuse)
    (tmp_path / "token").write_text("jwt")
    region, domain = api.removeprefix("api.").partition(".")[2].split(".", 1)
    role = {"AWS_ROLE_ARN": "a", "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"), "AWS_REGION": region}
    for environment in (KEYS, role):
        with pytest.raises(CredentialsUnavailable):
            await EcrProvider(access(cloud.session, environment)).provide(f"123456789012.{host}/team/app")
    assert asked == [f"https://{api}/", f"https://sts.{region}.{domain}/"]


async def test_ecr_public_is_asked_with_a_login_where_there_is_one(cloud: Cloud) -> None:
    """All there is public: without a right to a login, or an identity, it is asked without one."""
    token = base64.b64encode(b"AWS:hunter2").decode()
    granted = {"authorizationData": {"authorizationToken": token, "expiresAt": NOW + 43_200}}
    cloud.answers["/public/"] = (200, json.dumps(granted))
    public = {"AWS_ENDPOINT_URL_ECR_PUBLIC": f"{cloud.url}/public"}
    given = await ecr(cloud, **KEYS, **public).provide("public.ecr.aws/docker/library/redis")
    (login,) = given.logins
    assert (login.pattern, login.username, login.password) == ("public.ecr.aws", "AWS", "hunter2")
    assert given.keep_seconds == 21_600
    (received,) = cloud.received
    assert received.headers["x-amz-target"] == "SpencerFrontendService.GetAuthorizationToken"
    assert "/20260301/us-east-1/ecr-public/aws4_request" in received.headers["authorization"]
    cloud.answers["/public/"] = (400, "AccessDeniedException")
    for environment in (KEYS, {}):
        given = await ecr(cloud, **environment, **public).provide("public.ecr.aws/docker/library/redis")
        assert (given.logins, given.keep_seconds) == ((), 600)


@pytest.mark.parametrize(
    ("kind", "served", "others"),
    [
        (GoogleProvider, ["gcr.io", "eu.gcr.io", "europe-west1-docker.pkg.dev"],
         ["gcr.io.example.com", "xgcr.io", "a.b.gcr.io", "pkg.dev", "gcr.io:443", "docker.pkg.dev"]),
        (AzureProvider, ["team.azurecr.io", "team.azurecr.cn", "team.azurecr.us"],
         ["azurecr.io", "a.b.azurecr.io", "team.azurecr.io.example.com", "team.azurecr.io:8443"]),
        (EcrProvider, [ECR, "123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com",
                       "123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "123456789012.dkr-ecr.us-east-1.on.aws",
                       "123456789012.dkr-ecr.cn-north-1.on.amazonwebservices.com.cn",
                       *(f"123456789012.dkr.ecr.{each}" for each in PARTITIONS), "public.ecr.aws"],
         ["12345.dkr.ecr.eu-central-1.amazonaws.com", f"{ECR}.example.com", f"{ECR}:443", "a.public.ecr.aws",
          "123456789012.dkr.ecr.evil.io.amazonaws.com", "123456789012.dkr.ecr.us-east-1.evil.gov"]),
    ],
)  # fmt: skip
async def test_cloud_serves_its_own_hosts(
    cloud: Cloud, kind: type[LoginProvider], served: list[str], others: list[str]
) -> None:
    provider = kind(access(cloud.session))  # type: ignore[call-arg]  # of the protocol, which says nothing of that
    assert [host for host in (*served, *others) if provider.serves(f"{host}/team/app")] == served


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((403, "hunter2"), id="refused"),
        pytest.param((307, "hunter2"), id="redirected"),
        pytest.param((200, "hunter2"), id="no-json"),
        pytest.param((200, "{}"), id="nothing"),
        pytest.param((200, "x" * (2 << 20)), id="endless"),
    ],
)
async def test_what_a_cloud_answers_wrongly_is_unavailable_without_a_word_of_it(
    cloud: Cloud, answer: tuple[int, str]
) -> None:
    """And no redirect is followed: it would take a token along."""
    cloud.answers["/"] = answer
    with pytest.raises(CredentialsUnavailable) as caught:
        await ecr(cloud, **KEYS).provide(f"{ECR}/team/app")
    assert "hunter2" not in str(caught.value)
    assert len(cloud.received) == 1


async def test_a_cloud_without_an_identity_or_that_cannot_be_reached_is_unavailable(cloud: Cloud) -> None:
    """It says which variables are missing. The node's own role is not asked for."""
    google = GoogleProvider(access(cloud.session, {"GCE_METADATA_HOST": "127.0.0.1:1"}))
    for provider, image, complaint in (
        (AzureProvider(access(cloud.session)), "team.azurecr.io/app", "AZURE_FEDERATED_TOKEN_FILE are not set"),
        (ecr(cloud), f"{ECR}/team/app", "no AWS identity is in the environment"),
        (google, "gcr.io/project/app", r"127\.0\.0\.1:1 cannot be reached: ClientConnector"),
    ):
        with pytest.raises(CredentialsUnavailable, match=complaint):
            await provider.provide(image)
    assert cloud.received == []


async def test_a_cloud_that_never_answers_is_unavailable(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its own time, also for a command, which waits for credentials as long as they take."""
    monkeypatch.setattr("extender.credentials.cloud_api._TIMEOUT_SECONDS", 0.05)
    cloud.open.clear()
    provider = GoogleProvider(access(cloud.session, {"GCE_METADATA_HOST": f"127.0.0.1:{cloud.port}"}))
    with pytest.raises(CredentialsUnavailable, match="cannot be reached: TimeoutError"):
        await provider.provide("eu.gcr.io/project/app")
