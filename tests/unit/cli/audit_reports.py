"""Audits to write: of as many workloads as wanted, whose images lack platforms, are unknown, or are somebody else's."""

from extender.images.content import Cause, Content, Failure
from extender.images.platform import Platform
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.policy import Policy
from extender.reports.audit_findings import AuditInput, ImageEvidence, audit, with_newer
from extender.reports.audit_report import Audit, NewerTag
from extender.reports.workload_reports import WorkloadCollector
from tests import builders
from tests.builders import decoded

AMD, ARM = Platform("linux", "amd64"), Platform("linux", "arm64")
_KINDS = ("Deployment", "StatefulSet", "DaemonSet", "CronJob")


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
    collector = WorkloadCollector()
    for index in range(workloads):
        kind = _KINDS[index % len(_KINDS)]
        containers = [
            {
                "name": "main",
                "image": image_of(index % images)[0],
                "resources": {"requests": {"cpu": f"{100 + index % 900}m", "memory": f"{64 + index % 500}Mi"}},
            }
        ]
        spec: dict[str, object] = {"containers": containers}
        if index % 11 == 5:
            spec["nodeSelector"] = {"kubernetes.io/arch": "amd64"}
        template = {"spec": spec}
        collector.add(
            {
                "apiVersion": "batch/v1" if kind == "CronJob" else "apps/v1",
                "kind": kind,
                "metadata": {"name": f"workload-{index:05}", "namespace": f"team-{index % 12}"},
                "spec": {"jobTemplate": {"spec": {"template": template}}}
                if kind == "CronJob"
                else {"template": template, "replicas": 1 + index % 3},
            }
        )
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
