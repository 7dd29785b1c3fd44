"""What the author of a pod template must fix, in one line each: what no webhook can fix when its pods are created.

A line names the path and the image first: kubectl and helm print it as it is. The API server keeps 256 characters of
it, in which the image is whole before the path is.
Source: kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers, Response.
"""

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from extender.images.content import Cause
from extender.images.platform import Compatibility, Platform
from extender.kubernetes.admission_v1 import WARNING_CHARACTERS
from extender.kubernetes.core_v1 import CreatedSpec
from extender.kubernetes.pod_templates import PodTemplate
from extender.placement.facts import Fit, ImageFact, RunsOn, fit
from extender.placement.gate import Unresolved
from extender.placement.node_kinds import HOST_NAME, NodeKind
from extender.placement.node_match import NodeDemands, as_daemon_pods, demands_of, obstacles
from extender.placement.planning import Outcome, Plan
from extender.placement.reasons import Constraint, constraints_of, shorten, tightest
from extender.placement.resolved_pod import ResolvedPod

LINE_CHARACTERS = WARNING_CHARACTERS
"""The longest line."""
_MOST_IMAGES = 3  # named for one template, of those that cannot be had
_PLATFORMS_CHARACTERS = 36
_PATH_CHARACTERS = 48  # that are left of a path beside a long image


class Problem(enum.StrEnum):
    """What is wrong with a template."""

    MISSING = "missing"
    DENIED = "denied"
    INVALID = "invalid"
    NOTHING_IN_COMMON = "nothing_in_common"
    NO_NODE = "no_node"
    WRONG_NODES = "wrong_nodes"
    TOO_LARGE = "too_large"


class TemplateProblem(msgspec.Struct, frozen=True):
    """A problem and the line that says it."""

    problem: Problem
    line: str


def problems_of(
    template: PodTemplate,
    resolved: ResolvedPod,
    plan: Plan,
    compatibility: Compatibility,
    kinds: Mapping[NodeKind, int],
) -> Iterator[TemplateProblem]:
    """What the template's author must fix: `resolved` is its pod, and `plan` what the webhook gives it.

    `kinds` are the cluster's nodes, none where they are not known. Where the author's constraints allow no node at all
    nothing is said: an autoscaler may bring one.
    """
    spec, facts, path = resolved.pod.spec or CreatedSpec(), resolved.facts, template.field_path
    names_secrets = bool(spec.image_pull_secrets and template.namespace)
    yield from _unavailable(path, resolved.unresolved, names_secrets=names_secrets)
    constraints = constraints_of(resolved.images, facts)
    if not constraints:
        return
    refusing = tightest(constraints)
    if not _has_common(facts, compatibility):
        yield _nothing_in_common(path, refusing)
        return
    demands = demands_of(spec)
    if template.is_daemon_set:
        demands = as_daemon_pods(demands, host_network=bool(spec.host_network))
    else:
        demands = msgspec.structs.replace(demands, tolerations=(*demands.tolerations, *plan.additions.tolerations))
    allowed = _allowed(demands, kinds)
    wrong = Counter[Platform]()
    for kind, number in allowed.items():
        if kind.platform and fit(facts, kind.platform, compatibility) is Fit.NO:
            wrong[kind.platform] += number
    only = f"runs on {_platforms(refusing[0].platforms)} only"
    is_nowhere = plan.outcome is Outcome.IMPOSSIBLE or (allowed and wrong.total() == sum(allowed.values()))
    if template.is_daemon_set:
        if wrong:
            line = _line(path, refusing[0].reference, f"{only}, but {_counted(wrong)}")
            yield TemplateProblem(Problem.WRONG_NODES, line)
    elif is_nowhere:
        rest = f"{only}: its selector, affinity or tolerations allow none"
        yield TemplateProblem(Problem.NO_NODE, _line(path, refusing[0].reference, rest))


