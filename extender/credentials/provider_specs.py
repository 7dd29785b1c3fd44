"""What a provider of credentials is made from, so that one process can have it asked by another.

Both make the provider: its name, its account and the images that it serves are known without a request.
"""

from collections.abc import Callable

import msgspec

from extender.credential_sources import Cloud
from extender.credentials.providers import LoginProvider
from extender.kubernetes.credential_provider_v1 import CredentialProvider


class PluginSpec(msgspec.Struct, frozen=True, tag="plugin"):
    """A plugin of the kubelet's, as its configuration has it."""

    plugin: CredentialProvider
    bin_dir: str
    timeout_seconds: float


class HelpersSpec(msgspec.Struct, frozen=True, tag="helpers"):
    """The credential helpers that a Docker configuration names."""

    helpers: dict[str, str]
    store: str


class CloudSpec(msgspec.Struct, frozen=True, tag="cloud"):
    """A cloud that gives credentials to our own pod."""

    cloud: Cloud


ProviderSpec = PluginSpec | HelpersSpec | CloudSpec
AskedBy = Callable[[ProviderSpec, LoginProvider], LoginProvider]
"""Returns the provider as this process asks it: itself, or one that has another process ask."""


def asked_here(_spec: ProviderSpec, provider: LoginProvider) -> LoginProvider:
    """Returns the provider itself."""
    return provider
