"""Where credentials come from, each source declared once: settings, metrics and keyrings call it by this name.

The file is outside the credentials' room, since settings are declared by it, and imports nothing of ours. Log, metric
and setting have the member's value.
"""

import enum
from typing import Self


class Source(enum.StrEnum):
    """What credentials are obtained from, as far as other settings than `registry.clouds` name it."""

    SECRET = "secret"  # noqa: S105  # the name of a kind
    HELPER = "helper"
    PROVIDER = "provider"
    KEYRING = "keyring"


class Cloud(enum.StrEnum):
    """A cloud whose identity of our own pod is a source; the value is also that of `registry.clouds`.

    `provider` is the `module:class` that asks the cloud, a `LoginProvider`. It is made from a `CloudAccess`, and
    imported where the settings name its cloud.
    """

    provider: str

    ECR = "ecr", "extender.credentials.aws:EcrProvider"
    GCP = "gcp", "extender.credentials.google:GoogleProvider"
    ACR = "acr", "extender.credentials.azure:AzureProvider"

    def __new__(cls, name: str, provider: str) -> Self:
        """A member whose value is `name`."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.provider = provider
        return member


SOURCES = (*Source, *Cloud)
