"""Where SARIF says that a finding is: the workload, and the document that it is from."""

import json
from typing import Any

import pytest

from extender.cli.audit_writers import write_sarif
from extender.placement.policy import Policy
from extender.reports.audit_findings import AuditInput, ImageEvidence, audit
from extender.reports.workload_reports import WorkloadCollector
from tests.builders import index


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
