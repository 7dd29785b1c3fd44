"""Whom nodes ask for an image, by example, and what else OpenShift's objects say: refusals, flags, short names."""

import itertools
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from extender.errors import AddressRefused, ConfigError, RegistryError, RegistryNotAsked
from extender.images.reference import ImageReference, parse_reference
from extender.kubernetes.openshift_v1 import MirrorObjects, NodeTrust, SourceMirrors
from extender.registry.endpoint import EndpointSource
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.mirror_files import MirrorFiles
from extender.registry.openshift import OpenShiftMirrors, routes_of
from extender.watched_files import RELOADS, FileSetting

D = f"sha256:{'d' * 64}"


class Example(NamedTuple):
    """`asked` has each `host/path`; of the k3s examples with `?ns=` and the registry behind it where that is sent.

    `files` are those of nodes, or OpenShift's objects as JSON: by kind, and of the image configuration.
    """

    name: str
    files: str | tuple[str, ...]
    image: str
    asked: str


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
    Example("1", FIRST, "e.com/foo/i:1", "m0.io/x/i m1.io/y/i int.io/bar/i"),
    Example("2 tag", table(*BOTH, prefix="a.io/foo"), "a.io/foo/i:1", "m1.io/i m2.io/i a.io/bar/i"),
    Example("3", table(*BOTH, prefix="a.io/foo", more=ONLY_DIGESTS), "a.io/foo/i:1", "a.io/bar/i"),
    Example("4 digest", table("src.io", "m1.io", f"m2.io {DIGESTS}"), f"src.io/i@{D}", "m1.io/i m2.io/i src.io/i"),
    Example("5", table("src.io", f"m1.io {TAGS}", f"m2.io {TAGS}"), f"src.io/i@{D}", "src.io/i"),
    Example("6 digest", MIXED, f"src.io/i@{D}", "m1.io/i m3.io/i m4.io/i src.io/i"),
    Example("6 tag", MIXED, "src.io/i:1", "m2.io/i m3.io/i m4.io/i src.io/i"),
    Example("7", WILD, "not.so.simple-prefix.com/i:1", "w2.io/i not.so.simple-prefix.com/i"),
    Example("8", table("", "w1.io", prefix="*.bar.example.com") + table("foo.bar.example.com:5000", "w2.io"),
            "foo.bar.example.com:5000/o:f", "w2.io/o foo.bar.example.com:5000/o"),
    Example("9", table("", prefix="*.com"), "b.foo.com/o:q", "b.foo.com/o"),
    Example("10", table("e.com", prefix="docker.io/library"), "docker.io/library/i:1", "e.com/i"),
    Example("11", table("e.com", prefix="*.sub.e.io"), "a.sub.e.io:5000/l/i:1", "e.com:5000/l/i"),
    Example("12", (table("base.io", more="insecure = true"), table("base.io", more=BLOCKED)), "base.io/x:1", ""),
    Example("13 digest", table("a.io", f"m.io/a {DIGESTS}", more=BLOCKED), f"a.io/x@{D}", "m.io/a/x"),
    Example("13 tag", table("a.io", f"m.io/a {DIGESTS}", more=BLOCKED), "a.io/x:1", ""),
    Example("14", table("a.io", "bad.io/a", "good.io/a") + table("bad.io", more=BLOCKED),
            "a.io/x:1", "good.io/a/x a.io/x"),
    Example("15", table("quay.io", "m.io/q") + table("quay.io/org", more="insecure = true"),
            "quay.io/org/x:1", "quay.io/org/x"),
    Example("16", table("b.io/a", prefix="a.io") + table("c.io", "m.io", prefix="b.io"), "a.io/x:1", "b.io/a/x"),
    # Others, which differ from one of them in one thing; of CRI-O and OpenShift, the differential tests have more.
    Example("1, slashes at the end", table("int.io/bar/", "m0.io/x//", prefix="e.com/foo/"),
            "e.com/foo/i:1", "m0.io/x/i int.io/bar/i"),
    Example("2, tag and digest", table("src.io", f"m1.io {TAGS}", f"m2.io {DIGESTS}"),
            f"src.io/i:1@{D}", "m2.io/i src.io/i"),
    Example("7, the domain itself", WILD, "simple-prefix.com/i:1", "simple-prefix.com/i"),
    Example("8, without the port", table("foo.io", "m.io"), "foo.io:5000/o:f", "m.io:5000/o foo.io:5000/o"),
    Example("16, no full name", table("a.io", "plain") + table("c.io"), "a.io/x:1", ""),
    Example("17, ns", table("docker.io", 'm.io namespace-proxy = "docker.io"'),
            "docker.io/library/i:1", "m.io/library/i?ns=docker.io registry-1.docker.io/library/i"),
]  # fmt: skip

