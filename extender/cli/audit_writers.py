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
from extender.cli.audit_tables import Table, amounts, numbers, short_tables, wide_tables
from extender.cli.console import aligned
from extender.reports.audit_report import RULES, Audit, Finding, FindingRule, Weight

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
    summary, _, *tables = wide_tables(report)
    lines = ["# Audit", "", *_markdown(summary)]
    if report.is_partial:
        lines += ["", "**Partial**: it was interrupted, and images that were not looked up are unknown."]
    for table in tables:
        if table.rows or table.or_none:
            lines += ["", f"## {table.title}", "", *_markdown(table)]
    if report.problems:
        lines += ["", "## Not read", "", *(f"- {_inline(problem)}" for problem in report.problems)]
    return "\n".join(lines) + "\n"


def write_table(report: Audit) -> str:
    """What blocks most, as text for a terminal of 100 columns."""
    return _texts(report, short_tables(report), numbers)


def write_wide(report: Audit) -> str:
    """The same with all columns and all workloads."""
    return _texts(report, wide_tables(report), amounts)


def _texts(report: Audit, tables: Sequence[Table], weight_text: Callable[[Weight], str]) -> str:
    """The tables that have rows, then what was not read."""
    parts = [
        _aligned([[column.heading.upper() for column in table.columns], *table.texts(weight_text)]) + table.more
        for table in tables
        if table.rows
    ]
    if report.problems:
        parts.append(_aligned([("NOT READ",), *((problem,) for problem in report.problems)]))
    if report.is_partial:
        parts.append("partial: it was interrupted\n")
    return "\n".join(parts)


def write_names(report: Audit) -> str:
    """The images that block, one a line, what blocks most first."""
    return "".join(f"{image.reference}\n" for image in report.blocking_images)


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


def _inline(text: object) -> str:
    return escape(" ".join(str(text).split()), quote=False).replace("|", "\\|")


def _markdown(table: Table) -> list[str]:
    if not table.rows:
        return ["None."]
    columns = [column.heading.lower() for column in table.columns]
    written = [f"| {' | '.join(map(_inline, row))} |" for row in table.texts(amounts)]
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *written]


def _aligned(rows: Iterable[Sequence[str]]) -> str:
    lines = ("".join(text for text, _ in parts) for parts in aligned(rows))
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
