"""OpenShift's objects: what is refused of them, flags of nested scopes, and names without a registry."""

import itertools

import msgspec
import pytest

from extender.errors import AddressRefused, ConfigError, RegistryNotAsked
from extender.images.reference import ImageReference, parse_reference
from extender.kubernetes.openshift_v1 import MirrorObjects, NodeTrust, SourceMirrors
from extender.registry.endpoint_tls import RegistryTrust
from extender.registry.openshift import OpenShiftMirrors, routes_of
from extender.watched_files import RELOADS, FileSetting

NEVER = "NeverContactSource"
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
