"""Prints explanations for people: images, nodes, the webhook's patch as a diff, and what would change the answer."""

import difflib
from collections.abc import Iterator, Sequence

import yaml

from extender.cli.console import Span, print_line, print_rows
from extender.durations import duration_text
from extender.placement.annotations import MODE
from extender.placement.patch import apply
from extender.placement.scheduling import Verdict
from extender.reports.audit_report import RunAnswer
from extender.reports.explanation import ExplainedImage, ExplainedNodes, Explanation, Subject

_COLOURS = {RunAnswer.YES: "green", RunAnswer.NO: "red", RunAnswer.UNKNOWN: "yellow"}
_PASSES = {
    Verdict.PASSED: "passes: scheduler.unknown or pending is pass",
    Verdict.ASSUMED_YES: "assumed to run there, by the operator's setting",
    Verdict.RETRY: "kube-scheduler is asked to come back",
    Verdict.LISTED: "passes: no registry answers for an image, and these nodes have it",
    Verdict.LEFT_OUT: "left out while other nodes are preferred, or have an image for which no registry answers",
    Verdict.UNSTATED: "passes: the service has seen no node of this platform, or it states none",
}


def print_explanations(found: Sequence[tuple[Subject, Explanation]]) -> None:
    """Prints each explanation on standard output; nothing is cut, and a narrow terminal wraps lines."""
    for index, (subject, explanation) in enumerate(found):
        if index:
            print_line()
        _print_one(subject, explanation)


def _print_one(subject: Subject, explanation: Explanation) -> None:
    where = f", bound to {explanation.node_name}" if explanation.node_name else ""
    print_line((f"{explanation.kind} {explanation.namespace}/{explanation.name}", "bold"), where)
    for line in (explanation.skipped, *_notes(explanation), *explanation.problems):
        if line:
            print_line(("note", "yellow"), f" {line}")
    for fault in explanation.faults:
        print_line((fault.rule, "red"), f" {fault.text}")
    _print_title("Images")
    for image in explanation.images:
        print_line(f"  {image.reference or 'a container without an image'}")
        print_rows(_image_rows(image), indent="    ")
    _print_title("Nodes")
    for kind in explanation.nodes:
        _print_nodes(kind)
    _print_webhook(subject, explanation)
    if explanation.remedies:
        _print_title("What would change the answer")
        for line in explanation.remedies:
            print_line(f"  {line}")


def _print_title(title: str, rest: str = "") -> None:
    print_line()
    print_line((title, "bold"), rest)


def _notes(explanation: Explanation) -> Iterator[str]:
    if explanation.gates:
        yield f"held by {', '.join(explanation.gates)}: kube-scheduler does not look at the pod until the gate is gone"
    if explanation.mode == "observe":
        yield f"the annotation {MODE} is observe: what follows is recorded, and nothing is refused"


def _image_rows(image: ExplainedImage) -> Iterator[tuple[str, Span]]:
    yield "used by", ", ".join(image.used_by)
    if image.platforms is not None:
        by_operator = ", by the operator's word (placement.images)" if image.by_operator else ""
        yield "runs on", (f"{', '.join(image.platforms) or 'no platform'}{by_operator}", "green")
    elif image.cause:
        yield image.state, (f"{image.cause}: {image.detail}", "yellow")
    else:
        yield "runs on", (f"anywhere: {image.detail}" if image.detail else "anywhere", "green")
    if image.digest:
        yield "digest", image.digest
    if image.credential:
        yield "credential", image.credential
    if image.age_seconds is not None:
        state = "fresh" if image.is_fresh else "stale: asked again in the background"
        yield "confirmed", f"{duration_text(image.age_seconds)} ago by its registry, {state}"


def _print_nodes(kind: ExplainedNodes) -> None:
    number = "any" if kind.is_assumed else f"{kind.nodes} node{'s' if kind.nodes != 1 else ''}"
    names = f" ({', '.join(kind.names)}{', …' if kind.nodes > len(kind.names) else ''})" if kind.names else ""
    score = f", score {kind.score}" if kind.score else ""
    platform = kind.platform or "no platform stated"
    print_line("  ", (kind.answer, _COLOURS[kind.answer]), f" {platform}: {number}{names}{score}")
    for line in _reasons(kind):
        print_line(f"      {line}")


def _reasons(kind: ExplainedNodes) -> Iterator[str]:
    if kind.words:
        yield kind.words
    elif kind.verdict in _PASSES and (kind.images is not RunAnswer.YES or kind.verdict is Verdict.LEFT_OUT):
        yield _PASSES[kind.verdict]
    for obstacle in kind.obstacles:
        yield f"{obstacle.rule}: {obstacle.subject}"
    tolerated = [taint for taint in kind.taints if taint not in {each.subject for each in kind.obstacles}]
    if tolerated:
        yield f"tolerates {', '.join(tolerated)}"


def _print_webhook(subject: Subject, explanation: Explanation) -> None:
    webhook = explanation.webhook
    _print_title("Webhook", f": {webhook.outcome}, {webhook.verdict}")
    if explanation.added:
        print_line(f"  has added {explanation.added}")
    if explanation.annotation:
        print_line(f"  reason: {explanation.annotation}")
    for warning in webhook.warnings:
        print_line("  ", ("warns", "yellow"), f" {warning}")
    if webhook.patch:
        before, after = _lines(subject.document), _lines(apply(subject.document, webhook.patch))
        for line in difflib.unified_diff(before, after, "pod", "with the patch", lineterm=""):
            print_line("  ", (line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")))


def _lines(pod: object) -> list[str]:
    return yaml.safe_dump(pod, sort_keys=False, width=1000).splitlines()
