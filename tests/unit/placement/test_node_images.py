"""Images that nodes list: by which names they count, and which nodes stay eligible by them."""

import json
from collections.abc import Sequence

import pytest

from extender.images.content import RETRYABLE, UNANSWERED, Cause, Content, Failure
from extender.images.platform import parse_platform
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import decode_args
from extender.placement.annotations import Choice, Overrides
from extender.placement.facts import PodImage, Unknown, facts_of
from extender.placement.node_images import NodeImages
from extender.placement.nodes import NodePlatforms
from extender.placement.policy import Policy
from extender.placement.scheduling import DecidedAnswer, Decision, Verdict, filter_nodes
from tests.builders import index

DIGEST = f"sha256:{'d' * 64}"
APP = PodImage("app:1", pull_policy="IfNotPresent")
GONE, DOWN = Failure(Cause.MISSING, "404"), Failure(Cause.UNAVAILABLE, "no address")
ASKED = Failure(Cause.LOOKING_UP, "not yet")
RETRYING = Policy(pending=Choice.RETRY)
AMD = index("linux/amd64")
LISTED = [
    ("app:1", "IfNotPresent"), ("docker.io/library/app:1", "Never"), ("app:1", ""),
    ("quay.io/team/app", "IfNotPresent"), (f"app:9@{DIGEST}", "IfNotPresent"),
]  # fmt: skip
UNLISTED = [
    ("app:1", "Always"), ("app:2", "IfNotPresent"), ("other.io/app:1", "IfNotPresent"), ("quay.io/team/app", ""),
    (f"app@{DIGEST.replace('d', 'e')}", "IfNotPresent"), ("Not An Image", "IfNotPresent"),
]  # fmt: skip


def test_names_by_which_a_copy_counts() -> None:
    """The full name with tag or digest, as kubelets list it, unless the kubelet asks the registry in any case."""
    images = NodeImages()
    names = ["docker.io/library/app:1", f"docker.io/library/app@{DIGEST}", "quay.io/team/app:latest"]
    images.put(NodeName("a"), names)
    for rows, is_listed in ((LISTED, True), (UNLISTED, False)):
        for reference, pull_policy in rows:
            assert images.lists(PodImage(reference, pull_policy=pull_policy)) is is_listed, (reference, pull_policy)


def test_nodes_come_and_go() -> None:
    """A node counts for what it lists now, and for nothing once it is gone; all of a pod's images must be there."""
    images, other = NodeImages(), PodImage("other:1", pull_policy="Never")
    images.put(NodeName("a"), ["docker.io/library/app:1", "docker.io/library/other:1"])
    images.put(NodeName("b"), ["docker.io/library/app:1"])
    assert images.nodes_with([APP]) == {"a", "b"}
    assert images.nodes_with([APP, other]) == {"a"}
    images.put(NodeName("a"), [])
    assert images.nodes_with([APP]) == {"b"}
    images.drop(NodeName("b"))
    images.put(NodeName("c"), ["docker.io/library/other:1"])
    assert not images.lists(APP)
    assert images.nodes_with([other]) == {"c"}


def test_what_is_kept_is_bounded() -> None:
    """A node that lists more than kubelets do, and names that nobody has, take no memory."""
    images = NodeImages()
    images.put(NodeName("a"), (f"docker.io/library/n{number}:1" for number in range(10_000)))
    assert images.lists(PodImage("n249:1", pull_policy="Never"))
    assert not images.lists(PodImage("n250:1", pull_policy="Never"))
    images.put(NodeName("b"), ["x" * 10_000])
    assert images.nodes_with([PodImage("x" * 10_000)]) == frozenset()
    for node in range(100):
        images.put(NodeName(f"c{node}"), (f"docker.io/library/m{node}-{number}:1" for number in range(250)))
    assert images.lists(PodImage("m10-1:1", pull_policy="Never"))
    assert not images.lists(PodImage("m99-1:1", pull_policy="Never"))


def filtered(
    answers: Sequence[Content | Failure],
    listing: Sequence[str],
    images: Sequence[PodImage] = (APP,),
    policy: Policy = RETRYING,
) -> DecidedAnswer[object]:
    """What filter answers about nodes a, b (amd64) and c (arm64), of which some list docker.io/library/app:1."""
    nodes = NodePlatforms({NodeName(name): parse_platform(f"linux/{arch}")
                           for name, arch in (("a", "amd64"), ("b", "amd64"), ("c", "arm64"))})  # fmt: skip
    for name in listing:
        nodes.images.put(NodeName(name), ["docker.io/library/app:1"])
    decision = Decision(images, facts_of(images, answers, may_be_pending=True), policy, Overrides())
    args = decode_args(json.dumps({"Pod": {}, "NodeNames": ["a", "b", "c"]}).encode())
    return filter_nodes(args, nodes, decision)  # type: ignore[return-value]


