"""Quantities, and what a pod requests."""

import pytest

from extender.kubernetes.reported_v1 import ReportedContainer, ReportedSpec, ResourceRequirements
from extender.reports.quantities import parse_quantity, requested, size_text


@pytest.mark.parametrize(
    ("text", "number"),
    [("100m", 0.1), ("1", 1), (2, 2), (0.5, 0.5), ("1.5Gi", 1.5 * 2**30), ("2e3", 2000), ("1E3", 1000), ("1E", 1e18),
     ("128974848", 128974848), ("129M", 129e6), ("123Mi", 123 * 2**20), (".5", 0.5), ("0", 0), ("250000u", 0.25),
     ("", 0), ("many", 0), ("1 Gi", 0), ("1KiB", 0), ("१", 0),
     ("9" * 400, 0), ("1e999", 0)],
)  # fmt: skip
def test_a_quantity_is_read_as_kubernetes_does(text: str | float, number: float) -> None:
    """Suffixes of both kinds, exponents and bare numbers; what is no quantity counts nothing."""
    assert parse_quantity(text) == pytest.approx(number)


def container(cpu: str = "", *, sidecar: bool = False, limit: str = "") -> ReportedContainer:
    resources = ResourceRequirements({"cpu": cpu} if cpu else None, {"cpu": limit} if limit else None)
    return ReportedContainer(resources=resources, restart_policy="Always" if sidecar else None)


@pytest.mark.parametrize(
    ("spec", "cores"),
    [
        (ReportedSpec(), 0),
        (ReportedSpec(containers=(container("1"), container("500m"))), 1.5),
        (ReportedSpec(containers=(container(limit="2"),)), 2),
        (ReportedSpec(containers=(container("1"),), init_containers=(container("3"),)), 3),
        (ReportedSpec(containers=(container("1"),), init_containers=(container("1", sidecar=True), container("3"))), 4),
        (ReportedSpec(containers=(container("3"),), init_containers=(container("3"), container("1", sidecar=True))), 4),
        (ReportedSpec(containers=(container("1"),), resources=ResourceRequirements({"cpu": "5"})), 5),
        (ReportedSpec(containers=(container("1"),), resources=ResourceRequirements({"memory": "5Gi"})), 1),
        (ReportedSpec(containers=(container("1"),), overhead={"cpu": "250m"}), 1.25),
    ],
)
def test_what_a_pod_requests_is_what_the_scheduler_reserves(spec: ReportedSpec, cores: float) -> None:
    """The pod's own request first, else containers, init containers one by one, sidecars beside them, and overhead."""
    assert requested(spec, "cpu") == pytest.approx(cores)


@pytest.mark.parametrize(
    ("size", "binary", "decimal"),
    [
        (0, "0 B", "0 B"),
        (1010, "1,010 B", "1.0 KB"),
        (1536, "1.5 KiB", "1.5 KB"),
        (512 << 20, "512 MiB", "537 MB"),
        (1020 << 30, "1,020 GiB", "1.1 TB"),
        (3 << 60, "3,145,728 TiB", "3,458,765 TB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_that_it_has(size: int, binary: str, decimal: str) -> None:
    assert (size_text(size), size_text(size, is_decimal=True)) == (binary, decimal)
