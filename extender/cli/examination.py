"""An examination of an installation of the service in a cluster: every check that `doctor` makes."""

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence, Set

import msgspec

from extender.certificates.own_certificate import InvalidCertificate
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
from extender.cli.installed_settings import GivenSettings, deciding_parts
from extender.cli.lookups import describe_all
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.gated_pods import is_held, list_gated_pods
from extender.cluster.node_trust import HOSTS
from extender.cluster.openshift_objects import list_mirror_objects
from extender.cluster.webhook_probe import ProbeOutcome, ProbeResult, probe_webhook
from extender.cluster.workload_lists import list_documents
from extender.credentials.keyring import Keyring
from extender.errors import ClusterError, ConfigError, InvalidReference
from extender.fetcher.sources import open_local_sources
from extender.images.content import Cause, Failure
from extender.images.manifest import Image
from extender.images.reference import parse_reference
from extender.kubernetes.core_v1 import Pod
from extender.kubernetes.pod_templates import KubernetesObject
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.facts import images_of
from extender.placement.gate import UnknownImages
from extender.placement.patch import look
from extender.placement.policy import Overrides
from extender.registry.openshift import host_problems, routes_of
from extender.reports.installation import (
    CheckFinding,
    CheckName,
    CheckState,
    Label,
    is_for_pods,
    judge_certificate,
    judge_nodes,
    judge_order,
    judge_part,
    judge_scheduler,
    judge_unread_secrets,
    judge_webhook,
    selected,
    webhooks_of,
)
from extender.resolver.pod_resolver import PodResolver
from extender.service.cluster_view import ClusterView
from extender.service.resolving import open_pod_resolver

_PODS, _IMAGES = 2_000, 50
"""The most pods that are looked at, and the most registries that are asked, an image each."""
_WEBHOOK_CHECKS = frozenset(
    {
        CheckName.WEBHOOK,
        CheckName.NAMESPACES,
        CheckName.CERTIFICATE,
        CheckName.ORDER,
        CheckName.TIMEOUT,
        CheckName.PROBE,
    }
)
_MIRROR_OBJECTS = "OpenShift's mirror objects"
_INSTEAD_OF_TRUST = "give it as registry.ca_files or registry.docker_config (docs/how-to/mirrors.md)"
_NODE = msgspec.json.Decoder(ReportedNode)
_NAMED = msgspec.json.Decoder(Pod)


