"""Reads what an installation of the service has in a cluster: its workloads, their settings, webhooks, certificates."""

import base64
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath

import msgspec

from extender.certificates.own_certificate import (
    InvalidCertificate,
    expires_at,
    from_secret_data,
    is_issued_by,
    is_valid,
    names_of,
    split_bundle,
)
from extender.certificates.server_names import names_of_server
from extender.cluster.client import ClusterClient, ClusterRefused, decode_answer
from extender.cluster.workload_lists import list_objects
from extender.config.reading import parse_config
from extender.config.tree import Config
from extender.errors import ConfigError
from extender.kubernetes.api_groups import MutatingWebhook
from extender.kubernetes.apps_v1 import DataObject, ServingContainer, ServingSpec, ServingWorkload
from extender.kubernetes.meta_v1 import is_object_name

INSTALLATION = "app.kubernetes.io/name=multiarch-extender"
"""The label of everything that the chart and the manifests install."""
_KINDS = {"Deployment": "deployments", "DaemonSet": "daemonsets", "StatefulSet": "statefulsets"}
_WORKLOAD = msgspec.json.Decoder(ServingWorkload)
_DATA = msgspec.json.Decoder(DataObject)
_DAY_SECONDS = 86_400


class InstalledWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A Deployment, DaemonSet or StatefulSet of the service, with what its pods are made from.

    `config` is None where the settings are not known: `refusal` says why they could not be read, else `problem` why
    they cannot be used.
    """

    kind: str
    namespace: str
    name: str
    wanted: int
    ready: int
    pod_labels: str
    pods: ServingSpec
    config: Config | None = None
    problem: str = ""
    refusal: str = ""

    @property
    def subject(self) -> str:
        """How a person names it."""
        return f"{self.kind} {self.namespace}/{self.name}"


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The webhook's certificate: whether the API server's authorities have signed it, its names, its days left.

    `is_valid`: it has begun and has not ended.
    """

    is_trusted: bool
    names: frozenset[str]
    is_valid: bool
    days_left: float
    where: str


async def read_workloads(client: ClusterClient, selector: str, namespace: str = "") -> list[InstalledWorkload]:
    """The workloads with these labels, in that namespace or else in the one that has some.

    Raises:
        ClusterError: they cannot be read.
        ConfigError: several namespaces have some: anybody may give such labels.
    """
    where = f"/apis/apps/v1/namespaces/{namespace}" if namespace else "/apis/apps/v1"
    found = [
        (kind, workload)
        for kind, plural in _KINDS.items()
        async for workload in list_objects(client, f"{where}/{plural}", _WORKLOAD, kind, selector)
    ]
    if len(spaces := sorted({workload.metadata.namespace for _, workload in found})) > 1:
        raise ConfigError(f"the namespaces {', '.join(spaces)} have an installation; choose one by --installed-in")
    return [await _installed(client, kind, workload) for kind, workload in found]


async def _installed(client: ClusterClient, kind: str, workload: ServingWorkload) -> InstalledWorkload:
    metadata, spec, status = workload.metadata, workload.spec, workload.status
    is_daemon, replicas = kind == "DaemonSet", 1 if spec.replicas is None else spec.replicas
    files, refusal = await _files(client, metadata.namespace, spec.template.spec)
    config, problem = None, ""
    try:
        config = _config(spec.template.spec, files)
    except ConfigError as exc:
        problem = str(exc)
    return InstalledWorkload(
        kind=kind,
        namespace=metadata.namespace,
        name=metadata.name,
        wanted=status.desired_number_scheduled if is_daemon else replicas,
        ready=status.number_ready if is_daemon else status.ready_replicas,
        pod_labels=",".join(f"{key}={value}" for key, value in (spec.selector.match_labels or {}).items()),
        pods=spec.template.spec,
        config=config,
        problem=problem,
        refusal=refusal if problem else "",
    )


