"""The alert rules of the chart: promtool accepts them, each fires while its condition holds and ends with it.

It takes Debian's promtool, which judges the rules over given series at a minute's interval.
"""

import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

import extender.cli.serve  # noqa: F401 -- declares the metrics
from extender.metrics import REGISTRY
from testbed.chart import CHART
from testbed.dashboard import panels
from testbed.debian_package import ProgramMissing
from testbed.debian_prometheus import find_promtool
from tools.docs.pages import anchors, page

RULES = CHART / "files" / "rules.yaml"
RUNBOOKS = "runbooks.md"
WEBHOOK = 'name="pods.multiarch-webhook.multiarch-extender.io"'
DAY = 86_400

Document = dict[str, Any]


class Story(NamedTuple):
    """Series, a minute when the alert fires, and minutes when it does not: before, too early, and after the end."""

    alert: str
    series: dict[str, str]
    fires: int
    silent: tuple[int, ...]


def errors(metric: str, labels: str) -> dict[str, str]:
    """A counter that stands still for 10 minutes, grows for 50, and stands still again."""
    return {f"{metric}{{{labels}}}": "0x10 10+10x50 510x120"}


def both(metric: str, bad: str, good: str) -> dict[str, str]:
    """A bad outcome that grows from the 10th minute to the 60th, and a good one that always grows slowly."""
    return errors(metric, bad) | {f"{metric}{{{good}}}": "0+1x180"}


def level(series: str, bad: float, good: float = 1, after: float = 1) -> dict[str, str]:
    """A gauge that is `bad` from the 11th minute to the 60th."""
    return {series: f"{good}x10 {bad}x49 {after}x120"}


def slow(metric: str, labels: str) -> dict[str, str]:
    """A histogram with a fast minute-by-minute rate, and slow requests from the 10th minute to the 60th."""
    fast, beyond = "0+100x180", "0+100x10 1200+200x49 11100+100x120"
    counts = {"0.1": fast, "2": fast, "5": beyond, "+Inf": beyond}
    return {f'{metric}_bucket{{{labels},le="{bound}"}}': count for bound, count in counts.items()}


def removal(wanted: str, able: str, replica: str = "") -> dict[str, str]:
    of = f',instance="{replica}"' if replica else ""
    states = {"wanted": wanted, "able": able}
    return {f'multiarch_gates_removal{{state="{state}"{of}}}': values for state, values in states.items()}


def crashing(code: int, pod: str = "p-0", owner: str = "web") -> dict[str, str]:
    """kube-state-metrics of a container that ends at once at each start, from the 10th minute to the 60th."""
    of = f'namespace="shop",pod="{pod}",container="c"'
    info = f'namespace="shop",pod="{pod}",created_by_kind="ReplicaSet",created_by_name="{owner}"'
    return {
        f"kube_pod_info{{{info}}}": "1x180",
        f"kube_pod_container_status_running{{{of}}}": "1x10 0x50 1x120",
        f'kube_pod_container_status_waiting_reason{{{of},reason="CrashLoopBackOff"}}': "_x10 1x50 _x120",
        f"kube_pod_container_status_last_terminated_exitcode{{{of}}}": f"_x10 {code}x170",
    }


def running(pod: str, owner: str = "web") -> dict[str, str]:
    """The same of a container that runs."""
    of = f'namespace="shop",pod="{pod}",container="c"'
    info = f'namespace="shop",pod="{pod}",created_by_kind="ReplicaSet",created_by_name="{owner}"'
    return {f"kube_pod_info{{{info}}}": "1x180", f"kube_pod_container_status_running{{{of}}}": "1x180"}


