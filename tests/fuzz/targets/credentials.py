"""Logins: Docker configurations, pull secrets of both types, answers of plugins, helpers and clouds."""

import base64
import math
from collections.abc import Iterable, Sequence
from typing import cast
from unittest.mock import AsyncMock, patch

import aiohttp
import msgspec

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
from tests.fuzz.target import CannedSession, check_sentence, file_of, run

_MOST_ENTRIES = 256
_HOSTS = ("docker.io/library/app", "quay.io/team/app", "registry.example:5000/team/app", "a.b.c.d/e/f")
_ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/app"
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
    with file_of(data) as file:
        try:
            found_in = read_docker_config(str(file))
        except ConfigError:
            return
    for repository in _HOSTS:
        for source in found_in.fixed:
            source.at_hand(_reference(repository))


def _reference(repository: str) -> ImageReference:
    return parse_reference(f"{repository}:1")


def pull_secrets(data: bytes) -> None:
    """A Secret as the API server sends it, and Secrets of both types with these bytes as their document."""
    packed = base64.b64encode(data).decode()
    bodies = [data] + [
        msgspec.json.encode({"type": f"kubernetes.io/{kind}", "data": {f".{kind}": packed}})
        for kind in ("dockerconfigjson", "dockercfg")
    ]
    for body in bodies:
        secrets = ClusterSecrets(AsyncMock(get=AsyncMock(return_value=body)))
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

    async def print_data(path: str, arguments: Sequence[str], question: bytes, *, environment: object) -> bytes:
        return data

    with (
        patch.object(kubelet_plugins, "run_program", print_data),
        patch.object(docker_config, "run_program", print_data),
    ):
        run(_ask(CredentialPlugin(_PLUGIN, "/bin"), _HOSTS[1:3]))
        run(_ask(CredentialHelpers({"quay.io": "one"}, "two"), _HOSTS[:2]))


def plugin_configs(data: bytes) -> None:
    """A plugins' configuration, which is YAML, gives keyrings or an error of the configuration."""
    with file_of(data) as file:
        try:
            found = read_plugins(str(file), "/bin")
        except ConfigError:
            return
    for provider in found.providers.values():
        provider.serves(_HOSTS[1])


def cloud_tokens(data: bytes) -> None:
    """Each line is the answer to the next request to a cloud. The clouds get the same ones."""
    bodies = data.split(b"\n")
    with file_of(bodies[0]) as file:
        environments: tuple[tuple[Cloud, dict[str, str], str], ...] = (
            (Cloud.ECR, {"AWS_ROLE_ARN": "arn", "AWS_WEB_IDENTITY_TOKEN_FILE": str(file)}, _ECR),
            (Cloud.ECR, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"}, _ECR),
            (Cloud.GCP, {}, "europe-docker.pkg.dev/team/app"),
            (
                Cloud.ACR,
                {"AZURE_CLIENT_ID": "a", "AZURE_TENANT_ID": "b", "AZURE_FEDERATED_TOKEN_FILE": str(file)},
                "team.azurecr.io/app",
            ),
        )
        for cloud, environment, repository in environments:
            session = cast("aiohttp.ClientSession", CannedSession(*bodies))
            run(_ask(open_cloud(cloud, CloudAccess(session, environment, Clock())), [repository]))


TARGETS = (docker_configs, pull_secrets, programs, plugin_configs, cloud_tokens)