class Examination:
    """Checks of one installation; what the cluster refuses us is a finding of the check that asked for it.

    Only `checks` are made, and nothing is asked that none of them takes.
    """

    def __init__(
        self,
        client: ClusterClient,
        given: GivenSettings,
        selector: str,
        namespace: str,
        scheduler: KubernetesObject | None,
        *,
        checks: Set[CheckName],
        installed_in: str = "",
    ) -> None:
        self._client = client
        self._given = given
        self._settings = given.own
        self._selector = selector
        self._namespace = namespace
        self._scheduler = scheduler
        self._checks = checks | {CheckName.WORKLOADS}  # without which nothing can be said of any other
        self._installed_in = installed_in

    async def findings(self) -> list[CheckFinding]:
        """What the checks found. Raises ConfigError."""
        try:
            return [each async for each in self._examine() if each.check in self._checks]
        except ClusterError as exc:
            raise ConfigError(str(exc)) from exc

    async def _examine(self) -> AsyncIterator[CheckFinding]:
        try:
            workloads = await read_workloads(
                self._client, self._selector, self._installed_in, with_restarts=CheckName.PODS in self._checks
            )
        except ClusterRefused as exc:
            yield _unchecked(CheckName.WORKLOADS, "cluster", exc, "read it")
            return
        if not workloads:
            seen = f"no Deployment or DaemonSet has the labels {self._selector}"
            yield _wrong(CheckName.WORKLOADS, "cluster", seen, "install the chart, or give --selector")
            return
        self._settings = self._given.of_parts(deciding_parts(workloads))
        for workload in workloads:
            for finding in judge_part(workload.part):
                yield finding
        for finding in self._judge_scheduler(workloads):
            yield finding
        async for finding in self._judge_cluster(workloads):
            yield finding

    async def _judge_cluster(self, workloads: Sequence[InstalledWorkload]) -> AsyncIterator[CheckFinding]:
        """What is found beside the workloads themselves, by the groups of checks that share what they read."""
        groups = (
            (_judge_rights, {CheckName.RIGHTS}, "ServiceAccounts", "ask for others' rights"),
            (_judge_secrets, {CheckName.SECRETS}, "cluster", "list pods"),
            (self._judge_webhooks, _WEBHOOK_CHECKS, "cluster", "read it"),
            (_judge_held_pods, {CheckName.GATES}, "pods that our gate holds", "list pods, and get Leases"),
            (self._judge_gates, {CheckName.GATES}, "cluster", "list policies, and get Leases"),
            (_judge_nodes, {CheckName.NODES}, "cluster", "list nodes"),
            (_judge_mirrors, {CheckName.MIRRORS}, _MIRROR_OBJECTS, "list them"),
            (self._judge_registries, {CheckName.REGISTRIES}, "cluster", "list pods"),
        )
        for judge, names, subject, right in groups:
            wanted = names & self._checks
            if not wanted:
                continue
            try:
                async for finding in judge(self._client, workloads):
                    yield finding
            except ClusterRefused as exc:
                for name in sorted(wanted):
                    yield _unchecked(name, subject, exc, right)

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
            if unknown := _of_unknown_settings(workloads):
                for name in sorted(_WEBHOOK_CHECKS):
                    yield CheckFinding(name, unknown, CheckState.UNCHECKED, "its settings are not known")
            return
        ours = await list_objects(client, WEBHOOKS, self._selector)
        labels = await read_labels(client)
        if not ours:
            seen = f"no MutatingWebhookConfiguration has the labels {self._selector}"
            yield _wrong(CheckName.WEBHOOK, "cluster", seen, "apply that of the chart: until then no pod is reviewed")
        if CheckName.ORDER in self._checks:
            names = {_name(each) for each in ours}
            everyones = await list_objects(client, WEBHOOKS)
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
        installation = workload.config.admission.canary_namespace if workload.config else ""
        users = [each for each in labels if each.name != installation]  # nobody's pods are in that namespace
        for finding in judge_webhook(webhook, configuration, users, workload.part.settings):
            yield finding
        if self._namespace and self._namespace not in selected(webhook, users):
            there = any(each.name == self._namespace for each in labels)
            seen = "its labels do not meet the webhook's namespaceSelector" if there else "there is no such namespace"
            where, remedy = f"namespace {self._namespace}", f"see the namespaceSelector of {subject}"
            yield _wrong(CheckName.NAMESPACES, where, f"{seen}: its pods are not reviewed", remedy)
        if CheckName.CERTIFICATE in self._checks:
            for finding in await _judge_certificate(client, webhook, configuration, workload):
                yield finding
        if CheckName.PROBE in self._checks:
            yield await self._probe(client, subject, selected(webhook, labels), installation)

    async def _probe(
        self, client: ClusterClient, subject: str, reviewed: Sequence[str], installation: str
    ) -> CheckFinding:
        """What becomes of a pod in one of the reviewed namespaces, the installation's own if there is no other."""
        chosen = [each for each in reviewed if each != installation]
        proved = installation if installation in reviewed else ""  # where nobody's namespace is selected yet
        sent_to = self._namespace if self._namespace in chosen else next(iter(chosen), proved)
        if not sent_to:
            seen = "no namespace is selected to which a pod could be sent"
            return CheckFinding(CheckName.PROBE, subject, CheckState.UNCHECKED, seen, "see its namespaceSelector")
        result = await _send_probe(client, sent_to, installation)
        if result.outcome is ProbeOutcome.REFUSED and installation in reviewed:  # the only place for some accounts
            again = await _send_probe(client, installation, installation)
            if again.outcome is not ProbeOutcome.REFUSED:
                result, sent_to = again, installation
        return _judge_probe(result, subject, sent_to)

    async def _judge_gates(
        self, client: ClusterClient, workloads: Sequence[InstalledWorkload]
    ) -> AsyncIterator[CheckFinding]:
        """Whether somebody lets go of the pods that a policy of the API server is to hold."""
        policies = await gating_policies(client, self._selector)
        releasing = [each for each in workloads if each.config and each.config.admission.unknown is UnknownImages.GATE]
        if not releasing and _of_unknown_settings(workloads):
            return  # which check `settings` says
        leaders = [each.part.subject for each in releasing if policies and await is_led(client, each)]
        for policy in policies:
            subject = f"MutatingAdmissionPolicy {policy}"
            if leaders:
                yield _fine(CheckName.GATES, subject, f"{', '.join(leaders)} lets go of the pods that it holds")
            elif releasing:
                seen = "it holds new pods, and nobody has the Lease by which they are let go"
                yield _wrong(CheckName.GATES, subject, seen, "docs/runbooks.md#gates-without-leader")
            else:
                seen = "it holds new pods, and no part of the installation lets them go"
                remedy = "set admission.unknown to gate, or delete the policy and run multiarch-extender ungate -A"
                yield _wrong(CheckName.GATES, subject, seen, remedy)

    async def _judge_registries(
        self, client: ClusterClient, _workloads: Sequence[InstalledWorkload]
    ) -> AsyncIterator[CheckFinding]:
        chosen: dict[str, tuple[str, Pod]] = {}
        async for raw in listed_pods(client, _PODS):
            _choose(_NAMED.decode(raw), chosen)
        if not chosen:
            seen = "no pod is running that names one"
            yield CheckFinding(CheckName.REGISTRIES, "registries", CheckState.UNCHECKED, seen)
            return
        async with open_pod_resolver(self._settings, ClusterView(client=client), open_local_sources) as pod_resolver:
            wanted = [(image, _keyring_of(pod, pod_resolver)) for image, pod in chosen.values()]
            found = await describe_all(wanted, pod_resolver.resolver)
        for (host, (image, _)), answer in zip(chosen.items(), found, strict=True):
            yield _judge_registry(f"registry {host}", image, answer)