EXPIRY = 'multiarch_certificate_expiry_timestamp_seconds{listener="admission"}'
FAIL_OPEN = ("apiserver_admission_webhook_fail_open_count", f'{WEBHOOK},type="admit"')
REJECTED = ("apiserver_admission_webhook_rejection_count", f'{WEBHOOK},error_type="calling_webhook_error"')
REQUESTS, ADMISSIONS, LOOKUPS, MISPLACED = (
    f"multiarch_{each}_total" for each in ("requests", "admissions", "lookups", "daemon_pods_misplaced")
)
ADMISSION_SECONDS = "apiserver_admission_webhook_admission_duration_seconds"
PARTS = ("webhook", "scheduler", "gates")
STORIES = [
    Story("MultiarchDown", {f'multiarch_serves{{part="{part}"}}': "1x10 _x20 1x60" for part in PARTS}, 25, (5, 12, 40)),
    Story(
        "MultiarchDaemonPodsMisplaced",
        errors("multiarch_daemon_pods_misplaced_total", 'treatment="told"'),
        30,
        (9, 125),
    ),
    Story("MultiarchWebhookFailsOpen", errors(*FAIL_OPEN), 30, (9, 90)),
    Story("MultiarchWebhookCallsFail", errors(*REJECTED), 30, (9, 90)),
    *(  # all failures before it was read
        Story(alert, {f"{metric}{{{labels}}}": "_x10 7x120"}, 15, (9, 40))
        for alert, (metric, labels) in (
            ("MultiarchWebhookFailsOpen", FAIL_OPEN),
            ("MultiarchWebhookCallsFail", REJECTED),
        )
    ),
    Story("MultiarchWebhookSlow", slow(ADMISSION_SECONDS, WEBHOOK), 40, (9, 15, 90)),
    Story(
        "MultiarchAdmissionsUnresolved", both(ADMISSIONS, 'outcome="unresolved"', 'outcome="patched"'), 40, (9, 15, 100)
    ),
    Story("MultiarchPodsImpossible", errors(ADMISSIONS, 'outcome="denied"'), 59, (9, 30, 120)),
    Story(
        "MultiarchFilterErrors",
        both(REQUESTS, 'endpoint="filter",outcome="error"', 'endpoint="filter",outcome="answered"'),
        50,
        (9, 20, 90),
    ),
    Story("MultiarchRequestsFail", errors(REQUESTS, 'endpoint="filter",outcome="failed"'), 30, (9, 90)),
    Story("MultiarchRequestsSlow", slow("multiarch_request_duration_seconds", 'endpoint="preempt"'), 40, (9, 15, 90)),
    Story("MultiarchGatesHeldLong", level('multiarch_gates_oldest_seconds{state="held"}', 700), 30, (9, 13, 90)),
    Story(  # of two replicas that see no leader
        "MultiarchGatesWithoutLeader",
        removal("1x180", "1x10 0x49 1x120", "a") | removal("1x180", "1x5 0x54 1x120", "b"),
        12,
        (9, 11, 61),
    ),
    Story("MultiarchGatesWithoutLeader", removal(*["1x10 _x300 1x120"] * 2), 300, (9, 312)),  # no replica is left
    Story(  # held yet, and nobody may let them go any more
        "MultiarchGatesWithoutLeader",
        removal(*["1x5 0x175"] * 2) | level('multiarch_gates_pods{state="seen"}', 7, 0, 0),
        13,
        (9, 10, 90),
    ),
    Story(  # switched off, with rights for a while
        "MultiarchGatesWithoutLeader", removal("1x20 0x180", "0x10 0x10 0x180"), 15, (0, 30, 150)
    ),
    Story("MultiarchExecFormatError", crashing(255), 50, (9, 20, 90)),
    Story("MultiarchExecFormatError", crashing(1) | running("p-1"), 50, (9, 20, 90)),
    Story("MultiarchLookupsFail", both(LOOKUPS, 'result="error"', 'result="fetched"'), 50, (9, 20, 90)),
    Story("MultiarchRegistryThrottles", level("multiarch_registry_throttled_seconds", 30, 0, 0), 40, (9, 20, 90)),
    Story("MultiarchViewStale", level('multiarch_watch_age_seconds{resource="nodes"}', 400), 30, (9, 12, 90)),
    Story("MultiarchFileRefused", errors("multiarch_file_reloads_total", 'outcome="refused"'), 30, (9, 150)),
    Story("MultiarchCertificateExpires", level(EXPIRY, 6 * DAY, 30 * DAY, 90 * DAY), 40, (9, 20, 90)),
    Story("MultiarchCertificateEnds", level(EXPIRY, DAY // 2, 30 * DAY, 90 * DAY), 30, (9, 90)),
]


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The program; a test that takes it is skipped without one."""
    try:
        return find_promtool()
    except ProgramMissing as exc:
        pytest.skip(str(exc))


def rules() -> list[Document]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[Document]:
    return [rule for rule in rules() if "alert" in rule]


def judged(promtool: Path, folder: Path, tests: list[Document]) -> subprocess.CompletedProcess[str]:
    file = folder / "tests.yaml"
    file.write_bytes(msgspec.yaml.encode({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    return subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=60, check=False)


def told(story: Story) -> Document:
    expression = f'count(group by (alertname) (ALERTS{{alertname="{story.alert}",alertstate="firing"}}))'
    firing = {"expr": expression, "eval_time": f"{story.fires}m", "exp_samples": [{"labels": "{}", "value": 1}]}
    silent = [{"expr": expression, "eval_time": f"{minute}m", "exp_samples": []} for minute in story.silent]
    series = [{"series": name, "values": values} for name, values in story.series.items()]
    return {"interval": "1m", "input_series": series, "promql_expr_test": [firing, *silent]}


def test_promtool_accepts_the_rules(promtool: Path) -> None:
    """Syntax, names and templates."""
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_each_alert_fires_while_its_condition_holds_and_ends_with_it(promtool: Path, tmp_path: Path) -> None:
    """Not before, not earlier than its `for`, and not afterwards."""
    done = judged(promtool, tmp_path, [told(story) for story in STORIES])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_story_that_is_wrong_is_found(promtool: Path, tmp_path: Path) -> None:
    """An alert that does not fire makes promtool fail: it counts what we think it counts."""
    done = judged(promtool, tmp_path, [told(STORIES[0]._replace(fires=5, silent=()))])
    assert done.returncode != 0


@pytest.mark.parametrize(
    "series",
    [
        crashing(1),
        crashing(1) | crashing(1, "p-1"),
        crashing(1) | running("p-1", "another"),
        crashing(137) | running("p-1"),
        crashing(255)
        | {'kube_pod_container_status_running{namespace="shop",pod="p-0",container="c"}': "0 1 0x2 " * 45},
    ],
    ids=["alone", "all fail", "of another owner", "killed", "runs for a while"],
)
def test_what_fails_otherwise_is_no_exec_format_error(promtool: Path, tmp_path: Path, series: dict[str, str]) -> None:
    """A code that many failures have, where no sibling runs; one that is another; a program that has run."""
    checks = [{"expr": 'ALERTS{alertname="MultiarchExecFormatError"}', "eval_time": "50m", "exp_samples": []}]
    told_series = [{"series": name, "values": values} for name, values in series.items()]
    done = judged(promtool, tmp_path, [{"interval": "1m", "input_series": told_series, "promql_expr_test": checks}])
    assert done.returncode == 0, done.stdout + done.stderr


def replicas(part: str, *gone: str, count: int = 3) -> dict[str, str]:
    """So many replicas that serve the part, of which those named are gone from the 10th minute on."""
    return {
        f'multiarch_serves{{part="{part}",instance="{part}-{index}"}}': "1x10 _x50" if str(index) in gone else "1x60"
        for index in range(count)
    }


def other(part: str) -> dict[str, str]:
    """The same metric of replicas that serve another part."""
    return {f'multiarch_serves{{part="{part}",instance="{each}-0"}}': "0x60" for each in PARTS if each != part}


@pytest.mark.parametrize(
    "gone", [*((part,) for part in PARTS), PARTS, (), ("one replica",)], ids=lambda gone: "+".join(gone) or "none"
)
def test_a_part_that_is_gone_is_told_beside_those_that_run(
    promtool: Path, tmp_path: Path, gone: tuple[str, ...]
) -> None:
    """Each alone, all of them, and none where one replica of three is gone."""
    series: dict[str, str] = {}
    for part in PARTS:
        lost = "012" if part in gone else "0" if "one replica" in gone else ""
        series |= replicas(part, *lost) | ({} if gone == PARTS else other(part))
    told_series = [{"series": name, "values": values} for name, values in series.items()]
    expression = 'ALERTS{alertname="MultiarchDown",alertstate="firing"}'
    firing = [
        {"labels": f'{expression[:-1]},part="{part}",severity="critical"}}', "value": 1}
        for part in PARTS
        if part in gone
    ]
    checks = [
        {"expr": expression, "eval_time": f"{minute}m", "exp_samples": firing * (minute > 15)} for minute in (5, 14, 30)
    ]
    done = judged(promtool, tmp_path, [{"interval": "1m", "input_series": told_series, "promql_expr_test": checks}])
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_recorded_is_the_share_from_memory(promtool: Path, tmp_path: Path) -> None:
    """Three of four images, and nine of ten reviews."""
    counters = {
        'lookups_total{result="hit"}': 3,
        'lookups_total{result="fetched"}': 1,
        'request_duration_seconds_bucket{endpoint="admission",le="0.01"}': 9,
        'request_duration_seconds_count{endpoint="admission"}': 10,
    }
    wanted = {"images": ("", 0.75), "pods": ('{endpoint="admission"}', 0.9)}
    told_series = [{"series": f"multiarch_{name}", "values": f"0+{step}x20"} for name, step in counters.items()]
    checks = [
        {
            "expr": f"multiarch:{what}_from_memory:ratio_rate5m", "eval_time": "15m",
            "exp_samples": [{"labels": f"multiarch:{what}_from_memory:ratio_rate5m{labels}", "value": value}],
        }
        for what, (labels, value) in wanted.items()
    ]  # fmt: skip
    done = judged(promtool, tmp_path, [{"interval": "1m", "input_series": told_series, "promql_expr_test": checks}])
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_its_story() -> None:
    """And no story is of an alert that there is not."""
    assert {story.alert for story in STORIES} == {rule["alert"] for rule in alerts()}


def test_each_alert_says_what_to_do() -> None:
    """By a section of the runbooks; none of those is left over."""
    sections = set()
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        file, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert file.endswith(f"/{RUNBOOKS}")
        sections.add(section)
    assert anchors(page(RUNBOOKS)) - {"runbooks"} == sections


def test_rules_and_panels_name_metrics_and_labels_that_are_ours() -> None:
    """Each metric is declared, and a label's value in a rule is one that the metric has."""
    families = {family.name: family for family in REGISTRY.collect()}
    expressions = [str(rule["expr"]) for rule in rules()] + [query for panel in panels() for query in panel.queries]
    for expression in expressions:
        for name, labels in re.findall(r"\b(multiarch_\w+)(?:\{([^}]*)\})?", expression):
            family = families[re.sub(r"_(total|bucket|count|sum)$", "", name)]
            known: dict[str, set[str]] = {}
            for sample in family.samples:
                for label, value in sample.labels.items():
                    known.setdefault(label, set()).add(value)
            for label, operator, pattern in re.findall(r'(\w+)(=~|!~|=)"([^"$]*)"', labels):
                for value in pattern.split("|") if "~" in operator else [pattern]:
                    assert value in known[label], (expression, label, value)
