"""Mirrors of OpenShift over TLS: whose certificates are taken there, and who is shown which login."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from extender.config.registry_section import RegistryConfig
from extender.fetcher.messages import Failed, Look, PullAccess
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.images.content import Cause
from extender.images.reference import parse_reference
from extender.kubernetes.openshift_v1 import NEVER_CONTACT_SOURCE, MirrorObjects, NodeTrust, SourceMirrors
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.openshift import OpenShiftMirrors, host_problems
from testbed.faulty_registry import FaultyRegistry

IMAGE = parse_reference("quay.io/team/app:1")


class Mirror(FaultyRegistry):
    """A registry with TLS that has no image."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__(authority=authority)
        self.authority = authority
        self.pem = authority.cert_pem.bytes().decode()


@pytest.fixture
async def mirror() -> AsyncIterator[Mirror]:
    async with Mirror(trustme.CA()) as opened:
        yield opened


@pytest.fixture
async def sources() -> AsyncIterator[LocalSources]:
    settings = RegistryConfig(timeout_seconds=5, mirrors="openshift", allow=("*", "127.0.0.1"))
    async with open_local_sources(settings) as opened:
        yield opened


def objects_of(mirror: Mirror, trust: NodeTrust) -> MirrorObjects:
    source = SourceMirrors("quay.io", (f"{mirror.host}/q",), NEVER_CONTACT_SOURCE)
    return MirrorObjects(tag_mirrors=(source,), trust=trust)


async def ask(sources: LocalSources) -> Failed:
    answer = await sources.look(Look(tenant="", reference=IMAGE, kubelet_name=IMAGE, access=PullAccess(), seconds=5))
    assert isinstance(answer, Failed)
    return answer


async def test_authorities_of_a_host_count_there_and_nowhere_else(sources: LocalSources, mirror: Mirror) -> None:
    """Also among texts that are none; another host with the same authority is not trusted for that."""
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    trust = NodeTrust(authorities={mirror.host: f"# Főtanúsítvány\n{broken}{mirror.pem}"})
    async with Mirror(mirror.authority) as other:
        sources.use_mirrors(objects_of(mirror, trust))
        assert (await ask(sources)).failure.cause is Cause.MISSING
        sources.use_mirrors(objects_of(other, trust))
        assert "certificate that is not trusted" in (await ask(sources)).why
        assert other.shown == []


async def test_authorities_of_the_cluster_count_everywhere_and_are_followed(
    sources: LocalSources, mirror: Mirror
) -> None:
    """Those that are taken away are not trusted any more."""
    other = trustme.CA().cert_pem.bytes().decode()
    for text, cause in ((other + mirror.pem, Cause.MISSING), (other, Cause.UNAVAILABLE)):
        sources.use_mirrors(objects_of(mirror, NodeTrust(text)))
        assert (await ask(sources)).failure.cause is cause


def context_of(mirrors: OpenShiftMirrors) -> ssl.SSLContext | bool:
    endpoint, _ = mirrors.endpoints_for(IMAGE)
    return endpoint.tls_for(endpoint.root)


async def test_operators_own_authorities_count_beside_those_of_the_nodes(mirror: Mirror, tmp_path: Path) -> None:
    """As they are when the file has changed last."""
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(file))
    trust = RegistryTrust([str(file)])
    mirrors = OpenShiftMirrors(trust)
    mirrors.update(objects_of(mirror, NodeTrust(trustme.CA().cert_pem.bytes().decode())))
    found = [context_of(mirrors)]
    mirror.authority.cert_pem.write_to_path(str(file))
    assert trust.files.reload_if_changed()
    found.append(context_of(mirrors))
    wanted = ssl.PEM_cert_to_DER_cert(mirror.authority.cert_pem.bytes().decode())
    assert [isinstance(each, ssl.SSLContext) and wanted in each.get_ca_certs(binary_form=True) for each in found] == [
        False,
        True,
    ]


def test_text_without_certificates_is_a_problem() -> None:
    """The message names the host."""
    trust = NodeTrust(authorities={"m.io:5000": "no certificate", "n.io": trustme.CA().cert_pem.bytes().decode()})
    assert list(host_problems(trust)) == ["the authorities for m.io:5000 hold no certificate"]


def test_neither_certificates_nor_logins_are_shown() -> None:
    """In a traceback or a log."""
    trust = NodeTrust("-----PEM", {"m.io": "-----PEM"}, {"quay.io": ("ann", "hunter2")})
    assert repr(MirrorObjects(trust=trust)).endswith("trust=NodeTrust(authorities=['m.io'], logins=['quay.io']))")
