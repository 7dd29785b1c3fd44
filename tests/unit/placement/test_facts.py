"""Which images a pod names, what an answer means for each, and whether together they fit a platform."""

from itertools import permutations

import msgspec
import pytest

from extender.images.content import RETRYABLE, Answer, Cause, Content, Failure, judged
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, parse_platform
from extender.images.platform_states import DeniedPlatform, PlatformState
from extender.kubernetes.core_v1 import Pod
from extender.placement.facts import (
    Anywhere,
    Fit,
    ImageFact,
    Pending,
    PodImage,
    Role,
    RunsOn,
    Unknown,
    fact_of,
    fit,
    images_of,
)

AMD64, ARM64 = parse_platform("linux/amd64"), parse_platform("linux/arm64")
BOTH = frozenset({AMD64, ARM64})


def test_all_images_of_a_pod_are_named_in_pod_order() -> None:
    """Containers, init containers (sidecars too), ephemeral containers, then image volumes."""
    pod = msgspec.json.decode(
        b'{"spec":{"volumes":[{"name":"a","emptyDir":{}},{"name":"b","image":{"reference":"v:1","pullPolicy":"Never"}},'
        b'{"name":"c","image":{"reference":""}},{"name":"d","image":{}}],'
        b'"ephemeralContainers":[{"image":"e:1"}],"initContainers":[{"image":"i:1","restartPolicy":"Always"}],'
        b'"containers":[{"image":"c:1","imagePullPolicy":"Always"},{"name":"no-image"}]}}',
        type=Pod,
    )
    assert images_of(pod) == (
        PodImage("c:1", Role.CONTAINER, "Always"),
        PodImage(""),
        PodImage("i:1"),
        PodImage("e:1"),
        PodImage("v:1", Role.VOLUME, "Never"),
    )


def test_an_image_named_twice_the_same_way_counts_once() -> None:
    """But another pull policy or role is another question."""
    pod = msgspec.json.decode(
        b'{"spec":{"containers":[{"image":"c:1"},{"image":"c:1"},{"image":"c:1","imagePullPolicy":"Never"}],'
        b'"volumes":[{"image":{"reference":"c:1"}}]}}',
        type=Pod,
    )
    assert images_of(pod) == (
        PodImage("c:1"),
        PodImage("c:1", Role.CONTAINER, "Never"),
        PodImage("c:1", Role.VOLUME),
    )


@pytest.mark.parametrize("body", [b"{}", b'{"spec":null}', b'{"spec":{}}', b'{"spec":{"containers":null}}'])
def test_a_pod_without_lists_has_no_images(body: bytes) -> None:
    """Odd pods are pods."""
    assert images_of(msgspec.json.decode(body, type=Pod)) == ()


@pytest.mark.parametrize(
    ("container", "role"),
    [
        pytest.param({"command": ["/util/cpb", "/bundle"]}, Role.DATA, id="a copier of an init container"),
        pytest.param({"command": ["/util/bin/../cpb"]}, Role.DATA, id="a path with dots"),
        pytest.param({"command": ["//util//cpb"]}, Role.DATA, id="a path with more slashes"),
        pytest.param({"command": ["/file"]}, Role.DATA, id="a mount of one file"),
        pytest.param({"command": ["bin/cpb"], "workingDir": "/util"}, Role.DATA, id="from the working folder"),
        pytest.param({"command": ["/claimed/tool"]}, Role.DATA, id="a volume of a template of claims"),
        pytest.param({"command": ["/relative/tool"]}, Role.DATA, id="a mount by a relative path"),
        pytest.param({"command": ["/dotted/tool"]}, Role.DATA, id="a mount by a path with dots"),
        pytest.param({"command": ["/util/../bin/sh"]}, Role.CONTAINER, id="out of the mount again"),
        pytest.param({"command": ["/utilities/cpb"]}, Role.CONTAINER, id="only the beginning of the name"),
        pytest.param({"command": ["/bin/sh", "/util/run"]}, Role.CONTAINER, id="the image's shell"),
        pytest.param({"command": ["cpb"]}, Role.CONTAINER, id="from the search path"),
        pytest.param({"command": ["bin/cpb"]}, Role.CONTAINER, id="from the image's working folder"),
        pytest.param({"command": ["$(TOOLS)/cpb"]}, Role.CONTAINER, id="a variable"),
        pytest.param({"args": ["/util/cpb"]}, Role.CONTAINER, id="arguments for the image's program"),
        pytest.param({"command": []}, Role.CONTAINER, id="an empty command"),
        pytest.param({"command": ["/scripts/run.sh"]}, Role.CONTAINER, id="a script of a ConfigMap"),
        pytest.param({"command": ["/keys/run"]}, Role.CONTAINER, id="of a Secret"),
        pytest.param({"command": ["/joined/run"]}, Role.CONTAINER, id="of several"),
        pytest.param({"command": ["/info/run"]}, Role.CONTAINER, id="of the pod's own fields"),
        pytest.param({"command": ["/util/scripts/run.sh"]}, Role.CONTAINER, id="of a ConfigMap within a volume"),
        pytest.param({"command": ["/scripts/util/cpb"]}, Role.DATA, id="and the other way round"),
    ],
)
def test_a_container_whose_program_comes_from_a_volume_uses_its_image_as_data(
    container: dict[str, object], role: Role
) -> None:
    """The program that its own command names must stand in a volume that can hold one."""
    mounts = {
        "util": "/util", "util2": "/scripts/util/", "util3": "/file", "claim": "/claimed", "texts": "/scripts",
        "relative": "relative", "dotted": "/x/../dotted",
        "texts2": "/util/scripts", "keys": "/keys", "joined": "/joined", "info": "/info",
    }  # fmt: skip
    volumes = [
        *({"name": name, "emptyDir": {}} for name in ("util", "util2", "util3")),
        *({"name": name, "configMap": {"name": "a"}} for name in ("texts", "texts2")),
        {"name": "keys", "secret": {"secretName": "a"}},
        {"name": "joined", "projected": {"sources": []}},
        {"name": "info", "downwardAPI": {}},
    ]
    mounted = [{"name": name, "mountPath": path} for name, path in mounts.items()]
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        spec = {"volumes": volumes, kind: [{"image": "i", "volumeMounts": mounted, **container}]}
        assert images_of(msgspec.json.decode(msgspec.json.encode({"spec": spec}), type=Pod)) == (PodImage("i", role),)


