"""The tables of an audit: what their columns are called, and what their cells say. Each format draws them itself."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from extender.reports.audit_report import (
    Audit,
    AuditedImage,
    AuditedNodes,
    AuditedWorkload,
    Finding,
    FindingRule,
    PlatformSummary,
    RunAnswer,
    Weight,
    WorkloadPlatform,
)
from extender.reports.quantities import counted, size_text

_MOST_WORKLOADS = 10  # of a short table

Cell: TypeAlias = str | int | float | Weight
T = TypeVar("T")


class Column(msgspec.Struct, Generic[T], frozen=True):
    """A column of rows of one type. `cell` is what it has of a row, which each format writes as it has room.

    `choices`: it has few values, of which the reader of a page may choose one.
    """

    heading: str
    cell: Callable[[T], Cell]
    type: Literal["text", "name", "long", "number", "bytes"] = "text"
    choices: bool = False

    def text(self, row: T, weight_text: Callable[[Weight], str]) -> str:
        """The cell as terminals and Markdown show it."""
        match self.cell(row):
            case Weight() as weight:
                return weight_text(weight) if weight.workloads else "-"
            case int() | float() as size if self.type == "bytes":
                return size_text(size)
            case float() as number:
                return f"{round(number, 2):g}"
            case other:
                return str(other)


class Table(msgspec.Struct, frozen=True):
    """A table with a title. `more` says what it leaves out; `or_none`: where it has no rows, that is worth saying."""

    title: str
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    more: str = ""
    or_none: bool = False

    def texts(self, weight_text: Callable[[Weight], str]) -> list[list[str]]:
        """Its rows as terminals and Markdown show them."""
        return [[column.text(row, weight_text) for column in self.columns] for row in self.rows]


def amounts(weight: Weight) -> str:
    """A weight in full."""
    return f"{numbers(weight)}, {weight.cpu_cores:g} CPU, {size_text(weight.memory_bytes)}"


def numbers(weight: Weight) -> str:
    """A weight without what its pods request."""
    return f"{counted(weight.workloads, 'workload')}, {counted(weight.pods, 'pod')}"


def short_tables(report: Audit) -> list[Table]:
    """What blocks most, for a terminal of 100 columns."""
    blocked = blocked_workloads(report)
    left_out = len(blocked) - _MOST_WORKLOADS
    more = f"and {left_out:,} more: -o wide has all\n" if left_out > 0 else ""
    return [
        Table("Summary", _SUMMARY, report.summary),
        Table("Nodes", _NODES, report.nodes),
        Table("Images that block", _SHORT_IMAGE, report.blocking_images),
        Table("Workloads", _SHORT_WORKLOAD, blocked[:_MOST_WORKLOADS], more),
        Table("Unknown images", (_UNKNOWN, _WHY), _unknown_images(report)),
        Table("Selectors, taints and DaemonSets", _FINDING, _findings_of_workloads(report)),
    ]


def wide_tables(report: Audit) -> list[Table]:
    """The same with all columns."""
    not_everywhere = [each for each in report.workloads if _not_yes(each)]
    return [
        Table("Summary", _SUMMARY, report.summary),
        Table("Nodes", _NODES, report.nodes),
        Table("Images that block", _WIDE_IMAGE, report.blocking_images, or_none=True),
        Table("Workloads", _WIDE_WORKLOAD, not_everywhere, or_none=True),
        Table("Unknown images", (_UNKNOWN, _CAUSE, _WHY), _unknown_images(report)),
        Table("Selectors, taints and DaemonSets", _FINDING, _findings_of_workloads(report)),
    ]


def page_tables(report: Audit) -> list[Table]:
    """Everything that was found, for a page on which rows are sorted and chosen."""
    targets = [_answer_on(at, target) for at, target in enumerate(report.targets)]
    return [
        Table("Images", _PAGE_IMAGE, report.images),
        Table("Workloads", (*_NAMES, *targets, _CPU, _MEMORY, _PODS, _TEXTS), report.workloads),
        Table("Findings", _PAGE_FINDING, report.findings),
    ]


def blocked_workloads(report: Audit) -> list[AuditedWorkload]:
    """The workloads that are kept from a target, the heaviest first."""
    found = [each for each in report.workloads if _blocked(each)]
    return sorted(found, key=lambda each: (*report.heaviest_first(each.weight), _path(each)))


def _unknown_images(report: Audit) -> list[AuditedImage]:
    return [image for image in report.images if image.state == "unknown"]


def _findings_of_workloads(report: Audit) -> list[Finding]:
    of_images = (FindingRule.IMAGE_LACKS_PLATFORM, FindingRule.IMAGE_UNKNOWN)
    return [finding for finding in report.findings if finding.rule not in of_images]


def _path(workload: AuditedWorkload) -> str:
    own = f"{workload.kind}/{workload.name}"
    return f"{workload.namespace}/{own}" if workload.namespace else own


def _blocked(workload: AuditedWorkload) -> list[WorkloadPlatform]:
    return [each for each in workload.platforms if each.answer is RunAnswer.NO]


def _not_yes(workload: AuditedWorkload) -> list[WorkloadPlatform]:
    return [each for each in workload.platforms if each.answer is not RunAnswer.YES]


def _blockers(platforms: Sequence[WorkloadPlatform]) -> list[str]:
    return _distinct(blocker.subject for each in platforms for blocker in each.blockers)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _first_and_number(texts: Sequence[str]) -> str:
    return f"{texts[0]} and {len(texts) - 1} more" if len(texts) > 1 else "".join(texts)


def _answer_on(at: int, target: str) -> Column[AuditedWorkload]:
    def answer(workload: AuditedWorkload) -> str:
        return workload.platforms[at].answer.value if workload.platforms else "not judged"

    return Column(target, answer, choices=True)


_SUMMARY = (
    Column[PlatformSummary]("Platform", lambda each: each.platform),
    Column[PlatformSummary]("Runs", lambda each: each.yes),
    Column[PlatformSummary]("Blocked", lambda each: each.no),
    Column[PlatformSummary]("Unknown", lambda each: each.unknown),
)
_NODES = (
    Column[AuditedNodes]("Nodes of", lambda each: each.platform or "none stated"),
    Column[AuditedNodes]("Nodes", lambda each: each.nodes, "number"),
    Column[AuditedNodes]("CPU", lambda each: each.cpu_cores, "number"),
    Column[AuditedNodes]("Memory", lambda each: each.memory_bytes, "bytes"),
    Column[AuditedNodes]("Blocked there", lambda each: each.blocked),
)

_IMAGE = Column[AuditedImage]("Image", lambda image: image.reference, "name")
_LACKS = Column[AuditedImage](
    "Lacks",
    lambda image: ", ".join(image.lacks) or ("not known" if image.state == "unknown" else "nothing"),
    choices=True,
)
_HAS = Column[AuditedImage]("Has", lambda image: ", ".join(image.platforms) or image.state)
_OWNER = Column[AuditedImage]("Owner", lambda image: image.owner, choices=True)
_SHORT_IMAGE = (
    _IMAGE,
    Column[AuditedImage]("Blocks", _LACKS.cell),
    Column[AuditedImage]("Pods", lambda image: image.blocks.pods, "number"),
    Column[AuditedImage]("CPU", lambda image: image.blocks.cpu_cores, "number"),
    Column[AuditedImage]("Memory", lambda image: image.blocks.memory_bytes, "bytes"),
    Column[AuditedImage]("Newer tag", lambda image: ", ".join(_distinct(each.tag for each in image.newer if each.tag))),
)
_WIDE_IMAGE = (
    _IMAGE,
    _LACKS,
    _HAS,
    Column[AuditedImage]("Blocks", lambda image: image.blocks),
    Column[AuditedImage]("Alone", lambda image: image.unblocks),
    _OWNER,
    Column[AuditedImage](
        "First newer tag with it",
        lambda image: "; ".join(_distinct(each.tag or f"none: {each.why}" for each in image.newer)),
    ),
)
_PAGE_IMAGE = (
    _IMAGE,
    _LACKS,
    _HAS,
    _OWNER,
    Column[AuditedImage]("Blocks CPU", lambda image: image.blocks.cpu_cores, "number"),
    Column[AuditedImage]("Frees alone, CPU", lambda image: image.unblocks.cpu_cores, "number"),
    Column[AuditedImage]("Blocks pods", lambda image: image.blocks.pods, "number"),
    Column[AuditedImage](
        "First newer tag", lambda image: "; ".join(f"{each.tag or 'none'} ({each.platform})" for each in image.newer)
    ),
    Column[AuditedImage](
        "Why not known", lambda image: f"{image.cause}: {image.detail}" if image.cause else "", "long"
    ),
)
_UNKNOWN = Column[AuditedImage]("Unknown image", _IMAGE.cell)
_CAUSE = Column[AuditedImage]("Cause", lambda image: image.cause)
_WHY = Column[AuditedImage]("Why", lambda image: image.detail)

_WORKLOAD = Column[AuditedWorkload]("Workload", _path)
_PODS = Column[AuditedWorkload]("Pods", lambda workload: workload.weight.pods, "number")
_CPU = Column[AuditedWorkload]("CPU", lambda workload: workload.weight.cpu_cores, "number")
_MEMORY = Column[AuditedWorkload]("Memory", lambda workload: workload.weight.memory_bytes, "bytes")
_SHORT_WORKLOAD = (
    _WORKLOAD,
    Column[AuditedWorkload]("Blocked on", lambda workload: ", ".join(each.platform for each in _blocked(workload))),
    _PODS,
    _CPU,
    Column[AuditedWorkload]("By", lambda workload: _first_and_number(_blockers(_blocked(workload)))),
)
_WIDE_WORKLOAD = (
    _WORKLOAD,
    Column[AuditedWorkload]("Platform", lambda workload: ", ".join(each.platform for each in _not_yes(workload))),
    Column[AuditedWorkload]("Answer", lambda workload: ", ".join(each.answer for each in _not_yes(workload))),
    Column[AuditedWorkload]("Blocked by", lambda workload: ", ".join(_blockers(_not_yes(workload)))),
    _PODS,
    _CPU,
    _MEMORY,
)
_NAMES = (
    Column[AuditedWorkload]("Namespace", lambda workload: workload.namespace, choices=True),
    Column[AuditedWorkload]("Kind", lambda workload: workload.kind, choices=True),
    Column[AuditedWorkload]("Name", lambda workload: workload.name, "name"),
)
_TEXTS = Column[AuditedWorkload](
    "What blocks",
    lambda workload: (
        workload.skipped
        or "; ".join(_distinct(blocker.text for each in workload.platforms for blocker in each.blockers))
    ),
    "long",
)

_RULE = Column[Finding]("Rule", lambda finding: finding.rule.value, choices=True)
_MESSAGE = Column[Finding]("Finding", lambda finding: finding.message, "long")
_FINDING = (_RULE, _MESSAGE)
_PAGE_FINDING = (
    Column[Finding]("Level", lambda finding: finding.level, choices=True),
    _RULE,
    Column[Finding]("Platform", lambda finding: finding.platform, choices=True),
    _MESSAGE,
    Column[Finding]("Workloads", lambda finding: len(finding.workloads), "number"),
)
