"""The section of the settings that says how registries are asked. The service passes it on to the fetcher as it is.

The fetcher imports this file, so it imports little: no types of decisions.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from extender.credential_sources import Cloud

Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section of the tree; refuses unknown keys."""


class CredentialProvidersConfig(Section, frozen=True):
    config: Annotated[
        str, Meta(description="The kubelet's CredentialProviderConfig file; its plugins are run as on a node.")
    ] = ""
    bin_dir: Annotated[str, Meta(description="Folder of the plugins' programs.")] = ""


class RegistryConfig(Section, frozen=True):
    timeout_seconds: Annotated[
        Seconds,
        Meta(description="Longest time of one request to a registry or token server; a lookup has six times that."),
    ] = 10.0
    plain_http: Annotated[
        tuple[str, ...],
        Meta(description="Registries (host or host:port) that are spoken to without TLS."),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        Meta(
            description="Globs of the registries and mirrors that are asked. One that is named may have an address "
            "inside the cluster."
        ),
    ] = ("*",)
    deny: Annotated[
        tuple[str, ...],
        Meta(description="Globs of hosts that are never asked, not even behind a redirect; wins over `allow`."),
    ] = ()
    private_addresses: Annotated[
        bool,
        Meta(description="Whether private addresses are reached, besides those that `allow` names."),
    ] = True
    ca_files: Annotated[
        tuple[str, ...], Meta(description="PEM bundles trusted for registries, besides the system's.")
    ] = ()
    docker_config: Annotated[
        str,
        Meta(description="Docker `config.json`: its `auths` are used, and its `credHelpers` and `credsStore` run."),
    ] = ""
    credential_providers: CredentialProvidersConfig = CredentialProvidersConfig()
    clouds: Annotated[
        tuple[Cloud, ...], Meta(description="Clouds whose identity of our own pod is used for their registries.")
    ] = ()
    mirrors: Annotated[
        str,
        Meta(
            description="Where nodes find mirrors: containerd's folder `certs.d`, k3s' or rke2's `registries.yaml`, "
            "or CRI-O's `registries.conf`."
        ),
    ] = ""
    pull_secrets: Annotated[
        bool | tuple[str, ...],
        Meta(
            description="Read the pull secrets that pods name, which needs the right to get Secrets: of all pods, or "
            "of a list of namespaces."
        ),
    ] = True

    @property
    def mirrors_of_crio(self) -> bool:
        """Whether nodes have CRI-O, which has registries of its own for names without one."""
        return self.mirrors.endswith(".conf")

    def reads_secrets_in(self, namespace: str) -> bool:
        """Whether pull secrets of that namespace's pods are read."""
        return self.pull_secrets is True or (self.pull_secrets is not False and namespace in self.pull_secrets)
