"""Writes an audit as one HTML file that needs no network: a picture first, then tables to sort and filter.

The picture is in the markup. The tables' rows are data, drawn by the page's own script a hundred at a time, so that
thousands stay usable. The page's policy allows this one script and style and nothing else: names of images and
workloads are texts, and no request leaves the file.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape as escape_html
from importlib.resources import files
from string import Template
from typing import Literal, TypeAlias

import msgspec

from extender import __version__
from extender.printable import printable
from extender.reports.audit_report import Audit, AuditedWorkload, FindingRule, RunAnswer, WorkloadPlatform
from extender.reports.quantities import counted, size_text

_MOST_IN_PICTURE = 8
_WIDTH = 1000  # of a bar, in its own units
_PARTS = {
    "yes": "could run there today",
    "own": "blocked by your own images",
    "vendor": "blocked by a vendor's image",
    "rules": "blocked by selector, affinity or taint",
    "unknown": "not known",
    "skipped": "not judged",
}
"""The parts of a bar, in order, by their class in the style."""

_Cell: TypeAlias = str | int | float


class _Column(msgspec.Struct, frozen=True):
    """A column; `choices` makes a filter of its values."""

    name: str
    type: Literal["text", "name", "long", "number", "bytes"] = "text"
    choices: bool = False


class _PageTable(msgspec.Struct, frozen=True):
    """A table of the page. `sort` is the column by which it is sorted at first, downward."""

    title: str
    about: str
    columns: list[_Column]
    rows: list[list[_Cell]]
    sort: int


def write_html(report: Audit, audited: str = "", at: datetime | None = None) -> str:
    """The page; its head says what was audited, when, and by which version."""
    folder = files("extender.cli")
    page, style, script = (folder.joinpath(f"audit_page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    tables = {"images": _images(report), "workloads": _workloads(report), "findings": _findings(report)}
    data = {name: {"columns": each.columns, "rows": each.rows, "sort": each.sort} for name, each in tables.items()}
    sections = "".join(_section(name, table) for name, table in tables.items())
    when = f"{at:%Y-%m-%d %H:%M} UTC" if at else ""
    return Template(page).substitute(
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'",
        style=style,
        origin=escape(", ".join(filter(None, (audited, when, f"multiarch-extender {__version__}")))),
        subtitle=_subtitle(report),
        main=f"{_notes(report)}{_picture(report)}{_nodes(report)}{sections}",
        data=json.dumps(msgspec.to_builtins(data), separators=(",", ":")).replace("<", "\\u003c"),
        script=script,
    )


def escape(text: str) -> str:
    """The text as it stands in a page, on one line."""
    return escape_html(printable(text))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _subtitle(report: Audit) -> str:
    total = report.total
    return (
        f'<p class="quiet">{counted(total.workloads, "workload")} with {counted(total.pods, "pod")}, which request '
        f"{_round(total.cpu_cores)} CPU and {size_text(total.memory_bytes)} of memory; "
        f"{counted(len(report.images), 'image')}; "
        f"looked at for {escape(', '.join(report.targets))}.</p>\n"
    )


def _notes(report: Audit) -> str:
    notes = ["The audit was interrupted, so this report is partial."] if report.is_partial else []
    if report.problems:
        notes.append(f"{counted(len(report.problems), 'problem')}: {'; '.join(report.problems[:5])}")
    noscript = '<noscript><p class="warning">The tables need JavaScript; -o markdown does not.</p></noscript>\n'
    return "".join(f'<p class="warning">{escape(note)}</p>\n' for note in notes) + noscript


# The picture.


def _picture(report: Audit) -> str:
    by_pods = report.is_weighed_by_pods or not report.total.cpu_cores
    units = ["pods"] if by_pods else ["CPU"]
    if by_pods and report.total.cpu_cores:
        units.append("requested CPU")
    parts = []
    for unit in units:
        bars = "".join(_bar(report, index, unit) for index in range(len(report.targets)))
        parts.append(f"<h2>Share of the {unit} that could move today</h2>\n{bars}")
    return "".join(parts) + _top(report, units[0])


def _amount(workload: AuditedWorkload, unit: str) -> float:
    return workload.weight.pods if unit == "pods" else workload.weight.cpu_cores


def _bar(report: Audit, index: int, unit: str) -> str:
    vendors = {image.reference for image in report.images if image.owner == "vendor"}
    amounts = dict.fromkeys(_PARTS, 0.0)
    counts = dict.fromkeys(_PARTS, 0)
    for workload in report.workloads:
        part = _part(workload.platforms[index], vendors) if workload.platforms else "skipped"
        amounts[part] += _amount(workload, unit)
        counts[part] += 1
    total = sum(amounts.values())
    if not total:
        return f"<h3>{escape(report.targets[index])}</h3>\n<p>No workload requests any {unit}.</p>\n"
    rectangles, legend, left = "", "", 0.0
    for part, name in _PARTS.items():
        if not counts[part]:
            continue
        width = _WIDTH * amounts[part] / total
        rectangles += f'<rect class="{part}" x="{left:.2f}" width="{width:.2f}" height="32"></rect>'
        left += width
        legend += (
            f'<li><i class="{part}"></i>{name}: <b>{_percent(amounts[part] / total)}</b> '
            f'<span class="quiet">({_round(amounts[part])} {unit}, workloads: {counts[part]:,})</span></li>\n'
        )
    share = _percent(amounts["yes"] / total)
    target = escape(report.targets[index])
    return (
        f'<h3>{target}: {share} of the {unit}</h3>\n<svg class="bar" viewBox="0 0 {_WIDTH} 32" '
        f'preserveAspectRatio="none" role="img" aria-label="{share} of the {unit} could run on {target} today">'
        f'{rectangles}</svg>\n<ul class="legend">\n{legend}</ul>\n'
    )


def _part(platform: WorkloadPlatform, vendors: set[str]) -> str:
    if platform.answer is not RunAnswer.NO:
        return "yes" if platform.answer is RunAnswer.YES else "unknown"
    lacking = {each.subject for each in platform.blockers if each.rule is FindingRule.IMAGE_LACKS_PLATFORM}
    if not lacking:
        return "rules"
    return "own" if lacking.isdisjoint(vendors) else "vendor"


def _top(report: Audit, unit: str) -> str:
    """The images that block most, as bars beside each other."""
    found = [(image.blocks.cpu_cores if unit == "CPU" else image.blocks.pods, image) for image in report.images]
    found = sorted((each for each in found if each[1].lacks), key=lambda each: (-each[0], each[1].reference))
    if not found:
        return ""
    most = max(found[0][0], 1e-9)
    lines = "".join(
        f"<li><span>{escape(image.reference)}</span> "
        f'<span class="quiet">({_round(amount)} {unit}, {image.owner}, lacks {escape(", ".join(image.lacks))})</span>'
        f'<svg class="thin" viewBox="0 0 {_WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="{_WIDTH}" height="10"></rect>'
        f'<rect class="{image.owner}" width="{_WIDTH * amount / most:.2f}" height="10"></rect></svg></li>\n'
        for amount, image in found[:_MOST_IN_PICTURE]
    )
    return f'<h3>The images that block most</h3>\n<ol class="top">\n{lines}</ol>\n'


def _nodes(report: Audit) -> str:
    if not report.nodes:
        return ""
    lines = "".join(
        f"<li><b>{escape(each.platform or 'nodes that state no platform')}</b>: {counted(each.nodes, 'node')} with "
        f"{_round(each.cpu_cores)} CPU and {size_text(each.memory_bytes)}; "
        f"{counted(each.blocked.pods, 'pod')} that request {_round(each.blocked.cpu_cores)} CPU and "
        f"{size_text(each.blocked.memory_bytes)} cannot use them</li>\n"
        for each in report.nodes
    )
    return f"<h2>Nodes</h2>\n<ul>\n{lines}</ul>\n"


# The tables.


def _images(report: Audit) -> _PageTable:
    columns = [
        _Column("Image", "name"),
        _Column("Lacks", choices=True),
        _Column("Has"),
        _Column("Owner", choices=True),
        _Column("Blocks CPU", "number"),
        _Column("Frees alone, CPU", "number"),
        _Column("Blocks pods", "number"),
        _Column("First newer tag"),
        _Column("Why not known", "long"),
    ]
    rows: list[list[_Cell]] = [
        [
            image.reference,
            ", ".join(image.lacks) or ("not known" if image.state == "unknown" else "nothing"),
            ", ".join(image.platforms) or image.state,
            image.owner,
            image.blocks.cpu_cores,
            image.unblocks.cpu_cores,
            image.blocks.pods,
            "; ".join(f"{each.tag or 'none'} ({each.platform})" for each in image.newer),
            f"{image.cause}: {image.detail}" if image.cause else "",
        ]
        for image in report.images
    ]
    about = "What to build or to ask a vendor for. “Frees alone” is what a build of this one image would set free."
    return _PageTable("Images", about, columns, rows, 6 if report.is_weighed_by_pods else 4)


def _workloads(report: Audit) -> _PageTable:
    columns = [
        _Column("Namespace", choices=True),
        _Column("Kind", choices=True),
        _Column("Name", "name"),
        *(_Column(target, choices=True) for target in report.targets),
        _Column("CPU", "number"),
        _Column("Memory", "bytes"),
        _Column("Pods", "number"),
        _Column("What blocks", "long"),
    ]
    rows: list[list[_Cell]] = [
        [
            workload.namespace,
            workload.kind,
            workload.name,
            *(_answers(workload, len(report.targets))),
            workload.weight.cpu_cores,
            workload.weight.memory_bytes,
            workload.weight.pods,
            workload.skipped or "; ".join(dict.fromkeys(_blockers(workload))),
        ]
        for workload in report.workloads
    ]
    about = "Where each workload can run, and what keeps it from the rest."
    return _PageTable("Workloads", about, columns, rows, (5 if report.is_weighed_by_pods else 3) + len(report.targets))


def _answers(workload: AuditedWorkload, targets: int) -> Sequence[str]:
    return [each.answer.value for each in workload.platforms] or ["not judged"] * targets


def _blockers(workload: AuditedWorkload) -> Iterator[str]:
    for platform in workload.platforms:
        yield from (blocker.text for blocker in platform.blockers)


def _findings(report: Audit) -> _PageTable:
    columns = [
        _Column("Level", choices=True),
        _Column("Rule", choices=True),
        _Column("Platform", choices=True),
        _Column("Finding", "long"),
        _Column("Workloads", "number"),
    ]
    rows: list[list[_Cell]] = [
        [each.level, each.rule.value, each.platform, each.message, len(each.workloads)] for each in report.findings
    ]
    return _PageTable("Findings", "Everything that was found, as the other formats list it.", columns, rows, 4)


def _section(name: str, table: _PageTable) -> str:
    heads = "".join(
        '<th role="columnheader" scope="col" aria-sort="none">'
        f'<button type="button">{escape(column.name)}</button></th>'
        for column in table.columns
    )
    orders = "".join(
        f'<option value="{at} {down}">{escape(column.name)}, {words}</option>'
        for at, column in enumerate(table.columns)
        for down, words in (("true", "most first"), ("false", "least first"))
    )
    filters = "".join(
        _filter(at, column, table) for at, column in enumerate(table.columns) if column.choices and table.rows
    )
    title = escape(table.title)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{title}</h2>\n'
        f'<p class="quiet">{escape(table.about)}</p>\n<form>\n'
        f'<label>Search in {title.lower()}<input type="search" data-part="search" autocomplete="off"></label>\n'
        f'{filters}<label class="by">Sort by<select data-part="sort">{orders}</select></label>\n</form>\n'
        f'<p class="quiet" role="status" data-part="count"></p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}, table">\n'
        f'<table role="table" data-part="table" aria-labelledby="{name}-title"><thead role="rowgroup">'
        f'<tr role="row">{heads}</tr></thead><tbody role="rowgroup"></tbody></table>\n</div>\n'
        '<p><button type="button" data-part="more" hidden>Show 100 more</button></p>\n</section>\n'
    )


def _filter(at: int, column: _Column, table: _PageTable) -> str:
    values = sorted({str(row[at]) for row in table.rows} - {""})
    options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
    name = escape(column.name)
    return f'<label>{name}<select data-column="{at}"><option value="">all</option>{options}</select></label>\n'


def _percent(share: float) -> str:
    """Rounded so that neither all nor nothing is said of less or more."""
    if 0 < share < 0.01:
        return "under 1%"
    return "over 99%" if 0.99 < share < 1 else f"{100 * share:.0f}%"


def _round(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"
