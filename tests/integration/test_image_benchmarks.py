"""The benchmarks of images, memory, start and endurance run, count right, and say what they are asked."""

from collections.abc import Sequence

import pytest

from benchmarks import audit, images, known_images, memory, soak, startup
from benchmarks.far_registry import is_multi_arch
from benchmarks.report import Report, Table
from benchmarks.soak_requests import MIX, NONSENSE, Questions

pytestmark = pytest.mark.slow


def column(table: Table, name: str) -> Sequence[object]:
    """One column of a table, from top to bottom."""
    return [row[list(table.columns).index(name)] for row in table.rows]


def figures(report: Report) -> dict[str, float]:
    """The claims' figures by what is claimed."""
    return {claim.what: claim.value for claim in report.claims}


def test_cold_images_are_asked_for_once() -> None:
    """However many want one, and never more at one host than it allows."""
    report = images.run(fewer=1000)
    burst, cold = report.tables
    assert column(burst, "image") == ["multi-arch", "single"]
    assert column(burst, "HEAD manifests") == column(burst, "GET manifests") == [1, 1]
    assert column(burst, "GET blobs") == [0, 1]
    assert column(cold, "images") == [4, 10, 10, 2]
    assert column(cold, "requests") == [8, 20, 20, 4]
    assert [claim.what for claim in report.claims if claim.unit == "" and not claim.holds] == []
    assert figures(report)["most requests to one host at a time"] <= images.PER_HOST


def test_known_images_are_asked_for_alone_and_together() -> None:
    """Beside a dictionary and `async_lru`, which know them one by one."""
    report = known_images.run(fewer=1000)
    (table,) = report.tables
    assert column(table, "") == ["dictionary", "alru_cache", "peek_all", "resolve_all"]
    assert all(isinstance(figure, float) for figure in (*column(table, "1 in a pod"), *table.rows[-1][1:]))
    assert figures(report)["a known image, one of two"] > 0


def test_an_audit_is_measured_as_a_process() -> None:
    """Cold, from its cache, and of a cluster; each image takes one request, once."""
    report = audit.run(fewer=50)
    (table,) = report.tables
    assert column(table, "") == [
        "20 images, one host, cold", "20 images, one host, warm", "20 images, four hosts, cold",
        "20 images, four hosts, warm", "400 pods, warm",
    ]  # fmt: skip
    assert column(table, "requests") == [20, 0, 20, 0, 0]
    assert all(isinstance(most, int) and most <= 16 for most in column(table, "most at a host at once"))
    assert figures(report)["most memory"] > 20


def test_memory_is_measured_by_images() -> None:
    """Of a service that really knows so many; the most there ever was is not less than what there is."""
    report = memory.run(fewer=1000)
    (table,) = report.tables
    assert column(table, "images") == ["10", "100"]
    for _, most, after in table.rows:
        assert isinstance(most, float)
        assert isinstance(after, float)
        assert most >= after > 10
    assert [claim.what for claim in report.claims] == ["100 images", "each image", "without images"]


def test_the_start_is_measured_with_and_without_a_cluster() -> None:
    """Down to Python doing nothing."""
    report = startup.run(fewer=1000)
    (table,) = report.tables
    names = [*startup.PROGRAMS, startup.EMPTY, startup.ALONE, startup.CLUSTER, startup.KNOWN]
    assert column(table, "") == names
    assert all(isinstance(seconds, float) and seconds > 0 for seconds in column(table, "median"))
    assert [claim.at_most for claim in report.claims] == [startup.MOST_SECONDS, startup.MOST_SECONDS, None, None]


def test_a_short_soak_finds_every_answer_right() -> None:
    """Every kind of request has been asked, what is none is logged, and nothing else is."""
    report = soak.run(requests=1200, fewer=5, settle_seconds=0)
    found, requests = figures(report), column(report.tables[1], "requests")
    assert column(report.tables[1], "kind") == list(MIX)
    assert all(requests)
    assert sum(map(int, map(str, requests))) == found["requests"] == 240
    assert found["answers that were not right"] == 0
    assert found["requests that were none and not logged"] == found["other warnings and errors logged"] == 0
    assert [line.name for line in report.plots[0].lines] == ["service"]


def test_the_questions_of_a_soak_are_about_ever_new_pods() -> None:
    """The same in each run, but no two alike, and images that are not there come too."""
    hosts = ["127.0.0.1:1", "127.0.0.2:1"]
    twice = [Questions(hosts, nodes=20, images=50) for _ in range(2)]
    drawn, again = ([questions.draw(number) for number in range(500)] for questions in twice)
    assert drawn == again
    assert {question.kind for question in drawn} == set(MIX)
    real = [question.raw for question in drawn if question.kind not in NONSENSE and b"missing/" not in question.raw]
    real = [raw for raw in real if b"broken/" not in raw]
    assert len(set(real)) == len(real)
    assert any(b"missing/" in question.raw for question in drawn)
    assert not any(b"marked" in question.raw for question in drawn)
    for question in drawn:
        head, _, body = question.raw.partition(b"\r\n\r\n")
        assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n"


@pytest.mark.parametrize("repository", ["single/app", "missing/app", "broken/app"])
def test_names_say_what_is_no_multi_arch_image(repository: str) -> None:
    """Of the others most are."""
    assert not is_multi_arch(repository)
    assert sum(is_multi_arch(f"team/app-{number}") for number in range(60)) > 30
