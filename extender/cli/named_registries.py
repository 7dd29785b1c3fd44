"""The registries that a person names on the command line, and may ask wherever they are.

The rules about addresses protect the service from those who create pods, and nobody from himself.
"""

import asyncio
import ssl
from collections.abc import Iterable, Sequence

import msgspec

from extender.config.tree import Config
from extender.errors import InvalidReference, RegistryUnavailable
from extender.images.reference import parse_reference
from extender.registry.addresses import literal_address
from extender.registry.endpoint import upstream_root
from extender.tls_context import new_client_context

_PROBE_SECONDS = 2.0


def with_named(settings: Config, images: Sequence[str]) -> Config:
    """The settings with the registries of these images allowed, and plain HTTP for those of this machine without TLS.

    What `registry.deny` names stays denied.
    """
    domains = list(dict.fromkeys(_domains_of(images)))
    registry = settings.registry
    local = [each for each in domains if each not in registry.plain_http and _is_of_this_machine(each)]
    plain = asyncio.run(_without_tls(local)) if local else []
    registry = msgspec.structs.replace(
        registry, allow=(*registry.allow, *domains), plain_http=(*registry.plain_http, *plain)
    )
    return msgspec.structs.replace(settings, registry=registry)


def _domains_of(images: Iterable[str]) -> Iterable[str]:
    for image in images:
        try:
            domain = parse_reference(image).domain
            upstream_root(domain)
        except (InvalidReference, RegistryUnavailable):
            continue
        yield domain


def _is_of_this_machine(domain: str) -> bool:
    host = upstream_root(domain).host or ""
    address = literal_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


async def _without_tls(domains: Sequence[str]) -> list[str]:
    speaks = await asyncio.gather(*map(_speaks_tls, domains))
    return [domain for domain, does in zip(domains, speaks, strict=True) if not does]


async def _speaks_tls(domain: str) -> bool:
    """Whether a server there shakes hands, whatever its certificate, or there is none that could be asked."""
    root = upstream_root(domain)
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(root.host, root.port, ssl=new_client_context())
    except (ssl.SSLCertVerificationError, ConnectionRefusedError, TimeoutError):
        return True
    except OSError:
        return False
    writer.close()
    return True
