"""Judges an installation of the service: what keeps it from doing its job, each with what was seen and the remedy.

Objects are plain JSON, as the cluster has them. Nothing is asked here.
Source: k8s.io/api/admissionregistration/v1/types.go, k8s.io/kube-scheduler/config/v1/types.go.
"""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.nodes import ARCHITECTURE, OPERATING_SYSTEM, name_of_node
from extender.placement.patch import Json, look

HOST_LABEL = "kubernetes.io/metadata.name"
FILTER_PATH, VERBS = "/scheduler", {"filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt"}
DEFAULT_TIMEOUT_SECONDS = 10  # of a webhook; the same for an extender would be 5
RESTARTS = 3
SOON_DAYS = 7.0
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class CheckName(enum.StrEnum):
    """What is checked; docs/how-to/doctor.md says what is wrong of each."""

    WORKLOADS = "workloads"
    PODS = "pods"
    SETTINGS = "settings"
    RIGHTS = "rights"
    SECRETS = "secrets"
    WEBHOOK = "webhook"
    NAMESPACES = "namespaces"
    CERTIFICATE = "certificate"
    GATES = "gates"
    ORDER = "order"
    TIMEOUT = "timeout"
    PROBE = "probe"
    SCHEDULER = "scheduler"
    NODES = "nodes"
    REGISTRIES = "registries"
    MIRRORS = "mirrors"


class CheckState(enum.StrEnum):
    """How a check ended. Of `WRONG` the installation does not do its job; `UNCHECKED` says why it could not be told."""

    FINE = "fine"
    WARNING = "warning"
    WRONG = "wrong"
    UNCHECKED = "unchecked"


class CheckFinding(msgspec.Struct, frozen=True):
    """One check of one thing: what was seen, and what to do about it."""

    check: CheckName
    subject: str
    state: CheckState
    seen: str
    remedy: str = ""


class PartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a part of an installation that checks depend on. Times are in seconds."""

    serves_reviews: bool = False
    review_wait: float = 0.0
    serves_scheduler: bool = False
    filter_wait: float = 0.0
    retries: tuple[str, ...] = ()


class InstalledPart(msgspec.Struct, frozen=True, kw_only=True):
    """A Deployment or DaemonSet of the service with what its pods are given.

    `problem` says why its settings cannot be used, `unread` why they could not be read. `scheduler` is the
    KubeSchedulerConfiguration beside it.
    """

    kind: str
    namespace: str
    name: str
    wanted: int
    ready: int
    restarts: int = 0
    settings: PartSettings | None = None
    problem: str = ""
    unread: str = ""
    scheduler: KubernetesObject | None = None

    @property
    def subject(self) -> str:
        """How a person names it."""
        return f"{self.kind} {self.namespace}/{self.name}"


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The webhook's certificate: whether the API server's authorities have signed it, its names, its days left."""

    is_trusted: bool
    names: frozenset[str]
    days_left: float
    where: str


class Label(msgspec.Struct, frozen=True):
    """A namespace and its labels."""

    name: str
    labels: Mapping[str, str]


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects these labels; a missing one selects everything."""
    if not isinstance(selector, dict):
        return True
    wanted = selector.get("matchLabels")
    if isinstance(wanted, dict) and any(labels.get(key) != value for key, value in wanted.items()):
        return False
    expressions = selector.get("matchExpressions")
    return all(_meets(each, labels) for each in expressions) if isinstance(expressions, list) else True


def _meets(expression: Json, labels: Mapping[str, str]) -> bool:
    key, values = look(expression, ["key"]), look(expression, ["values"])
    found = labels.get(key) if isinstance(key, str) else None
    listed = values if isinstance(values, list) else []
    match look(expression, ["operator"]):
        case "In":
            return found in listed
        case "NotIn":
            return found is None or found not in listed
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case _:
            return False


def judge_part(part: InstalledPart) -> Iterator[CheckFinding]:
    """Whether a part runs, and what its settings and its scheduler's contradict each other in."""
    subject = part.subject
    if not part.wanted:
        yield CheckFinding(CheckName.PODS, subject, CheckState.UNCHECKED, "it has no pods, as none are wanted",
                      f"see the replicas, or the node selector, of {part.kind.lower()} {part.name}")  # fmt: skip
    elif not part.ready:
        yield CheckFinding(
            CheckName.PODS, subject, CheckState.WRONG, f"none of {part.wanted} pods is ready",
            f"kubectl -n {part.namespace} describe {part.kind.lower()} {part.name}, and the logs of its pods",
        )  # fmt: skip
    elif part.ready < part.wanted:
        yield CheckFinding(CheckName.PODS, subject, CheckState.WARNING, f"{part.ready} of {part.wanted} pods are ready",
                      f"kubectl -n {part.namespace} get pods")  # fmt: skip
    elif part.restarts > RESTARTS:
        seen = f"its containers were restarted {part.restarts} times"
        yield CheckFinding(CheckName.PODS, subject, CheckState.WARNING, seen,
                      f"kubectl -n {part.namespace} logs --previous of the pod that restarts")  # fmt: skip
    else:
        yield CheckFinding(CheckName.PODS, subject, CheckState.FINE, f"{part.ready} of {part.wanted} pods are ready")
    if part.unread:
        yield CheckFinding(CheckName.SETTINGS, subject, CheckState.UNCHECKED, part.unread,
                           "use an account that may get the ConfigMap")  # fmt: skip
    elif part.problem:
        yield CheckFinding(
            CheckName.SETTINGS, subject, CheckState.WRONG, part.problem, "mend the ConfigMap, then restart the pods"
        )
    if part.scheduler is not None:
        yield from judge_scheduler(part.scheduler, f"KubeSchedulerConfiguration of {subject}", part.settings)


