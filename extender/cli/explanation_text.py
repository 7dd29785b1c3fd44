"""Prints explanations for people: images, nodes, the webhook's patch as a diff, and what would change the answer."""

import difflib
from collections.abc import Iterator, Sequence

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.subjects import Explained
from extender.placement.patch import apply
from extender.placement.policy import MODE
from extender.placement.scheduling import Verdict
from extender.reports.audit_report import RunAnswer
from extender.reports.explanation import ExplainedImage, ExplainedNodes, Explanation

_COLUMNS = 160
_COLOURS = {RunAnswer.YES: "green", RunAnswer.NO: "red", RunAnswer.UNKNOWN: "yellow"}
_PASSES = {
    Verdict.PASSED: "passes: scheduler.unknown or pending is pass",
    Verdict.ASSUMED_YES: "assumed to run there, by the operator's setting",
    Verdict.RETRY: "kube-scheduler is told to come back",
    Verdict.UNSTATED: "passes: the service has seen no node of this platform, or it states none",
}


def print_explanations(found: Sequence[Explained]) -> None:
    """Prints each explanation on standard output; nothing is cut, and a narrow terminal wraps lines."""
    console = Console(highlight=False)
    console.width = max(console.width, _COLUMNS)
    for index, each in enumerate(found):
        if index:
            console.print()
        _print_one(console, each)


def _print_one(console: Console, explained: Explained) -> None:
    told = explained.explanation
    where = f", bound to {told.node_name}" if told.node_name else ""
    console.print(f"[bold]{told.kind} {told.namespace}/{escape(told.name)}[/]{where}")
    for line in (told.skipped, *_notes(told), *told.problems):
        if line:
            console.print(f"[yellow]note[/] {escape(line)}")
    console.print("\n[bold]Images[/]")
    for image in told.images:
        _print_image(console, image)
    console.print("\n[bold]Nodes[/]")
    for kind in told.nodes:
        _print_nodes(console, kind)
    _print_webhook(console, explained)
    if told.remedies:
        console.print("\n[bold]What would change the answer[/]")
        for line in told.remedies:
            console.print(f"  {escape(line)}", soft_wrap=True)


def _notes(told: Explanation) -> Iterator[str]:
    if told.gates:
        yield f"held by {', '.join(told.gates)}: kube-scheduler does not look at the pod until the gate is gone"
    if told.mode == "observe":
        yield f"the annotation {MODE} is observe: what follows is recorded, and nothing is refused"


def _print_image(console: Console, image: ExplainedImage) -> None:
    console.print(f"  {escape(image.reference or 'a container without an image')}", soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_row("    used by", escape(", ".join(image.used_by)))
    if image.platforms is not None:
        table.add_row("    runs on", f"[green]{escape(', '.join(image.platforms)) or 'no platform'}[/]")
    elif image.cause:
        table.add_row(f"    {image.state}", f"[yellow]{image.cause}[/]: {escape(image.detail)}")
    else:
        table.add_row("    runs on", f"[green]anywhere[/]{f': {escape(image.detail)}' if image.detail else ''}")
    if image.verified:
        table.add_row("    verified", f"its program is for {escape(', '.join(image.verified))}")
    for claim in image.claims:
        table.add_row("    but", f"[red]it {escape(claim)}[/]")
    if image.digest:
        table.add_row("    digest", image.digest)
    if image.credential:
        table.add_row("    credential", escape(image.credential))
    if image.age_seconds is not None:
        state = "fresh" if image.is_fresh else "stale: asked again in the background"
        table.add_row("    confirmed", f"{_age(image.age_seconds)} ago by its registry, {state}")
    console.print(table)


def _print_nodes(console: Console, kind: ExplainedNodes) -> None:
    number = "any" if kind.is_assumed else f"{kind.nodes} node{'s' if kind.nodes != 1 else ''}"
    names = f" ({', '.join(kind.names)}{', …' if kind.nodes > len(kind.names) else ''})" if kind.names else ""
    score = f", score {kind.score}" if kind.score else ""
    answer = f"[{_COLOURS[kind.answer]}]{kind.answer}[/]"
    console.print(f"  {answer} {escape(kind.platform or 'no platform stated')}: {number}{escape(names)}{score}")
    for line in _reasons(kind):
        console.print(f"      {escape(line)}", soft_wrap=True)


def _reasons(kind: ExplainedNodes) -> Iterator[str]:
    if kind.words:
        yield kind.words
    elif kind.images is not RunAnswer.YES and kind.verdict in _PASSES:
        yield _PASSES[kind.verdict]
    for obstacle in kind.obstacles:
        yield f"{obstacle.rule}: {obstacle.subject}"
    tolerated = [taint for taint in kind.taints if taint not in {each.subject for each in kind.obstacles}]
    if tolerated:
        yield f"tolerates {', '.join(tolerated)}"


def _print_webhook(console: Console, explained: Explained) -> None:
    told = explained.explanation
    webhook = told.webhook
    console.print(f"\n[bold]Webhook[/]: {webhook.outcome}, {escape(webhook.verdict)}")
    if told.added:
        console.print(f"  has added {escape(told.added)}", soft_wrap=True)
    if told.annotation:
        console.print(f"  reason: {escape(told.annotation)}", soft_wrap=True)
    for warning in webhook.warnings:
        console.print(f"  [yellow]warns[/] {escape(warning)}", soft_wrap=True)
    if webhook.patch:
        changed = apply(explained.pod, webhook.patch)
        for line in difflib.unified_diff(_lines(explained.pod), _lines(changed), "pod", "with the patch", lineterm=""):
            colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
            console.print(f"  [{colour}]{escape(line)}[/]" if colour else f"  {escape(line)}", soft_wrap=True)


def _lines(pod: object) -> list[str]:
    return yaml.safe_dump(pod, sort_keys=False, width=1000).splitlines()


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
