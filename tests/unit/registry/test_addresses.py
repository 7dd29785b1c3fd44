"""Which hosts and addresses a lookup may lead to."""

import socket

import pytest
from aiohttp.abc import ResolveResult
from structlog.testing import capture_logs
from yarl import URL

from extender.errors import AddressRefused, ConfigError, HostDenied, InnerAddress, PrivateAddress, RegistryNotAllowed
from extender.registry.addresses import AddressGuard, literal_address

INSIDE = [
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "192.0.2.1", "198.19.0.1", "224.0.0.251", "240.0.0.1",
    "255.255.255.255", "::1", "::", "2001:20::1", "2001:db8::1", "fe80::1%lo", "fec0::1", "ff02::1", "100::1",
    # metadata and credentials: most clouds, ECS, Azure, Alibaba, Oracle, AWS, Google, Linode
    "169.254.169.254", "169.254.170.2", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fe80::a9fe:a9fe",
    "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:a9fe:a9fe::1",
    # compatible, mapped, translated, NAT64, 6to4, Teredo's client and server
    "::7f00:1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b::a83f:8110",
    "64:ff9b:1::7f00:1", "2002:7f00:1::1", "2002:a9fe:a9fe::", "2001:0:808:808:0:0:80ff:fffe",
    "2001:0:7f00:1:0:0:f7f7:f7f7",
]  # fmt: skip
PRIVATE = ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd12:3456::1", "fc00::1"]
PRIVATE += ["::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:c0a8:101::1"]
PUBLIC = ["1.1.1.1", "172.32.0.1", "100.63.255.255", "100.128.0.1", "168.63.129.15", "169.253.0.1", "223.255.255.255"]
PUBLIC += ["2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1", "2a00:1450::1"]


def url(host: str) -> URL:
    return URL(f"https://[{host}]/v2/" if host.count(":") > 1 and "[" not in host else f"https://{host}/v2/")


def found(*addresses: str) -> list[ResolveResult]:
    return [
        ResolveResult(hostname="x", host=address, port=443, family=socket.AF_UNSPEC, proto=0, flags=0)
        for address in addresses
    ]


def reaches(guard: AddressGuard, host: str) -> bool:
    try:
        guard.check_registry(url(host))
        guard.check_host(url(host))
    except AddressRefused:
        return False
    return True


@pytest.mark.parametrize("address", INSIDE)
def test_inner_address_is_not_reached(address: str) -> None:
    """Neither written in an image nor behind a name, whatever `allow` says of every host."""
    guard = AddressGuard(allow=["*", "*:*", "*.*", "*:443"])
    assert not reaches(guard, address)
    with pytest.raises(AddressRefused):
        guard.keep_reachable("evil.example.com", 443, found(address))


