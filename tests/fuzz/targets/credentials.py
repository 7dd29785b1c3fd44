"""Logins: Docker configurations, pull secrets of both types, answers of plugins, helpers and clouds."""

import base64
import math
import tempfile
from collections.abc import Iterable, Sequence
from typing import cast
from unittest.mock import patch

import aiohttp
import msgspec

from extender.cluster.client import ClusterClient
from extender.cluster.secrets import ClusterSecrets
from extender.credential_sources import Cloud
from extender.credentials import docker_config, kubelet_plugins
from extender.credentials.cloud_api import CloudAccess
from extender.credentials.credential_provider_v1 import PROTOCOL, CredentialProvider
from extender.credentials.docker_config import CredentialHelpers, read_docker_config
from extender.credentials.kubelet_plugins import CredentialPlugin, read_plugins
from extender.credentials.logins import InvalidLogins, Logins, decode_docker_config, decode_legacy_config
from extender.credentials.operator_keyring import open_cloud
from extender.credentials.providers import CredentialsUnavailable, LoginProvider, ProviderLogins
from extender.errors import ClusterError, ConfigError
from extender.images.reference import ImageReference, parse_reference
from testbed.clock import Clock
from tests.fuzz.target import CannedSession, Target, check_sentence, run

_MOST_ENTRIES = 256
_HOSTS = ("docker.io/library/app", "quay.io/team/app", "registry.example:5000/team/app", "a.b.c.d/e/f")
_ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/app"
_LOGIN_WORDS = (
    b'"auths":{', b'"auth":"', b'"username":"', b'"password":"', b'"credHelpers":{', b'"credsStore":"', b'"quay.io"',
    b'"https://index.docker.io/v1/"', b'"*.example.com:5000/team"', b'"[::1]:5000"', b"bmFtZTpwYXNzd29yZA==", b"null",
    b'"\\ud800"', b"\\n",
)  # fmt: skip
_PLUGIN = CredentialProvider("plugin", ("*.example:5000", "quay.io"), "10m", PROTOCOL)


def _check_logins(logins: Logins) -> None:
    for repository in _HOSTS:
        assert len(logins.matching(repository)) <= len(logins)


def docker_configs(data: bytes) -> None:
    """A Docker configuration, in its three readings: a secret's, an old secret's, the operator's file."""
    for decode in (decode_docker_config, decode_legacy_config):
        try:
            found = decode(data, most=_MOST_ENTRIES)
        except InvalidLogins as exc:
            check_sentence(exc, len(data))
        else:
            assert len(found.logins) <= _MOST_ENTRIES
            _check_logins(Logins(found.logins))
    with tempfile.NamedTemporaryFile(prefix="fuzz-") as file:
        file.write(data)
        file.flush()
        try:
            found_in = read_docker_config(file.name)
        except ConfigError:
            return
    for repository in _HOSTS:
        for source in found_in.fixed:
            source.at_hand(_reference(repository))


def _reference(repository: str) -> ImageReference:
    return parse_reference(f"{repository}:1")


class _OneAnswer:
    """A client of the Kubernetes API that gives every request this body."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def get(self, path: str, **options: object) -> bytes:
        return self._body


def pull_secrets(data: bytes) -> None:
    """A Secret as the API server sends it, and Secrets of both types with these bytes as their document."""
    packed = base64.b64encode(data).decode()
    bodies = [data] + [
        msgspec.json.encode({"type": f"kubernetes.io/{kind}", "data": {f".{kind}": packed}})
        for kind in ("dockerconfigjson", "dockercfg")
    ]
    for body in bodies:
        secrets = ClusterSecrets(cast("ClusterClient", _OneAnswer(body)))
        try:
            logins = run(secrets.read_logins("shop", "pull"))
        except (InvalidLogins, ClusterError) as exc:
            check_sentence(exc, len(data))
            continue
        assert len(logins) <= _MOST_ENTRIES
        _check_logins(Logins(logins))


async def _ask(provider: LoginProvider, repositories: Iterable[str]) -> None:
    """Asks the provider, and the keyring that keeps its answers, which raises nothing."""
    source = ProviderLogins(provider, clock=Clock())
    for repository in repositories:
        try:
            given = await provider.provide(repository)
        except CredentialsUnavailable as exc:
            check_sentence(exc)
            continue
        assert not math.isnan(given.keep_seconds)  # it would be kept for ever
        await source.load(_reference(repository))
        source.at_hand(_reference(repository))


def programs(data: bytes) -> None:
    """What a credential provider plugin and a credential helper print, and a plugins' configuration."""

    async def print_data(
        path: str, arguments: Sequence[str], question: bytes, *, environment: object, timeout_seconds: float
    ) -> bytes:
        return data

    with (
        patch.object(kubelet_plugins, "run_program", print_data),
        patch.object(docker_config, "run_program", print_data),
    ):
        run(_ask(CredentialPlugin(_PLUGIN, "/bin"), _HOSTS[1:3]))
        run(_ask(CredentialHelpers({"quay.io": "one"}, "two"), _HOSTS[:2]))