HUB = "registry-1.docker.io/library/nginx"
K3S = [
    # Of the seven of k3s' tests; the flags of k3s are left out.
    Example("1", "mirrors: {docker.io: {endpoint: [https://reg.io/v2]}}",
            "nginx:1", f"reg.io/library/nginx?ns=docker.io {HUB}"),
    Example("3", "mirrors: {docker.io: {endpoint: [https://reg.io/prefix/v2]}}",
            "nginx:1", f"reg.io/prefix/v2/library/nginx?ns=docker.io {HUB}"),
    Example("4", "mirrors: {docker.io: {endpoint: [reg.io], rewrite: {^rancher/(.*): docker/rancher-images/$1}}}",
            "rancher/x:1", "reg.io/docker/rancher-images/x?ns=docker.io registry-1.docker.io/rancher/x"),
    Example("5", 'mirrors: {"*": {endpoint: [https://reg.io]}}', "quay.io/a:1", "reg.io/a?ns=quay.io quay.io/a"),
    Example("6, default last", "mirrors: {docker.io: {endpoint: [a.io, b.io, docker.io]}}",
            "nginx:1", f"a.io/library/nginx?ns=docker.io b.io/library/nginx?ns=docker.io {HUB}"),
    Example("7", 'mirrors: {docker.io: {endpoint: ["localhost:5000"]}}',
            "nginx:1", f"http://localhost:5000/library/nginx?ns=docker.io {HUB}"),
    # Others, which differ from one of them in one thing; of CRI-O and OpenShift, the differential tests have more.
    Example("1, other registry", "mirrors: {docker.io: {endpoint: [https://reg.io/v2]}}", "quay.io/a:1", "quay.io/a"),
    Example("1, with configs",
            "mirrors: {docker.io: {endpoint: [reg.io]}}\nconfigs: {docker.io: {auth: {username: a, password: b}}}",
            "nginx:1", f"reg.io/library/nginx?ns=docker.io {HUB}"),
    Example("1, without endpoints", "mirrors: {docker.io: }", "nginx:1", HUB),
    Example("4, default last", "mirrors: {docker.io: {endpoint: [reg.io, docker.io], rewrite: {(.*): all$1_x}}}",
            "nginx:1", f"reg.io/all?ns=docker.io {HUB}"),
    Example("5, its own hides it", 'mirrors: {"*": {endpoint: [reg.io]}, quay.io: {endpoint: [own.io]}}',
            "quay.io/a:1", "own.io/a?ns=quay.io quay.io/a"),
    Example("6, twice", "mirrors: {docker.io: {endpoint: [a.io, https://a.io/v2, a.io/]}}",
            "nginx:1", f"a.io/library/nginx?ns=docker.io {HUB}"),
    Example("7, with a scheme", 'mirrors: {docker.io: {endpoint: ["https://localhost:443"]}}',
            "nginx:1", f"localhost/library/nginx?ns=docker.io {HUB}"),
]  # fmt: skip


def digest_sets(source: str, *lists: str) -> str:
    """Mirrors of a source for images by digest: each list has hosts of one letter."""
    sets = ",".join(_mirror_set(source, mirrors) for mirrors in lists)
    return f'{{"digestMirrors": [{sets}]}}'


