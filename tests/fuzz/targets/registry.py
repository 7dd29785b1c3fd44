"""What registries and token servers send besides documents: challenges, tokens, redirects, waits, quotas, mirrors."""

from typing import Any, cast

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import AddressRefused, ConfigError, RegistryError, RegistryUnavailable
from extender.images.reference import ImageReference
from extender.registry.addresses import AddressGuard
from extender.registry.auth import Authenticator, parse_challenges
from extender.registry.endpoint import Endpoint, EndpointSource
from extender.registry.go_proxies import proxy_for
from extender.registry.http import MOST_SAID, Response, follow, host_of, read_refusal, read_retry_after
from extender.registry.mirror_files import MirrorFiles
from extender.registry.quota import Quotas
from extender.registry.registries_conf import read_registries_conf
from testbed.clock import Clock
from tests.fuzz.target import CannedResponse, CannedSession, check_sentence, file_of, run

_USER = Credential("user", "secret", CredentialId("user"))
_START = URL("https://registry.example/v2/team/app/manifests/1")
_ENDPOINT = Endpoint(name="registry.example", root=URL("https://registry.example/v2"), repository="team/app")
_NONE: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())


def challenges(data: bytes) -> None:
    """Challenges have lower-case names, and all their characters come from the header."""
    headers = [line.decode("latin-1") for line in data.split(b"\n")]
    found = parse_challenges(headers)
    size = sum(map(len, headers))
    assert len(found) <= size
    assert sum(len(key) + len(value) for each in found for key, value in each.parameters.items()) <= size
    for each in found:
        assert each.scheme == each.scheme.lower()
        assert all(key == key.lower() for key in each.parameters)


class _Guarded(CannedSession):
    """A registry that refuses every request with a challenge. `answers` are the headers that it was sent."""

    def __init__(self, challenge: str, body: bytes) -> None:
        super().__init__(body)
        self._challenge = challenge
        self.answers: list[str] = []

    def request(self, method: str, url: object, **options: Any) -> CannedResponse:
        if url != _START:
            return super().request(method, url, **options)
        if answer := options["headers"].get("Authorization"):
            self.answers.append(answer)
        return CannedResponse(401, {"WWW-Authenticate": self._challenge}, b"")


def tokens(data: bytes) -> None:
    """The first line is a challenge, and the remainder what the token server answers to it.

    The header that follows fits one line. A password goes to nothing but the host that the challenge names, and never
    in a URL.
    """
    header, _, body = data.partition(b"\n")
    session = _Guarded(header.decode("utf-8", "surrogateescape"), body)
    clock = Clock()
    authenticator = Authenticator(
        cast("aiohttp.ClientSession", session), timeout_seconds=1.0, clock=clock, wall_clock=clock
    )
    try:
        run(authenticator.ask("GET", _ENDPOINT, "manifests/1", _USER))
    except RegistryError as exc:
        check_sentence(exc)
        return
    for answer in session.answers:
        assert answer.startswith(("Bearer ", "Basic "))
        assert answer.isascii()
        assert answer.isprintable()
        assert len(answer) <= len(data) + 100
    assert not any("secret" in request for request in session.requests)


def redirects(data: bytes) -> None:
    """Each line is a Location. The hops are http or https addresses, six at most, and none leads from https to http."""
    locations = iter(data.split(b"\n"))
    guard = AddressGuard(allow=(), deny=("denied.example",), private_addresses=False)
    seen: list[URL] = []

    async def send_to(url: URL) -> Response:
        assert url.scheme in ("http", "https")
        assert url.raw_host
        assert not seen or seen[-1].scheme == "http" or url.scheme == "https"
        seen.append(url)
        url.with_user(None).origin()
        host_of(url)
        proxy_for(url)
        guard.check_host(url)
        location = next(locations, None)
        if location is None:
            return Response(url, 200, _NONE, b"", False)
        text = location.decode("utf-8", "surrogateescape")
        return Response(url, 307, CIMultiDictProxy(CIMultiDict({"Location": text})), b"", False)

    try:
        run(follow(_START, send_to))
    except (RegistryUnavailable, AddressRefused) as exc:
        check_sentence(exc)
    assert len(seen) <= 6


def waits(data: bytes) -> None:
    """A Retry-After is a second to an hour, or nothing; a quota's window is a second or more."""
    text = data.decode("utf-8", "surrogateescape")
    seconds = read_retry_after(text, 1_700_000_000.0)
    assert seconds is None or 1.0 <= seconds <= 3600.0
    quotas = Quotas(clock=Clock(), random=lambda: 0.5)
    first, _, second = text.partition("\n")
    origin, one = _START.origin(), ANONYMOUS.id
    headers = {"RateLimit-Remaining": first, "RateLimit-Limit": second, "RateLimit-Reset": second}
    quotas.note("registry.example", origin, one, headers)
    quotas.is_reserved(origin, one)
    wait = quotas.reservation_error("registry.example", origin, one).retry_after_seconds
    assert wait is not None
    assert 1.0 <= wait <= 360.0


def refusals(data: bytes) -> None:
    """Why a registry refuses an image is one short line that can be printed, or nothing."""
    said = read_refusal(data)
    assert len(said) <= MOST_SAID
    assert said.isprintable()
    assert said == said.strip()


_PULLED = (
    ImageReference("docker.io", "library/app", "1", ""),
    ImageReference("a.b.registry.example:5000", "team/app", "", f"sha256:{'d' * 64}"),
    ImageReference("", "app", "1", ""),
)


def hosts_files(data: bytes) -> None:
    """A `hosts.toml` gives usable endpoints, or an error of the configuration that quotes no header."""
    with file_of(data, "_default/hosts.toml") as file:
        try:
            source = MirrorFiles(str(file.parent.parent))
        except ConfigError as exc:
            check_sentence(exc, len(data))
            return
        endpoints = source.endpoints_for(ImageReference("registry.example:5000", "team/app", "1", ""))
        assert endpoints
        for endpoint in endpoints:
            _check_endpoint(endpoint)
            assert endpoint.own_repository.endswith("team/app")
            assert endpoint.connect_seconds is None or endpoint.connect_seconds > 0
            for name, value in endpoint.headers:
                assert name.isascii()
                assert {"\n", "\r"}.isdisjoint(value)


def _check_endpoint(endpoint: Endpoint) -> None:
    assert endpoint.root.scheme in ("http", "https")
    assert endpoint.url_of("manifests/1").raw_host


def _check_endpoints(source: EndpointSource) -> None:
    for reference in _PULLED:
        try:
            endpoints = source.endpoints_for(reference)
        except RegistryError as exc:  # nodes ask nobody, or a registry is no address
            check_sentence(exc, 2048)
            continue
        for endpoint in endpoints:
            _check_endpoint(endpoint)


def registries_conf(data: bytes) -> None:
    """A `registries.conf` gives usable endpoints for every name, or an error of the configuration."""
    try:
        routes = read_registries_conf([("registries.conf", data)])
    except ConfigError as exc:
        check_sentence(exc, len(data))
        return
    _check_endpoints(routes)


def registries_yaml(data: bytes) -> None:
    """k3s' `registries.yaml` gives usable endpoints, or an error without passwords."""
    with file_of(data, "registries.yaml") as file:
        try:
            source = MirrorFiles(str(file))
        except ConfigError as exc:
            check_sentence(exc, 8 * len(data))  # which YAML's own errors quote, escaped
            return
        for reference in _PULLED[:2]:
            assert all(len(each.repository) < 65_536 for each in source.endpoints_for(reference))


TARGETS = (challenges, tokens, redirects, waits, refusals, hosts_files, registries_conf, registries_yaml)
