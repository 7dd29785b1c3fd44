"""Whom nodes ask for an image, by example."""

from pathlib import Path
from typing import NamedTuple

import pytest

from extender.errors import RegistryError
from extender.images.reference import parse_reference
from extender.registry.endpoint import EndpointSource
from extender.registry.mirror_files import MirrorFiles

D = f"sha256:{'d' * 64}"


class Example(NamedTuple):
    """`asked` has each `host/path`; of the k3s examples with `?ns=` and the registry behind it where that is sent."""

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
    # Others, which differ from one of them in one thing; of CRI-O, the differential test has more.
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
    # Others, which differ from one of them in one thing; of CRI-O, the differential test has more.
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
