"""What the operators' dashboard shows: its panels, each with its queries, a sentence of meaning and what to do.

Knows PromQL and the sections of docs/runbooks.md, and nothing of Grafana's JSON.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

RULES = Path(__file__).parents[1] / "helm" / "multiarch-extender" / "files" / "rules.yaml"
"""The chart's rules, which name the shares that a panel shows too."""

_RATE = "[$__rate_interval]"


class Query(NamedTuple):
    """One expression. `legend` names each of its series by its labels, written in double braces."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One picture: its lines, or its number where `is_number`.

    `meaning` says what it shows, `remedy` what to do when it looks wrong. `runbooks` are sections of
    docs/runbooks.md, by their anchors.
    """

    title: str
    meaning: str
    remedy: str
    queries: tuple[Query, ...]
    unit: str = "short"
    runbooks: tuple[str, ...] = ()
    is_number: bool = False


class Row(NamedTuple):
    """Panels under a common heading."""

    title: str
    panels: tuple[Panel, ...]


def _recorded(name: str) -> str:
    """The expression of the recording rule, so that the panel needs no loaded rule."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (expression,) = (rule["expr"] for group in groups for rule in group["rules"] if rule.get("record") == name)
    return str(expression)


def _rate(metric: str, label: str, condition: str = "") -> Query:
    """The rate of a counter by one label."""
    return Query(f"sum by ({label}) (rate({metric}{condition}{_RATE}))", f"{{{{{label}}}}}")


def _quantiles(metric: str, label: str = "", condition: str = "") -> tuple[Query, ...]:
    """The median and the 99th percentile of a histogram, by the label if there is one."""
    by, name = (f"le, {label}", f"{{{{{label}}}}} ") if label else ("le", "")
    return tuple(
        Query(f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket{condition}{_RATE})))", f"{name}{title}")
        for share, title in ((0.5, "median"), (0.99, "99th percentile"))
    )


_OURS = '{name=~"[a-z]+[.].+[.]multiarch-extender[.]io"}'

AT_WORK = Row(
    "Is it at work?",
    (
        Panel(
            "Replicas",
            "How many replicas Prometheus reads, by version.",
            "Fewer than you run, or two versions long after an upgrade: look at the pods of the release.",
            (Query("count by (version) (multiarch_build_info)", "{{version}}"),),
            runbooks=("down",),
            is_number=True,
        ),
        Panel(
            "Let through with unknown images, last hour",
            "Pods that were created without placement, since it was not known what their images run on.",
            "More than a few: see why lookups fail, in the row about registries.",
            (Query('sum(increase(multiarch_admissions_total{outcome="unresolved"}[1h]))', "pods"),),
            runbooks=("admissions-unresolved",),
            is_number=True,
        ),
        Panel(
            "Pods whose images run nowhere together, last hour",
            "Pods whose images have no platform in common, or whose own selector contradicts them.",
            "Their authors must mend them; `multiarch-extender explain` says what would help.",
            (Query('sum(increase(multiarch_admissions_total{outcome=~"impossible|denied"}[1h]))', "pods"),),
            runbooks=("pods-impossible",),
            is_number=True,
        ),
        Panel(
            "Mistakes of the service, last hour",
            "Requests that failed by a mistake of the service itself, by endpoint.",
            "Any is worth a report: its log has the traceback.",
            (
                Query(
                    'sum by (endpoint) (increase(multiarch_requests_total{outcome="failed"}[1h]))',
                    "{{endpoint}}",
                ),
            ),
            runbooks=("requests-fail",),
            is_number=True,
        ),
        Panel(
            "DaemonSets' pods for wrong nodes, last hour",
            "Pods that DaemonSets made for nodes on which an image of theirs does not run. held: kept Pending.",
            "Keep these DaemonSets off such nodes: each pod stops the next rollout.",
            (Query("sum by (treatment) (increase(multiarch_daemon_pods_misplaced_total[1h]))", "{{treatment}}"),),
            runbooks=("daemon-pods-misplaced",),
            is_number=True,
        ),
        Panel(
            "Pods reviewed, by outcome",
            "What became of the pods that the webhook saw: patched, held (gated), or unchanged as they run anywhere.",
            "Nothing at all while pods are created: the API server does not reach the webhook.",
            (_rate("multiarch_admissions_total", "outcome"),),
            unit="reqps",
            runbooks=("webhook-fails-open", "admissions-unresolved"),
        ),
        Panel(
            "Canaries, by result",
            "Pods that each replica has the API server create as dry runs. patched: the webhook is reached.",
            "Any other result: pods are created without placement, or refused. All at zero: canaries are off.",
            (_rate("multiarch_canaries_total", "result"),),
            unit="reqps",
            runbooks=("webhook-unreached",),
        ),
        Panel(
            "Nodes judged by filter",
            "The nodes that kube-scheduler asked about, by what was decided about them.",
            "Nothing while pods are scheduled: kube-scheduler runs without the extender's configuration. In "
            "installations of the webhook alone nobody asks.",
            (_rate("multiarch_nodes_total", "verdict", '{endpoint="filter"}'),),
            unit="short",
            runbooks=("filter-errors",),
        ),
        Panel(
            "Decided from memory",
            "The share of reviews and filter calls that no registry was asked for, and of images that were known.",
            "It is low for some minutes after a first start. Low for hours: give the service a store that lasts.",
            (
                Query(_recorded("multiarch:pods_from_memory:ratio_rate5m"), "{{endpoint}}"),
                Query(_recorded("multiarch:images_from_memory:ratio_rate5m"), "images"),
            ),
            unit="percentunit",
            runbooks=("requests-slow",),
        ),
        Panel(
            "Pods under observe, by what would have become of them",
            "What enforcing would do to the pods that are only observed (placement.mode or the annotation).",
            "The API server's audit log names them: the annotation would-be.",
            (_rate("multiarch_observed_admissions_total", "outcome"),),
            unit="reqps",
        ),
    ),
)

SPEED = Row(
    "How fast does it answer?",
    (
        *(
            Panel(
                title,
                meaning,
                "The 99th percentile waits for registries where images are new; a rising median has another cause.",
                _quantiles("multiarch_request_duration_seconds", condition=f'{{endpoint="{endpoint}"}}'),
                unit="s",
                runbooks=runbooks,
            )
            for title, endpoint, meaning, runbooks in (
                ("Filter", "filter", "How long kube-scheduler waits for each filter call.", ("filter-errors",)),
                (
                    "Prioritize",
                    "prioritize",
                    "How long kube-scheduler waits for each prioritize call, which waits for no registry.",
                    ("requests-slow",),
                ),
                ("Review", "admission", "How long the API server waits for each review of a pod.", ("webhook-slow",)),
            )
        ),
        Panel(
            "Requests, by endpoint and outcome",
            "Answered, answered by an error, not understood (bad_request), or failed by a mistake of ours.",
            "Errors of filter make pods wait.",
            (
                Query(
                    f"sum by (endpoint, outcome) (rate(multiarch_requests_total{_RATE})) > 0",
                    "{{endpoint}} {{outcome}}",
                ),
            ),
            unit="reqps",
            runbooks=("filter-errors", "requests-fail"),
        ),
    ),
)

HELD = Row(
    "Are pods held, and let go?",
    (
        Panel(
            "Held pods",
            "Pods that wait behind our scheduling gate until their images are known.",
            "Growing for minutes: see the age beside it, and the row about registries.",
            (Query("max by (state) (multiarch_gates_pods)", "{{state}}"),),
            runbooks=("gates-held-long",),
        ),
        Panel(
            "Age of the oldest held pod",
            "For how long the pod has waited that has waited for longest.",
            "It should stay under admission.gate.limit_seconds, five minutes by default.",
            (Query("max by (state) (multiarch_gates_oldest_seconds)", "{{state}}"),),
            unit="s",
            runbooks=("gates-held-long", "gates-without-leader"),
        ),
        Panel(
            "Pods let go, by what was decided, and patches that failed",
            "How held pods ended their waiting: with known images, at the limit, or bare where a patch was invalid. Of "
            "patches that failed a few conflicts are usual.",
            "Many at the limit: registries do not answer. forbidden: the role of the gate controller lacks a right.",
            (_rate("multiarch_gates_releases_total", "outcome"),),
            runbooks=("gates-held-long",),
        ),
        Panel(
            "Who lets held pods go",
            "wanted: replicas that are to hold pods; able: those that see that somebody lets pods go.",
            "Nobody is able: pods that are held wait.",
            (Query("sum by (state) (multiarch_gates_lifting)", "{{state}}"),),
            runbooks=("gates-without-leader",),
        ),
    ),
)

REGISTRIES = Row(
    "Do registries answer?",
    (
        Panel(
            "Images asked for, by what answered",
            "From memory (hit, stale, negative), with a lookup under way (shared), or from the registry (fetched).",
            "error: what the log says under `lookup.failed` names the registry and the cause.",
            (_rate("multiarch_lookups_total", "result"),),
            runbooks=("lookups-fail",),
        ),
        Panel(
            "Requests to registries, by status",
            "What registries and their token servers answered. A 401 before each token is usual.",
            "403: credentials are missing. 429: the registry throttles. 5xx: it is down.",
            (Query(f"sum by (code) (rate(multiarch_registry_requests_total{_RATE}))", "{{code}}"),),
            unit="reqps",
            runbooks=("lookups-fail", "registry-throttles"),
        ),
        Panel(
            "A lookup takes",
            "From the start of a lookup to its end, waiting for a turn at its registry included.",
            "Long and rising: a slow registry or a slow way to it; a mirror helps.",
            _quantiles("multiarch_lookup_duration_seconds"),
            unit="s",
            runbooks=("lookups-fail",),
        ),
        Panel(
            "Registries left alone",
            "For how long Docker Hub, or where you log in, is not asked, and questions that mirrors did not get.",
            "Credentials raise most limits; a mirror ends them.",
            (
                Query("max(multiarch_registry_throttled_seconds)", "seconds until it may be asked"),
                Query(
                    f'sum(increase(multiarch_mirror_requests_total{{outcome="resting"}}{_RATE}))',
                    "mirrors not asked since they failed",
                ),
            ),
            runbooks=("registry-throttles",),
        ),
        Panel(
            "Quota left, by registry",
            "Requests that the registry says are left of its quota.",
            "Below a tenth, lookups leave the remainder to the nodes; log in, or use a mirror.",
            (
                Query(
                    "min by (registry) (multiarch_registry_quota_remaining and multiarch_registry_quota_limit > 0)",
                    "{{registry}}",
                ),
            ),
            runbooks=("registry-throttles",),
        ),
        Panel(
            "Tags that moved to other platforms",
            "lost: a running pod needs a platform that its image's tag no longer has. gained: a pod might move now.",
            "lost: the log's `image.drifted` names the image and the digest to go back to.",
            (Query("sum by (change) (increase(multiarch_image_drift_total[1h]))", "{{change}}"),),
        ),
    ),
)

LIMITS = Row(
    "Is there room?",
    (
        Panel(
            "Images in memory",
            "Digests whose platforms are known, names whose lookup failed, and lookups under way, of one replica.",
            "Level is usual, since the least used ones make room.",
            (Query("max by (state) (multiarch_images)", "{{state}}"),),
        ),
        Panel(
            "The store",
            "Questions to the store of known images by their outcome, and failures by reason.",
            "Failures cost speed after a restart, and no answer.",
            (
                Query(f"sum by (event) (rate(multiarch_store_rows_total{_RATE}))", "{{event}}"),
                Query(f"sum by (reason) (rate(multiarch_store_errors_total{_RATE}))", "error: {{reason}}"),
            ),
        ),
    ),
)

UPKEEP = Row(
    "Does it look after itself?",
    (
        Panel(
            "Certificates end in",
            "The time until the certificate ends that a listener serves.",
            "It should jump up long before it reaches a week.",
            (
                Query(
                    "min by (listener) (multiarch_certificate_expiry_timestamp_seconds > 0) - time()",
                    "{{listener}}",
                ),
            ),
            unit="s",
            runbooks=("certificate-expires",),
        ),
        Panel(
            "Views of the cluster",
            "How long ago the API server last confirmed what we know of its nodes, namespaces and held pods.",
            "Above a minute or so the watch is cut off.",
            (Query("max by (resource) (multiarch_watch_age_seconds)", "{{resource}}"),),
            unit="s",
            runbooks=("view-stale",),
        ),
        Panel(
            "Changed files that were refused, last hour",
            "Certificates, tokens, credentials or mirrors that changed and could not be read; the old ones are in use.",
            "The log names the file and what is wrong with it.",
            (
                Query(
                    'sum by (setting) (increase(multiarch_file_reloads_total{outcome="refused"}[1h]))',
                    "{{setting}}",
                ),
            ),
            runbooks=("file-refused",),
        ),
        Panel(
            "Nodes, by architecture",
            "The nodes in view of the service.",
            "None: the service does not see the cluster.",
            (Query("max by (architecture) (multiarch_cluster_nodes)", "{{architecture}}"),),
            runbooks=("view-stale",),
        ),
    ),
)

API_SERVER = Row(
    "What does the API server say of the webhook?",
    (
        Panel(
            "Reviews by the webhook",
            "Calls of the webhook as the API server counts them; empty where Prometheus does not read the API server.",
            "None while pods are created: no namespace is selected, or the webhook's configuration is gone.",
            (
                Query(
                    f"sum by (name) (rate(apiserver_admission_webhook_admission_duration_seconds_count{_OURS}{_RATE}))",
                    "{{name}}",
                ),
            ),
            unit="reqps",
            runbooks=("webhook-fails-open",),
        ),
        Panel(
            "A review takes, for the API server",
            "The way there and back, TLS and waiting included.",
            "Much more than the service's own figures: the network between them is slow.",
            _quantiles("apiserver_admission_webhook_admission_duration_seconds", condition=_OURS),
            unit="s",
            runbooks=("webhook-slow",),
        ),
        Panel(
            "Pods created without asking (failurePolicy Ignore), last hour",
            "Calls that failed, after which the API server went on without an answer. No sample: there was none.",
            "Any: these pods have no placement.",
            (
                Query(
                    f"sum by (name) (increase(apiserver_admission_webhook_fail_open_count{_OURS}[1h]))",
                    "{{name}}",
                ),
            ),
            runbooks=("webhook-fails-open",),
        ),
        Panel(
            "Pods refused, last hour",
            "By a call that failed (failurePolicy Fail), or by a denial of ours (no_error).",
            "calling_webhook_error: the API server does not reach the webhook.",
            (
                Query(
                    f"sum by (name, error_type) (increase(apiserver_admission_webhook_rejection_count{_OURS}[1h]))",
                    "{{name}} {{error_type}}",
                ),
            ),
            runbooks=("webhook-calls-fail",),
        ),
    ),
)

ROWS = (AT_WORK, SPEED, HELD, REGISTRIES, LIMITS, UPKEEP, API_SERVER)
