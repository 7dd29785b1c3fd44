"""Which images a pod names, what an answer means for each, and whether together they fit a platform."""

import pytest

from extender.images.content import Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Platform, parse_platform
from extender.kubernetes.core_v1 import Pod
from extender.placement.facts import (
    Anywhere,
    ImageFact,
    Pending,
    PodImage,
    Role,
    RunsOn,
    RuntimeClass,
    Unknown,
    fact_of,
    images_of,
)
from tests.builders import Json, decoded, index

AMD64, ARM64 = parse_platform("linux/amd64"), parse_platform("linux/arm64")
BOTH = frozenset({AMD64, ARM64})
CONTAINER, VOLUME, NEVER = PodImage("i"), PodImage("i", Role.VOLUME), PodImage("i", Role.CONTAINER, "Never")
DATA = PodImage("i", Role.DATA)
INDEX = index("linux/amd64", "linux/arm64")
MANIFEST = Content(Kind.MANIFEST, frozenset({AMD64}), states_platforms=False)
SILENT_INDEX = Content(Kind.INDEX, frozenset({AMD64}), states_platforms=False)
ARTIFACT = Content(Kind.ARTIFACT, frozenset(), states_platforms=False)
BUNDLE = Content(Kind.DATA, frozenset(), states_platforms=False)
STATING_MANIFEST = Content(Kind.MANIFEST, BOTH, states_platforms=True)
WORDLESS = Content(Kind.MANIFEST, frozenset(), states_platforms=False)
NO_PROGRAM = "it is an artifact, not an image that a container can run"
NO_NODE = Content(Kind.INDEX, frozenset(), states_platforms=True)
NEEDS_FEATURES = RunsOn(frozenset(), "any node (its entries need os.features)")
NO_WORD = "its configuration names no platform that is known"
ON_BOTH, ON_AMD64, ON_ARM64 = RunsOn(BOTH), RunsOn(frozenset({AMD64})), RunsOn(frozenset({ARM64}))


def pod_of(spec: Json | None) -> Pod:
    return decoded({"spec": spec}, Pod)


def test_all_images_of_a_pod_are_named_in_pod_order() -> None:
    """Containers, init containers (sidecars too), ephemeral containers, then image volumes."""
    volumes: list[Json] = [
        {"emptyDir": {}},
        {"image": {"reference": "v:1", "pullPolicy": "Never"}},
        {"image": {"reference": ""}},
    ]
    spec = {
        "volumes": [{"name": "a", **volume} for volume in (*volumes, {"image": {}})],
        "ephemeralContainers": [{"image": "e:1"}],
        "initContainers": [{"image": "i:1", "restartPolicy": "Always"}],
        "containers": [{"image": "c:1", "imagePullPolicy": "Always"}, {"name": "no-image"}],
    }
    assert images_of(pod_of(spec)) == (
        PodImage("c:1", Role.CONTAINER, "Always"),
        PodImage(""),
        PodImage("i:1"),
        PodImage("e:1"),
        PodImage("v:1", Role.VOLUME, "Never"),
    )


def test_an_image_named_twice_the_same_way_counts_once() -> None:
    """But another pull policy or role is another question. A pod without lists has none."""
    containers = [{"image": "c:1"}, {"image": "c:1"}, {"image": "c:1", "imagePullPolicy": "Never"}]
    images = images_of(pod_of({"containers": containers, "volumes": [{"image": {"reference": "c:1"}}]}))
    assert images == (PodImage("c:1"), PodImage("c:1", Role.CONTAINER, "Never"), PodImage("c:1", Role.VOLUME))
    assert images_of(pod_of(None)) == images_of(pod_of({})) == images_of(pod_of({"containers": None})) == ()


