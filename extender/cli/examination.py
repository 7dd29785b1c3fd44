"""An examination of an installation of the service in a cluster: every check that `doctor` makes."""

import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from extender.certificates.authority import InvalidCertificate
from extender.cli.installation_objects import (
    UNFINISHED,
    WEBHOOKS,
    InstalledWorkload,
    called_names,
    gating_policies,
    is_led,
    list_objects,
    listed_pods,
    missing_rights,
    read_certificate,
    read_labels,
    read_workloads,
)
from extender.cli.running import look_up
from extender.cli.subjects import open_client
from extender.cluster.autoscalers import find_autoscalers
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.gated_pods import is_held, list_gated_pods
from extender.cluster.node_trust import HOSTS
from extender.cluster.openshift_objects import list_mirror_objects
from extender.cluster.secrets import ClusterSecrets
from extender.cluster.webhook_probe import ProbeOutcome, ProbeResult, probe_webhook
from extender.cluster.workload_lists import list_documents
from extender.config.tree import Config
from extender.errors import ClusterError, ConfigError, InvalidReference
from extender.fetcher.sources import open_local_sources
from extender.images.content import Cause, Failure
from extender.images.reference import parse_reference
from extender.kubernetes.core_v1 import Pod
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import ReportedNode, ReportedPod
from extender.placement.gate import UnknownImages
from extender.placement.patch import look
from extender.registry.openshift_conf import conf_of_objects
from extender.registry.openshift_trust import host_problems
from extender.reports.installation import (
    SKEW_SECONDS,
    CheckFinding,
    CheckName,
    CheckState,
    Label,
    is_for_pods,
    judge_certificate,
    judge_order,
    judge_part,
    judge_scheduler,
    judge_unread_secrets,
    judge_webhook,
    selected,
    webhooks_of,
)
from extender.reports.running_pods import references_of, report_running
from extender.service.cluster_view import ClusterView
from extender.service.operator_policies import policy_of
from extender.service.resolving import open_pod_resolver

_PODS, _IMAGES = 2_000, 50
"""The most pods that are looked at, and the most registries that are asked, an image each."""
_OLDEST_MINOR = 30
_MIRROR_OBJECTS = "OpenShift's mirror objects"
_INSTEAD_OF_TRUST = "give it as registry.ca_files or registry.docker_config (docs/how-to/mirrors.md)"
_MINOR = re.compile(r"([0-9]+)")
_NODE = msgspec.json.Decoder(ReportedNode)
_POD = msgspec.json.Decoder(ReportedPod)
_NAMED = msgspec.json.Decoder(Pod)


