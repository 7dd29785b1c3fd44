"""What goes wrong on the way, and no server on loopback can bring about."""

import ssl
from collections.abc import Iterator
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from aioresponses import aioresponses
from yarl import URL

from extender.credentials.keyring import ANONYMOUS
from extender.errors import RegistryUnavailable
from extender.images.reference import parse_reference
from extender.metrics import REGISTRY
from tests.integration.registry.conftest import MakeClient

APP = parse_reference("registry.example.com:5000/team/app:1")
KEY = ConnectionKey(
    "registry.example.com", 5000, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None
)
REQUEST = aiohttp.RequestInfo(URL("https://registry.example.com:5000"), "GET", SimpleNamespace(), URL())  # type: ignore[arg-type]  # only shown
DETAIL = "detail-of-the-network"


@pytest.fixture
def network() -> Iterator[aioresponses]:
    with aioresponses() as faked:
        yield faked


FAULTS = {
    "closed before headers": (aiohttp.ServerDisconnectedError(DETAIL), "broke off the connection"),
    "reset before headers": (aiohttp.ClientOSError(104, DETAIL), "broke off the connection"),
    "payload": (aiohttp.ClientPayloadError(DETAIL), "broke off the connection"),
    "name": (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, DETAIL)), "has a name that does not resolve"),
    "certificate": (
        aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, DETAIL)),
        "shows a certificate that is not trusted",
    ),
    "tls": (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, DETAIL)), "cannot be reached over TLS"),
    "proxy is down": (aiohttp.ClientProxyConnectionError(KEY, OSError(111, DETAIL)), "the proxy does not accept"),
    "proxy says 407": (aiohttp.ClientHttpProxyError(REQUEST, (), status=407, message=DETAIL), "through the proxy"),
    "connect": (aiohttp.ConnectionTimeoutError(DETAIL), "does not accept connections in"),
    "bare time-out": (TimeoutError(DETAIL), "did not answer in time"),
    "no URL": (aiohttp.InvalidUrlClientError(DETAIL), "is no address to connect to"),
    "no HTTP": (aiohttp.ClientResponseError(REQUEST, (), message=DETAIL), "is no HTTP answer"),
    "anything else": (aiohttp.ClientError(DETAIL), "broke off the connection"),
}


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS)
async def test_fault_on_the_way_is_the_hosts(
    make_client: MakeClient, network: aioresponses, fault: Exception, words: str
) -> None:
    """Each has its words after the host's name, is counted, and keeps what caused it out of the message."""
    before = REGISTRY.get_sample_value("multiarch_registry_requests_total", {"code": "error"})
    assert before is not None
    network.get("https://registry.example.com:5000/v2/team/app/manifests/1", exception=fault)
    with pytest.raises(RegistryUnavailable, match=words) as caught:
        await make_client().fetch_manifest(APP, ANONYMOUS)
    assert str(caught.value).startswith("registry.example.com:5000 ")
    assert DETAIL not in str(caught.value)
    assert caught.value.__cause__ is fault
    assert REGISTRY.get_sample_value("multiarch_registry_requests_total", {"code": "error"}) == before + 1