@pytest.mark.parametrize("address", PRIVATE)
def test_private_address_is_reached_by_setting(address: str) -> None:
    """Registries of a company have such addresses; an operator who has none can close them."""
    assert reaches(AddressGuard(), address)
    assert AddressGuard().keep_reachable("a.example", 443, found(address)) == found(address)
    closed = AddressGuard(private_addresses=False)
    assert not reaches(closed, address)
    with pytest.raises(AddressRefused):
        closed.keep_reachable("a.example", 443, found(address))
    named = AddressGuard(allow=["*", "a.example"], private_addresses=False)
    assert named.keep_reachable("a.example", 443, found(address)) == found(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_reached(address: str) -> None:
    """The neighbours of what is closed are open."""
    assert reaches(AddressGuard(private_addresses=False), address)


@pytest.mark.parametrize(
    ("address", "spellings"),
    [
        ("127.0.0.1", ["127.1", "127.0.1", "2130706433", "017700000001", "0177.0.0.01", "0x7f.1", "0X7F.0.0.1",
                       "0x7F000001", "::ffff:7f00:1"]),
        ("0.0.0.0", ["0", "0x0", "00.0"]),
        ("169.254.169.254", ["169.254.43518", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0251.254", "0251.0376.0251.0376"]),
        ("::1", ["0:0::0:1"]),
        ("", ["1.2.3.4.5", "127.0.0.256", "example.com", "", "１２７.1", "127.0.0.1\0"]),
    ],
)  # fmt: skip
def test_address_in_every_spelling(address: str, spellings: list[str]) -> None:
    """What the C library would connect to is what is judged."""
    assert {str(literal_address(each) or "") for each in spellings} == {address}


@pytest.mark.parametrize(
    "host",
    ["127.1", "0x7f.1", "127.0.0.1.", "１２７.０.０.１", "127。0。0。1", "①②⑦.⓪.⓪.①", "%31%32%37.0.0.1", "LOCALHOST",
     "localhost.", "a.b.localhost", "metadata.google.internal", "Metadata.Goog.", "metadata", "metadata.azure.internal",
     "instance-data.ec2.internal", "kubernetes", "kubernetes.default", "kubernetes.default.svc.cluster.local"],
)  # fmt: skip
def test_inner_host_is_known_by_its_name(host: str) -> None:
    """Before any name is resolved, since a proxy may be who resolves it."""
    with pytest.raises(AddressRefused):
        AddressGuard().check_host(url(host))


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", "registry.example.com registry.example.com:5000", ""),
        ("r.example.com", "r.example.com r.example.com:5000 R.Example.COM.", "a.r.example.com"),
        ("R.example.com", "r.example.com", ""),
        ("r.example.com:5000", "r.example.com:5000", "r.example.com"),
        ("r.example.com:443", "r.example.com", ""),
        ("r.example.com:*", "r.example.com:5000", ""),
        ("*:5000", "r.example.com:5000", "r.example.com"),
        ("*.example.com", "a.b.example.com", "example.com a.example.com.evil.org"),
        ("example.com", "", "aexample.com"),
        ("a.example", "", "axexample"),
        ("docker.io", "registry-1.docker.io", "auth.docker.io"),
        ("registry-1.docker.io", "index.docker.io", ""),
        ("10.0.0.*", "10.0.0.7:5000", ""),
        ("10.0.0.7", "0xa.7 [::ffff:a00:7]", ""),
        ("[fd00::1]:5000", "[fd00:0::1]:5000", ""),
        ("[fd00::1]", "", "[fd00::2]"),
    ],
)
def test_pattern_matches_a_host(pattern: str, matching: str, others: str) -> None:
    """`*` stands for any characters, case and spelling do not count, and a pattern without a port is for every port."""
    for host in (*matching.split(), *others.split()):
        matches = host in matching.split()
        assert reaches(AddressGuard(allow=[pattern]), host) == matches
        assert reaches(AddressGuard(deny=[pattern]), host) != matches
        assert not reaches(AddressGuard(allow=[pattern], deny=[pattern]), host) or not matches


@pytest.mark.parametrize(
    ("patterns", "may_be_inside"),
    [
        ("127.0.0.1 127.0.0.1:443 127.0.0.* 127.*:443 0x7f.1", True),
        ("* *.* *.*.*.* *:443 127.0.0.1:5000 localhost", False),  # another port is another service
    ],
)
def test_host_that_allow_names_may_be_anywhere(patterns: str, may_be_inside: bool) -> None:
    """The operator knows that a registry is at such an address. An empty `allow` closes no token server."""
    for allow in patterns.split():
        assert reaches(AddressGuard(allow=["*", allow]), "127.0.0.1") == may_be_inside
    assert not reaches(AddressGuard(allow=[]), "registry.example.com")
    AddressGuard(allow=[]).check_host(url("auth.example.com"))


@pytest.mark.parametrize(
    ("allow", "deny", "name", "addresses", "kept"),
    [
        ("cache.example.com:5000", "", "Cache.example.com:5000", "127.0.0.1", "127.0.0.1"),
        ("cache.example.com:5000", "", "cache.example.com:443", "127.0.0.1", ""),
        ("cache.example.com:5000", "", "evil.example.com:5000", "127.0.0.1", ""),
        ("*", "", "a.example:443", "127.0.0.1 1.1.1.1 ::1 2606:4700::1", "1.1.1.1 2606:4700::1"),
        ("a.example", "10.0.0.*", "a.example:443", "10.0.0.1 10.0.1.1", "10.0.1.1"),
    ],
)
def test_addresses_behind_a_name(allow: str, deny: str, name: str, addresses: str, kept: str) -> None:
    """`allow` lets a name lead inside, by its port, and no other; `deny` holds for addresses by whatever name."""
    guard, (host, port) = AddressGuard(allow=["*", allow], deny=deny.split()), name.split(":")
    try:
        assert guard.keep_reachable(host, int(port), found(*addresses.split())) == found(*kept.split())
    except AddressRefused:
        assert not kept


OPEN_TO_NONE = AddressGuard(private_addresses=False)


@pytest.mark.parametrize(
    ("guard", "host", "rule", "kind", "words"),
    [
        (AddressGuard(allow=["quay.io"]), "ghcr.io", "allow", RegistryNotAllowed, "is not in registry.allow"),
        (AddressGuard(deny=["*.io"]), "ghcr.io", "deny", HostDenied, "is denied by registry.deny"),
        (AddressGuard(), "localhost", "address", InnerAddress, "is asked only where registry.allow names it"),
        (AddressGuard(), "127.0.0.1", "address", InnerAddress, "is asked only where registry.allow names it"),
        (OPEN_TO_NONE, "127.0.0.1", "address", InnerAddress, "is asked only where registry.allow names it"),
        (OPEN_TO_NONE, "10.1.2.3", "address", PrivateAddress, "which registry.private_addresses forbids"),
        (OPEN_TO_NONE, "fd00:ec2::254", "address", InnerAddress, "is asked only where registry.allow names it"),
    ],
)
def test_refusal_says_whose_rule_it_is(
    guard: AddressGuard, host: str, rule: str, kind: type[AddressRefused], words: str
) -> None:
    """By its class, which names the setting that would change it, in its words and in the log."""
    check = guard.check_host if rule == "address" else guard.check_registry
    with capture_logs() as lines, pytest.raises(AddressRefused) as caught:
        check(url(f"[{host}]" if ":" in host else host))
    assert type(caught.value) is kind
    assert str(caught.value).startswith(host)
    assert str(caught.value).endswith(words)
    assert [(line["event"], line["rule"]) for line in lines] == [("address.refused", rule)]


def test_refusal_by_what_a_name_resolves_to_says_whose_rule_it_is_and_not_the_address() -> None:
    """Else names could be mapped to the network behind them by creating pods."""
    for guard, kind in (
        (AddressGuard(private_addresses=False), PrivateAddress),
        (AddressGuard(deny=["10.1.*"], private_addresses=False), HostDenied),
    ):
        with pytest.raises(AddressRefused) as caught:
            guard.keep_reachable("a.example", 443, found("10.1.2.3"))
        assert type(caught.value) is kind
        assert "10.1.2.3" not in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    ["", "https://quay.io", "quay.io/team", "quay .io", "quay.io:", "quay.io:http", "[::1", "::1", "bücher.example"],
)
def test_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"registry\.allow: "):
        AddressGuard(allow=[pattern])
    with pytest.raises(ConfigError, match=r"registry\.deny: "):
        AddressGuard(deny=[pattern])