def test_a_disk_of_kubevirt_is_data() -> None:
    """virt-launcher's pods serve each disk with a program that they mount over the image's."""
    disk = {
        "image": "disk:1",
        "command": ["/usr/bin/container-disk"],
        "args": ["--copy-path", "/var/run/kubevirt/container-disks/disk_0"],
        "volumeMounts": [{"name": "virt-bin-share-dir", "mountPath": "/usr/bin"}],
    }
    launcher = {"image": "virt-launcher:1", "command": ["/usr/bin/virt-launcher-monitor"]}
    spec = {"volumes": [{"name": "virt-bin-share-dir", "emptyDir": {}}], "containers": [launcher, disk]}
    images = images_of(msgspec.json.decode(msgspec.json.encode({"spec": spec}), type=Pod))
    assert images == (PodImage("virt-launcher:1"), PodImage("disk:1", Role.DATA))


CONTAINER, VOLUME, NEVER = PodImage("i"), PodImage("i", Role.VOLUME), PodImage("i", Role.CONTAINER, "Never")
DATA = PodImage("i", Role.DATA)
INDEX = Content(Kind.INDEX, BOTH, states_platforms=True)
MANIFEST = Content(Kind.MANIFEST, frozenset({AMD64}), states_platforms=False)
SILENT_INDEX = Content(Kind.INDEX, frozenset({AMD64}), states_platforms=False)
ARTIFACT = Content(Kind.ARTIFACT, frozenset(), states_platforms=False)
BUNDLE = Content(Kind.DATA, frozenset(), states_platforms=False)
MISSING = judged(INDEX, [DeniedPlatform(ARM64, PlatformState.MISSING)], ())


@pytest.mark.parametrize(
    ("image", "answer", "fact"),
    [
        (CONTAINER, INDEX, RunsOn(BOTH)),
        (CONTAINER, MANIFEST, RunsOn(frozenset({AMD64}))),
        (CONTAINER, SILENT_INDEX, RunsOn(frozenset({AMD64}))),
        (VOLUME, INDEX, RunsOn(BOTH)),
        (VOLUME, MANIFEST, Anywhere()),
        (VOLUME, Content(Kind.MANIFEST, BOTH, states_platforms=True), Anywhere()),
        (VOLUME, SILENT_INDEX, Anywhere()),
        (VOLUME, ARTIFACT, Anywhere()),
        (NEVER, MANIFEST, RunsOn(frozenset({AMD64}))),
        (DATA, INDEX, RunsOn(BOTH)),
        (DATA, MANIFEST, Anywhere()),
        (DATA, SILENT_INDEX, Anywhere()),
        (CONTAINER, BUNDLE, Anywhere()),
        (DATA, BUNDLE, Anywhere()),
        (DATA, MISSING, RunsOn(frozenset({AMD64}), denied=MISSING.denied)),
    ],
    ids=[
        "index", "manifest", "silent-index", "volume-index", "volume-manifest", "volume-stating-manifest",
        "volume-silent-index", "volume-artifact", "never-but-known", "data-index", "data-manifest", "data-silent-index",
        "bundle", "bundle-as-data", "data-missing",
    ],
)  # fmt: skip
def test_content_says_where_an_image_runs(image: PodImage, answer: Content, fact: ImageFact) -> None:
    """Data constrains only by an index that states platforms, since it is pulled; a program by what it is for."""
    assert fact_of(image, answer, may_be_pending=True) == fact


