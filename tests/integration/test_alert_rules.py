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


def level(series: str, bad: float) -> dict[str, str]:
    """A gauge that is `bad` from the 11th minute to the 60th, else 1."""
    return {series: f"1x10 {bad}x49 1x120"}


def slow(metric: str, labels: str) -> dict[str, str]:
    """A histogram with a fast minute-by-minute rate, and slow requests from the 10th minute to the 60th."""
    fast, beyond = "0+100x180", "0+100x10 1200+200x49 11100+100x120"
    return {
        f'{metric}_bucket{{{labels},le="0.1"}}': fast,
        f'{metric}_bucket{{{labels},le="2"}}': fast,
        f'{metric}_bucket{{{labels},le="5"}}': beyond,
        f'{metric}_bucket{{{labels},le="+Inf"}}': beyond,
    }


STORIES = [
    Story("MultiarchDown", {'multiarch_build_info{version="1"}': "1x10 _x20 1x60"}, 25, (5, 12, 40)),
    Story(
        "MultiarchWebhookFailsOpen",
        errors("apiserver_admission_webhook_fail_open_count", f'{WEBHOOK},type="admit"'),
        30,
        (9, 90),
    ),
    Story(
        "MultiarchWebhookUnreached",
        {
            'multiarch_canary_timestamp_seconds{result="patched"}': "0+60x10 600x49 3660+60x119",
            'multiarch_canary_timestamp_seconds{result="unpatched"}': "0x10 660+60x49 3600x119",
            'multiarch_canaries_total{result="patched"}': "0+1x10 10x49 11+1x119",
            'multiarch_canaries_total{result="unpatched"}': "0x10 1+1x49 50x119",
        },
        20,
        (9, 12, 90),
    ),
    Story(  # one of two canaries, and always an older one than the last that was answered
        "MultiarchWebhookUnreached",
        {
            'multiarch_canary_timestamp_seconds{result="patched"}': "0+60x180",
            'multiarch_canary_timestamp_seconds{result="webhook_failed"}': "0x10 630+60x49 3570x119",
            'multiarch_canaries_total{result="patched"}': "0+1x180",
            'multiarch_canaries_total{result="webhook_failed"}': "0x10 1+1x49 50x119",
        },
        40,
        (9, 13, 90),
    ),
    Story(
        "MultiarchDaemonPodsMisplaced",
        errors("multiarch_daemon_pods_misplaced_total", 'treatment="reported"'),
        30,
        (9, 125),
    ),
    Story(
        "MultiarchWebhookCallsFail",
        errors("apiserver_admission_webhook_rejection_count", f'{WEBHOOK},error_type="calling_webhook_error"'),
        30,
        (9, 90),
    ),
    *(
        Story(alert, {f"{metric}{{{WEBHOOK},{labels}}}": "_x10 7x120"}, 15, (9, 40))  # all failures before it was read
        for alert, metric, labels in (
            ("MultiarchWebhookFailsOpen", "apiserver_admission_webhook_fail_open_count", 'type="admit"'),
            (
                "MultiarchWebhookCallsFail",
                "apiserver_admission_webhook_rejection_count",
                'error_type="calling_webhook_error"',
            ),
        )
    ),
    Story(
        "MultiarchWebhookSlow",
        slow("apiserver_admission_webhook_admission_duration_seconds", WEBHOOK),
        40,
        (9, 15, 90),
    ),
    Story(
        "MultiarchAdmissionsUnresolved",
        both("multiarch_admissions_total", 'outcome="unresolved"', 'outcome="patched"'),
        40,
        (9, 15, 100),
    ),
    Story("MultiarchPodsImpossible", errors("multiarch_admissions_total", 'outcome="denied"'), 59, (9, 30, 120)),
    Story(
        "MultiarchFilterErrors",
        both("multiarch_requests_total", 'endpoint="filter",outcome="error"', 'endpoint="filter",outcome="answered"'),
        50,
        (9, 20, 90),
    ),
    Story(
        "MultiarchRequestsFail",
        errors("multiarch_requests_total", 'endpoint="filter",outcome="failed"'),
        30,
        (9, 90),
    ),
    Story("MultiarchRequestsSlow", slow("multiarch_request_duration_seconds", 'endpoint="preempt"'), 40, (9, 15, 90)),
    Story("MultiarchGatesHeldLong", level('multiarch_gates_oldest_seconds{state="held"}', 700), 30, (9, 13, 90)),
    Story(  # of two replicas that see no leader
        "MultiarchGatesWithoutLeader",
        {
            'multiarch_gates_removal{state="wanted",instance="a"}': "1x180",
            'multiarch_gates_removal{state="able",instance="a"}': "1x10 0x49 1x120",
            'multiarch_gates_removal{state="wanted",instance="b"}': "1x180",
            'multiarch_gates_removal{state="able",instance="b"}': "1x5 0x54 1x120",
        },
        12,
        (9, 11, 61),
    ),
    Story(  # no replica is left
        "MultiarchGatesWithoutLeader",
        {
            'multiarch_gates_removal{state="wanted"}': "1x10 _x300 1x120",
            'multiarch_gates_removal{state="able"}': "1x10 _x300 1x120",
        },
        300,
        (9, 312),
    ),
    Story(  # held yet, and nobody may let them go any more
        "MultiarchGatesWithoutLeader",
        {
            'multiarch_gates_removal{state="wanted"}': "1x5 0x175",
            'multiarch_gates_removal{state="able"}': "1x5 0x175",
            'multiarch_gates_pods{state="seen"}': "0x10 7x49 0x120",
        },
        13,
        (9, 10, 90),
    ),
    Story(  # switched off, with rights for a while
        "MultiarchGatesWithoutLeader",
        {
            'multiarch_gates_removal{state="wanted"}': "1x20 0x180",
            'multiarch_gates_removal{state="able"}': "0x10 0x10 0x180",
        },
        15,
        (0, 30, 150),
    ),
    Story(
        "MultiarchLookupsFail",
        both("multiarch_lookups_total", 'result="error"', 'result="fetched"'),
        50,
        (9, 20, 90),
    ),
    Story("MultiarchRegistryThrottles", {"multiarch_registry_throttled_seconds": "0x10 30x49 0x120"}, 40, (9, 20, 90)),
    Story("MultiarchViewStale", level('multiarch_watch_age_seconds{resource="nodes"}', 400), 30, (9, 12, 90)),
    Story("MultiarchFileRefused", errors("multiarch_file_reloads_total", 'outcome="refused"'), 30, (9, 150)),
    Story(
        "MultiarchCertificateExpires",
        {
            'multiarch_certificate_expiry_timestamp_seconds{listener="admission"}': (
                f"{30 * DAY}x10 {6 * DAY}x49 {90 * DAY}x120"
            )
        },
        40,
        (9, 20, 90),
    ),
    Story(
        "MultiarchCertificateEnds",
        {
            'multiarch_certificate_expiry_timestamp_seconds{listener="admission"}': (
                f"{30 * DAY}x10 {DAY // 2}x49 {90 * DAY}x120"
            )
        },
        30,
        (9, 90),
    ),
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
    expression = f'count(ALERTS{{alertname="{story.alert}",alertstate="firing"}})'
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


def test_what_is_recorded_is_the_share_from_memory(promtool: Path, tmp_path: Path) -> None:
    """Three of four images, and nine of ten reviews."""
    series = {
        'multiarch_lookups_total{result="hit"}': "0+3x20",
        'multiarch_lookups_total{result="fetched"}': "0+1x20",
        'multiarch_request_duration_seconds_bucket{endpoint="admission",le="0.01"}': "0+9x20",
        'multiarch_request_duration_seconds_count{endpoint="admission"}': "0+10x20",
    }
    wanted = {
        "multiarch:images_from_memory:ratio_rate5m": 0.75,
        "multiarch:pods_from_memory:ratio_rate5m": 0.9,
    }
    label = {name: '{endpoint="admission"}' if "pods" in name else "" for name in wanted}
    checks = [
        {"expr": name, "eval_time": "15m", "exp_samples": [{"labels": f"{name}{label[name]}", "value": value}]}
        for name, value in wanted.items()
    ]
    told_series = [{"series": name, "values": values} for name, values in series.items()]
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