def judge_scheduler(
    configuration: KubernetesObject, subject: str, settings: PartSettings | None
) -> Iterator[CheckFinding]:
    """Whether a KubeSchedulerConfiguration has kube-scheduler ask us, and waits for us as our settings promise."""
    listed = configuration.get("extenders")
    ours = [each for each in listed if _is_ours(each)] if isinstance(listed, list) else []
    if not ours:
        yield CheckFinding(
            CheckName.SCHEDULER, subject, CheckState.WRONG,
            "no entry of `extenders` has a urlPrefix that ends in /scheduler",
            "add the extender, as deploy/scheduler has it",
        )  # fmt: skip
        return
    problems = [problem for each in ours for problem in _extender_problems(each, settings)]
    for seen, remedy in problems:
        yield CheckFinding(CheckName.SCHEDULER, subject, CheckState.WRONG, seen, remedy)
    if not problems:
        yield CheckFinding(CheckName.SCHEDULER, subject, CheckState.FINE, f"it asks {look(ours[0], ['urlPrefix'])}")


def _is_ours(extender: Json) -> bool:
    prefix = look(extender, ["urlPrefix"])
    return isinstance(prefix, str) and prefix.rstrip("/").endswith(FILTER_PATH)


def _extender_problems(extender: Json, settings: PartSettings | None) -> Iterator[tuple[str, str]]:
    for verb, path in VERBS.items():
        found = look(extender, [verb])
        if found not in (None, "", path) or (verb == "filterVerb" and not found):
            yield f"{verb} is {found!r}", f"make it `{path}`"
    if settings is None:
        return
    if look(extender, ["ignorable"]) and settings.retries:
        yield (
            f"it is ignorable, so that the errors of {' and '.join(settings.retries)} let a pod onto every node",
            "make it `ignorable: false`, or choose `pass`",
        )
    timeout = seconds_of(look(extender, ["httpTimeout"]))
    if timeout is not None and timeout <= settings.filter_wait:
        yield (
            f"httpTimeout is {timeout:g} s, and the service may wait {settings.filter_wait:g} s for lookups",
            "make httpTimeout longer than scheduler.wait_seconds",
        )


