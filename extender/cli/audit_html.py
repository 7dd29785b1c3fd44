"""Writes an audit as one HTML file that needs no network: a picture first, then tables to sort and filter.

`audit_page.html` is the template: the picture is in the markup, and the tables' rows are data, drawn by the page's own
script a hundred at a time, so that thousands stay usable. The page's policy allows this one script and style and
nothing else: names of images and workloads are texts, and no request leaves the file.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any

import msgspec

from extender import __version__
from extender.cli.audit_tables import Table, page_tables
from extender.printable import printable
from extender.reports.audit_report import Audit, AuditedImage, AuditedWorkload, FindingRule, RunAnswer, WorkloadPlatform
from extender.reports.quantities import counted, size_text

_MOST_IN_PICTURE = 8
_SEGMENTS = ("yes", "own", "vendor", "rules", "unknown", "skipped")
"""What a bar consists of, in order: classes of the style, of which the template says what they mean."""


class _Segment(msgspec.Struct):
    """A segment of a bar: how many workloads it has, how much they take of the unit, and how much those before it."""

    kind: str
    workloads: int = 0
    amount: float = 0.0
    before: float = 0.0


class _Bar(msgspec.Struct, frozen=True):
    """What of the workloads could run on a target, in a unit of which they take `total`."""

    target: str
    unit: str
    total: float
    segments: Sequence[_Segment]


def write_html(report: Audit, audited: str = "", at: datetime | None = None) -> str:
    """The page; its head says what was audited, when, and by which version."""
    from jinja2 import Environment, StrictUndefined  # late, since no other format needs it

    folder = files("extender.cli")
    page, style, script = (folder.joinpath(f"audit_page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_printable, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"counted": counted, "size": size_text, "percent": _percent, "rounded": _rounded}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    units = _units(report)
    when = f"{at:%Y-%m-%d %H:%M} UTC" if at else ""
    tables = {table.title.lower(): _drawn(table, report) for table in page_tables(report)}
    return environment.from_string(page).render(
        report=report,
        style=style,
        script=script,
        hashes={"style": _hash(style), "script": _hash(script)},
        origin=", ".join(filter(None, (audited, when, f"multiarch-extender {__version__}"))),
        bars={unit: [_bar(report, index, unit) for index in range(len(report.targets))] for unit in units},
        top=_top(report, units[0]),
        unit=units[0],
        tables=tables,
        data={name: {key: table[key] for key in ("columns", "rows", "sort")} for name, table in tables.items()},
    )


def _printable(value: object) -> object:
    """What the template writes for a value: markup as it is, and texts so that they hide nothing, on one line."""
    return value if hasattr(value, "__html__") else printable(str(value))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# The picture.


def _units(report: Audit) -> list[str]:
    """In what to measure: first what the report is weighed by."""
    if report.is_weighed_by_pods and report.total.cpu_cores:
        return ["pods", "requested CPU"]
    return ["CPU"] if report.total.cpu_cores else ["pods"]


def _bar(report: Audit, index: int, unit: str) -> _Bar:
    vendors = {image.reference for image in report.images if image.owner == "vendor"}
    segments = {kind: _Segment(kind) for kind in _SEGMENTS}
    for workload in report.workloads:
        segment = segments[_segment(workload.platforms[index], vendors) if workload.platforms else "skipped"]
        segment.workloads += 1
        segment.amount += _amount(workload, unit)
    total = 0.0
    for each in segments.values():
        each.before, total = total, total + each.amount
    return _Bar(report.targets[index], unit, total, [each for each in segments.values() if each.workloads])


def _amount(workload: AuditedWorkload, unit: str) -> float:
    return workload.weight.pods if unit == "pods" else workload.weight.cpu_cores


def _segment(platform: WorkloadPlatform, vendors: set[str]) -> str:
    if platform.answer is not RunAnswer.NO:
        return "yes" if platform.answer is RunAnswer.YES else "unknown"
    lacking = {each.subject for each in platform.blockers if each.rule is FindingRule.IMAGE_LACKS_PLATFORM}
    if not lacking:
        return "rules"
    return "own" if lacking.isdisjoint(vendors) else "vendor"


def _top(report: Audit, unit: str) -> list[tuple[AuditedImage, float]]:
    """The images that block most, each with how much of the unit."""
    found = [(image, image.blocks.cpu_cores if unit == "CPU" else image.blocks.pods) for image in report.images]
    blocking = [(image, amount) for image, amount in found if image.lacks]
    return sorted(blocking, key=lambda each: (-each[1], each[0].reference))[:_MOST_IN_PICTURE]


def _percent(share: float) -> str:
    """Rounded so that neither all nor nothing is said of less or more."""
    if 0 < share < 0.01:
        return "under 1%"
    return "over 99%" if 0.99 < share < 1 else f"{100 * share:.0f}%"


def _rounded(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


# The tables.


def _drawn(table: Table, report: Audit) -> Mapping[str, Any]:
    """What the template and the script draw a table from; `sort` is the column by which it is sorted at first."""
    rows = [[column.cell(row) for column in table.columns] for row in table.rows]
    headings = [column.heading for column in table.columns]
    heaviest = ("Blocks pods", "Pods") if report.is_weighed_by_pods else ("Blocks CPU", "CPU")
    return {
        "title": table.title,
        "columns": [{"name": each.heading, "type": each.type, "choices": each.choices} for each in table.columns],
        "rows": rows,
        "sort": next(headings.index(each) for each in (*heaviest, "Workloads") if each in headings),
        "choices": {
            at: sorted({str(row[at]) for row in rows} - {""})
            for at, column in enumerate(table.columns)
            if column.choices and rows
        },
    }
