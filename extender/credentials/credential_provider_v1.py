"""The kubelet's credential-provider plugins: their configuration file, and their requests and responses.

Sources: k8s.io/kubelet/config/v1/types.go (kubelet.config.k8s.io/v1) and
k8s.io/kubelet/pkg/apis/credentialprovider/v1/types.go (credentialprovider.kubelet.k8s.io/v1). Durations are texts in
Go's format.
"""

from enum import StrEnum
from typing import Literal

from extender.kubernetes.meta_v1 import Wire

CONFIG_VERSIONS = ("kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1")
PROTOCOL = "credentialprovider.kubelet.k8s.io/v1"


class ExecEnvVar(Wire, frozen=True):
    """kubelet.config.k8s.io/v1 ExecEnvVar: an environment variable of the plugin."""

    name: str
    value: str = ""


class CredentialProvider(Wire, frozen=True):
    """kubelet.config.k8s.io/v1 CredentialProvider: one plugin. We read only whether `token_attributes` is present."""

    name: str
    match_images: tuple[str, ...]
    default_cache_duration: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[ExecEnvVar, ...] | None = None
    token_attributes: dict[str, object] | None = None


class CredentialProviderConfig(Wire, frozen=True):
    """kubelet.config.k8s.io/v1 CredentialProviderConfig: the file that `--image-credential-provider-config` names."""

    api_version: str
    kind: Literal["CredentialProviderConfig"]
    providers: tuple[CredentialProvider, ...]


class CredentialProviderRequest(Wire, frozen=True):
    """credentialprovider.kubelet.k8s.io/v1 CredentialProviderRequest: what a plugin reads on its standard input."""

    image: str
    kind: Literal["CredentialProviderRequest"] = "CredentialProviderRequest"
    api_version: str = PROTOCOL


class CacheKeyType(StrEnum):
    """What a response is valid for (PluginCacheKeyType): only its image, all of its registry, or every image."""

    IMAGE = "Image"
    REGISTRY = "Registry"
    GLOBAL = "Global"


class AuthConfig(Wire, frozen=True):
    """credentialprovider.kubelet.k8s.io/v1 AuthConfig: a login."""

    username: str = ""
    password: str = ""


class CredentialProviderResponse(Wire, frozen=True):
    """credentialprovider.kubelet.k8s.io/v1 CredentialProviderResponse: what a plugin writes on its standard output.

    `auth` maps patterns of images to logins.
    """

    api_version: str
    kind: Literal["CredentialProviderResponse"]
    cache_key_type: CacheKeyType
    cache_duration: str | None = None
    auth: dict[str, AuthConfig] | None = None