def seconds_of(text: Json) -> float | None:
    """The seconds of a Go duration such as 1m30s; None for anything else."""
    parts = _DURATION.findall(text) if isinstance(text, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def judge_webhook(
    webhook: KubernetesObject, configuration: str, namespaces: Sequence[Label], settings: PartSettings | None
) -> Iterator[CheckFinding]:
    """Whether one webhook of ours selects any pods, and gives the service the time that it takes."""
    subject = f"webhook {look(webhook, ['name'])} of {configuration}"
    if not selected(webhook, namespaces):
        yield CheckFinding(
            CheckName.NAMESPACES, subject, CheckState.WARNING,
            "its namespaceSelector selects none of the namespaces, so that it reviews no pod",
            f"label those that it is for: {_wanted_labels(webhook)}",
        )  # fmt: skip
    timeout = look(webhook, ["timeoutSeconds"])
    allowed = float(timeout) if isinstance(timeout, int | float) else DEFAULT_TIMEOUT_SECONDS
    if settings is not None and allowed <= settings.review_wait:
        yield CheckFinding(
            CheckName.TIMEOUT, subject, CheckState.WRONG,
            f"timeoutSeconds is {allowed:g}, and the service may wait {settings.review_wait:g} s for lookups: "
            "what it answers then comes too late",
            "make timeoutSeconds longer than admission.wait_seconds",
        )  # fmt: skip


def selected(webhook: KubernetesObject, namespaces: Sequence[Label]) -> list[str]:
    """The names of the namespaces whose pods are sent to the webhook, `default` first."""
    selector = webhook.get("namespaceSelector")
    names = [each.name for each in namespaces if selects(selector, {**each.labels, HOST_LABEL: each.name})]
    return sorted(names, key=lambda name: name != "default")


def _wanted_labels(webhook: KubernetesObject) -> str:
    wanted = look(webhook, ["namespaceSelector", "matchLabels"])
    labels = " ".join(f"{key}={value}" for key, value in wanted.items()) if isinstance(wanted, dict) else ""
    return f"kubectl label namespace NAME {labels}" if labels else "see the selector's expressions"


def judge_order(ours: Sequence[KubernetesObject], others: Sequence[KubernetesObject]) -> Iterator[CheckFinding]:
    """Whether containers that another webhook adds to a pod are seen; both are MutatingWebhookConfigurations.

    The API server calls webhooks in the order of their configurations' names, and one of ours again if it says so.
    """
    for configuration in ours:
        name = str(look(configuration, ["metadata", "name"]))
        for webhook in webhooks_of(configuration):
            if not is_for_pods(webhook) or look(webhook, ["reinvocationPolicy"]) == "IfNeeded":
                continue
            later = sorted(
                str(look(other, ["metadata", "name"])) for other in others if any(map(is_for_pods, webhooks_of(other)))
            )
            if later := [each for each in later if each > name]:
                yield CheckFinding(
                    CheckName.ORDER, f"webhook {look(webhook, ['name'])} of {name}", CheckState.WRONG,
                    f"{', '.join(later)} is called after it: images of containers that it adds are not seen",
                    "make its reinvocationPolicy IfNeeded",
                )  # fmt: skip


def webhooks_of(configuration: KubernetesObject) -> list[KubernetesObject]:
    """The webhooks of a MutatingWebhookConfiguration."""
    listed = configuration.get("webhooks")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def is_for_pods(webhook: KubernetesObject) -> bool:
    """Whether new pods are sent to the webhook."""
    rules = webhook.get("rules")
    return isinstance(rules, list) and any(
        _names(rule, "resources", "pods") and _names(rule, "operations", "CREATE") and _names(rule, "apiGroups", "")
        for rule in rules
    )


def _names(rule: Json, field: str, value: str) -> bool:
    listed = look(rule, [field])
    return isinstance(listed, list) and bool({value, "*", "*/*"} & {each for each in listed if isinstance(each, str)})


def judge_certificate(
    webhook: KubernetesObject, configuration: str, certificate: Certificate, names: Sequence[str]
) -> Iterator[CheckFinding]:
    """Whether the API server trusts the certificate that the service shows, under the name by which it calls it."""
    subject = f"webhook {look(webhook, ['name'])} of {configuration}"
    if certificate.days_left <= 0:
        yield CheckFinding(CheckName.CERTIFICATE, subject, CheckState.WRONG,
                      f"the certificate in {certificate.where} ended {-certificate.days_left:.0f} days ago",
                      "renew it (docs/how-to/certificates.md)")  # fmt: skip
    elif certificate.days_left < SOON_DAYS:
        yield CheckFinding(CheckName.CERTIFICATE, subject, CheckState.WARNING,
                      f"the certificate in {certificate.where} ends in {certificate.days_left:.1f} days",
                      "see that it is renewed (docs/runbooks.md#certificate-expires)")  # fmt: skip
    if not certificate.is_trusted:
        yield CheckFinding(CheckName.CERTIFICATE, subject, CheckState.WRONG,
                      f"no authority of its caBundle has signed the certificate in {certificate.where}",
                      "write the authority of that certificate into caBundle")  # fmt: skip
    elif not set(names) & certificate.names:
        yield CheckFinding(CheckName.CERTIFICATE, subject, CheckState.WRONG,
                      f"the API server calls {' or '.join(names)}, and the certificate in {certificate.where} is for "
                      f"{', '.join(sorted(certificate.names))}",
                      "issue it for that name too")  # fmt: skip


def judge_nodes(nodes: Sequence[ReportedNode]) -> Iterator[CheckFinding]:
    """Whether the labels of each node, by which affinity goes, say what its kubelet says, by which programs go."""
    agree = True
    for node in nodes:
        labels = (node.metadata and node.metadata.labels) or {}
        info = node.status and node.status.node_info
        if not info:
            continue
        label = (labels.get(OPERATING_SYSTEM) or "", labels.get(ARCHITECTURE) or "")
        stated = (info.operating_system or "", info.architecture or "")
        if any(ours and theirs and ours != theirs for ours, theirs in zip(label, stated, strict=True)):
            agree = False
            yield CheckFinding(CheckName.NODES, f"node {name_of_node(node)}", CheckState.WRONG,
                               f"its labels say {'/'.join(label)}, its kubelet {'/'.join(stated)}",
                               "take off or mend the labels kubernetes.io/os and kubernetes.io/arch")  # fmt: skip
    if not nodes:
        yield CheckFinding(CheckName.NODES, "cluster", CheckState.UNCHECKED, "it has no nodes yet")
    elif agree:
        seen = f"labels and kubelets of {len(nodes)} nodes agree"
        yield CheckFinding(CheckName.NODES, "cluster", CheckState.FINE, seen)


def judge_unread_secrets(pods: Mapping[str, Sequence[str]]) -> Iterator[CheckFinding]:
    """What to do about pods that name pull secrets which the service is not to read: their names by namespace."""
    for namespace, names in sorted(pods.items()):
        yield CheckFinding(
            CheckName.SECRETS, f"namespace {namespace}", CheckState.WARNING,
            f"pods that name pull secrets: {len(names)}, {min(names)} among them; the service reads none there: what "
            "only these open stays unknown",
            "add it to registry.pull_secrets, or give the service a login (docs/how-to/private-registries.md)",
        )  # fmt: skip