def _fine(check: CheckName, subject: str, seen: str) -> CheckFinding:
    return CheckFinding(check, subject, CheckState.FINE, seen)


def _wrong(check: CheckName, subject: str, seen: str, remedy: str) -> CheckFinding:
    return CheckFinding(check, subject, CheckState.WRONG, seen, remedy)


def _unchecked(check: CheckName, subject: str, refusal: ClusterRefused, right: str) -> CheckFinding:
    return CheckFinding(check, subject, CheckState.UNCHECKED, str(refusal), f"use an account that may {right}")


def _of_unknown_settings(workloads: Sequence[InstalledWorkload]) -> str:
    """The first part whose settings could not be read; empty if those of all are known."""
    return next((each.part.subject for each in workloads if each.config is None), "")


async def _judge_nodes(client: ClusterClient, _workloads: Sequence[InstalledWorkload]) -> AsyncIterator[CheckFinding]:
    nodes = [_NODE.decode(raw) async for raw in list_documents(client, "/api/v1/nodes")]
    for finding in judge_nodes(nodes):
        yield finding


async def _judge_rights(client: ClusterClient, workloads: Sequence[InstalledWorkload]) -> AsyncIterator[CheckFinding]:
    for workload in workloads:
        subject = f"ServiceAccount {workload.part.namespace}/{workload.account}"
        if workload.config is None:
            seen = f"what it takes is not known, as the settings of {workload.part.subject} are not"
            yield CheckFinding(CheckName.RIGHTS, subject, CheckState.UNCHECKED, seen)
        elif missing := await missing_rights(client, workload):
            seen = f"it may not {', '.join(map(str, missing))}"
            yield _wrong(CheckName.RIGHTS, subject, seen, "apply the roles of the chart again (rbac.create)")
        else:
            yield _fine(CheckName.RIGHTS, subject, "it may do what its settings take")