def test_every_image_of_a_pod_is_its_runtimes_and_its_systems() -> None:
    """Image volumes too: what the operator says of the RuntimeClass counts for all that the pod pulls."""
    wasm = RuntimeClass("wasm", BOTH)
    containers: list[Json] = [{"image": "c:1"}, {"image": "c:2", "command": ["/run"]}]
    spec: Json = {
        "runtimeClassName": "wasm", "os": {"name": "linux"}, "containers": containers,
        "initContainers": [{"image": "i:1"}], "ephemeralContainers": [{"image": "e:1"}],
        "volumes": [{"image": {"reference": "v:1"}}],
    }  # fmt: skip
    found = images_of(pod_of(spec), {"wasm": wasm, "other": RuntimeClass("other", frozenset())})
    assert [(each.reference, each.os, each.runtime) for each in found] == [
        (name, "linux", wasm) for name in ("c:1", "c:2", "i:1", "e:1", "v:1")
    ]
    assert {each.has_handler for each in found} == {False}
    unnamed = images_of(pod_of({**spec, "runtimeClassName": "none"}), {"wasm": wasm})
    assert {(each.runtime, each.has_handler) for each in unnamed} == {(None, True)}


MOUNTS = {
    "util": "/util", "util2": "/scripts/util/", "util3": "/file", "claim": "/claimed", "texts": "/scripts",
    "relative": "relative", "dotted": "/x/../dotted", "texts2": "/util/scripts", "keys": "/keys", "joined": "/joined",
    "info": "/info",
}  # fmt: skip
VOLUMES: list[Json] = [
    *({"name": name, "emptyDir": {}} for name in ("util", "util2", "util3")),
    *({"name": name, "configMap": {"name": "a"}} for name in ("texts", "texts2")),
    {"name": "keys", "secret": {"secretName": "a"}},
    {"name": "joined", "projected": {"sources": []}},
    {"name": "info", "downwardAPI": {}},
]
FROM_VOLUME: dict[str, Json] = {
    "a copier of an init container": {"command": ["/util/cpb", "/bundle"]},
    "a path with dots": {"command": ["/util/bin/../cpb"]},
    "a path with more slashes": {"command": ["//util//cpb"]},
    "a mount of one file": {"command": ["/file"]},
    "from the working folder": {"command": ["bin/cpb"], "workingDir": "/util"},
    "a volume of a template of claims": {"command": ["/claimed/tool"]},
    "a mount by a relative path": {"command": ["/relative/tool"]},
    "a mount by a path with dots": {"command": ["/dotted/tool"]},
    "a volume within one of a ConfigMap": {"command": ["/scripts/util/cpb"]},
}
FROM_IMAGE: dict[str, Json] = {
    "out of the mount again": {"command": ["/util/../bin/sh"]},
    "only the beginning of the name": {"command": ["/utilities/cpb"]},
    "the image's shell": {"command": ["/bin/sh", "/util/run"]},
    "from the search path": {"command": ["cpb"]},
    "from the image's working folder": {"command": ["bin/cpb"]},
    "a variable": {"command": ["$(TOOLS)/cpb"]},
    "arguments for the image's program": {"args": ["/util/cpb"]},
    "an empty command": {"command": []},
    "a script of a ConfigMap": {"command": ["/scripts/run.sh"]},
    "of a Secret": {"command": ["/keys/run"]},
    "of several": {"command": ["/joined/run"]},
    "of the pod's own fields": {"command": ["/info/run"]},
    "of a ConfigMap within a volume": {"command": ["/util/scripts/run.sh"]},
}
ROLES = {Role.DATA: FROM_VOLUME, Role.CONTAINER: FROM_IMAGE}


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_a_container_whose_program_comes_from_a_volume_uses_its_image_as_data(kind: str) -> None:
    """The program that its own command names must stand in a volume that can hold one."""
    mounts = [{"name": name, "mountPath": path} for name, path in MOUNTS.items()]
    for role, what, container in ((role, *each) for role, rows in ROLES.items() for each in rows.items()):
        spec = {"volumes": VOLUMES, kind: [{"image": "i", "volumeMounts": mounts, **container}]}
        assert images_of(pod_of(spec)) == (PodImage("i", role),), what


