"""Who nodes ask for an image, by example: what their files say, the image, and the hosts and paths in order."""

from typing import NamedTuple

D = f"sha256:{'d' * 64}"


class Example(NamedTuple):
    """`asked` has `host/path`; of the k3s examples with `?ns=` and the registry behind it where that is sent."""

    name: str
    files: tuple[str, ...]
    image: str
    asked: tuple[str, ...]


def table(location: str, *mirrors: str, prefix: str = "", more: str = "") -> str:
    """A `[[registry]]`. A mirror is its location, and behind a blank other lines."""
    lines = [f'[[registry]]\nlocation = "{location}"\n' if location else "[[registry]]\n"]
    lines += [f'prefix = "{prefix}"\n' if prefix else "", f"{more}\n"]
    for mirror in mirrors:
        place, _, other = mirror.partition(" ")
        lines.append(f'[[registry.mirror]]\nlocation = "{place}"\n{other}\n')
    return "".join(lines)


FIRST = table("int.io/bar", "m0.io/x", "m1.io/y", prefix="e.com/foo")
BOTH = ("a.io/bar", "m1.io", "m2.io")
DIGESTS, TAGS, ALL = ('pull-from-mirror = "digest-only"', 'pull-from-mirror = "tag-only"', 'pull-from-mirror = "all"')
MIXED = table("src.io", f"m1.io {DIGESTS}", f"m2.io {TAGS}", "m3.io", f"m4.io {ALL}")
ONLY_DIGESTS = "mirror-by-digest-only = true"
BLOCKED = "blocked = true"
WILD = table("", "w1.io", prefix="*.simple-prefix.com") + table("", "w2.io", prefix="*.so.simple-prefix.com")

