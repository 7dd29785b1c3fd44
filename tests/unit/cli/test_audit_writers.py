"""The page of an audit, in which nothing is markup but ours, and where SARIF says that a finding is."""

import base64
import hashlib
import json
import re
from datetime import UTC, datetime
from html import unescape
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from extender import __version__
from extender.cli.audit_html import write_html
from extender.cli.audit_tables import blocked_workloads
from extender.cli.audit_writers import WRITERS, write_names, write_sarif, write_table, write_wide
from extender.images.content import Cause, Content, Failure
from extender.images.platform import Platform
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.policy import Policy
from extender.printable import printable
from extender.reports.audit_findings import AuditInput, ImageEvidence, audit, wanted_newer, with_newer
from extender.reports.audit_report import Audit, AuditedNodes, NewerTag, Weight
from extender.reports.workload_reports import WorkloadCollector
from tests import builders
from tests.builders import decoded, index

AMD, ARM = Platform("linux", "amd64"), Platform("linux", "arm64")


def node(name: str, architecture: str, cpu: str) -> ReportedNode:
    allocatable = {"cpu": cpu, "memory": "64Gi"}
    return decoded(builders.node(name, f"linux/{architecture}", allocatable=allocatable), ReportedNode)


def image_of(index: int) -> tuple[str, Content | Failure]:
    """An image and what its lookup gave: of ten, six are multi-arch, three amd64 alone, and one is unknown."""
    host = "docker.io/vendor" if index % 3 else "registry.example.com/shop"
    name = f"{host}/service-{index:04}:1.{index % 7}"
    if index % 10 == 9:
        return name, Failure(Cause.DENIED, "the registry refuses access")
    return name, builders.index(*map(str, (AMD,) if index % 10 in (2, 4, 7) else (AMD, ARM)))


def report_of(workloads: int, images: int) -> Audit:
    """The audit of so many workloads, which use so many images in turn."""
    collector = WorkloadCollector()
    for at in range(workloads):
        requests = {"cpu": f"{100 + at % 900}m", "memory": f"{64 + at % 500}Mi"}
        container = {"name": "main", "image": image_of(at % images)[0], "resources": {"requests": requests}}
        pinned = {"nodeSelector": {"kubernetes.io/arch": "amd64"}} if at % 11 == 5 else {}
        metadata = {"name": f"web-{at:05}", "namespace": f"team-{at % 12}"}
        spec = {"template": {"spec": {"containers": [container], **pinned}}, "replicas": 1 + at % 3}
        collector.add({"kind": ("Deployment", "DaemonSet")[at % 2], "metadata": metadata, "spec": spec})
    found = dict(image_of(index) for index in range(images))
    made = collector.workloads()
    report = audit(
        AuditInput(
            workloads=made,
            evidence=[[ImageEvidence(found[image.reference], "") for image in each.images] for each in made],
            policy=Policy(),
            nodes=[node("amd-1", "amd64", "16"), node("amd-2", "amd64", "16"), node("arm-1", "arm64", "32")],
        )
    )
    return with_newer(report, {(image_of(2)[0], "linux/arm64"): NewerTag("linux/arm64", "2.0.1")})


def test_the_table_fits_a_hundred_columns_and_names_the_heaviest_workloads() -> None:
    """Findings are sentences, which a terminal wraps."""
    report = report_of(300, 40)
    tables, _, findings = write_table(report).partition("FINDING")
    assert findings
    assert max(map(len, tables.splitlines())) <= 100
    parts = [part.splitlines() for part in tables.split("\n\n")]
    headers = {part[0].split("  ")[0]: part[0].split() for part in parts if part}
    assert headers["IMAGE"] == ["IMAGE", "BLOCKS", "PODS", "CPU", "MEMORY", "NEWER", "TAG"]
    [workloads] = [part[1:] for part in parts if part and part[0].startswith("WORKLOAD ")]
    shown = [line.split()[0] for line in workloads[:-1]]
    assert shown == [f"{each.namespace}/{each.kind}/{each.name}" for each in blocked_workloads(report)[:10]]
    assert workloads[-1] == f"and {len(blocked_workloads(report)) - 10} more: -o wide has all"
    wide = write_wide(report)
    assert all(f"/{each.name}  " in wide for each in blocked_workloads(report))


