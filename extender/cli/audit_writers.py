"""Writes an audit in each of its formats. `WRITERS` is the table; a format is one function and one line in it."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from typing import Any
from urllib.parse import quote

import msgspec
import yaml

from extender import __version__
from extender.cli.audit_html import write_html
from extender.cli.console import aligned
from extender.reports.audit_report import (
    RULES,
    Audit,
    AuditedImage,
    AuditedWorkload,
    Finding,
    FindingRule,
    RunAnswer,
    Weight,
    WorkloadPlatform,
)
from extender.reports.quantities import counted, size_text

_INFORMATION = "https://github.com/multiarch-extender/multiarch-extender/blob/main/docs/how-to/audit.md"
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_DOCUMENT = re.compile(r"(?P<file>.*), document (?P<number>\d+)", re.DOTALL)
_MOST_LOCATIONS = 100  # of a finding in SARIF


def write_json(report: Audit) -> str:
    """The whole report; `audit --schema` prints what it looks like."""
    return json.dumps(msgspec.to_builtins(report), indent=2) + "\n"


def write_yaml(report: Audit) -> str:
    """The same as YAML."""
    return yaml.safe_dump(msgspec.to_builtins(report), sort_keys=False, width=1000)


def write_markdown(report: Audit) -> str:
    """Tables for a pull request or a wiki."""
    lines = ["# Audit", "", *_markdown(("platform", "runs", "blocked", "unknown"), _summary_rows(report))]
    if report.is_partial:
        lines += ["", "**Partial**: it was interrupted, and images that were not looked up are unknown."]
    lines += ["", "## Images that block", "", *_markdown(_IMAGE_COLUMNS, map(_image_row, blocking_images(report)))]
    unknown = [(image.reference, image.cause, image.detail) for image in _unknown_images(report)]
    if unknown:
        lines += ["", "## Unknown images", "", *_markdown(("image", "cause", "detail"), unknown)]
    blocked = [_workload_row(workload) for workload in report.workloads if _is_blocked(workload)]
    lines += ["", "## Workloads", "", *_markdown(_WORKLOAD_COLUMNS, blocked)]
    others = [(finding.rule.value, finding.message) for finding in report.findings if _is_of_workload(finding)]
    if others:
        lines += ["", "## Selectors, taints and DaemonSets", "", *_markdown(("rule", "finding"), others)]
    if report.problems:
        lines += ["", "## Not read", "", *(f"- {_inline(problem)}" for problem in report.problems)]
    return "\n".join(lines) + "\n"


def write_table(report: Audit) -> str:
    """What blocks most, as text for a terminal of 100 columns."""
    summary = [
        (each.platform, *(_number(weight) for weight in (each.yes, each.no, each.unknown))) for each in report.summary
    ]
    nodes = [
        (each.platform or "none stated", str(each.nodes), *_requests(each.cpu_cores, each.memory_bytes),
         _number(each.blocked))
        for each in report.nodes
    ]  # fmt: skip
    images = [(each.reference, ", ".join(each.lacks), *_amounts(each.blocks), ", ".join(_newer_tags(each)))
              for each in blocking_images(report)]  # fmt: skip
    blocked = blocked_workloads(report)
    rows = [_short_workload_row(each) for each in blocked[:_MOST_WORKLOADS]]
    if len(blocked) > _MOST_WORKLOADS:
        rows.append((f"and {len(blocked) - _MOST_WORKLOADS:,} more: -o wide has all",))
    return _tables(
        report,
        (("PLATFORM", "RUNS", "BLOCKED", "UNKNOWN"), summary),
        (("NODES OF", "NODES", "CPU", "MEMORY", "BLOCKED THERE"), nodes),
        (("IMAGE", "BLOCKS", "PODS", "CPU", "MEMORY", "NEWER TAG"), images),
        (("WORKLOAD", "BLOCKED ON", "PODS", "CPU", "BY"), rows),
        (("UNKNOWN IMAGE", "WHY"), [(each.reference, each.detail) for each in _unknown_images(report)]),
    )


def write_wide(report: Audit) -> str:
    """The same with all columns and all workloads."""
    nodes = [
        (each.platform or "none stated", str(each.nodes), *_requests(each.cpu_cores, each.memory_bytes),
         _weight(each.blocked))
        for each in report.nodes
    ]  # fmt: skip
    unknown = [(each.reference, each.cause, each.detail) for each in _unknown_images(report)]
    return _tables(
        report,
        (("PLATFORM", "RUNS", "BLOCKED", "UNKNOWN"), _summary_rows(report)),
        (("NODES OF", "NODES", "CPU", "MEMORY", "BLOCKED THERE"), nodes),
        (_upper(_IMAGE_COLUMNS), [_image_row(each) for each in blocking_images(report)]),
        (_upper(_WORKLOAD_COLUMNS), [_workload_row(each) for each in report.workloads if _is_blocked(each)]),
        (("UNKNOWN IMAGE", "CAUSE", "WHY"), unknown),
    )


def _tables(report: Audit, *tables: tuple[Sequence[str], Sequence[Sequence[str]]]) -> str:
    """The tables that have rows, then the findings about workloads, and what was not read."""
    findings = [(each.rule.value, each.message) for each in report.findings if _is_of_workload(each)]
    problems = [(problem,) for problem in report.problems]
    every = (*tables, (("FINDING", ""), findings), (("NOT READ",), problems))
    parts = [_columns(header, rows) for header, rows in every if rows]
    if report.is_partial:
        parts.append("partial: it was interrupted\n")
    return "\n".join(parts)


def write_names(report: Audit) -> str:
    """The images that block, one a line, what blocks most first."""
    return "".join(f"{image.reference}\n" for image in blocking_images(report))


def write_sarif(report: Audit) -> str:
    """SARIF 2.1.0, which code hosts show beside the lines of a manifest.

    Specification: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    rules = list(FindingRule)
    run = {
        "tool": {
            "driver": {
                "name": "multiarch-extender",
                "version": __version__,
                "informationUri": _INFORMATION,
                "rules": [
                    {"id": rule.value, "shortDescription": {"text": RULES[rule]}, "helpUri": _INFORMATION}
                    for rule in rules
                ],
            }
        },
        "invocations": [{
            "executionSuccessful": not report.is_partial,
            "toolExecutionNotifications": [{"level": "warning", "message": {"text": each}} for each in report.problems],
        }],
        "results": [_sarif_result(finding, rules) for finding in report.findings],
    }  # fmt: skip
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