class Examination:
    """All checks of one installation; what the cluster refuses us is a finding of the check that asked for it."""

    def __init__(
        self,
        settings: Config,
        selector: str,
        namespace: str,
        scheduler: KubernetesObject | None,
        *,
        is_asking_registries: bool,
        installed_in: str = "",
    ) -> None:
        self._settings = settings
        self._selector = selector
        self._namespace = namespace
        self._scheduler = scheduler
        self._is_asking_registries = is_asking_registries
        self._installed_in = installed_in

    async def findings(self) -> list[CheckFinding]:
        """What every check found. Raises ConfigError."""
        client = await open_client(self._settings, is_needed=True)
        if client is None:
            raise ConfigError("cluster.mode: none leaves no cluster to examine")
        try:
            return [await _judge_version(client), *[finding async for finding in self._examine(client)]]
        except ClusterError as exc:
            raise ConfigError(str(exc)) from exc
        finally:
            await client.close()

    async def _examine(self, client: ClusterClient) -> AsyncIterator[CheckFinding]:
        try:
            workloads = await read_workloads(client, self._selector, self._installed_in)
        except ClusterRefused as exc:
            yield _unchecked(CheckName.WORKLOADS, "cluster", exc, "read it")
            return
        if not workloads:
            seen = f"no Deployment or DaemonSet has the labels {self._selector}"
            yield _wrong(CheckName.WORKLOADS, "cluster", seen, "install the chart, or give --selector")
            return
        for workload in workloads:
            for finding in judge_part(workload.part):
                yield finding
            subject = f"ServiceAccount {workload.part.namespace}/{workload.account}"
            rights = _judge_rights(client, workload, subject)
            async for finding in _allowed(rights, CheckName.RIGHTS, subject, "ask for others' rights"):
                yield finding
        for finding in self._judge_scheduler(workloads):
            yield finding
        checks = (
            (_judge_secrets, CheckName.SECRETS, "cluster", "list pods"),
            (self._judge_webhooks, CheckName.WEBHOOK, "cluster", "read it"),
            (_judge_held_pods, CheckName.GATES, "pods that our gate holds", "list pods"),
            (self._judge_gates, CheckName.GATES, "cluster", "list policies"),
            (self._judge_nodes, CheckName.NODES, "cluster", "list nodes"),
            (_judge_mirrors, CheckName.MIRRORS, _MIRROR_OBJECTS, "list them"),
            (self._judge_registries, CheckName.REGISTRIES, "cluster", "list pods"),
        )
        for check, name, subject, right in checks:
            async for finding in _allowed(check(client, workloads), name, subject, right):
                yield finding

    def _judge_scheduler(self, workloads: Sequence[InstalledWorkload]) -> Iterator[CheckFinding]:
        asked = [each.part for each in workloads if each.part.settings and each.part.settings.serves_scheduler]
        if self._scheduler is not None:
            settings = asked[0].settings if asked else None
            yield from judge_scheduler(self._scheduler, "the given KubeSchedulerConfiguration", settings)
        elif unseen := ", ".join(each.subject for each in asked if each.scheduler is None):
            seen = "the cluster's own kube-scheduler has its configuration in a file of the control plane"
            yield CheckFinding(CheckName.SCHEDULER, unseen, CheckState.UNCHECKED, seen, "give it as --scheduler-config")

    async def _judge_webhooks(
        self, client: ClusterClient, workloads: Sequence[InstalledWorkload]
    ) -> AsyncIterator[CheckFinding]:
        serving = [each for each in workloads if each.part.settings and each.part.settings.serves_reviews]
        if not serving:
            return
        ours = await list_objects(client, WEBHOOKS, self._selector)
        everyones = await list_objects(client, WEBHOOKS)
        labels = await read_labels(client)
        names = {_name(each) for each in ours}
        if not ours:
            seen = f"no MutatingWebhookConfiguration has the labels {self._selector}"
            yield _wrong(CheckName.WEBHOOK, "cluster", seen, "apply that of the chart: until then no pod is reviewed")
        for finding in judge_order(ours, [each for each in everyones if _name(each) not in names]):
            yield finding
        for configuration in ours:
            for webhook in filter(is_for_pods, webhooks_of(configuration)):
                async for finding in self._judge_webhook(client, webhook, _name(configuration), labels, serving):
                    yield finding

    async def _judge_webhook(
        self,
        client: ClusterClient,
        webhook: KubernetesObject,
        configuration: str,
        labels: Sequence[Label],
        serving: Sequence[InstalledWorkload],
    ) -> AsyncIterator[CheckFinding]:
        workload = _behind(configuration, serving)
        subject = f"webhook {webhook.get('name')} of {configuration}"
        everywhere = labels
        if workload.config is not None:  # nobody else's pods are in that namespace
            labels = [each for each in labels if each.name != workload.config.admission.canary_namespace]
        for finding in judge_webhook(webhook, configuration, labels, workload.part.settings):
            yield finding
        try:
            certificate = await read_certificate(client, workload, webhook)
        except (ClusterError, InvalidCertificate) as exc:
            if isinstance(exc, ClusterRefused) and exc.status == 403:
                yield CheckFinding(CheckName.CERTIFICATE, subject, CheckState.UNCHECKED, str(exc))
            else:
                yield _wrong(CheckName.CERTIFICATE, subject, str(exc), "docs/how-to/certificates.md")
        else:
            for finding in judge_certificate(webhook, configuration, certificate, called_names(webhook)):
                yield finding
        async for finding in self._probe(client, webhook, subject, everywhere, workload):
            yield finding

    async def _probe(
        self,
        client: ClusterClient,
        webhook: KubernetesObject,
        subject: str,
        labels: Sequence[Label],
        workload: InstalledWorkload,
    ) -> AsyncIterator[CheckFinding]:
        installation = workload.config.admission.canary_namespace if workload.config else ""
        everywhere = selected(webhook, labels)
        chosen = [each for each in everywhere if each != installation]
        if self._namespace and self._namespace not in chosen:
            there = any(each.name == self._namespace for each in labels)
            seen = "its labels do not meet the webhook's namespaceSelector" if there else "there is no such namespace"
            where, remedy = f"namespace {self._namespace}", f"see the namespaceSelector of {subject}"
            yield _wrong(CheckName.NAMESPACES, where, f"{seen}: its pods are not reviewed", remedy)
        proved = installation if installation in everywhere else ""  # where nobody's namespace is selected yet
        sent_to = self._namespace if self._namespace in chosen else next(iter(chosen), proved)
        if not sent_to or workload.config is None:
            return
        result = await _send_probe(client, sent_to, installation)
        if result.outcome is ProbeOutcome.REFUSED and installation in everywhere:  # the only place for some accounts
            again = await _send_probe(client, installation, installation)
            if again.outcome is not ProbeOutcome.REFUSED:
                result, sent_to = again, installation
        yield _judge_probe(result, subject, sent_to)
        created = str(look(result.pod, ["metadata", "creationTimestamp"]) or "")
        if created:
            yield _judge_clock(created)

    async def _judge_gates(
        self, client: ClusterClient, workloads: Sequence[InstalledWorkload]
    ) -> AsyncIterator[CheckFinding]:
        """Whether somebody lets go of the pods that a policy of the API server is to hold."""
        policies = await gating_policies(client, self._selector)
        releasing = [
            each.part.subject
            for each in workloads
            if each.config and each.config.admission.unknown is UnknownImages.GATE
        ]
        if not releasing and any(each.config is None for each in workloads):
            return  # which check `settings` says
        for policy in policies:
            subject = f"MutatingAdmissionPolicy {policy}"
            if releasing:
                yield _fine(CheckName.GATES, subject, f"{', '.join(releasing)} lets go of the pods that it holds")
            else:
                seen = "it holds new pods, and no part of the installation lets them go"
                remedy = "set admission.unknown to gate, or delete the policy and run multiarch-extender ungate -A"
                yield _wrong(CheckName.GATES, subject, seen, remedy)

    async def _judge_nodes(
        self, client: ClusterClient, workloads: Sequence[InstalledWorkload]
    ) -> AsyncIterator[CheckFinding]:
        documents = [raw async for raw in list_documents(client, "/api/v1/nodes")]
        nodes = [_NODE.decode(raw) for raw in documents]
        compatibility = policy_of(self._settings).compatibility
        report = report_running([], nodes, compatibility, self._settings.placement.level_label)
        for node in report.nodes:
            seen = f"its labels say {node.label}, its kubelet {node.node_info}"
            remedy = "take off or mend the labels kubernetes.io/os and kubernetes.io/arch"
            yield _wrong(CheckName.NODES, f"node {node.node}", seen, remedy)
        if not report.nodes:
            yield _fine(CheckName.NODES, "cluster", f"labels and kubelets of {len(nodes)} nodes agree")
        serving = [each.part for each in workloads if each.part.settings and each.part.settings.serves_reviews]
        for autoscaler, sign in (await find_autoscalers(client, documents)).items():
            seen = (
                f"{autoscaler} is at work ({sign}), and is not told what images allow: it buys nodes on which pods "
                "cannot run"
            )
            for part in serving:
                if part.settings and not part.settings.writes_required:
                    remedy = "set admission.node_affinity to required or both"
                    yield _wrong(CheckName.AUTOSCALER, part.subject, seen, remedy)

    async def _judge_registries(
        self, client: ClusterClient, _workloads: Sequence[InstalledWorkload]
    ) -> AsyncIterator[CheckFinding]:
        if not self._is_asking_registries:
            return
        chosen: dict[str, tuple[str, ReportedPod]] = {}
        async for raw in listed_pods(client, _PODS):
            _choose(_POD.decode(raw), chosen)
        async with open_pod_resolver(
            self._settings, ClusterView(secrets=ClusterSecrets(client)), open_local_sources
        ) as pod_resolver:
            found = await look_up([pod for _, pod in chosen.values()], pod_resolver)
        for (host, (image, _)), pod in zip(chosen.items(), found, strict=True):
            answer = pod.images.get(image)
            if isinstance(answer, Failure) and answer.cause in (Cause.UNAVAILABLE, Cause.THROTTLED):
                remedy = "mend the way from here to it, or give a mirror (docs/how-to/mirrors.md)"
                yield _wrong(CheckName.REGISTRIES, f"registry {host}", f"{image}: {answer.detail}", remedy)
            else:
                yield _fine(CheckName.REGISTRIES, f"registry {host}", "it answers")