def test_a_single_image_whose_platform_is_no_word_is_unknown() -> None:
    """Nothing is refused by it, and nothing is added to pods."""
    fact = fact_of(CONTAINER, Content(Kind.MANIFEST, frozenset(), states_platforms=False), may_be_pending=True)
    assert fact == Unknown(Cause.UNSUPPORTED, "its configuration names no platform that is known")
    assert fit([fact], ARM64, Compatibility()) is Fit.UNRESOLVED
    assert fact_of(DATA, ARTIFACT, may_be_pending=True) == fact_of(CONTAINER, ARTIFACT, may_be_pending=True)


def test_an_artifact_as_a_containers_image_is_unknown() -> None:
    """It has no platform, and nothing in it says where it could run."""
    fact = fact_of(CONTAINER, ARTIFACT, may_be_pending=True)
    assert isinstance(fact, Unknown)
    assert fact.cause is Cause.ARTIFACT


@pytest.mark.parametrize("cause", Cause)
def test_a_failure_is_pending_only_if_it_may_mend_and_the_pod_is_young(cause: Cause) -> None:
    """After the limit the same failure is unknown, with the same cause."""
    failure = Failure(cause, "some sentence")
    young, old = (fact_of(CONTAINER, failure, may_be_pending=may) for may in (True, False))
    assert young == (Pending if cause in RETRYABLE else Unknown)(cause, "some sentence")
    assert old == Unknown(cause, "some sentence")


def test_no_answer_yet_is_pending_with_a_cause() -> None:
    """A lookup under way has a name too."""
    fact = fact_of(CONTAINER, None, may_be_pending=True)
    assert isinstance(fact, Pending)
    assert fact.cause is Cause.LOOKING_UP


@pytest.mark.parametrize("answer", [None, Failure(Cause.MISSING, "no such tag"), Failure(Cause.DENIED, "no")])
def test_an_image_that_is_never_pulled_is_unknown_for_that_reason(answer: Answer) -> None:
    """Whether a registry has it does not matter: the node's own copy decides."""
    fact = fact_of(NEVER, answer, may_be_pending=True)
    assert isinstance(fact, Unknown)
    assert fact.cause is Cause.NEVER_PULLED


ON_BOTH, ON_AMD64, ON_ARM64 = RunsOn(BOTH), RunsOn(frozenset({AMD64})), RunsOn(frozenset({ARM64}))
PENDING, UNKNOWN = Pending(Cause.LOOKING_UP, "…"), Unknown(Cause.DENIED, "…")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ((), Fit.YES),
        ((ON_BOTH, ON_AMD64, Anywhere()), Fit.YES),
        ((ON_BOTH, ON_ARM64), Fit.NO),
        ((ON_BOTH, PENDING), Fit.UNRESOLVED),
        ((ON_BOTH, UNKNOWN), Fit.UNRESOLVED),
        ((ON_ARM64, PENDING, UNKNOWN), Fit.NO),
    ],
    ids=["no-images", "all-run", "one-does-not", "pending", "unknown", "no-beats-unresolved"],
)
def test_fit_does_not_depend_on_the_order_of_images(facts: tuple[ImageFact, ...], expected: Fit) -> None:
    """One known *no* decides whatever else is unknown; *yes* needs all."""
    assert {fit(order, AMD64, Compatibility()) for order in permutations(facts)} == {expected}


LIE = DeniedPlatform(ARM64, PlatformState.REFUTED, "/app", "x86-64")
LIAR = judged(Content(Kind.INDEX, BOTH, states_platforms=True), [LIE], [])


def test_what_an_image_claims_falsely_is_a_no() -> None:
    """Also of an image that has no platform left, as a container's and as a volume's."""
    nowhere = judged(LIAR, [DeniedPlatform(AMD64, PlatformState.MISSING)], [])
    for role in Role:
        fact = fact_of(PodImage("app:1", role), LIAR, may_be_pending=True)
        assert fact == RunsOn(frozenset({AMD64}), denied=(LIE,))
        assert [fit([fact], each, Compatibility()) for each in (AMD64, ARM64)] == [Fit.YES, Fit.NO]
        none = fact_of(PodImage("app:1", role), nowhere, may_be_pending=True)
        assert [fit([none], each, Compatibility()) for each in (AMD64, ARM64)] == [Fit.NO, Fit.NO]


def test_claims_of_other_systems_are_not_the_pods() -> None:
    """A pod for Windows is told nothing of Linux."""
    fact = fact_of(PodImage("app:1", os="windows"), LIAR, may_be_pending=True)
    assert fact == RunsOn(frozenset(), "windows (spec.os.name)")
