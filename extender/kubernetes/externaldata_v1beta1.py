"""The fields of externaldata.gatekeeper.sh/v1beta1, by which Gatekeeper asks providers for external data.

Source: github.com/open-policy-agent/frameworks/constraint/pkg/externaldata (request.go, response.go), as Gatekeeper
sends them since 3.11.
"""

import msgspec

from extender.kubernetes.wire import Wire

API_VERSION = "externaldata.gatekeeper.sh/v1beta1"


class RequestedKeys(Wire, frozen=True):
    """externaldata Request: the keys that a policy asks about."""

    keys: tuple[str, ...] = ()


class ProviderRequest(Wire, frozen=True):
    """externaldata ProviderRequest."""

    api_version: str = ""
    kind: str = ""
    request: RequestedKeys = RequestedKeys()


class Item(Wire, frozen=True, omit_defaults=True):
    """externaldata Item: of a key its value, which may be anything, or why there is none."""

    key: str
    value: msgspec.Raw | None = None
    error: str = ""


class Items(Wire, frozen=True, omit_defaults=True):
    """externaldata Response. `idempotent` is for mutation only, which refuses providers that lack it."""

    idempotent: bool = False
    items: tuple[Item, ...] = ()
    system_error: str = ""


class ProviderResponse(Wire, frozen=True):
    """externaldata ProviderResponse."""

    response: Items
    api_version: str = API_VERSION
    kind: str = "ProviderResponse"


_ENCODER = msgspec.json.Encoder()


def encode_items(items: tuple[Item, ...]) -> bytes:
    """The response with these items."""
    return _ENCODER.encode(ProviderResponse(Items(items=items)))


def encode_system_error(why: str) -> bytes:
    """The response that tells policies nothing but why."""
    return _ENCODER.encode(ProviderResponse(Items(system_error=why)))