def names_of(decided: DecidedAnswer[object]) -> list[str] | str:
    result = decided.answer
    error = getattr(result, "error", "")
    return error or json.loads(bytes(getattr(result, "node_names", b"null")))


def test_nodes_that_list_an_image_stay_where_no_registry_answers() -> None:
    """Without a wait, and whatever their platform; those that do not list it are not refused, only not asked for.

    Where none lists it the pod waits as ever, and so it does while a registry is asked.
    """
    for failure in (GONE, DOWN):
        decided = filtered([failure], ["b", "c"])
        assert names_of(decided) == ["b", "c"]
        assert decided.removed == {Verdict.LEFT_OUT: 1}
    assert "app" in names_of(filtered([DOWN], []))
    assert "app" in names_of(filtered([ASKED], ["a"]))


@pytest.mark.parametrize("answer", [GONE, ASKED, AMD], ids=["missing", "asked", "known"])
def test_image_that_is_never_pulled_goes_where_it_is(answer: Content | Failure) -> None:
    """While a node that could take the pod lists it, since it fails elsewhere; what is known decides alone."""
    never = PodImage("app:1", pull_policy="Never")
    known = answer is AMD
    assert names_of(filtered([answer], ["b", "c"], (never,))) == (["a", "b"] if known else ["b", "c"])
    assert names_of(filtered([answer], [], (never,))) == (["a", "b"] if known else ["a", "b", "c"])
    assert names_of(filtered([answer, AMD], ["c"], (never, PodImage("known:1")))) == ["a", "b"]


@pytest.mark.parametrize("cause", sorted(UNANSWERED - RETRYABLE))
def test_an_image_that_nobody_may_be_asked_for_goes_where_it_is(cause: Cause) -> None:
    """As a missing one does, whether it would pass or be tried again; where none lists it, it passes."""
    failure = Failure(cause, "x")
    for policy in (Policy(), Policy(unknown=Choice.RETRY)):
        assert names_of(filtered([failure], ["b", "c"], policy=policy)) == ["b", "c"]
        assert names_of(filtered([failure, AMD], ["b", "c"], (APP, PodImage("known:1")), policy=policy)) == ["b"]
    assert names_of(filtered([failure], [])) == ["a", "b", "c"]
    listed = NodeImages()
    listed.put(NodeName("a"), ["docker.io/library/app:1"])
    [fact] = facts_of([APP], [failure], may_be_pending=True, lists=listed.lists)
    assert isinstance(fact, Unknown)
    assert fact.cause is Cause.ON_NODES
    [elsewhere] = facts_of([PodImage("app:2")], [failure], may_be_pending=True, lists=listed.lists)
    assert isinstance(elsewhere, Unknown)
    assert elsewhere.cause is cause


@pytest.mark.parametrize("cause", [Cause.ARTIFACT, Cause.INVALID, Cause.INVALID_REFERENCE, Cause.UNSUPPORTED])
def test_a_list_says_nothing_of_what_a_registry_has_answered(cause: Cause) -> None:
    assert names_of(filtered([Failure(cause, "x")], ["b"])) == ["a", "b", "c"]


def test_a_list_is_no_platform() -> None:
    """What is known is refused as ever, also by another image of the pod."""
    images = (APP, PodImage("known:1"))
    decided = filtered([DOWN, AMD], ["a", "c"], images)
    assert names_of(decided) == ["a"]
    assert decided.removed == {Verdict.NO: 1, Verdict.LEFT_OUT: 1}


def test_pod_is_not_held_for_an_image_that_nodes_have() -> None:
    """The webhook and the gate take it for one that only nodes' copies can tell about."""
    images = NodeImages()
    images.put(NodeName("a"), ["docker.io/library/app:1"])
    for answer, is_unknown in ((DOWN, True), (ASKED, False), (AMD, False)):
        [fact] = facts_of([APP], [answer], may_be_pending=True, lists=images.lists)
        assert isinstance(fact, Unknown) is is_unknown
        assert not isinstance(fact, Unknown) or fact.cause is Cause.ON_NODES