def test_a_count_says_of_what_and_one_is_one() -> None:
    """Also in the findings."""
    report = report_of(1, 1)
    one = msgspec.structs.replace(report.summary[0], yes=Weight(1, 1, 0.5, 1024))
    table = write_table(msgspec.structs.replace(report, summary=[one], workloads=[], nodes=[], findings=[]))
    assert table == "PLATFORM     RUNS               BLOCKED  UNKNOWN\nlinux/amd64  1 workload, 1 pod  -        -\n"
    assert not re.search(r"\b1 (pods|nodes|workloads)", write_wide(report_of(300, 40)))


def test_names_are_what_blocks_and_nothing_else() -> None:
    report = report_of(300, 40)
    assert write_names(report).splitlines() == [image.reference for image in report.blocking_images]


HOSTILE = "</script><script>alert(1)</script><img src=x>\u2028"


class Elements(HTMLParser):
    """Collects the elements of a page, the texts of scripts and styles, and everything that could load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self._open = tag
        self.links += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "style", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)


def test_the_page_is_printed_as_it_is() -> None:
    """Nothing in it is escaped on the way to standard output."""
    assert all(printable(line) == line for line in write_html(report_of(200, 40)).split("\n"))


def test_the_picture_says_what_share_could_move() -> None:
    report = report_of(200, 40)
    page = write_html(report)
    [_, arm] = report.summary
    share = f"{100 * arm.yes.cpu_cores / report.total.cpu_cores:.0f}%"
    assert f"<h3>linux/arm64: {share} of the CPU</h3>" in page
    bars = re.findall(r'<svg class="bar".*?</svg>', page)
    for bar in bars:
        widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="32"', bar)]
        assert abs(sum(widths) - 1000) < 1
    assert len(bars) == 2
    for words in ("your own images", "a vendor's image", "selector, affinity or taint", "not known"):
        assert words in unescape(page)


def test_the_head_says_what_was_audited_and_when_and_by_which_version() -> None:
    page = write_html(report_of(1, 1), "context <staging>", datetime(2026, 11, 26, 5, 41, tzinfo=UTC))
    assert f"context &lt;staging&gt;, 2026-11-26 05:41 UTC, multiarch-extender {__version__}" in page


def test_the_tables_have_every_row() -> None:
    report = report_of(50, 20)
    [data] = [json.loads(text) for text in Elements(write_html(report)).texts["script"] if text.startswith('{"images"')]
    assert {name: len(table["rows"]) for name, table in data.items()} == {
        "images": 20, "workloads": 50, "findings": len(report.findings),
    }  # fmt: skip
    assert all(len(row) == len(table["columns"]) for table in data.values() for row in table["rows"])


def test_names_are_texts_and_never_markup() -> None:
    """Whoever can name a workload or an image cannot put a script into the report."""
    report = report_of(20, 10)
    image = msgspec.structs.replace(report.images[2], reference=HOSTILE)
    workload = msgspec.structs.replace(report.workloads[0], namespace=HOSTILE, name=HOSTILE)
    hostile = msgspec.structs.replace(
        report,
        images=[image],
        workloads=[workload],
        targets=[HOSTILE, HOSTILE],
        problems=[HOSTILE],
        nodes=[AuditedNodes(platform=HOSTILE, nodes=1, cpu_cores=1, memory_bytes=1, blocked=Weight())],
    )
    found = Elements(write_html(hostile))
    assert found.names.count("script") == 2
    assert "img" not in found.names


def test_nothing_but_the_pages_own_script_and_style_is_allowed() -> None:
    """No element loads anything, and the policy names the hashes of the two."""
    page = write_html(report_of(20, 10))
    found = Elements(page)
    assert found.links == []
    policy = re.search(r'Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        [text] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy[1]


def test_a_report_without_workloads_or_requests_is_a_page_too() -> None:
    assert "No workload requests any pods" in write_html(report_of(0, 1))
    report = report_of(3, 3)
    workloads = [msgspec.structs.replace(each, weight=Weight(1, 2, 0.0, 0)) for each in report.workloads]
    assert "Share of the pods" in write_html(
        msgspec.structs.replace(report, workloads=workloads, total=Weight(3, 6, 0.0, 0))
    )
    assert WRITERS["html"] is write_html


def test_pods_are_the_measure_where_one_workload_requests_no_cpu() -> None:
    """Else all of the CPU could move while most pods are blocked. The CPU that is requested is shown beside it."""
    report = report_of(200, 40)
    blocked = report.images[2].reference
    workloads = [
        msgspec.structs.replace(each, weight=Weight(1, 10, 0.0, 0)) if blocked in each.images else each
        for each in report.workloads
    ]
    heavy = [
        msgspec.structs.replace(each, blocks=Weight(5, 50, 0.0, 0) if each.reference == blocked else each.blocks)
        for each in report.images
    ]
    mixed = msgspec.structs.replace(report, workloads=workloads, images=heavy)
    page = write_html(mixed)
    titles = re.findall(r"<h3>linux/arm64: (\d+%) of the ([^<]*)</h3>", page)
    assert [unit for _, unit in titles] == ["pods", "requested CPU"]
    assert int(titles[0][0][:-1]) < int(titles[1][0][:-1])
    assert page.index("Share of the pods") < page.index("Share of the requested CPU")
    [data] = [json.loads(text) for text in Elements(page).texts["script"] if text.startswith('{"images"')]
    assert [data[name]["columns"][data[name]["sort"]]["name"] for name in ("images", "workloads")] == [
        "Blocks pods", "Pods"
    ]  # fmt: skip
    assert (mixed.blocking_images[0].reference, wanted_newer(mixed)[0][0]) == (blocked, blocked)
    assert report.blocking_images[0].reference != blocked
    idle = [msgspec.structs.replace(each, weight=Weight(1, 0, 0.0, 0)) for each in report.workloads[:1]]
    assert not msgspec.structs.replace(report, workloads=[*idle, *report.workloads[1:]]).is_weighed_by_pods


def test_an_interrupted_audit_says_so() -> None:
    page = write_html(msgspec.structs.replace(report_of(3, 3), is_partial=True))
    assert page.index("this report is partial") < page.index("<svg")


def results(sources: list[str]) -> list[dict[str, Any]]:
    """The results for a Deployment of each source, all of one image that is built only for amd64."""
    collector = WorkloadCollector()
    spec = {"containers": [{"name": "main", "image": "app:1"}]}
    for number, source in enumerate(sources):
        metadata = {"name": f"web-{number:03}", "namespace": "shop"}
        collector.add({"kind": "Deployment", "metadata": metadata, "spec": {"template": {"spec": spec}}}, source)
    workloads = collector.workloads()
    content = index("linux/amd64")
    evidence = [[ImageEvidence(content)] for _ in workloads]
    found: list[dict[str, Any]] = json.loads(
        write_sarif(audit(AuditInput(workloads=workloads, evidence=evidence, policy=Policy())))
    )["runs"][0]["results"]
    return found


@pytest.mark.parametrize("source", ["standard input, document 3", "charts/web.yaml, document 3"])
def test_the_workload_is_named_beside_its_document(source: str) -> None:
    """Nothing else tells what is meant where many documents come from standard input."""
    [result] = results([source])
    [location] = result["locations"]
    assert location["logicalLocations"] == [{"fullyQualifiedName": "shop/Deployment/web-000", "kind": "resource"}]
    assert location["message"]["text"] == source
    uri = source.partition(",")[0].replace(" ", "%20")
    assert location["physicalLocation"]["artifactLocation"]["uri"] == uri


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("charts/a b.yaml", "charts/a%20b.yaml"),
        ("a#b?c[1].yaml", "a%23b%3Fc%5B1%5D.yaml"),
        ("50%.yaml", "50%25.yaml"),
        ("a:b.yaml", "a%3Ab.yaml"),
        ("größe.yaml", "gr%C3%B6%C3%9Fe.yaml"),
        ("latin\udce4.yaml", "latin%E4.yaml"),
        ("two\nlines.yaml", "two%0Alines.yaml"),
        ('"<x>^`{y}|.yaml', "%22%3Cx%3E%5E%60%7By%7D%7C.yaml"),
    ],
)
def test_a_file_is_a_uri_whatever_its_name(file: str, uri: str) -> None:
    """Viewers resolve it as a relative reference: what is no letter of a path there is quoted."""
    [result] = results([f"{file}, document 1"])
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


@pytest.mark.parametrize(("number", "text"), [(100, "only for linux/amd64"), (103, "(and 3 more workloads)")])
def test_a_hundred_places_are_named_and_the_others_counted(number: int, text: str) -> None:
    [result] = results([f"web.yaml, document {at}" for at in range(number)])
    named = [location["logicalLocations"][0]["fullyQualifiedName"] for location in result["locations"]]
    assert named == [f"shop/Deployment/web-{at:03}" for at in range(100)]
    assert result["message"]["text"].endswith(text)
