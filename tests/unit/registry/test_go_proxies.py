"""Which proxy is asked: the rows of the tests of golang.org/x/net/http/httpproxy, and what its code says besides."""

import pytest
from yarl import URL

from extender.registry.go_proxies import proxy_for

NO_PROXY = (
    "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, "
    "2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64"
)
PROXY = "http://proxy.example.org"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
OF_GO = {
    "localhost": False,
    "127.0.0.1": False,
    "127.0.0.2": False,
    "[::1]": False,
    "[::2]": True,
    "192.168.1.1": False,
    "192.168.1.2": True,
    "192.168.1.3": False,
    "192.168.1.4": True,
    "10.0.0.2": False,
    "[2001:db8::52:0:1]": False,
    "[2001:db8::52:0:2]": True,
    "[2001:db8::52:0:3]": False,
    "[2002:db8:a::123]": False,
    "[fe80::424b:c8be:1643:a1b6]": True,
    "barbaz.net": True,
    "www.barbaz.net": False,
    "foobar.com": False,
    "www.foobar.com": False,
    "foofoobar.com": True,
    "baz.com": True,
    "localhost.net": True,
    "local.localhost": True,
    "barbarbaz.net": True,
    "wildcard.io": True,
    "nested.wildcard.io": False,
    "awildcard.io": True,
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def asked_through(url: str) -> str | None:
    proxy = proxy_for(URL(url))
    return str(proxy).rstrip("/") if proxy else None


@pytest.mark.parametrize(("host", "is_through"), OF_GO.items(), ids=OF_GO)
def test_row_of_go(environment: pytest.MonkeyPatch, host: str, is_through: bool) -> None:
    environment.setenv("HTTP_PROXY", PROXY)
    environment.setenv("NO_PROXY", NO_PROXY)
    assert asked_through(f"http://{host}:80/") == (PROXY if is_through else None)
    environment.setenv("NO_PROXY", "*")
    assert asked_through(f"http://{host}:80/") is None


@pytest.mark.parametrize(
    ("no_proxy", "host", "is_through"),
    [
        (":1", "example.com", True),
        ("", "example.com", True),
        (" , ,", "example.com", True),
        ("foo.com,*", "example.com", False),
        ("*.d:8443", "a.d:8443", False),
        ("*.d:8443", "a.d", True),
        ("*.d:8443", "d:8443", True),
        (".d:8443", "a.b.d:8443", False),
        ("d:8443", "d:8443", False),
        ("d:8443", "a.d:8443", False),
        ("d", "a.d:8443", False),
        ("d:", "d:1", False),
        ("D.Example", "a.d.example", False),
        ("ample.com", "example.com", True),
        (".foo.com", "example.com", True),
        (".示例.com", "www.示例.com", False),
        ("xn--fsq092h.com", "www.示例.com", False),
        ("示例.com", "示例.com", False),
        ("10.0.0.1/8", "10.9.9.9", False),
        ("10.0.0.0/8:443", "10.9.9.9", True),
        ("10.0.0.0/33", "10.0.0.0", True),
        ("10.0.0.0/255.0.0.0", "10.0.0.1", True),
        ("10.0.0.0/8", "[::ffff:10.0.0.1]", False),
        ("10.0.0.1", "[::ffff:10.0.0.1]", False),
        ("0.0.1", "10.0.0.1", True),
        (".0.0.1", "10.0.0.1", True),
        ("[fe80::1]", "[fe80::1]", True),
        ("fe80::1", "[fe80::1]", False),
        ("fd00::/8", "[fd12::1]:5000", False),
        ("localhost", "localhost.example", True),
        ("", "[::ffff:127.0.0.1]", False),
        ("", "127.255.0.1:5000", False),
        ("", "localhost:5000", False),
    ],
)
def test_what_the_rule_says_besides(
    environment: pytest.MonkeyPatch, no_proxy: str, host: str, is_through: bool
) -> None:
    environment.setenv("HTTPS_PROXY", PROXY)
    environment.setenv("NO_PROXY", no_proxy)
    assert asked_through(f"https://{host}/v2/") == (PROXY if is_through else None)


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"HTTP_PROXY": "127.0.0.1:8080"}, "http://a.io", "http://127.0.0.1:8080"),
        ({"HTTP_PROXY": "localhost"}, "http://a.io", "http://localhost"),
        ({"HTTP_PROXY": "https://cache.example.com"}, "http://a.io", "https://cache.example.com"),
        ({"HTTP_PROXY": "http.tld", "HTTPS_PROXY": "secure.tld"}, "http://a.io", "http://http.tld"),
        ({"HTTP_PROXY": "http.tld", "HTTPS_PROXY": "secure.tld"}, "https://a.io", "http://secure.tld"),
        ({"HTTP_PROXY": "http.tld"}, "https://a.io", None),
        ({"https_proxy": "lower.tld", "HTTPS_PROXY": "upper.tld"}, "https://a.io", "http://upper.tld"),
        ({"https_proxy": "lower.tld", "HTTPS_PROXY": ""}, "https://a.io", "http://lower.tld"),
        ({"https_proxy": "ann:secret@proxy:3128", "no_proxy": "b.io"}, "https://a.io", "http://ann:secret@proxy:3128"),
        ({"https_proxy": "proxy", "no_proxy": "b.io", "NO_PROXY": "a.io"}, "https://a.io", None),
        ({}, "https://a.io", None),
    ],
)
def test_variables(environment: pytest.MonkeyPatch, variables: dict[str, str], url: str, proxy: str | None) -> None:
    """As they are now: those in upper case first, if they are not empty."""
    environment.setenv("HTTPS_PROXY", "http://before")
    proxy_for(URL(url))
    environment.delenv("HTTPS_PROXY")
    for name, value in variables.items():
        environment.setenv(name, value)
    assert asked_through(url) == proxy