WRITERS: Mapping[str, Callable[[Audit], str]] = {
    "table": write_table,
    "wide": write_wide,
    "name": write_names,
    "json": write_json,
    "yaml": write_yaml,
    "markdown": write_markdown,
    "html": write_html,
    "sarif": write_sarif,
}


def blocking_images(report: Audit) -> list[AuditedImage]:
    """The images that lack a target, what blocks most first: a work plan."""
    found = [image for image in report.images if image.lacks]
    return sorted(found, key=lambda each: (*report.heaviest_first(each.blocks), each.reference))


def blocked_workloads(report: Audit) -> list[AuditedWorkload]:
    """The workloads that are kept from a target, the heaviest first."""
    found = [each for each in report.workloads if _blocked_on(each)]
    return sorted(found, key=lambda each: (*report.heaviest_first(each.weight), _name(each)))


_MOST_WORKLOADS = 10  # in the narrow table
_IMAGE_COLUMNS = ("image", "lacks", "has", "blocks", "alone", "whose", "first newer tag with it")
_WORKLOAD_COLUMNS = ("workload", "platform", "answer", "blocked by", "pods", "cpu", "memory")


def _image_row(image: AuditedImage) -> Sequence[str]:
    newer = (each.tag or f"none: {each.why}" for each in image.newer)
    return (
        image.reference, ", ".join(image.lacks), ", ".join(image.platforms), _weight(image.blocks),
        _weight(image.unblocks), image.owner, "; ".join(dict.fromkeys(newer)),
    )  # fmt: skip


def _newer_tags(image: AuditedImage) -> list[str]:
    return list(dict.fromkeys(each.tag for each in image.newer if each.tag))


def _unknown_images(report: Audit) -> list[AuditedImage]:
    return [image for image in report.images if image.state == "unknown"]


