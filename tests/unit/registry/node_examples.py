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
    # Of the seven of k3s' tests; the flags of k3s are left out.
    Example("1", ("mirrors: {docker.io: {endpoint: [https://reg.io/v2]}}",), "nginx:1",
            ("reg.io/library/nginx?ns=docker.io", HUB)),
    Example("3", ("mirrors: {docker.io: {endpoint: [https://reg.io/prefix/v2]}}",), "nginx:1",
            ("reg.io/prefix/v2/library/nginx?ns=docker.io", HUB)),
    Example("4", ("mirrors: {docker.io: {endpoint: [reg.io], rewrite: {^rancher/(.*): docker/rancher-images/$1}}}",),
            "rancher/x:1", ("reg.io/docker/rancher-images/x?ns=docker.io", "registry-1.docker.io/rancher/x")),
    Example("5", ('mirrors: {"*": {endpoint: [https://reg.io]}}',), "quay.io/a:1",
            ("reg.io/a?ns=quay.io", "quay.io/a")),
    Example("6, default last", ("mirrors: {docker.io: {endpoint: [a.io, b.io, docker.io]}}",), "nginx:1",
            ("a.io/library/nginx?ns=docker.io", "b.io/library/nginx?ns=docker.io", HUB)),
    Example("7", ('mirrors: {docker.io: {endpoint: ["localhost:5000"]}}',), "nginx:1",
            ("http://localhost:5000/library/nginx?ns=docker.io", HUB)),
    # Others, which differ from one of them in one thing.
    Example("1, other registry", ("mirrors: {docker.io: {endpoint: [https://reg.io/v2]}}",), "quay.io/a:1",
            ("quay.io/a",)),
    Example("1, with configs",
            ("mirrors: {docker.io: {endpoint: [reg.io]}}\nconfigs: {docker.io: {auth: {username: a, password: b}}}",),
            "nginx:1", ("reg.io/library/nginx?ns=docker.io", HUB)),
    Example("1, without endpoints", ("mirrors: {docker.io: }",), "nginx:1", (HUB,)),
    Example("4, default last", (
                "mirrors: {docker.io: {endpoint: [reg.io, docker.io], rewrite: {(.*): all$1_x}}}",
            ), "nginx:1", ("reg.io/all?ns=docker.io", HUB)),
    Example("5, its own hides it", ('mirrors: {"*": {endpoint: [reg.io]}, quay.io: {endpoint: [own.io]}}',),
            "quay.io/a:1", ("own.io/a?ns=quay.io", "quay.io/a")),
    Example("6, twice", ("mirrors: {docker.io: {endpoint: [a.io, https://a.io/v2, a.io/]}}",), "nginx:1",
            ("a.io/library/nginx?ns=docker.io", HUB)),
    Example("7, with a scheme", ('mirrors: {docker.io: {endpoint: ["https://localhost:443"]}}',), "nginx:1",
            ("localhost/library/nginx?ns=docker.io", HUB)),
]  # fmt: skip


class OpenShiftExample(NamedTuple):
    """What the objects say by kind, as JSON, and of the image configuration."""

    name: str
    objects: str
    image: str
    asked: tuple[str, ...]


def digest_sets(source: str, *lists: str, policy: str = "") -> str:
    """Mirrors of a source for images by digest: each list has hosts of one letter."""
    sets = ",".join(_mirror_set(source, mirrors, policy) for mirrors in lists)
    return f'{{"digestMirrors": [{sets}]}}'


def _mirror_set(source: str, mirrors: str, policy: str = "") -> str:
    hosts = ",".join(f'"{letter}.io"' for letter in mirrors)
    return f'{{"source": "{source}", "mirrors": [{hosts}], "mirrorSourcePolicy": "{policy}"}}'


