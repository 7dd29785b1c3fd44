"""Mirrors of OpenShift over TLS: whose certificates are taken there, and who is shown which login."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web

from extender.config.registry_section import RegistryConfig
from extender.credentials.keyring import Credential, CredentialId
from extender.fetcher.messages import Failed, Look, PullAccess
from extender.fetcher.sources import LocalSources, open_local_sources
from extender.images.content import Cause
from extender.images.reference import ImageReference, parse_reference
from extender.kubernetes.openshift_v1 import NEVER_CONTACT_SOURCE, MirrorObjects, NodeTrust, SourceMirrors
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.openshift import OpenShiftMirrors, host_problems
from testbed.faulty_registry import FaultyRegistry, login_of

IMAGE = parse_reference("quay.io/team/app:1")
PODS = Credential("pod", "word", CredentialId("pod"))


async def wants_login(request: web.BaseRequest) -> web.StreamResponse | None:
    """A registry that wants to be shown a login, whichever."""
    if login_of(request):
        return None
    return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="here"'})


class Mirror(FaultyRegistry):
    """A registry with TLS that has no image."""

    def __init__(self, authority: trustme.CA) -> None:
        super().__init__(wants_login, authority=authority)
        self.authority = authority


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture
async def mirror(stack: AsyncExitStack) -> Mirror:
    return await stack.enter_async_context(Mirror(trustme.CA()))


def objects_of(mirror: Mirror, trust: NodeTrust) -> MirrorObjects:
    source = SourceMirrors("quay.io", (f"{mirror.host}/q",), NEVER_CONTACT_SOURCE)
    return MirrorObjects(tag_mirrors=(source,), trust=trust)


async def sources_of(stack: AsyncExitStack, *ca_files: str) -> LocalSources:
    settings = RegistryConfig(timeout_seconds=5, mirrors="openshift", allow=("*", "127.0.0.1"), ca_files=ca_files)
    return await stack.enter_async_context(open_local_sources(settings))


async def ask(sources: LocalSources, reference: ImageReference = IMAGE) -> Failed:
    """Asks for an image with a pod's credential: it is missing where somebody has answered."""
    access = PullAccess((PODS,))
    answer = await sources.look(Look(tenant="", reference=reference, kubelet_name=reference, access=access, seconds=5))
    assert isinstance(answer, Failed)
    return answer


async def test_authorities_of_a_host_count_there_and_nowhere_else(stack: AsyncExitStack, mirror: Mirror) -> None:
    """Also among texts that are none; another host with the same authority is not trusted for that."""
    other = await stack.enter_async_context(Mirror(mirror.authority))
    pem = mirror.authority.cert_pem.bytes().decode()
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    trust = NodeTrust(authorities={mirror.host: f"# Főtanúsítvány\n{broken}{pem}"}, logins={mirror.host: ("a", "b")})
    sources = await sources_of(stack)
    sources.tell_mirrors(objects_of(mirror, trust))
    assert (await ask(sources)).failure.cause is Cause.MISSING
    sources.tell_mirrors(objects_of(other, trust))
    assert "certificate that is not trusted" in (await ask(sources)).why
    assert other.shown == []


async def test_authorities_of_the_cluster_count_everywhere_and_are_followed(
    stack: AsyncExitStack, mirror: Mirror
) -> None:
    """Those that are taken away are not trusted any more."""
    sources = await sources_of(stack)
    bundle = "".join(each.cert_pem.bytes().decode() for each in (trustme.CA(), mirror.authority))
    logins = {mirror.host: ("a", "b")}
    for text, cause in ((bundle, Cause.MISSING), (trustme.CA().cert_pem.bytes().decode(), Cause.UNAVAILABLE)):
        sources.tell_mirrors(objects_of(mirror, NodeTrust(text, logins=logins)))
        assert (await ask(sources)).failure.cause is cause


def context_of(mirrors: OpenShiftMirrors) -> ssl.SSLContext | bool:
    endpoint, _ = mirrors.endpoints_for(IMAGE)
    return endpoint.tls_for(endpoint.root)


async def test_operators_own_authorities_count_beside_those_of_the_nodes(
    stack: AsyncExitStack, mirror: Mirror, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    ("logins", "shown"),
    [
        ({}, []),
        ({"quay.io": ("source", "s")}, []),  # the image's own registry is another
        ({"127.0.0.1": ("host", "h")}, []),  # of another port
        ({"*:{port}": ("glob", "g")}, []),
        ({"{host}": ("host", "h"), "quay.io": ("source", "s")}, ["host:h"]),
        ({"{host}": ("host", "h"), "{host}/q/team": ("team", "t")}, ["team:t"]),
        ({"{host}": ("host", "h"), "{host}/q/te": ("other", "o")}, ["host:h"]),
    ],
)
async def test_mirror_is_shown_the_login_that_nodes_have_for_it(
    stack: AsyncExitStack, mirror: Mirror, logins: dict[str, tuple[str, str]], shown: list[str]
) -> None:
    """The one of the longest name; never that of a pod, of the image's own registry, or of a pattern."""
    port = mirror.host.partition(":")[2]
    named = {key.format(host=mirror.host, port=port): login for key, login in logins.items()}
    sources = await sources_of(stack)
    sources.tell_mirrors(objects_of(mirror, NodeTrust(mirror.authority.cert_pem.bytes().decode(), logins=named)))
    await ask(sources)
    wanted = [aiohttp.encode_basic_auth(*each.split(":")) for each in shown]
    assert list(dict.fromkeys(each for each in mirror.shown if each)) == wanted
    assert mirror.shown


def test_text_without_certificates_is_a_problem() -> None:
    """The message names the host."""
    trust = NodeTrust(authorities={"m.io:5000": "no certificate", "n.io": trustme.CA().cert_pem.bytes().decode()})
    assert list(host_problems(trust)) == ["the authorities for m.io:5000 hold no certificate"]


def test_neither_certificates_nor_logins_are_shown() -> None:
    """In a traceback or a log."""
    trust = NodeTrust("-----PEM", {"m.io": "-----PEM"}, {"quay.io": ("ann", "hunter2")})
    assert repr(MirrorObjects(trust=trust)).endswith("trust=NodeTrust(authorities=['m.io'], logins=['quay.io']))")