@pytest.mark.parametrize(
    ("image", "answer", "fact"),
    [
        pytest.param(CONTAINER, INDEX, RunsOn(BOTH), id="index"),
        pytest.param(CONTAINER, MANIFEST, ON_AMD64, id="manifest"),
        pytest.param(CONTAINER, SILENT_INDEX, ON_AMD64, id="silent index"),
        pytest.param(VOLUME, INDEX, RunsOn(BOTH), id="volume, index"),
        pytest.param(VOLUME, MANIFEST, Anywhere(), id="volume, manifest"),
        pytest.param(VOLUME, STATING_MANIFEST, Anywhere(), id="volume, stating manifest"),
        pytest.param(VOLUME, SILENT_INDEX, Anywhere(), id="volume, silent index"),
        pytest.param(VOLUME, ARTIFACT, Anywhere(), id="volume, artifact"),
        pytest.param(NEVER, MANIFEST, ON_AMD64, id="never pulled, but known"),
        pytest.param(DATA, INDEX, RunsOn(BOTH), id="data, index"),
        pytest.param(DATA, MANIFEST, Anywhere(), id="data, manifest"),
        pytest.param(DATA, SILENT_INDEX, Anywhere(), id="data, silent index"),
        pytest.param(CONTAINER, BUNDLE, Anywhere(), id="bundle"),
        pytest.param(DATA, BUNDLE, Anywhere(), id="data, bundle"),
        pytest.param(CONTAINER, ARTIFACT, Unknown(Cause.ARTIFACT, NO_PROGRAM), id="artifact"),
        pytest.param(DATA, ARTIFACT, Unknown(Cause.ARTIFACT, NO_PROGRAM), id="data, artifact"),
        pytest.param(CONTAINER, NO_NODE, NEEDS_FEATURES, id="entries that need features alone"),
        pytest.param(VOLUME, NO_NODE, NEEDS_FEATURES, id="volume, entries that need features alone"),
        pytest.param(CONTAINER, WORDLESS, Unknown(Cause.UNSUPPORTED, NO_WORD), id="a platform that is no word"),
    ],
)
def test_content_says_where_an_image_runs(image: PodImage, answer: Content, fact: ImageFact) -> None:
    """Data constrains only by an index that states platforms, since it is pulled; a program by what it is for."""
    assert fact_of(image, answer, may_be_pending=True) == fact


HANDLED = PodImage("c", has_handler=True)
WASM = [parse_platform(text) for text in ("wasi/wasm", "wasip1/wasm", "js/wasm", "wasi/wasm32")]


@pytest.mark.parametrize("platform", WASM, ids=str)
def test_a_platform_that_no_node_has_is_not_known_where_a_runtime_may_run_it(platform: Platform) -> None:
    """Nodes look at no single manifest, and match an index, unless a RuntimeClass of which nothing is said runs it."""
    alone, beside = frozenset({platform}), frozenset({platform}) | BOTH
    index, mixed = (Content(Kind.INDEX, each, states_platforms=True) for each in (alone, beside))
    manifest = Content(Kind.MANIFEST, alone, states_platforms=False)
    for image, content in ((HANDLED, index), (HANDLED, manifest), (CONTAINER, manifest)):
        fact = fact_of(image, content, may_be_pending=True)
        assert isinstance(fact, Unknown)
        assert fact.cause is Cause.UNSUPPORTED
        assert "placement.runtime_classes" in fact.detail
    for image, content in ((CONTAINER, index), (HANDLED, mixed), (CONTAINER, mixed)):
        assert fact_of(image, content, may_be_pending=True) == RunsOn(content.platforms)
    volume = PodImage("v", Role.VOLUME, has_handler=True)
    assert fact_of(volume, index, may_be_pending=True) == RunsOn(alone)


def test_a_failure_is_pending_only_if_it_may_mend_and_the_pod_is_young() -> None:
    """After the limit the same failure is unknown, with the same cause. A lookup under way has a name too."""
    may_mend = {Cause.LOOKING_UP, Cause.MISSING, Cause.THROTTLED, Cause.UNAVAILABLE}
    for cause in Cause:
        young, old = (fact_of(CONTAINER, Failure(cause, "why"), may_be_pending=may) for may in (True, False))
        assert young == (Pending if cause in may_mend else Unknown)(cause, "why")
        assert old == Unknown(cause, "why")
    fact = fact_of(CONTAINER, None, may_be_pending=True)
    assert isinstance(fact, Pending)
    assert fact.cause is Cause.LOOKING_UP


def test_an_image_that_is_never_pulled_is_unknown_for_that_reason() -> None:
    for answer in (None, Failure(Cause.MISSING, "no such tag"), Failure(Cause.DENIED, "no")):
        fact = fact_of(NEVER, answer, may_be_pending=True)
        assert isinstance(fact, Unknown)
        assert fact.cause is Cause.NEVER_PULLED