def plugin_configs(data: bytes) -> None:
    """A plugins' configuration, which is YAML, gives keyrings or an error of the configuration."""
    with tempfile.NamedTemporaryFile(prefix="fuzz-") as file:
        file.write(data)
        file.flush()
        try:
            found = read_plugins(file.name, "/bin")
        except ConfigError:
            return
    for provider in found.providers.values():
        provider.serves(_HOSTS[1])


def cloud_tokens(data: bytes) -> None:
    """Each line is the answer to the next request to a cloud. The clouds get the same ones."""
    bodies = data.split(b"\n")
    with tempfile.NamedTemporaryFile(prefix="fuzz-") as file:
        file.write(bodies[0])
        file.flush()
        environments: tuple[tuple[Cloud, dict[str, str], str], ...] = (
            (Cloud.ECR, {"AWS_ROLE_ARN": "arn", "AWS_WEB_IDENTITY_TOKEN_FILE": file.name}, _ECR),
            (Cloud.ECR, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"}, _ECR),
            (Cloud.GCP, {}, "europe-docker.pkg.dev/team/app"),
            (
                Cloud.ACR,
                {"AZURE_CLIENT_ID": "a", "AZURE_TENANT_ID": "b", "AZURE_FEDERATED_TOKEN_FILE": file.name},
                "team.azurecr.io/app",
            ),
        )
        for cloud, environment, repository in environments:
            session = cast("aiohttp.ClientSession", CannedSession(*bodies))
            run(_ask(open_cloud(cloud, CloudAccess(session, environment, Clock())), [repository]))


TARGETS = (
    Target("docker_configs", docker_configs, _LOGIN_WORDS),
    Target("pull_secrets", pull_secrets, (*_LOGIN_WORDS, b'"type":', b'"kubernetes.io/dockercfg"', b'"data":{')),
    Target(
        "programs", programs,
        (
            b'"kind":"CredentialProviderResponse"', b'"apiVersion":', b'"credentialprovider.kubelet.k8s.io/v1"',
            b'"cacheKeyType":"', b"Image", b"Registry", b"Global", b'"cacheDuration":"', b"10h", b"1e9h", b'"auth":{',
            b'"username":"', b'"password":"', b'"Username":"', b'"Secret":"', b"<token>",
        ),
    ),
    Target(
        "plugin_configs", plugin_configs,
        (
            b"apiVersion: ", b"kubelet.config.k8s.io/v1", b"kind: CredentialProviderConfig", b"providers:\n",
            b"- name: ",
            b"matchImages: [", b"defaultCacheDuration: ", b"&a ", b"*a", b"!!", b"<<: ", b"? ", b"tokenAttributes:",
        ),
        1024,
    ),
    Target(
        "cloud_tokens", cloud_tokens,
        (
            b"\n", b'"access_token":"', b'"expires_in":', b'"refresh_token":"', b'"AccessKeyId":"',
            b'"SecretAccessKey":"',
            b'"Token":"', b"<AccessKeyId>", b"<SecretAccessKey>", b"<SessionToken>", b"</", b'"authorizationData":[{',
            b'"authorizationToken":"', b"QVdTOnRva2Vu", b'"expiresAt":', b"1e308", b"1e400", b"-1", b'"\\ud800"',
        ),
    ),
)  # fmt: skip