def _mirror_set(source: str, mirrors: str) -> str:
    hosts = ",".join(f'"{letter}.io"' for letter in mirrors)
    return f'{{"source": "{source}", "mirrors": [{hosts}], "mirrorSourcePolicy": ""}}'


S_BY_DIGEST = f"s.io/x@{D}"
QUAY = _mirror_set("quay.io", "m")
OPENSHIFT = [
    # The eight of the API's comments, of runtime-utils' tests, and of runs of it. Several lists of one source come one
    # behind the other, which is not always their order on nodes.
    Example("abc; cde", digest_sets("s.io", "abc", "cde"), S_BY_DIGEST, "a.io/x b.io/x c.io/x d.io/x e.io/x s.io/x"),
    Example("zx; y", digest_sets("s.io", "zx", "y"), S_BY_DIGEST, "y.io/x z.io/x x.io/x s.io/x"),
    Example("z s y; s y x", digest_sets("s.io", "zsy", "syx"), S_BY_DIGEST, "y.io/x x.io/x z.io/x s.io/x"),
    Example("repositories", """{"digestMirrors": [
        {"source": "registry1.io/redhat", "mirrors": ["registry2.io/redhat"]},
        {"source": "registry1.io/redhat", "mirrors": ["local-mirror.io/redhat"]}]}""",
            f"registry1.io/redhat/x@{D}", "local-mirror.io/redhat/x registry2.io/redhat/x registry1.io/redhat/x"),
    Example("nested scope hides mirrors", f"""{{"digestMirrors": [{QUAY}],
        "tagMirrors": [{_mirror_set("quay.io/org", "t")}]}}""",
            f"quay.io/org/x@{D}", "quay.io/org/x"),
    # Others, which differ from one of them in one thing; of CRI-O and OpenShift, the differential tests have more.
    Example("nested scope with flags alone", f"""{{"digestMirrors": [{QUAY}],
        "sources": {{"insecureRegistries": ["quay.io/org"]}}}}""",
            f"quay.io/org/x@{D}", "m.io/org/x quay.io/org/x"),
    Example("only the source", digest_sets("s.io", "s"), S_BY_DIGEST, "s.io/x"),
    Example("older policies", f"""{{"digestMirrors": [{_mirror_set("s.io", "ab")}],
        "digestPolicies": [{_mirror_set("s.io", "bc")}]}}""",
            S_BY_DIGEST, "a.io/x b.io/x c.io/x s.io/x"),
    Example("blocked", '{"sources": {"blockedRegistries": ["s.io"]}}', "s.io/x:1", ""),
    Example("blocked, with a mirror", f"""{{"digestMirrors": [{_mirror_set("s.io", "a")}],
        "sources": {{"blockedRegistries": ["s.io"]}}}}""",
            S_BY_DIGEST, ""),
    Example("allowed", '{"sources": {"allowedRegistries": ["*.b.io", "s.io/org"]}}',
            "a.b.io:5000/x:1", "a.b.io:5000/x"),
    Example("not allowed", '{"sources": {"allowedRegistries": ["*.b.io", "s.io/org"]}}', "s.io/x:1", ""),
]  # fmt: skip


def asked_of(mirrors: EndpointSource, image: str) -> str:
    """Who is asked while nobody has the image. A digest overrides the tag."""
    reference = parse_reference(image)
    reference = reference.with_digest(reference.digest) if reference.digest else reference
    try:
        endpoints = mirrors.endpoints_for(reference)
    except RegistryError:
        return ""
    urls = (each.url_of("manifests/x") for each in endpoints if not each.not_asked)
    return " ".join(
        ("" if url.scheme == "https" else "http://")
        + f"{url.host_port_subcomponent}/{url.path.removeprefix('/v2/').removesuffix('/manifests/x').removeprefix('/')}"
        + (f"?{url.query_string}" if url.query_string else "")
        for url in urls
    )