def _fine(check: CheckName, subject: str, seen: str) -> CheckFinding:
    return CheckFinding(check, subject, CheckState.FINE, seen)


def _wrong(check: CheckName, subject: str, seen: str, remedy: str) -> CheckFinding:
    return CheckFinding(check, subject, CheckState.WRONG, seen, remedy)


def _unchecked(check: CheckName, subject: str, refusal: ClusterRefused, right: str) -> CheckFinding:
    return CheckFinding(check, subject, CheckState.UNCHECKED, str(refusal), f"use an account that may {right}")


async def _allowed(
    findings: AsyncIterator[CheckFinding], check: CheckName, subject: str, right: str
) -> AsyncIterator[CheckFinding]:
    """The findings, and that the cluster refuses what the check takes."""
    try:
        async for finding in findings:
            yield finding
    except ClusterRefused as exc:
        yield _unchecked(check, subject, exc, right)


async def _judge_version(client: ClusterClient) -> CheckFinding:
    said = msgspec.json.decode(await client.get("/version"), type=dict[str, object])
    text = str(said.get("gitVersion"))
    minor = _MINOR.match(str(said.get("minor")))
    if minor is None or int(minor[1]) >= _OLDEST_MINOR:
        return _fine(CheckName.VERSION, "kube-apiserver", text)
    remedy = f"Kubernetes 1.{_OLDEST_MINOR} is the oldest that is supported (docs/how-to/upgrade.md)"
    return _wrong(CheckName.VERSION, "kube-apiserver", text, remedy)