def _short_workload_row(workload: AuditedWorkload) -> Sequence[str]:
    blocked = _blocked_on(workload)
    first, *others = dict.fromkeys(blocker.subject for each in blocked for blocker in each.blockers)
    by = f"{first} and {len(others)} more" if others else first
    weight = workload.weight
    return (
        _name(workload),
        ", ".join(each.platform for each in blocked),
        str(weight.pods),
        f"{round(weight.cpu_cores, 2):g}",
        by,
    )


def _blocked_on(workload: AuditedWorkload) -> list[WorkloadPlatform]:
    return [each for each in workload.platforms if each.answer is RunAnswer.NO]


def _workload_row(workload: AuditedWorkload) -> Sequence[str]:
    bad = [each for each in workload.platforms if each.answer is not RunAnswer.YES]
    subjects = dict.fromkeys(blocker.subject for each in bad for blocker in each.blockers)
    return (
        _name(workload), ", ".join(each.platform for each in bad), ", ".join(each.answer for each in bad),
        ", ".join(subjects), *_amounts(workload.weight),
    )  # fmt: skip


def _summary_rows(report: Audit) -> list[Sequence[str]]:
    return [(each.platform, _weight(each.yes), _weight(each.no), _weight(each.unknown)) for each in report.summary]


def _is_blocked(workload: AuditedWorkload) -> bool:
    return any(each.answer is not RunAnswer.YES for each in workload.platforms)


def _is_of_workload(finding: Finding) -> bool:
    return finding.rule not in (FindingRule.IMAGE_LACKS_PLATFORM, FindingRule.IMAGE_UNKNOWN)


def _name(workload: AuditedWorkload) -> str:
    own = f"{workload.kind}/{workload.name}"
    return f"{workload.namespace}/{own}" if workload.namespace else own


def _weight(weight: Weight) -> str:
    if not weight.workloads:
        return "-"
    return f"{_number(weight)}, {weight.cpu_cores:g} CPU, {size_text(weight.memory_bytes)}"


def _number(weight: Weight) -> str:
    if not weight.workloads:
        return "-"
    return f"{counted(weight.workloads, 'workload')}, {counted(weight.pods, 'pod')}"


def _amounts(weight: Weight) -> tuple[str, str, str]:
    """What its pods take, as columns."""
    return (str(weight.pods), *_requests(weight.cpu_cores, weight.memory_bytes))


def _requests(cpu_cores: float, memory_bytes: int) -> tuple[str, str]:
    return f"{round(cpu_cores, 2):g}", size_text(memory_bytes)


def _upper(names: Sequence[str]) -> Sequence[str]:
    return [name.upper() for name in names]


def _inline(text: object) -> str:
    return escape(" ".join(str(text).split()), quote=False).replace("|", "\\|")


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    written = [f"| {' | '.join(map(_inline, row))} |" for row in rows]
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *written] if written else ["None."]


def _columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ("".join(text for text, _ in parts) for parts in aligned((header, *rows)))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _sarif_result(finding: Finding, rules: list[FindingRule]) -> dict[str, Any]:
    places = list(zip_longest(finding.workloads, finding.sources, fillvalue=""))
    more = len(places) - _MOST_LOCATIONS
    return {
        "ruleId": finding.rule.value,
        "ruleIndex": rules.index(finding.rule),
        "level": finding.level,
        "message": {"text": finding.message + (f" (and {more} more workloads)" if more > 0 else "")},
        "locations": [_sarif_location(*place) for place in places[:_MOST_LOCATIONS]],
        "partialFingerprints": {"multiarchExtender/v1": finding.fingerprint},
    }


def _sarif_location(workload: str, source: str) -> dict[str, Any]:
    logical = {"logicalLocations": [{"fullyQualifiedName": workload, "kind": "resource"}]}
    if not source:
        return logical
    found = _DOCUMENT.fullmatch(source)
    path = found["file"] if found else source
    uri = quote(path.replace("\\", "/").encode("utf-8", "surrogateescape"))
    return {"physicalLocation": {"artifactLocation": {"uri": uri}}, "message": {"text": source}, **logical}