async def _judge_certificate(
    client: ClusterClient, webhook: KubernetesObject, configuration: str, workload: InstalledWorkload
) -> list[CheckFinding]:
    try:
        certificate = await read_certificate(client, workload, webhook)
    except (ClusterError, InvalidCertificate) as exc:
        subject = f"webhook {webhook.get('name')} of {configuration}"
        if isinstance(exc, ClusterRefused) and exc.status == 403:
            return [CheckFinding(CheckName.CERTIFICATE, subject, CheckState.UNCHECKED, str(exc))]
        return [_wrong(CheckName.CERTIFICATE, subject, str(exc), "docs/how-to/certificates.md")]
    return list(judge_certificate(webhook, configuration, certificate, called_names(webhook)))


_NOT_ASKED = frozenset({Cause.NOT_ALLOWED, Cause.LOOKING_UP, Cause.INVALID_REFERENCE})
_NOT_ANSWERED = frozenset({Cause.UNAVAILABLE, Cause.THROTTLED})


def _judge_registry(subject: str, image: str, answer: Image | Failure) -> CheckFinding:
    """Whether the registry of a running pod's image answers from here, as far as it was asked."""
    if isinstance(answer, Failure) and answer.cause in _NOT_ASKED:
        seen = f"it was not asked for {image}: {answer.detail}"
        return CheckFinding(CheckName.REGISTRIES, subject, CheckState.UNCHECKED, seen)
    if isinstance(answer, Failure) and answer.cause in _NOT_ANSWERED:
        remedy = "mend the way from here to it, or give a mirror (docs/how-to/mirrors.md)"
        return _wrong(CheckName.REGISTRIES, subject, f"{image}: {answer.detail}", remedy)
    return _fine(CheckName.REGISTRIES, subject, "it answers")


async def _judge_secrets(client: ClusterClient, workloads: Sequence[InstalledWorkload]) -> AsyncIterator[CheckFinding]:
    """Which pods name pull secrets that the service is not to read."""
    limited = [each.config.registry for each in workloads if each.config]
    limited = [each for each in limited if each.pull_secrets is not True]
    if all(each.has_logins for each in limited):  # which may open the same images; nobody can tell from here
        return
    unread: dict[str, list[str]] = {}
    async for raw in listed_pods(client, _PODS, UNFINISHED):
        metadata, spec = (pod := _NAMED.decode(raw)).metadata, pod.spec
        namespace = (metadata and metadata.namespace) or ""
        if spec and spec.image_pull_secrets and not all(each.reads_secrets_in(namespace) for each in limited):
            unread.setdefault(namespace, []).append((metadata and metadata.name) or "")
    for finding in judge_unread_secrets(unread):
        yield finding


async def _judge_mirrors(client: ClusterClient, workloads: Sequence[InstalledWorkload]) -> AsyncIterator[CheckFinding]:
    """Whether OpenShift's objects can be used, where a part goes by them."""
    if not any(each.config and each.config.registry.mirrors_of_openshift for each in workloads):
        return
    objects, problems = await list_mirror_objects(client)
    try:
        routes = routes_of(objects)
    except ConfigError as exc:
        seen = f"{exc}: nodes and the service keep what they had"
        yield _wrong(CheckName.MIRRORS, _MIRROR_OBJECTS, seen, "mend the objects (docs/how-to/mirrors.md)")
    else:
        seen = f"{len(routes.rules)} registries have mirrors or rules"
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


def _behind(configuration: str, serving: Sequence[InstalledWorkload]) -> InstalledWorkload:
    """The part that answers the webhooks of that configuration: the one of its name, else the first."""
    return next((each for each in serving if each.part.name == configuration), serving[0])


def _name(document: KubernetesObject) -> str:
    return str(look(document, ["metadata", "name"]))


def _choose(pod: Pod, chosen: dict[str, tuple[str, Pod]]) -> None:
    """Adds the pod's first image of each registry that has none yet."""
    for image in images_of(pod):
        try:
            host = parse_reference(image.reference).domain
        except InvalidReference:
            continue
        if len(chosen) < _IMAGES:
            chosen.setdefault(host, (image.reference, pod))


def _keyring_of(pod: Pod, pod_resolver: PodResolver) -> Keyring:
    namespace = (pod.metadata and pod.metadata.namespace) or ""
    return pod_resolver.question(pod, namespace, Overrides(), may_read=True).keyring