CRIO = [
    # The sixteen of containers-registries.conf.5, of the library's tests, and of runs of it.
    Example("1", (FIRST,), "e.com/foo/i:1", ("m0.io/x/i", "m1.io/y/i", "int.io/bar/i")),
    Example("2 tag", (table(*BOTH, prefix="a.io/foo"),), "a.io/foo/i:1", ("m1.io/i", "m2.io/i", "a.io/bar/i")),
    Example("2 digest", (table(*BOTH, prefix="a.io/foo"),), f"a.io/foo/i@{D}", ("m1.io/i", "m2.io/i", "a.io/bar/i")),
    Example("3", (table(*BOTH, prefix="a.io/foo", more=ONLY_DIGESTS),), "a.io/foo/i:1", ("a.io/bar/i",)),
    Example("4 tag", (table("src.io", "m1.io", f"m2.io {DIGESTS}"),), "src.io/i:1", ("m1.io/i", "src.io/i")),
    Example("4 digest", (table("src.io", "m1.io", f"m2.io {DIGESTS}"),), f"src.io/i@{D}",
            ("m1.io/i", "m2.io/i", "src.io/i")),
    Example("5", (table("src.io", f"m1.io {TAGS}", f"m2.io {TAGS}"),), f"src.io/i@{D}", ("src.io/i",)),
    Example("6 digest", (MIXED,), f"src.io/i@{D}", ("m1.io/i", "m3.io/i", "m4.io/i", "src.io/i")),
    Example("6 tag", (MIXED,), "src.io/i:1", ("m2.io/i", "m3.io/i", "m4.io/i", "src.io/i")),
    Example("7", (WILD,), "not.so.simple-prefix.com/i:1", ("w2.io/i", "not.so.simple-prefix.com/i")),
    Example("8", (table("", "w1.io", prefix="*.bar.example.com") + table("foo.bar.example.com:5000", "w2.io"),),
            "foo.bar.example.com:5000/o:f", ("w2.io/o", "foo.bar.example.com:5000/o")),
    Example("9", (table("", prefix="*.com"),), "b.foo.com/o:q", ("b.foo.com/o",)),
    Example("10", (table("e.com", prefix="docker.io/library"),), "docker.io/library/i:1", ("e.com/i",)),
    Example("11", (table("e.com", prefix="*.sub.e.io"),), "a.sub.e.io:5000/l/i:1", ("e.com:5000/l/i",)),
    Example("12", (table("base.io", more="insecure = true"), table("base.io", more=BLOCKED)), "base.io/x:1", ()),
    Example("13 digest", (table("a.io", f"m.io/a {DIGESTS}", more=BLOCKED),), f"a.io/x@{D}", ("m.io/a/x",)),
    Example("13 tag", (table("a.io", f"m.io/a {DIGESTS}", more=BLOCKED),), "a.io/x:1", ()),
    Example("14", (table("a.io", "bad.io/a", "good.io/a") + table("bad.io", more=BLOCKED),), "a.io/x:1",
            ("good.io/a/x", "a.io/x")),
    Example("15", (table("quay.io", "m.io/q") + table("quay.io/org", more="insecure = true"),), "quay.io/org/x:1",
            ("quay.io/org/x",)),
    Example("16", (table("b.io/a", prefix="a.io") + table("c.io", "m.io", prefix="b.io"),), "a.io/x:1",
            ("b.io/a/x",)),
    # Others, which differ from one of them in one thing.
    Example("1, a longer path", (FIRST,), "e.com/foobar/i:1", ("e.com/foobar/i",)),
    Example("1, the prefix itself", (FIRST,), "e.com/foo:1", ("m0.io/x", "m1.io/y", "int.io/bar")),
    Example("1, slashes at the end", (table("int.io/bar/", "m0.io/x//", prefix="e.com/foo/"),), "e.com/foo/i:1",
            ("m0.io/x/i", "int.io/bar/i")),
    Example("1, a prefix with a tag", (table("int.io/bar", prefix="e.com/foo:1"),), "e.com/foo:1", ("e.com/foo",)),
    Example("2, tag and digest", (table("src.io", f"m1.io {TAGS}", f"m2.io {DIGESTS}"),), f"src.io/i:1@{D}",
            ("m2.io/i", "src.io/i")),
    Example("3 digest", (table(*BOTH, prefix="a.io/foo", more=ONLY_DIGESTS),), f"a.io/foo/i@{D}",
            ("m1.io/i", "m2.io/i", "a.io/bar/i")),
    Example("5, by tag", (table("src.io", f"m1.io {TAGS}"),), "src.io/i:1", ("m1.io/i", "src.io/i")),
    Example("7, the other one", (WILD,), "a.simple-prefix.com/i:1", ("w1.io/i", "a.simple-prefix.com/i")),
    Example("7, the domain itself", (WILD,), "simple-prefix.com/i:1", ("simple-prefix.com/i",)),
    Example("7, as long", (table("", "w1.io", prefix="*.b.io") + table("a.b.io", "w2.io"),), "a.b.io/i:1",
            ("w1.io/i", "a.b.io/i")),
    Example("8, without the port", (table("foo.io", "m.io"),), "foo.io:5000/o:f", ("m.io:5000/o", "foo.io:5000/o")),
    Example("9, with a mirror", (table("", "m.io", prefix="*.com"),), "b.foo.com/o:q", ("m.io/o", "b.foo.com/o")),
    Example("10, all of Docker Hub", (table("e.com/hub", prefix="docker.io"),), "docker.io/i:1",
            ("e.com/hub/library/i",)),
    Example("12, other prefixes", (table("base.io", more="insecure = true"), table("base.io/x", more=BLOCKED)),
            "base.io/y:1", ("base.io/y",)),
    Example("12, twice in a file", (table("base.io", "m1.io") + table("base.io", "m2.io"),), "base.io/x:1",
            ("m1.io/x", "base.io/x")),
    Example("13, blocked below", (table("a.io", "m.io") + table("a.io/x", more=BLOCKED),), "a.io/x/y:1", ()),
    Example("14, the mirror's path blocked", (table("a.io", "b.io/a") + table("b.io/a/x", more=BLOCKED),), "a.io/x:1",
            ("a.io/x",)),
    Example("16, no full name", (table("a.io", "plain") + table("c.io"),), "a.io/x:1", ()),
    Example("17, ns", (table("docker.io", 'm.io namespace-proxy = "docker.io"'),), "docker.io/library/i:1",
            ("m.io/library/i?ns=docker.io", "registry-1.docker.io/library/i")),
]  # fmt: skip