async def _judge_rights(
    client: ClusterClient, workload: InstalledWorkload, subject: str
) -> AsyncIterator[CheckFinding]:
    if missing := await missing_rights(client, workload):
        seen = f"it may not {', '.join(missing)}"
        yield _wrong(CheckName.RIGHTS, subject, seen, "apply the roles of the chart again (rbac.create)")
    else:
        yield _fine(CheckName.RIGHTS, subject, "it may do what its settings take")


async def _judge_secrets(client: ClusterClient, workloads: Sequence[InstalledWorkload]) -> AsyncIterator[CheckFinding]:
    """Which pods name pull secrets that the service is not to read."""
    limited = [each.config.registry for each in workloads if each.config]
    limited = [each for each in limited if each.pull_secrets is not True]
    if not limited:
        return
    unread: dict[str, list[str]] = {}
    async for raw in listed_pods(client, _PODS, UNFINISHED):
        metadata, spec = (pod := _NAMED.decode(raw)).metadata, pod.spec
        namespace = (metadata and metadata.namespace) or ""
        if spec and spec.image_pull_secrets and not all(each.reads_secrets_in(namespace) for each in limited):
            unread.setdefault(namespace, []).append((metadata and metadata.name) or "")
    for finding in judge_unread_secrets(unread, has_logins=all(each.has_logins for each in limited)):
        yield finding