NEVER = "NeverContactSource"
S_BY_DIGEST = f"s.io/x@{D}"
QUAY = _mirror_set("quay.io", "m")
OPENSHIFT = [
    # The eight of the API's comments, of runtime-utils' tests, and of runs of it. Several lists of one source come one
    # behind the other, which is not always their order on nodes.
    OpenShiftExample("abc; cde", digest_sets("s.io", "abc", "cde"), S_BY_DIGEST,
                     ("a.io/x", "b.io/x", "c.io/x", "d.io/x", "e.io/x", "s.io/x")),
    OpenShiftExample("ab; ba", digest_sets("s.io", "ab", "ba"), S_BY_DIGEST, ("a.io/x", "b.io/x", "s.io/x")),
    OpenShiftExample("z; y", digest_sets("s.io", "z", "y"), S_BY_DIGEST, ("y.io/x", "z.io/x", "s.io/x")),
    OpenShiftExample("zx; y", digest_sets("s.io", "zx", "y"), S_BY_DIGEST, ("y.io/x", "z.io/x", "x.io/x", "s.io/x")),
    OpenShiftExample("z s y; s y x", digest_sets("s.io", "zsy", "syx"), S_BY_DIGEST,
                     ("y.io/x", "x.io/x", "z.io/x", "s.io/x")),
    OpenShiftExample("repositories", """{"digestMirrors": [
        {"source": "registry1.io/redhat", "mirrors": ["registry2.io/redhat"]},
        {"source": "registry1.io/redhat", "mirrors": ["local-mirror.io/redhat"]}]}""", f"registry1.io/redhat/x@{D}",
                     ("local-mirror.io/redhat/x", "registry2.io/redhat/x", "registry1.io/redhat/x")),
    OpenShiftExample("both kinds never, digest", f"""{{"digestMirrors": [{_mirror_set("s.io", "d", NEVER)}],
        "tagMirrors": [{_mirror_set("s.io", "t", NEVER)}]}}""", S_BY_DIGEST, ("d.io/x",)),
    OpenShiftExample("both kinds never, tag", f"""{{"digestMirrors": [{_mirror_set("s.io", "d", NEVER)}],
        "tagMirrors": [{_mirror_set("s.io", "t", NEVER)}]}}""", "s.io/x:1", ("t.io/x",)),
    OpenShiftExample("nested scope hides mirrors", f"""{{"digestMirrors": [{QUAY}],
        "tagMirrors": [{_mirror_set("quay.io/org", "t")}]}}""", f"quay.io/org/x@{D}", ("quay.io/org/x",)),
    # Others, which differ from one of them in one thing.
    OpenShiftExample("zx; yx", digest_sets("s.io", "zx", "yx"), S_BY_DIGEST,
                     ("y.io/x", "x.io/x", "z.io/x", "s.io/x")),
    OpenShiftExample("yx; z", digest_sets("s.io", "yx", "z"), S_BY_DIGEST, ("y.io/x", "x.io/x", "z.io/x", "s.io/x")),
    OpenShiftExample("abc; ca", digest_sets("s.io", "abc", "ca"), S_BY_DIGEST,
                     ("a.io/x", "b.io/x", "c.io/x", "s.io/x")),
    OpenShiftExample("only the source", digest_sets("s.io", "s"),
                     S_BY_DIGEST, ("s.io/x",)),
    OpenShiftExample("digest mirrors, tag", digest_sets("s.io", "ab"), "s.io/x:1", ("s.io/x",)),
    OpenShiftExample("digest mirrors never, tag", digest_sets("s.io", "ab", policy=NEVER), "s.io/x:1", ()),
    OpenShiftExample("older policies", f"""{{"digestMirrors": [{_mirror_set("s.io", "ab")}],
        "digestPolicies": [{_mirror_set("s.io", "bc")}]}}""", S_BY_DIGEST, ("a.io/x", "b.io/x", "c.io/x", "s.io/x")),
    OpenShiftExample("nested without mirrors", f"""{{"digestMirrors": [{_mirror_set("s.io", "a")}],
        "sources": {{"insecureRegistries": ["s.io/org"]}}}}""", f"s.io/org/x@{D}", ("a.io/org/x", "s.io/org/x")),
    OpenShiftExample("blocked", '{"sources": {"blockedRegistries": ["s.io"]}}', "s.io/x:1", ()),
    OpenShiftExample("blocked, with a mirror", f"""{{"digestMirrors": [{_mirror_set("s.io", "a")}],
        "sources": {{"blockedRegistries": ["s.io"]}}}}""", S_BY_DIGEST, ()),
    OpenShiftExample("blocked mirror", f"""{{"digestMirrors": [{_mirror_set("s.io", "ab")}],
        "sources": {{"blockedRegistries": ["a.io"]}}}}""", S_BY_DIGEST, ("b.io/x", "s.io/x")),
    OpenShiftExample("allowed", '{"sources": {"allowedRegistries": ["*.b.io", "s.io/org"]}}', "a.b.io:5000/x:1",
                     ("a.b.io:5000/x",)),
    OpenShiftExample("not allowed", '{"sources": {"allowedRegistries": ["*.b.io", "s.io/org"]}}', "s.io/x:1", ()),
]  # fmt: skip