def write_crio(folder: Path, example: Example) -> MirrorFiles:
    main, *drop_ins = [example.files] if isinstance(example.files, str) else example.files
    (folder / "registries.conf").write_text(main)
    (folder / "registries.conf.d").mkdir()
    for number, drop_in in enumerate(drop_ins):
        (folder / "registries.conf.d" / f"{number}.conf").write_text(drop_in)
    return MirrorFiles(str(folder / "registries.conf"))


@pytest.mark.parametrize("example", CRIO, ids=lambda example: example.name)
def test_crio_example(tmp_path: Path, example: Example) -> None:
    assert asked_of(write_crio(tmp_path, example), example.image) == example.asked


@pytest.mark.parametrize("example", K3S, ids=lambda example: example.name)
def test_k3s_example(tmp_path: Path, example: Example) -> None:
    (tmp_path / "registries.yaml").write_text("".join(example.files))
    assert asked_of(MirrorFiles(str(tmp_path / "registries.yaml")), example.image) == example.asked


@pytest.mark.parametrize("example", OPENSHIFT, ids=lambda example: example.name)
def test_openshift_example(example: Example) -> None:
    """In the order in which CRI-O asks by what the machine-config operator writes."""
    mirrors = OpenShiftMirrors(RegistryTrust())
    mirrors.update(objects_of("".join(example.files)))
    assert asked_of(mirrors, example.image) == example.asked


REFUSED = RELOADS[FileSetting.MIRRORS]["refused"]


def objects_of(text: str) -> MirrorObjects:
    return msgspec.json.decode(text, type=MirrorObjects)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (('{"digestMirrors": [{"source": "s.io", "mirrors": ["a.io"], "mirrorSourcePolicy": "NeverContactSource"}],'
         '"tagMirrors": [{"source": "s.io", "mirrors": ["a.io"]}]}'), "s.io has two values of mirrorSourcePolicy"),
        (('{"digestMirrors": [{"source": "s.io", "mirrors": ["a.io", "s.io"],'
         '"mirrorSourcePolicy": "NeverContactSource"}]}'), "s.io is a mirror of itself"),
        ('{"digestMirrors": [{"source": "*.s.io", "mirrors": ["a.io"]}], "sources": {"blockedRegistries": ["x.s.io"]}}',
         "x.s.io has no mirrors, and is inside *.s.io"),
        ('{"digestMirrors": [{"source": "", "mirrors": ["a.io"]}]}', "'' is no registry"),
        ('{"tagMirrors": [{"source": "s.io", "mirrors": ["a.*.io"]}]}', "'a.*.io' is no registry"),
        ('{"sources": {"blockedRegistries": ["*.s.io/x"]}}', "'*.s.io/x' is no registry"),
        ('{"sources": {"blockedRegistries": ["a.io"], "allowedRegistries": ["b.io"]}}', "exclude each other"),
        ('{"sources": {"containerRuntimeSearchRegistries": ["a.io"], "insecureRegistries": ["https://b.io"]}}',
         "leave out the scheme"),
    ],
)  # fmt: skip
def test_objects_that_the_operator_refuses_change_nothing(text: str, problem: str) -> None:
    """Nodes keep what they have, and so do we; it is counted."""
    with pytest.raises(ConfigError) as raised:
        routes_of(objects_of(text))
    assert problem in str(raised.value)
    mirrors, before = OpenShiftMirrors(RegistryTrust()), REFUSED.value
    mirrors.update(objects_of('{"digestMirrors": [{"source": "s.io", "mirrors": ["old.io"]}]}'))
    mirrors.update(objects_of(text))
    digest = parse_reference(f"s.io/x@sha256:{'d' * 64}")
    assert [each.name for each in mirrors.endpoints_for(digest)] == ["old.io", "s.io"]
    assert REFUSED.value == before + 1


def test_nobody_is_asked_before_the_objects_are_known() -> None:
    """Where nodes do not pull from there may be another image."""
    with pytest.raises(RegistryNotAsked, match="not known yet where the nodes pull from"):
        OpenShiftMirrors(RegistryTrust()).endpoints_for(parse_reference("s.io/x:1"))


