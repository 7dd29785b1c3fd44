"""Which line to type has a registry asked that a setting keeps from us."""

import shlex

import pytest

from extender.cli.registry_settings import line_to_type
from extender.config.reading import read_config
from extender.errors import AddressRefused, CertificateUntrusted, HostDenied, PrivateAddress, RegistryWithoutTls
from extender.images.failures import failure_of

GIVEN = ["registry.deny=['*.example.com', other]", "registry.plain_http=[first]", "registry.private_addresses=false"]


@pytest.mark.parametrize(
    ("error", "path", "value"),
    [
        (HostDenied("x"), "deny", ("other",)),
        (PrivateAddress("x"), "private_addresses", True),
        (RegistryWithoutTls("x"), "plain_http", ("first", "r.example.com")),
        (CertificateUntrusted("x"), "ca_files", ("/path/to/authority.pem",)),
    ],
    ids=str,
)
def test_a_line_keeps_what_the_setting_has_already(error: Exception, path: str, value: object) -> None:
    settings = read_config(None, GIVEN)
    line = line_to_type(failure_of(error), "r.example.com/app:1", (), settings.registry)
    option, assignment = shlex.split(line)
    assert option == "--set"
    assert getattr(read_config(None, [*GIVEN, assignment]).registry, path) == value


def test_what_no_setting_changes_has_no_line() -> None:
    assert (
        line_to_type(failure_of(AddressRefused("x")), "r.example.com/app:1", (), read_config(None, ()).registry) == ""
    )
