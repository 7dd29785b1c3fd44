"""The sources of credentials, each declared once; settings, metrics, logs and keyrings name a source by its value.

The file is outside the credentials' room because settings are declared from it. It imports nothing of this package.
"""

import enum
from typing import Self


class Source(enum.StrEnum):
    """The sources that settings other than `registry.clouds` name."""

    HELPER = "helper"
    PROVIDER = "provider"


class Cloud(enum.StrEnum):
    """A cloud that gives credentials to our own pod's identity; the value is also that of `registry.clouds`.

    `provider` is the `module:class` of the `LoginProvider` that requests them. It is made from a `CloudAccess`, and
    imported only if the settings name its cloud.
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