def test_flags_reach_nested_scopes_and_mirrors() -> None:
    """An insecure wildcard holds for tables and mirrors inside it; a blocked one for tables."""
    routes = routes_of(
        objects_of("""{"digestMirrors": [{"source": "s.io/x", "mirrors": ["m.corp.io/x", "n.io"]}],
        "sources": {"insecureRegistries": ["*.corp.io", "s.io"], "blockedRegistries": ["b.corp.io"]}}""")
    )
    rules = {rule.prefix: rule for rule in routes.rules}
    assert sorted(rules) == ["*.corp.io", "b.corp.io", "s.io", "s.io/x"]
    assert [place.insecure for place in rules["s.io/x"].places] == [True, False, True]
    assert all(rule.places[-1].insecure for rule in rules.values())
    assert [prefix for prefix, rule in rules.items() if rule.is_blocked] == ["b.corp.io"]


def test_order_of_objects_does_not_matter() -> None:
    """Neither names nor ages of the objects do, as the merge is by what they say."""
    lists = [("a.io", "b.io"), ("c.io", "a.io"), ("d.io",), ("b.io", "e.io")]
    rules = {
        routes_of(MirrorObjects(digest_mirrors=tuple(SourceMirrors("s.io", each) for each in order))).rules
        for order in itertools.permutations(lists)
    }
    [[rule]] = rules
    assert [place.location for place in rule.places] == ["a.io", "b.io", "e.io", "c.io", "d.io", "s.io"]
    [rule] = routes_of(MirrorObjects(digest_mirrors=(SourceMirrors("s.io", ("b.io", "a.io", "b.io")),))).rules
    assert [place.location for place in rule.places] == ["b.io", "a.io", "s.io"]


def test_names_without_a_registry_are_searched_in_order() -> None:
    """In Red Hat's registry and Docker Hub, unless the image configuration names others."""
    short = ImageReference("", "app", "1", "")
    mirrors = OpenShiftMirrors(RegistryTrust())
    mirrors.update(MirrorObjects())
    assert [each.name for each in mirrors.endpoints_for(short)] == ["registry.access.redhat.com", "docker.io"]
    mirrors.update(objects_of('{"sources": {"containerRuntimeSearchRegistries": ["a.io"]}}'))
    assert [each.name for each in mirrors.endpoints_for(short)] == ["a.io"]
    mirrors.update(objects_of('{"sources": {"blockedRegistries": ["registry.access.redhat.com"]}}'))
    assert [each.name for each in mirrors.endpoints_for(short)] == ["docker.io"]
    mirrors.update(objects_of('{"sources": {"allowedRegistries": ["b.io"]}}'))
    with pytest.raises(AddressRefused, match="does not allow it"):
        mirrors.endpoints_for(short)


@pytest.mark.parametrize(
    ("logins", "login"),
    [
        ({}, []),
        ({"quay.io": ("source", "s")}, []),  # the image's own registry is another
        ({"m.io": ("host", "h")}, []),  # of another port
        ({"*:5000": ("glob", "g")}, []),
        ({"m.io:5000": ("host", "h"), "quay.io": ("source", "s")}, [("host", "h")]),
        ({"m.io:5000": ("host", "h"), "m.io:5000/q/team": ("team", "t")}, [("team", "t")]),
        ({"m.io:5000": ("host", "h"), "m.io:5000/q/te": ("other", "o")}, [("host", "h")]),
    ],
)
def test_mirror_has_the_login_that_nodes_have_for_it(
    logins: dict[str, tuple[str, str]], login: list[tuple[str, str]]
) -> None:
    """The one of the longest name; never that of the image's own registry, or of a pattern."""
    mirrors = OpenShiftMirrors(RegistryTrust())
    mirrors.update(MirrorObjects(trust=NodeTrust(logins=logins)))
    found = mirrors.credentials_for(parse_reference("m.io:5000/q/team/app:1"))
    assert [(each.username, each.password) for each in found] == login
