"""Which setting would have a registry asked that was not, as the line to type."""

from collections.abc import Callable, Mapping, Sequence

from extender.config.registry_section import RegistryConfig
from extender.errors import InvalidReference
from extender.images.content import Failure
from extender.images.reference import parse_reference
from extender.registry.addresses import patterns_of_others


def line_to_type(failure: Failure, reference: str, answered: Sequence[str], registry: RegistryConfig) -> str:
    """The option that changes the setting which the failure names; empty if it names none.

    `answered` is what was heard of the endpoints that were asked for `reference`: it names the host that was refused.
    """
    for setting, value_of in _VALUES.items():
        if setting in failure.detail:
            return f'--set "{setting}={value_of(_host_of(setting, reference, answered), registry)}"'
    return ""


def _host_of(setting: str, reference: str, answered: Sequence[str]) -> str:
    """The host that is refused, which may be one to which the registry leads."""
    if refused := [text for text in answered if setting in text]:
        return refused[-1].partition(" ")[0]
    try:
        return parse_reference(reference).domain
    except InvalidReference:
        return "HOST"


def _listed(values: Sequence[str]) -> str:
    return f"[{', '.join(repr(value) for value in values)}]"


_VALUES: Mapping[str, Callable[[str, RegistryConfig], str]] = {
    "registry.allow": lambda host, registry: _listed([*registry.allow, host]),
    "registry.deny": lambda host, registry: _listed(patterns_of_others(registry.deny, host)),
    "registry.private_addresses": lambda _host, _registry: "true",
    "registry.plain_http": lambda host, registry: _listed([*registry.plain_http, host]),
    "registry.ca_files": lambda _host, registry: _listed([*registry.ca_files, "/path/to/authority.pem"]),
}