def too_large(path: str, why_left: str) -> TemplateProblem:
    """That nothing is decided about a template, which has too much of something, as `why_left` says."""
    return TemplateProblem(
        Problem.TOO_LARGE, shorten(f"{path}: nothing is decided about it: {why_left}", LINE_CHARACTERS)
    )


def _unavailable(path: str, unresolved: Sequence[Unresolved], *, names_secrets: bool) -> Iterator[TemplateProblem]:
    """The images that cannot be had. `names_secrets`: the template names pull secrets of its own namespace.

    Else a ServiceAccount's come later, or those of a namespace that it does not say.
    """
    said = {
        Cause.MISSING: (Problem.MISSING, "does not exist in its registry"),
        Cause.INVALID_REFERENCE: (Problem.INVALID, "is no image reference"),
    }
    if names_secrets:
        said[Cause.DENIED] = (Problem.DENIED, "may not be read with the pull secrets that are named here")
    found = [(image, said[fact.cause]) for image, fact in unresolved if fact.cause in said]
    for image, (problem, rest) in found[:_MOST_IMAGES]:
        yield TemplateProblem(problem, _line(path, image.reference, rest))


def _has_common(facts: Sequence[ImageFact], compatibility: Compatibility) -> bool:
    """Whether some platform that an image names runs all images that are known."""
    named = frozenset[Platform]().union(*(fact.platforms for fact in facts if isinstance(fact, RunsOn)))
    return any(fit(facts, platform, compatibility) is not Fit.NO for platform in named)


def _nothing_in_common(path: str, refusing: Sequence[Constraint]) -> TemplateProblem:
    first = refusing[0]
    if not first.platforms:
        return TemplateProblem(
            Problem.NOTHING_IN_COMMON, _line(path, first.reference, f"is not built for {first.asked}")
        )
    only = f"runs on {_platforms(first.platforms)} only"
    line = _line(path, first.reference, f"{only}, another image does not")
    others = [item for item in refusing[1:] if item.platforms.isdisjoint(first.platforms)]
    if others:
        whole = f"image {others[0].reference} on {_platforms(others[0].platforms)}"
        whole = f"{path}: image {first.reference} {only}, {whole}"
        line = whole if len(whole) <= LINE_CHARACTERS and whole.isprintable() else line
    return TemplateProblem(Problem.NOTHING_IN_COMMON, line)


def _allowed(demands: NodeDemands, kinds: Mapping[NodeKind, int]) -> Mapping[NodeKind, int]:
    """The nodes that meet the demands; none where these name nodes, which kinds do not tell apart."""
    terms = demands.terms or ()
    keys = {item.key for term in terms for item in term.match_expressions or ()} | demands.selector.keys()
    if HOST_NAME in keys or any(term.match_fields for term in terms):
        return {}
    return {kind: number for kind, number in kinds.items() if not obstacles(demands, kind.node)}


def _counted(nodes: Counter[Platform]) -> str:
    number = nodes.total()
    what = f"{shorten(str(next(iter(nodes))), _PLATFORMS_CHARACTERS)} " if len(nodes) == 1 else ""
    others = "" if what else " of other platforms"
    return f"{number} {what}node{others} matches" if number == 1 else f"{number} {what}nodes{others} match"


def _platforms(platforms: frozenset[Platform]) -> str:
    """A few of the platforms, and how many more there are."""
    words = [str(platform) for platform in sorted(platforms)]
    text = ", ".join(words)
    if len(text) <= _PLATFORMS_CHARACTERS:
        return text or "no platform"
    first = shorten(words[0], _PLATFORMS_CHARACTERS - len(" and 99 more"))
    return f"{first} and {len(words) - 1} more" if len(words) > 1 else first


def _line(path: str, reference: str, rest: str) -> str:
    """One line of at most `LINE_CHARACTERS`; the path loses its middle first, and then the image."""
    left = LINE_CHARACTERS - len(f": image  {rest}")
    path = shorten(path, max(_PATH_CHARACTERS, left - len(reference)))
    reference = shorten(reference, max(1, left - len(path)))
    return shorten(f"{path}: image {reference} {rest}", LINE_CHARACTERS)