HUB = "registry-1.docker.io/library/nginx"
K3S = [
    # The seven of k3s' tests; the embedded mirror, which only nodes reach, is left out.
    Example("1", ("mirrors: {docker.io: {endpoint: [https://reg.io/v2]}}",), "nginx:1",
            ("reg.io/library/nginx?ns=docker.io", HUB)),
    Example("2 disabled", ("mirrors: {docker.io: {endpoint: [https://reg.io/v2]}}",), "nginx:1",
            ("reg.io/library/nginx?ns=docker.io",)),
    Example("3", ("mirrors: {docker.io: {endpoint: [https://reg.io/prefix/v2]}}",), "nginx:1",
            ("reg.io/prefix/v2/library/nginx?ns=docker.io", HUB)),
    Example("4", ("mirrors: {docker.io: {endpoint: [reg.io], rewrite: {^rancher/(.*): docker/rancher-images/$1}}}",),
            "rancher/x:1", ("reg.io/docker/rancher-images/x?ns=docker.io", "registry-1.docker.io/rancher/x")),
    Example("5", ('mirrors: {"*": {endpoint: [https://reg.io]}}',), "quay.io/a:1",
            ("reg.io/a?ns=quay.io", "quay.io/a")),
    Example("6 disabled", ("mirrors: {docker.io: {endpoint: [a.io, b.io, docker.io]}}",), "nginx:1",
            ("a.io/library/nginx?ns=docker.io", "b.io/library/nginx?ns=docker.io", HUB)),
    Example("7", ('mirrors: {docker.io: {endpoint: ["localhost:5000"]}}',), "nginx:1",
            ("http://localhost:5000/library/nginx?ns=docker.io", HUB)),
    # Others, which differ from one of them in one thing.
    Example("1, other registry", ("mirrors: {docker.io: {endpoint: [https://reg.io/v2]}}",), "quay.io/a:1",
            ("quay.io/a",)),
    Example("2 disabled, with configs",
            ("mirrors: {docker.io: {endpoint: [reg.io]}}\nconfigs: {docker.io: {auth: {username: a, password: b}}}",),
            "nginx:1", ("reg.io/library/nginx?ns=docker.io", HUB)),
    Example("2 disabled, without endpoints", ("mirrors: {docker.io: }",), "nginx:1", (HUB,)),
    Example("4, default last", (
                "mirrors: {docker.io: {endpoint: [reg.io, docker.io], rewrite: {(.*): all$1_x}}}",
            ), "nginx:1", ("reg.io/all?ns=docker.io", HUB)),
    Example("5, its own hides it", ('mirrors: {"*": {endpoint: [reg.io]}, quay.io: {endpoint: [own.io]}}',),
            "quay.io/a:1", ("own.io/a?ns=quay.io", "quay.io/a")),
    Example("5 disabled", ('mirrors: {"*": {endpoint: [reg.io]}}',), "quay.io/a:1", ("reg.io/a?ns=quay.io",)),
    Example("6, twice", ("mirrors: {docker.io: {endpoint: [a.io, https://a.io/v2, a.io/]}}",), "nginx:1",
            ("a.io/library/nginx?ns=docker.io", HUB)),
    Example("7, with a scheme", ('mirrors: {docker.io: {endpoint: ["https://localhost:443"]}}',), "nginx:1",
            ("localhost/library/nginx?ns=docker.io", HUB)),
]  # fmt: skip
