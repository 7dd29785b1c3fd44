"""Which proof each listener goes by, and what all of it may take together."""

import resource
from collections.abc import Iterator

import pytest

from extender.config.reading import load_config
from extender.server.callers import Proof
from extender.service import limits
from extender.service.descriptors import raise_descriptor_limit

TLS = ("admission.tls.certificate=c", "admission.tls.key=k")
CONNECTION_BYTES = 145_000  # what a TLS connection takes after much has come at once
PROCESS_BYTES = 155 * limits.MIB
MEMORY_LIMIT_BYTES = 512 * limits.MIB  # of the manifests


@pytest.mark.parametrize(
    ("settings", "proof"),
    [
        ((), Proof.NONE),
        (("admission.tls.client_ca=ca",), Proof.CERTIFICATE),
    ],
)
def test_api_server_is_known_by_its_certificate_alone(settings: tuple[str, ...], proof: Proof) -> None:
    """Where one is asked for."""
    assert limits.admission_limits(load_config(None, [*TLS, *settings])).proof is proof


@pytest.mark.parametrize(
    ("settings", "proof"),
    [
        ((), Proof.ADDRESS),
        (("scheduler.listen=0.0.0.0:8880", "scheduler.insecure=true"), Proof.NONE),
        (
            (
                "scheduler.listen=0.0.0.0:8880",
                "scheduler.tls={certificate: c, key: k, client_ca: ca}",
            ),
            Proof.CERTIFICATE,
        ),
    ],
)
def test_scheduler_is_known_by_its_address_or_certificate(settings: tuple[str, ...], proof: Proof) -> None:
    """On loopback nobody else comes."""
    assert limits.scheduler_limits(load_config(None, [*TLS, *settings])).proof is proof


def test_webhook_at_its_limits_fits_into_its_memory() -> None:
    """All connections at their largest, and the bodies beside them."""
    connections = limits.ADMISSION_CONNECTIONS.total * CONNECTION_BYTES
    assert PROCESS_BYTES + connections + limits.ADMISSION_BODIES.total < 0.95 * MEMORY_LIMIT_BYTES


def test_three_api_servers_fit_beside_each_other() -> None:
    """With a connection for each of 600 reviews, and any one of them within its share."""
    assert limits.ADMISSION_CONNECTIONS.most_each >= 600
    assert limits.ADMISSION_CONNECTIONS.total >= 3 * 600


@pytest.fixture
def _restored_limit() -> Iterator[None]:
    """Sets the limit of open files back after the test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_restored_limit")
def test_soft_limit_of_open_files_is_raised_and_never_lowered() -> None:
    """As far as the hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    raise_descriptor_limit()
    raised, same = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raised == (16_384 if hard == resource.RLIM_INFINITY else min(16_384, hard))
    assert same == hard
    raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, same)