async def _judge_mirrors(client: ClusterClient, workloads: Sequence[InstalledWorkload]) -> AsyncIterator[CheckFinding]:
    """Whether OpenShift's objects can be used, where a part goes by them."""
    if not any(each.config and each.config.registry.openshift for each in workloads):
        return
    objects, problems = await list_mirror_objects(client)
    try:
        conf = conf_of_objects(objects)
    except ConfigError as exc:
        seen = f"{exc}: nodes and the service keep what they had"
        yield _wrong(CheckName.MIRRORS, _MIRROR_OBJECTS, seen, "mend the objects (docs/how-to/mirrors.md)")
    else:
        seen = f"{len(conf.registries.registries)} registries have mirrors or rules"
        yield _fine(CheckName.MIRRORS, _MIRROR_OBJECTS, seen)
    for problem in problems:
        state = CheckState.UNCHECKED if problem.is_refused else CheckState.WRONG
        remedy = "use an account that may read it" if problem.is_refused else _INSTEAD_OF_TRUST
        yield CheckFinding(CheckName.MIRRORS, str(problem.what), state, problem.why, remedy)
    for why in host_problems(objects.trust):
        yield _wrong(CheckName.MIRRORS, str(HOSTS), why, "mend additionalTrustedCA of the image configuration")


async def _judge_held_pods(
    client: ClusterClient, workloads: Sequence[InstalledWorkload]
) -> AsyncIterator[CheckFinding]:
    """How many pods our gate holds, and whether a part of the installation lets them go."""
    subject = "pods that our gate holds"
    held = sum(map(is_held, await list_gated_pods(client)))
    leaders = [each.part.subject for each in workloads if held and await is_led(client, each)]
    if held and not leaders:
        seen = f"{held} pods are held, and nobody lets them go"
        remedy = "docs/runbooks.md#gates-without-leader; at once, unexamined: multiarch-extender ungate -A"
        yield _wrong(CheckName.GATES, subject, seen, remedy)
        return
    yield _fine(
        CheckName.GATES, subject, f"{held} pods are held; {', '.join(leaders)} lets them go" if held else "none is held"
    )


async def _send_probe(client: ClusterClient, namespace: str, installation: str) -> ProbeResult:
    return await probe_webhook(client, namespace, installation, nonce=secrets.token_hex(16), clock=time.monotonic)


def _judge_probe(result: ProbeResult, subject: str, namespace: str) -> CheckFinding:
    state, remedy = (
        CheckState.WRONG,
        "see what else is said of it here, and the logs of kube-apiserver and of the service",
    )
    if result.outcome is ProbeOutcome.PATCHED:
        took = f"{result.latency_seconds * 1000:.0f} ms"
        return _fine(CheckName.PROBE, subject, f"a pod of namespace {namespace} came back patched in {took}")
    if result.outcome is ProbeOutcome.REFUSED:
        state, remedy = CheckState.UNCHECKED, "choose a namespace where you may create such a pod: --namespace NAME"
    return CheckFinding(CheckName.PROBE, subject, state, result.detail, remedy)


def _judge_clock(created: str) -> CheckFinding:
    skew = datetime.now(UTC).timestamp() - datetime.fromisoformat(created).timestamp()
    if abs(skew) > SKEW_SECONDS:
        seen = f"it is {skew:.0f} s ahead of kube-apiserver's"
        return CheckFinding(CheckName.CLOCK, "this machine", CheckState.WARNING, seen,
                       "certificates that were just made may not be valid yet: have clocks synchronised")  # fmt: skip
    return _fine(CheckName.CLOCK, "this machine", "it agrees with kube-apiserver's")


def _behind(configuration: str, serving: Sequence[InstalledWorkload]) -> InstalledWorkload:
    """The part that answers the webhooks of that configuration: the one of its name, else the first."""
    return next((each for each in serving if each.part.name == configuration), serving[0])


def _name(document: KubernetesObject) -> str:
    return str(look(document, ["metadata", "name"]))


def _choose(pod: ReportedPod, chosen: dict[str, tuple[str, ReportedPod]]) -> None:
    """Adds the pod's first image of each registry that has none yet."""
    for reference in references_of(pod):
        try:
            host = parse_reference(reference).domain
        except InvalidReference:
            continue
        if len(chosen) < _IMAGES:
            chosen.setdefault(host, (reference, pod))