async def _files(client: ClusterClient, namespace: str, pods: ServingSpec) -> tuple[dict[str, str], str]:
    """The texts of the ConfigMaps that are mounted, by the name of the file; and the refusal to have one read."""
    found, refusal = dict[str, str](), ""
    for volume in pods.volumes or ():
        if volume.config_map and is_object_name(name := volume.config_map.name):
            try:
                config_map = await client.find(f"/api/v1/namespaces/{namespace}/configmaps/{name}", _DATA)
                found |= (config_map and config_map.data) or {}
            except ClusterRefused as exc:
                if exc.status != 403:
                    raise
                refusal = str(exc)
    return found, refusal


def _config(pods: ServingSpec, files: Mapping[str, str]) -> Config:
    """The settings of the service's container. Raises ConfigError."""
    arguments = _container(pods).args or ()
    file = next((each.partition("=")[2] for each in arguments if each.startswith("--config=")), "")
    text = files.get(PurePosixPath(file).name, "") if file else ""
    if file and not text:
        raise ConfigError(f"its settings, {file}, are in no ConfigMap that can be read")
    given = [each.partition("=")[2] for each in arguments if each.startswith("--set=")]
    return parse_config(text, file, given)


def _container(pods: ServingSpec) -> ServingContainer:
    """The service's container, which is an init container where it starts before a scheduler. Raises ConfigError."""
    for each in (*(pods.init_containers or ()), *pods.containers):
        if "serve" in (each.args or ()):
            return each
    raise ConfigError("none of its containers has the argument `serve`")


async def read_certificate(
    client: ClusterClient, workload: InstalledWorkload, config: Config, webhook: MutatingWebhook
) -> Certificate:
    """The certificate that a workload serves, held against the authorities of a webhook.

    Raises:
        ClusterError: the Secret cannot be read.
        InvalidCertificate: it or the authorities are none.
    """
    namespace = workload.namespace
    name, key = _secret_of(workload, config)
    answer = await client.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
    data = decode_answer(_DATA, answer, "Secret").data or {}
    if key not in data:
        raise InvalidCertificate(f"Secret {namespace}/{name} has no key {key}")
    chain = split_bundle(_served_of(workload, config, data, base64.b64decode(data[key])))
    if not chain:
        raise InvalidCertificate(f"key {key} of Secret {namespace}/{name} is empty")
    authorities, now = split_bundle(webhook.client_config.ca_bundle or b""), datetime.fromtimestamp(time.time(), UTC)
    return Certificate(
        is_trusted=any(each == ca or is_issued_by(each, ca) for each in chain for ca in authorities),
        names=names_of(chain[0]),
        is_valid=is_valid(chain[0], now),
        days_left=(expires_at(chain[0]) - now).total_seconds() / _DAY_SECONDS,
        where=f"Secret {namespace}/{name}",
    )


def _served_of(workload: InstalledWorkload, config: Config, data: Mapping[str, str], certificate: bytes) -> bytes:
    """`certificate`, or what a service that looks after its own serves now. Raises InvalidCertificate."""
    admission = config.admission
    if admission.tls is None or not admission.tls.self_managed:
        return certificate
    own = from_secret_data({each: base64.b64decode(value) for each, value in data.items()})
    names = names_of_server(admission.tls.self_managed, workload.namespace)
    return own.served(names, datetime.fromtimestamp(time.time(), UTC), published=True).certificate


def _secret_of(workload: InstalledWorkload, config: Config) -> tuple[str, str]:
    """The Secret with the certificate that a workload serves, and its key. Raises InvalidCertificate."""
    admission = config.admission
    if admission.tls is None:
        raise InvalidCertificate("its settings name no certificate")
    if admission.tls.self_managed:
        return admission.tls.identity_secret, "tls.crt"
    file = PurePosixPath(admission.tls.certificate)
    mounts = {each.name: each.mount_path for each in _container(workload.pods).volume_mounts or ()}
    for volume in workload.pods.volumes or ():
        if volume.secret and volume.secret.secret_name and str(file.parent) == mounts.get(volume.name):
            return volume.secret.secret_name, file.name
    raise InvalidCertificate(f"{file} is in no Secret that is mounted")
