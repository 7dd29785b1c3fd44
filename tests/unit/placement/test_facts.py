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


CONTAINER, VOLUME, NEVER = PodImage("i"), PodImage("i", Role.VOLUME), PodImage("i", Role.CONTAINER, "Never")
INDEX = Content(Kind.INDEX, BOTH, states_platforms=True)
MANIFEST = Content(Kind.MANIFEST, frozenset({AMD64}), states_platforms=False)
SILENT_INDEX = Content(Kind.INDEX, frozenset({AMD64}), states_platforms=False)
ARTIFACT = Content(Kind.ARTIFACT, frozenset(), states_platforms=False)


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
    ],
    ids=[
        "index", "manifest", "silent-index", "volume-index", "volume-manifest", "volume-stating-manifest",
        "volume-silent-index", "volume-artifact", "never-but-known",
    ],
)  # fmt: skip
def test_content_says_where_an_image_runs(image: PodImage, answer: Content, fact: ImageFact) -> None:
    """A volume constrains only by an index that states platforms; a container by whatever it was built for."""
    assert fact_of(image, answer, may_be_pending=True) == fact


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
